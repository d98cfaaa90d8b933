"""The loop alarm: exact cycles of any period, low novelty, and no false alarms."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.loops import MIN_CYCLE_TOKENS, LoopDetector, LoopReport


def reports_of(tokens: list[int]) -> list[tuple[int, LoopReport]]:
    """(index of the token that raised it, report) for every report."""
    detector = LoopDetector()
    pushed = ((index, detector.push(token)) for index, token in enumerate(tokens))
    return [(index, report) for index, report in pushed if report is not None]


def random_tokens(count: int, seed: int, vocabulary: int = 50_000) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(vocabulary) for _ in range(count)]


def word_tokens(count: int, seed: int) -> list[int]:
    """Text-like tokens: words with Zipf frequencies, each word always the same 1-3 tokens."""
    generator = random.Random(seed)
    words = [[1000 * rank + part for part in range(1 + rank % 3)] for rank in range(1, 4000)]
    weights = [1 / rank for rank in range(1, 4000)]
    tokens: list[int] = []
    while len(tokens) < count:
        for word in generator.choices(words, weights, k=1000):
            tokens += word
    return tokens[:count]


@pytest.mark.parametrize("period", [1, 2, 3, 7, 64, 500, 2048])
def test_exact_cycles_are_reported_once_with_their_period(period: int) -> None:
    """Case 23: whatever the period, the alarm comes long before the end of the text."""
    before = word_tokens(3000, seed=period)
    cycle = [900_000 + token for token in range(period)]
    repeats = max(6, 300 // period)
    reports = reports_of(before + cycle * repeats)
    assert len(reports) == 1
    index, report = reports[0]
    assert report.period == period
    assert report.start == len(before)
    assert index - len(before) <= max(3 * period, MIN_CYCLE_TOKENS)


def test_one_line_two_hundred_times() -> None:
    """Case 23: the alarm comes within the first few copies."""
    line = word_tokens(23, seed=5)
    reports = reports_of(word_tokens(500, seed=6) + line * 200)
    assert [report.period for _, report in reports] == [23]
    assert reports[0][0] < 500 + 4 * 23


def test_a_long_cycle_with_repetitions_inside() -> None:
    cycle = [1] * 20 + random_tokens(300, seed=1) + [1] * 20 + random_tokens(200, seed=2) + [2, 3] * 15
    reports = reports_of(random_tokens(1000, seed=3) + cycle * 4)
    assert [report.period for _, report in reports] == [len(cycle)]


def test_a_cycle_with_a_counter_is_low_novelty() -> None:
    """Case 23: no exact cycle, and still a loop."""
    line = random_tokens(30, seed=1)
    tokens = word_tokens(2000, seed=2)
    for number in range(200):
        tokens += [60_000 + number, *line]
    reports = reports_of(tokens)
    assert [report.period for _, report in reports] == [0]
    assert reports[0][0] < 2000 + 1500


@pytest.mark.parametrize("period", [7, 64, 500])
def test_near_cycles_that_break_raise_no_alarm(period: int) -> None:
    cycle = random_tokens(period, seed=period)
    tokens: list[int] = []
    for round_number in range(8):
        tokens += random_tokens(700, seed=100 + round_number) + cycle + cycle[: period // 2]
    assert reports_of(tokens) == []


@pytest.mark.parametrize("vocabulary", [64, 256, 50_000])
def test_random_tokens_raise_no_alarm(vocabulary: int) -> None:
    assert reports_of(random_tokens(12_000, seed=vocabulary, vocabulary=vocabulary)) == []


def test_natural_text_raises_no_alarm() -> None:
    assert reports_of(word_tokens(40_000, seed=9)) == []


def test_a_refrain_raises_no_alarm() -> None:
    refrain = random_tokens(40, seed=4)
    tokens: list[int] = []
    for verse in range(40):
        tokens += random_tokens(120, seed=200 + verse) + refrain + refrain
    assert reports_of(tokens) == []


def test_a_second_loop_is_reported_after_novelty_returned() -> None:
    first, second = [1, 2, 3, 4, 5], [6, 7, 8]
    tokens = first * 100 + word_tokens(1500, seed=1) + second * 100
    assert [report.period for _, report in reports_of(tokens)] == [5, 3]


def test_one_stray_token_inside_a_loop_is_not_a_new_onset() -> None:
    tokens = word_tokens(1000, seed=3)
    for stray in range(10):
        tokens += [1, 2, 3] * 60 + [70_000 + stray]
    assert [report.period for _, report in reports_of(tokens)] == [3]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(0, 400), st.integers(0, 2**16))
def test_any_cycle_after_any_text(period: int, before: int, seed: int) -> None:
    cycle = list(range(100_000, 100_000 + period))
    length = max(3 * period, MIN_CYCLE_TOKENS)
    tokens = random_tokens(before, seed) + (cycle * (length // period + 1))[:length]
    reports = reports_of(tokens)
    assert [(report.period, report.start) for _, report in reports] == [(period, before)]


def test_memory_is_bounded() -> None:
    detector = LoopDetector()
    for token in random_tokens(40_000, seed=8):
        detector.push(token)
    assert len(detector._keys._last) <= 2048 and len(detector._grams._last) <= 16_384
    assert len(detector._flags) <= 1024
