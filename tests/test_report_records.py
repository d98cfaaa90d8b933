"""metrics.jsonl of anybody: checked numbers, sums that are right, sessions, figures as data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_samples import CHUNK, record

from tokenswift_cli.report.records import Records, read_records
from tokenswift_cli.report.sessions import moments_of, sessions_of
from tokenswift_cli.report.stretch import Stretch, Timed, Tried, merged, thinned

WRONG: list[Any] = [
    None, True, "7", -1, -0.5, 1e300, 10**400, float("nan"), float("inf"), [], {}, [[1, 2, 3]], [[3, 5]],
    {"heads": 7}, {"heads": {"drafted": 1, "accepted": 2}}, ["x"] * 4, [2.0] * 4, "2026-13-45",
    "2026-01-31T14:00:00",
]  # fmt: skip


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"chunk": n + 1, **one}).encode() + b"\n" for n, one in enumerate(records))


def read(*records: dict[str, Any]) -> Records:
    return read_records(lines(*records), last_chunk=len(records), token_count=len(records) * CHUNK)


def test_a_record_is_read_whole() -> None:
    (chunk,) = read(record(1)).chunks
    stretch = chunk.stretch
    assert (stretch.first, stretch.last, stretch.steps) == (0, CHUNK, 40)
    assert stretch.decoding == Timed(CHUNK, 2.0)
    assert stretch.plain.seconds == pytest.approx(3.0)
    assert stretch.speedup == pytest.approx(1.5)
    assert stretch.acceptance == Tried(60, 15)
    assert stretch.mean_acceptance_length == 1.5
    assert stretch.drafters == {"heads": Tried(40, 10), "suffix": Tried(20, 5)}
    assert stretch.distinct == (0.25, 0.5, 0.75, 1.0)
    assert chunk.session is not None and chunk.session.computed_rows == 3
    assert chunk.saved is not None and chunk.saved.minute == 2


@pytest.mark.parametrize("name", [name for name in record(1) if name not in ("tokens", "chunk_tokens")])
@pytest.mark.parametrize("value", [*WRONG, "missing"], ids=lambda value: str(value)[:12])
def test_a_value_that_cannot_be_costs_itself_alone(name: str, value: object) -> None:
    spoilt = record(1)
    if value == "missing":
        del spoilt[name]
    else:
        spoilt[name] = value
    found = read(spoilt, record(2))
    assert len(found.chunks) == 2 and not found.unusable
    assert found.chunks[1].stretch == read(record(1), record(2)).chunks[1].stretch
    total = merged([chunk.stretch for chunk in found.chunks])
    for number in (total.decoding.tokens_per_second, total.speedup, total.acceptance.rate, total.novelty):
        assert number is None or 0 <= number < 1e18


@pytest.mark.parametrize("tokens", [None, -1, 10**30, CHUNK - 1, 2 * CHUNK + 1, True, 50.0])
def test_a_record_that_lies_about_its_place_is_dropped_and_counted(tokens: object) -> None:
    found = read(record(1) | {"tokens": tokens}, record(2))
    assert [chunk.stretch.last for chunk in found.chunks] in ([2 * CHUNK], [])
    assert found.unusable == 2 - len(found.chunks)


@settings(deadline=None)
@given(st.binary(max_size=300))
@example(b"\r")
def test_any_bytes_are_read(data: bytes) -> None:
    found = read_records(data + lines(record(1)), last_chunk=1, token_count=CHUNK)
    assert len(found.chunks) <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(list(record(1))), JSON))
def test_any_values_are_read(values: dict[str, Any]) -> None:
    found = read(record(1) | values, record(2), record(3))
    if found.chunks:
        merged([chunk.stretch for chunk in found.chunks])
        sessions_of(found.chunks)
        moments_of(found.chunks)


def test_deep_nesting_is_an_unusable_line() -> None:
    deep = b'{"chunk": 1, "drafters": ' + b"[" * 20_000 + b"\n"
    found = read_records(deep + lines(record(1)), last_chunk=1, token_count=CHUNK)
    assert (len(found.chunks), found.unusable) == (1, 1)


def test_sums_weigh_each_chunk_by_what_it_holds() -> None:
    slow = record(2) | {"decode_seconds": 8.0, "depths": [[90, 0]], "mean_acceptance_length": 1.0}
    total = merged([chunk.stretch for chunk in read(record(1), slow).chunks])
    assert total.decoding.tokens_per_second == pytest.approx(100 / 10)
    assert total.mean_acceptance_length == pytest.approx((30 * 1.5 + 90) / 120)
    assert total.acceptance == Tried(150, 15)
    assert total.speedup == pytest.approx(6 / 10)
    assert total.kv_bytes == 2 * CHUNK * 2**20
    assert (total.first, total.last, total.chunks) == (0, 100, 2)


def test_chunks_without_times_do_not_distort_the_rate() -> None:
    untimed = record(2)
    del untimed["decode_seconds"]
    total = merged([chunk.stretch for chunk in read(record(1), untimed).chunks])
    assert total.decoding.tokens_per_second == pytest.approx(25)
    assert total.speedup == pytest.approx(1.5)


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 50))
def test_thinning_keeps_sums_and_ends(count: int, most: int) -> None:
    stretches = [Stretch(n, n + 1, decoding=Timed(1, 0.5), depths=(Tried(2, 1),)) for n in range(count)]
    thin = thinned(stretches, most)
    assert len(thin) <= most
    if stretches:
        assert merged(thin) == merged(stretches)
        assert [one.first for one in thin[1:]] == [one.last for one in thin[:-1]]


def test_sessions_and_pauses() -> None:
    chunks = read(record(1), record(2), record(3, resumed=True)).chunks
    first, second = sessions_of(chunks)
    assert (first.stretch.last, second.stretch.first) == (2 * CHUNK, 2 * CHUNK)
    assert first.working_seconds == 5.0
    # Saved at 14:06:00 after 1 s of getting ready and 2 s of decoding; the one before was saved at 14:04:00.
    assert second.pause_seconds == 117.0
    assert [moment.seconds for moment in moments_of(chunks)] == [1, 3, 5, 6, 8]
    assert [moment.session for moment in moments_of(chunks)] == [0, 0, 0, 1, 1]


def test_sessions_of_records_that_do_not_tell() -> None:
    old = [record(n) for n in (1, 2)]
    for one in old:
        one.pop("session", None)
        del one["time"]
    (session,) = sessions_of(read(*old).chunks)
    assert session.start is None and session.began is None and session.pause_seconds is None


def test_a_clock_that_ran_backwards_makes_no_negative_pause() -> None:
    chunks = read(record(1), record(2, resumed=True)).chunks
    early = replace(chunks[1], saved=chunks[0].saved)
    assert sessions_of([chunks[0], early])[1].pause_seconds == 0
