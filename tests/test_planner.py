"""The planner drafts where it pays and only there. Costs are given, not measured."""

from __future__ import annotations

from tokenswift_cli.engine.acceptance import AcceptanceModel
from tokenswift_cli.engine.costs import CostModel
from tokenswift_cli.engine.guard import DraftingGuard
from tokenswift_cli.engine.planner import SpeedPlanner
from tokenswift_cli.engine.tree import Draft


def planner(costs, *, draft_cost=None, max_nodes=15, max_depth=6, may_skip=True):
    made = SpeedPlanner(max_nodes, max_depth=max_depth, may_skip=may_skip)
    for rows, seconds in costs.items():
        made.costs.observe(rows, seconds)
    if draft_cost is not None:
        made.draft_costs.observe(1, draft_cost)
    return made


def teach(made, draft, committed, times=100):
    for _ in range(times):
        made.learn([draft], committed)


RIGHT = Draft((1, 2, 3, 4), "suffix", (3, 3, 3, 3))
FLAT = {1: 1.0, 16: 1.05}
STEEP = {1: 1.0, 2: 2.0, 16: 16.0}


def test_drafting_switches_itself_off_where_it_loses():
    """Case 17: rows as dear as whole steps, or drafts that are never right."""
    dear = planner(STEEP)
    teach(dear, RIGHT, (1, 2, 3, 4, 5))
    assert len(dear.plan(0, [RIGHT], 0)) == 1
    wrong = planner({1: 1.0, 16: 1.3})
    teach(wrong, RIGHT, (9,))
    assert len(wrong.plan(0, [RIGHT], 0)) == 1


def test_drafts_are_verified_where_they_pay():
    cheap = planner(FLAT)
    teach(cheap, RIGHT, (1, 2, 3, 4, 5))
    assert len(cheap.plan(0, [RIGHT], 0)) == 5


def test_a_switched_off_drafter_is_still_judged():
    made = planner({1: 1.0, 16: 1.3})
    teach(made, RIGHT, (9,))
    teach(made, RIGHT, (1, 2, 3, 4, 5))
    assert len(made.plan(0, [RIGHT], 0)) == 5


def test_lookup_always_verifies_something():
    dear = planner(STEEP, may_skip=False)
    teach(dear, RIGHT, (9,))
    assert len(dear.plan(0, [RIGHT], 0)) == 2


def test_the_budget_is_where_another_row_stops_paying():
    made = planner({1: 1.0, 3: 1.1, 4: 3.0, 16: 9.0})
    teach(made, RIGHT, (1, 2, 3, 4, 5))
    assert len(made.plan(0, [RIGHT], 0)) == 3


def test_self_draft_pays_only_where_draft_passes_are_cheap():
    assert planner(FLAT).draft_depth() == 0, "nothing known about the cost of a draft pass"
    assert planner(FLAT, draft_cost=1.0).draft_depth() == 0
    cheap = planner(FLAT, draft_cost=0.1)
    assert cheap.draft_depth() == 6 and cheap.go_on([], [])
    chain = [("self", 7)] * 6
    assert not cheap.go_on(chain, [])


def test_an_unsure_chain_is_broken_off():
    made = planner({1: 1.0, 16: 1.5}, draft_cost=0.25)
    unsure, sure = Draft((1,), "self", (0,)), Draft((1,), "self", (7,))
    for _ in range(60):
        made.learn([unsure], (2,))
        made.learn([sure], (1, 5))
        made.learn([sure], (1, 5))
    assert made.go_on([("self", 7)], []) and not made.go_on([("self", 0)], [])


def test_free_proposals_may_make_a_draft_pass_needless():
    made = planner(FLAT, draft_cost=0.6)
    teach(made, RIGHT, (1, 2, 3, 4, 5))
    assert made.go_on([], [])
    assert not made.go_on([], [RIGHT])


def test_costs_are_interpolated_and_follow_live_timings():
    costs = CostModel()
    assert costs.seconds(3) is None
    costs.observe(2, 1.0)
    costs.observe(6, 3.0)
    assert costs.seconds(4) == 2.0 and costs.seconds(1) == 1.0 and costs.seconds(12) == 6.0
    for _ in range(10):
        costs.observe(2, 4.0)
    assert costs.seconds(2) == 4.0
    costs.observe(2, 1000.0)
    assert costs.seconds(2) == 4.0, "one stall must not move the estimate"


