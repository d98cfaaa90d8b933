"""Random damage to a run: never another error than ours, never a token that was not written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_dir_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.errors import TokenSwiftError
from tokenswift_cli.growing_file import decode_ids, encode_ids, whole_records
from tokenswift_cli.run_dir import RunDirectory

CHUNKS = 9
FILES = (
    "run.yaml",
    "meta.json",
    "prompt.txt",
    "prompt.ids",
    "tokens.bin",
    "output.txt",
    "metrics.jsonl",
    ".lock",
    "newest",
    "previous",
)


@pytest.fixture(scope="module")
def whole_run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        samples.make_run(path, CHUNKS)
        yield path


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, str, int, int]:
    """(file, kind, position, detail)"""
    kind = draw(st.sampled_from(["flip", "truncate", "append", "zero", "delete"]))
    return draw(st.sampled_from(FILES)), kind, draw(st.integers(0, 10_000)), draw(st.integers(0, 255))


def apply(path: Path, damage: tuple[str, str, int, int]) -> None:
    name, kind, position, detail = damage
    manifests = sorted((path / "checkpoints").glob("*.json"), reverse=True)
    by_age = {"newest": manifests[:1], "previous": manifests[-1:]}
    targets = [target for target in by_age.get(name, [path / name]) if target.exists()]
    if not targets:
        return
    target = targets[0]
    size = target.stat().st_size
    if kind == "delete":
        target.unlink()
    elif kind == "append":
        target.write_bytes(target.read_bytes() + bytes([detail]) * (position % 50))
    elif kind == "truncate":
        os.truncate(target, position % (size + 1))
    elif size and kind == "flip":
        samples.flip_bit(target, position, detail % 8)
    elif size:
        data = bytearray(target.read_bytes())
        start = position % size
        end = min(start + detail, size)
        data[start:end] = bytes(end - start)
        target.write_bytes(bytes(data))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.lists(damages(), min_size=1, max_size=3))
def test_damage_never_crashes_and_never_invents_a_token(
    whole_run: Path, damage: list[tuple[str, str, int, int]]
) -> None:
    """Cases 19, 21: after any damage a resume refuses clearly, or gives a prefix and goes on from it."""
    with tempfile.TemporaryDirectory() as directory:

        def change(path: Path) -> None:
            for each in damage:
                apply(path, each)

        path = samples.copied(whole_run, Path(directory) / "run", change)
        try:
            samples.recovered(path)
        except TokenSwiftError as error:
            assert str(path) in str(error)
            return
        samples.assert_continues(path)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(damages().filter(lambda damage: damage[0] in ("tokens.bin", "output.txt", "metrics.jsonl", "newest")))
def test_one_damage_costs_no_more_than_it_must(whole_run: Path, damage: tuple[str, str, int, int]) -> None:
    """Case 21: all chunks before the damaged one survive; a damaged manifest costs one at most."""
    name, kind, *_ = damage
    with tempfile.TemporaryDirectory() as directory:
        path = samples.copied(whole_run, Path(directory) / "run", lambda path: apply(path, damage))
        total = samples.count_after(CHUNKS)
        if name == "tokens.bin" and kind == "delete":
            with pytest.raises(TokenSwiftError, match="it is missing"):
                samples.recovered(path)
            return
        before = encode_ids(samples.tokens_up_to(total))
        data = (path / "tokens.bin").read_bytes()
        ends = [4 * samples.count_after(chunk) for chunk in range(CHUNKS + 1)]
        good = max(chunk for chunk, end in enumerate(ends) if before[:end] == data[:end])
        recovery = samples.recovered(path)
        if name == "newest":
            assert recovery.chunk in (CHUNKS, CHUNKS - 1)
        elif name == "tokens.bin":
            assert len(recovery.tokens) == samples.count_after(good)
            assert recovery.lost_tokens == total - samples.count_after(good)
        else:
            assert recovery.chunk == CHUNKS
        assert bool(recovery.lost_tokens) <= bool(recovery.messages)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2**32 - 1), max_size=6), st.text(max_size=8)), max_size=6),
    st.sets(st.integers(0, 5)),
)
def test_any_chunks_come_back_with_reopenings_anywhere(
    chunks: list[tuple[list[int], str]], reopen_before: set[int]
) -> None:
    """Case 19: what is appended comes back, however the appends are spread over processes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        run = samples.create(path)
        for index, (tokens, text) in enumerate(chunks):
            if index in reopen_before:
                run.close()
                run = RunDirectory.open(path)
                run.recover()
            run.append_chunk(tokens, text, {"index": index}, extra={"index": index})
        run.close()
        recovery = samples.recovered(path)
        assert recovery.tokens == [token for tokens, _ in chunks for token in tokens]
        assert recovery.text == "".join(text for _, text in chunks)
        assert recovery.extra == ({"index": len(chunks) - 1} if chunks else {})
        assert recovery.messages == ()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_round_trip(ids: list[int]) -> None:
    assert decode_ids(encode_ids(ids)) == ids
    assert encode_ids(ids) == b"".join(value.to_bytes(4, "little") for value in ids)


@settings(deadline=None, derandomize=True)
@given(st.binary(), st.integers(0, 5))
def test_whole_records_never_fail_and_can_be_applied_twice(data: bytes, last_chunk: int) -> None:
    kept = whole_records(data, last_chunk)
    assert whole_records(kept, last_chunk) == kept
