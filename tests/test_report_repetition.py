"""The repetition map and Distinct-n against naive ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.metrics import DistinctCounter
from tokenswift_cli.report.repetition import Integers, recurrences, repetition_map
from tokenswift_cli.report.repetition_cells import SHADES, levels_of
from tokenswift_cli.report.run_data import distinct_of

# Few different ids, so that n-grams recur; some beyond 16 and 31 bits, where digits and signs could go wrong.
IDS = st.sampled_from([0, 1, 2, 65535, 65536, 65537, 2**31, 2**32 - 1])
TEXTS = st.one_of(st.lists(IDS, max_size=120), st.lists(st.integers(0, 2**32 - 1), max_size=30))


def array(tokens: list[int]) -> Integers:
    return np.array(tokens, dtype=np.int64)


def naive_recurrences(tokens: list[int], size: int) -> list[tuple[int, int]]:
    last: dict[tuple[int, ...], int] = {}
    found: list[tuple[int, int]] = []
    for start in range(len(tokens) - size + 1):
        ngram = tuple(tokens[start : start + size])
        if ngram in last:
            found.append((start, last[ngram]))
        last[ngram] = start
    return found


@settings(deadline=None)
@given(TEXTS, st.integers(1, 17))
def test_recurrences_are_those_that_a_dictionary_finds(tokens: list[int], size: int) -> None:
    positions, previous = recurrences(array(tokens), size)
    assert list(zip(positions.tolist(), previous.tolist(), strict=True)) == naive_recurrences(tokens, size)


@settings(deadline=None)
@given(TEXTS, st.integers(1, 9), st.integers(1, 12))
def test_the_map_counts_each_recurrence_in_its_cell(tokens: list[int], size: int, most: int) -> None:
    found = repetition_map(array(tokens), size, most)
    cells = len(found.counts)
    expected = np.zeros((cells, cells), dtype=np.int64)
    for position, previous in naive_recurrences(tokens, size):
        expected[position // found.cell_tokens, previous // found.cell_tokens] += 1
    assert cells <= max(1, most)
    assert cells * found.cell_tokens >= len(tokens)
    assert found.counts.tolist() == expected.tolist()
    assert found.recurring == expected.sum()
    assert found.ngrams == max(0, len(tokens) - size + 1)


@settings(deadline=None)
@given(TEXTS)
def test_distinct_n_is_what_the_run_counts_as_it_writes(tokens: list[int]) -> None:
    counter = DistinctCounter()
    counter.push(tokens)
    expected = counter.values()
    found = distinct_of(array(tokens))
    assert (found is None) == (expected is None)
    assert found is None or found == pytest.approx(expected)


@settings(deadline=None)
@given(TEXTS.filter(bool), st.integers(1, 4), st.integers(1, 12))
def test_the_rectangles_cover_the_cells_that_count_and_no_others(
    tokens: list[int], size: int, most: int
) -> None:
    found = repetition_map(array(tokens), size, most)
    side, cells = found.cell_tokens, len(found.counts)
    painted = np.full((cells, cells), -1)
    for shade, level in enumerate(levels_of(found)):
        for one in level.rectangles:
            area = painted[one.left // side : one.right // side, one.bottom // side : one.top // side]
            assert (area == -1).all(), "painted twice"
            area[:] = shade
    for (column, row), count in np.ndenumerate(found.counts):
        shade = int(painted[column, row])
        assert (shade >= 0) == (count > 0)
        if shade >= 0:
            assert count >= SHADES[shade][0] * side
            assert shade == len(SHADES) - 1 or count < SHADES[shade + 1][0] * side


def test_a_text_of_one_hundred_thousand_tokens_stays_small() -> None:
    tokens = np.random.default_rng(5).integers(0, 30, 100_000)
    found = repetition_map(tokens, 4, 80)
    assert found.counts.shape == (80, 80)
    assert sum(len(level.rectangles) for level in levels_of(found)) <= 80 * 81 // 2
    assert np.triu(found.counts, 1).sum() == 0  # nothing recurs before it stood first