def test_a_stalled_first_timing_is_forgotten():
    """Case 17: the next timing of the same size is believed instead."""
    made = planner({1: 3.0, 16: 1.2})
    made.costs.observe(1, 1.0)
    teach(made, RIGHT, (9,))
    assert len(made.plan(0, [RIGHT], 0)) == 1


def test_acceptance_is_conditional_on_the_path():
    model = AcceptanceModel()
    draft = Draft((1, 2), "d")
    for _ in range(200):
        model.learn([draft], (1, 9))
    assert model.probability("d", 0, 1) > 0.95 and model.probability("d", 0, 2) < 0.05
    before = model.probability("d", 0, 2)
    model.learn([draft], (5, 2))
    assert model.probability("d", 0, 2) == before
    continuation = Draft((1, 2), "c", (), 1)
    before = model.probability("c", 0, 1)
    model.learn([continuation], (5, 2))
    assert model.probability("c", 0, 1) == before, "its given token was not committed"
    model.learn([continuation], (1, 2))
    assert model.probability("c", 0, 1) > before


def test_what_a_drafter_adds_to_better_ones_is_judged_apart():
    """Mostly right where it agrees with those before it, never where it does not: not worth a row there."""
    model = AcceptanceModel()
    best = Draft((1,), "a")
    for _ in range(100):
        model.learn([best, Draft((1,), "b")], (1,))
        model.learn([best, Draft((2,), "b")], (1,))
    second = Draft((1,), "b")
    assert model.chance(second, 0, 0) > 0.8 and model.chance(second, 0, 1) < 0.05
    made = planner({1: 1.0, 16: 2.0})
    for _ in range(100):
        made.learn([best, Draft((1,), "b")], (1, 7))
        made.learn([best, Draft((2,), "b")], (1, 7))
    assert made.plan(0, [best, Draft((2,), "b")], 0).tokens == (0, 1)


def test_what_was_slower_than_plain_is_paused_for_longer_each_time():
    """Case 17, whatever the estimates say."""
    guard = DraftingGuard()
    guard.record(None, 1, 1.0)
    used = 0
    for _ in range(2000):
        if guard.allows("self"):
            guard.record("self", 2, 3.0)
            used += 1
        else:
            guard.record(None, 1, 1.0)
    # Each use costs one plain step's time more than its two tokens are worth.
    assert 0 < used < 0.05 * 2000


def test_what_is_faster_goes_on_and_plain_steps_stay_known():
    guard = DraftingGuard()
    guard.record(None, 1, 1.0)
    plain = 0
    for _ in range(2000):
        if guard.allows("self"):
            guard.record("self", 3, 2.0)
        else:
            guard.record(None, 1, 1.0)
            plain += 1
    assert 0 < plain < 0.05 * 2000


def test_a_paused_way_does_not_pause_the_others():
    guard = DraftingGuard()
    guard.record(None, 1, 1.0)
    for _ in range(6):
        guard.record("self", 1, 5.0)
    assert not guard.allows("self") and guard.allows("lookup")


def test_sizes_never_timed_cost_what_rows_cost_so_far_and_are_tried_step_by_step():
    costs = CostModel()
    for rows, seconds in {1: 1.0, 2: 1.5, 4: 1.7}.items():
        costs.observe(rows, seconds)
    # 0.1 a row between 2 and 4, 0.233 from 1 to 4: the dearer one.
    assert abs(costs.seconds(10) - (1.7 + 6 * 0.7 / 3)) < 1e-9
    assert costs.largest_to_try == 8
    disturbed = CostModel()
    for rows, seconds in {1: 1.0, 2: 3.0, 4: 1.2}.items():
        disturbed.observe(rows, seconds)
    assert disturbed.seconds(16) >= 1.2


def test_a_size_is_not_verified_before_half_of_it_was_timed():
    made = planner({1: 1.0, 2: 1.0, 4: 1.0})
    long = Draft(tuple(range(1, 16)), "suffix", (3,) * 15)
    teach(made, long, tuple(range(1, 17)))
    assert len(made.plan(0, [long], 0)) == 8


def test_a_draft_pass_is_timed_only_once_it_reads_less_than_a_plain_one():
    from tokenswift_cli.engine.probes import Probe, ProbeSchedule

    schedule = ProbeSchedule(16, self_drafting=True)
    while (probe := schedule.next(1000, chain_may_pay=False)) is not None:
        assert probe.rows and not probe.chain
        schedule.done(probe, 1)
    assert schedule.next(1000, chain_may_pay=True) == Probe(chain=1)
    schedule.done(Probe(chain=1), 2)
    assert schedule.next(1000, chain_may_pay=True) is None
