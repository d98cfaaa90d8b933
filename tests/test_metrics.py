"""Distinct-n, acceptance, rates and memory against their definitions."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.events import DrafterShare
from tokenswift_cli.metrics import (
    DistinctCounter,
    HashSet64,
    RunStatistics,
    peak_process_memory_bytes,
    process_memory_bytes,
)


def distinct_by_definition(ids: list[int], length: int) -> float:
    grams = [tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)]
    return len(set(grams)) / len(grams)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 6) | st.integers(0, 2**32 - 1), min_size=4, max_size=200), st.integers(0, 200))
def test_distinct_equals_its_definition_for_any_split(ids: list[int], cut: int) -> None:
    counter = DistinctCounter()
    counter.push(ids[:cut])
    counter.push(ids[cut:])
    assert counter.values() == tuple(distinct_by_definition(ids, length) for length in (1, 2, 3, 4))
    assert counter.tokens == len(ids)


def test_distinct_means_nothing_below_four_tokens() -> None:
    counter = DistinctCounter()
    counter.push([1, 2, 3])
    assert counter.values() is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(1, 40).map(lambda low: low << 20), max_size=400))
def test_hash_set_behaves_like_a_set(keys: list[int]) -> None:
    compact, reference = HashSet64(), set[int]()
    for key in keys:
        assert compact.add(key) == ((key or 1) not in reference)
        reference.add(key or 1)
    assert len(compact) == len(reference)


def test_hash_set_grows() -> None:
    compact = HashSet64()
    keys = [hash((number, 7)) & (2**64 - 1) for number in range(30_000)]
    assert all(compact.add(key) for key in keys)
    assert not any(compact.add(key) for key in keys)


def test_rates_mean_what_their_names_say() -> None:
    statistics = RunStatistics()
    statistics.record(committed=4, seconds=0.1, drafted=5, accepted=3, shares={"suffix": (5, 3)})
    statistics.record(committed=1, seconds=0.1, drafted=3, accepted=0, shares={"ngram": (3, 0)})
    statistics.record(committed=1, seconds=0.1)
    assert statistics.acceptance_rate == 3 / 8
    assert statistics.mean_acceptance_length == 5 / 2  # the plain step is not a verification
    assert statistics.tokens_per_forward == 6 / 3
    assert statistics.tokens_per_second == pytest.approx(6 / 0.3)
    assert statistics.drafters == {"suffix": DrafterShare(5, 3), "ngram": DrafterShare(3, 0)}


def test_rates_are_none_before_they_mean_something() -> None:
    statistics = RunStatistics()
    assert statistics.tokens_per_second is None and statistics.recent_tokens_per_second is None
    assert statistics.acceptance_rate is None and statistics.mean_acceptance_length is None
    assert statistics.eta_seconds(100) is None and statistics.eta_seconds(0) == 0.0
    statistics.record(committed=1, seconds=0.5)
    assert statistics.acceptance_rate is None and statistics.eta_seconds(10) == pytest.approx(5.0)


def test_recent_rate_forgets_what_is_older_than_the_window() -> None:
    statistics = RunStatistics()
    for _ in range(100):
        statistics.record(committed=10, seconds=0.5)
    for _ in range(100):
        statistics.record(committed=5, seconds=0.5)
    assert statistics.recent_tokens_per_second == pytest.approx(10.0)
    assert statistics.tokens_per_second == pytest.approx(15.0)


def test_recent_rate_survives_a_step_longer_than_the_window() -> None:
    statistics = RunStatistics()
    statistics.record(committed=2, seconds=0.1)
    statistics.record(committed=2, seconds=40.0)
    assert statistics.recent_tokens_per_second == pytest.approx(0.05)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0.01, 0.5)), min_size=60, max_size=120))
def test_eta_does_not_jump(steps: list[tuple[int, float]]) -> None:
    """One step (at most 0.5 s of a 30 s half-life) moves the time left by a few per cent only."""
    statistics = RunStatistics()
    for _ in range(60):
        statistics.record(committed=8, seconds=0.25)
    for committed, seconds in steps:
        before = statistics.eta_seconds(50_000)
        statistics.record(committed=committed, seconds=seconds)
        after = statistics.eta_seconds(50_000)
        assert before is not None and after is not None
        assert abs(after / before - 1) < 0.12


def test_eta_follows_a_lasting_change_of_speed() -> None:
    statistics = RunStatistics()
    for _ in range(400):
        statistics.record(committed=10, seconds=0.5)
    for _ in range(400):
        statistics.record(committed=5, seconds=0.5)
    assert statistics.eta_seconds(1000) == pytest.approx(100.0, rel=0.03)


def test_impossible_steps_are_refused() -> None:
    for committed, drafted, accepted in ((-1, 0, 0), (1, 1, 2), (1, 0, -1)):
        with pytest.raises(ValueError, match="impossible"):
            RunStatistics().record(committed=committed, seconds=0.1, drafted=drafted, accepted=accepted)


def test_progress_carries_the_numbers() -> None:
    statistics = RunStatistics()
    statistics.record(committed=4, seconds=1.0, drafted=4, accepted=3, shares={"suffix": (4, 3)})
    progress = statistics.progress(tokens=104, max_tokens=204, distinct=(0.1, 0.2, 0.3, 0.4), speedup=1.5)
    assert (progress.tokens, progress.session_tokens, progress.max_tokens) == (104, 4, 204)
    assert progress.eta_seconds == pytest.approx(25.0)
    assert progress.drafters["suffix"] == DrafterShare(4, 3)


def test_memory_is_in_bytes() -> None:
    now, peak = process_memory_bytes(), peak_process_memory_bytes()
    assert 5 << 20 < now < 1 << 40
    assert peak >= now * 0.5
    # A mapping of its own: a block of the heap may be memory that the process held already.
    with mmap.mmap(-1, 64 << 20) as block:
        for place in range(0, len(block), 1 << 12):
            block[place] = 1
        assert process_memory_bytes() - now > 32 << 20
    assert peak_process_memory_bytes() >= now + (32 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system counts otherwise")
def test_the_peak_is_this_process_s_own_and_not_its_parent_s():
    script = (
        "import subprocess, sys; held = bytearray(b'x') * (300 << 20); "
        "child = 'from tokenswift_cli.metrics import peak_process_memory_bytes as p; print(p())'; "
        "done = subprocess.run([sys.executable, '-c', child], capture_output=True, text=True, check=True); "
        "print(done.stdout)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 250 << 20
