"""The line of recent speeds, and the time left: near the truth and calm."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_display import PROGRESS, STARTED

from tokenswift_cli.display.remaining import RemainingTime
from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.sparkline import BLOCKS, SECONDS_PER_CELL, SpeedHistory, sparkline


def test_a_block_is_as_high_as_its_value() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == BLOCKS
    assert sparkline([0, 4, 8, 8, 1]) == "▁▄██▁"
    assert sparkline([]) == "" and sparkline([0.0, 0.0]) == "▁▁"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=60))
def test_every_value_has_one_block_and_the_largest_the_full_one(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == len(values) and set(line) <= set(BLOCKS)
    if max(values, default=0.0) > 0:
        assert line[values.index(max(values))] == BLOCKS[-1]


def test_speeds_are_means_of_five_seconds_of_decoding() -> None:
    history = SpeedHistory()
    for _ in range(100):
        history.add(10, 0.1)  # ten seconds
    for _ in range(10):
        history.add(10, 0.5)  # five more, a fifth as fast
    assert history.rates(10) == pytest.approx([100.0, 100.0, 20.0])
    assert history.rates(1) == pytest.approx([20.0])
    history.add(7, 1.0)  # a cell that is not full yet is not shown
    assert len(history.rates(10)) == 3 and history.rates(0) == []


def test_one_long_step_is_spread_over_the_cells_it_took() -> None:
    history = SpeedHistory()
    history.add(30, 3 * SECONDS_PER_CELL)
    assert history.rates(10) == pytest.approx([2.0, 2.0, 2.0])
    history.add(1, 0.0)
    history.add(1_000_000, 1e9)  # not one cell for each of its seconds
    assert len(history.rates(1000)) == 60


def test_the_picture_of_a_run_knows_its_speeds_and_its_time_left() -> None:
    view = RunView(opened_at=0.0)
    view.apply(replace(STARTED, prompt_tokens=285), 0.0)
    for tenth in range(1, 301):
        progress = replace(PROGRESS, tokens=5 * tenth, session_tokens=5 * tenth, decode_seconds=tenth / 10)
        view.apply(replace(progress, max_tokens=10_000), tenth / 10)
    assert view.speeds.rates(10) == pytest.approx([50.0] * 6)
    assert view.seconds_left == pytest.approx((10_000 - 1500) / 50, rel=0.01)


# Time left -------------------------------------------------------------------------------------


def played(
    total: int, first_ms: float, growth_ms: float, *, prompt: int = 300
) -> list[tuple[float, float, float]]:
    """(seconds passed, told, truth), one a second, of a run whose tokens cost more and more, with noise."""
    rng = random.Random(3)
    costs = [
        (first_ms + growth_ms * (prompt + n) / 1000) / 1000 * rng.lognormvariate(0.0, 0.3)
        for n in range(total)
    ]
    left, passed, asked = sum(costs), 0.0, 0.0
    remaining, record = RemainingTime(), []
    for index, cost in enumerate(costs, 1):
        remaining.add(prompt + index, 1, cost)
        passed, left = passed + cost, left - cost
        if passed - asked >= 1.0 and index < total:
            told = remaining.seconds_left(total - index)
            assert told is not None
            record.append((passed, told, left))
            asked = passed
    return record


@pytest.mark.parametrize(("first_ms", "growth_ms"), [(20.0, 0.0), (11.0, 1.5), (20.0, 2.8)])
def test_the_time_left_is_near_the_truth_and_does_not_jump(first_ms: float, growth_ms: float) -> None:
    """Costs like those of the demo model's long runs, where a plain rate promises much too little."""
    record = played(20_000, first_ms, growth_ms)
    errors = [abs(told - truth) / truth for passed, told, truth in record if passed > 60 and truth > 20]
    assert max(errors) <= 0.35 and statistics.fmean(errors) <= 0.1
    assert max(errors[len(errors) // 2 :]) <= 0.1
    for (before, told_before, _), (passed, told, truth) in pairwise(record):
        if before > 10 and truth > 20:
            assert abs(told - (told_before - (passed - before))) <= 0.05 * told_before


def test_a_sudden_change_of_speed_is_followed_in_small_steps() -> None:
    remaining = RemainingTime()
    for index in range(1, 6001):
        remaining.add(index, 1, 0.02)
        before = remaining.seconds_left(30_000 - index)
    for index in range(6001, 12_001):  # twice as slow, for four minutes
        remaining.add(index, 1, 0.04)
        told = remaining.seconds_left(30_000 - index)
        assert told is not None and before is not None and abs(told - before) < 0.01 * before
        before = told
    # A slower machine cannot be told from a longer text at once; but too little is not promised.
    assert before is not None and 18_000 * 0.04 * 0.9 < before < 18_000 * 0.04 * 2


def test_without_growth_it_is_what_is_left_at_the_speed_there_is() -> None:
    remaining = RemainingTime()
    assert remaining.seconds_left(10) is None and remaining.seconds_left(0) == 0.0
    remaining.add(100, 50, 2.0)
    assert remaining.seconds_left(100) == pytest.approx(4.0)
    assert remaining.seconds_left(100) == pytest.approx(4.0)  # asking again changes nothing
    remaining.add(100, 0, 1.0)  # no token, no news
    assert remaining.seconds_left(100) == pytest.approx(4.0)
    assert remaining.seconds_left(0) == 0.0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(1e-4, 100.0)), min_size=1, max_size=60),
    st.integers(1, 10**6),
)
def test_the_time_left_is_never_negative_nor_beyond_what_costs_allow(
    steps: list[tuple[int, float]], left: int
) -> None:
    """Growth is at most proportional to the length, whatever was measured."""
    remaining, position = RemainingTime(), 100
    for tokens, seconds in steps:
        position += tokens
        remaining.add(position, tokens, seconds)
        told = remaining.seconds_left(left)
        assert told is not None and told >= 0
    dearest = max(seconds / tokens for tokens, seconds in steps)
    estimate = remaining.estimate(left)
    assert estimate is not None
    assert 0 < estimate <= left * dearest * (1 + (left + 2 * (position - 100)) / 100) * 1.01
