"""Which positions an audit covers: what was asked for, all of it, and in passes that overlap nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.audit.positions import Selection, read_selection, selected_positions, stretches
from tokenswift_cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [("20:30", 20, 30), ("20k:", 20_000, None), (":500", None, 500), (":", None, None), (" 1 : 2 ", 1, 2)],
)
def test_ranges_are_half_open_with_open_ends(text: str, first: int | None, end: int | None) -> None:
    assert read_selection(text, None, None) == Selection(first, end)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("20", None, None), "--range 20 must be two positions"),
        (("a:b", None, None), "--range must be a whole number"),
        (("-5:", None, None), "--range must be 0 or more"),
        (("5:5", None, None), "holds no position"),
        ((":0", None, None), "holds no position"),
        (("1:2:3", None, None), "--range must be a whole number"),
        ((None, "0", None), "--sample must be 1 or more"),
        ((None, "half", None), "--sample must be a whole number"),
        ((None, "5", "-1"), "--sample-seed must be 0 or more"),
        ((None, None, "3"), "give --sample N too"),
    ],
)
def test_bad_values_are_usage_errors(arguments: tuple[str | None, str | None, str | None], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_selection(*arguments)


@pytest.mark.parametrize("text", ["10:", "5:11", ":11", "11:12"])
def test_a_range_beyond_the_text_is_refused_with_its_length(text: str) -> None:
    with pytest.raises(UsageError, match=r"holds 10 tokens, the last position is 9"):
        selected_positions(read_selection(text, None, None), 10)


def test_an_empty_run_has_no_positions() -> None:
    assert list(selected_positions(Selection(), 0)) == []
    with pytest.raises(UsageError, match="nothing to audit yet"):
        selected_positions(Selection(first=0), 0)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 400), st.integers(0, 5), st.data())
def test_a_sample_is_drawn_from_its_range_without_repetition(
    count: int, sample: int, seed: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(first + 1, count))
    selection = Selection(first, end, sample, seed)
    drawn = list(selected_positions(selection, count))
    assert drawn == sorted(set(drawn)) and set(drawn) <= set(range(first, end))
    assert len(drawn) == min(sample, end - first)
    assert drawn == list(selected_positions(selection, count))


def test_seeds_draw_different_samples() -> None:
    samples = {tuple(selected_positions(Selection(sample=20, seed=seed), 10_000)) for seed in range(20)}
    assert len(samples) == 20


@settings(deadline=None)
@given(st.sets(st.integers(0, 2000), max_size=200), st.integers(1, 300))
def test_stretches_cover_each_position_once_and_read_forward(chosen: set[int], most: int) -> None:
    positions = sorted(chosen)
    covered: list[int] = []
    behind = 0
    for stretch in stretches(positions, most):
        assert behind <= stretch.first < stretch.end <= stretch.first + most
        assert stretch.audited[0] == stretch.first and stretch.audited[-1] == stretch.end - 1
        covered += stretch.audited
        behind = stretch.end
    assert covered == positions


def test_a_range_is_cut_into_full_stretches() -> None:
    found = [(one.first, one.end) for one in stretches(range(10, 300), 128)]
    assert found == [(10, 138), (138, 266), (266, 300)]
