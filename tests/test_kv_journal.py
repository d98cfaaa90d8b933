"""The key-value journal: files that vouch for themselves, and a resume that computes only what they lack."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli import durable
from tokenswift_cli.engine.filling import fill
from tokenswift_cli.errors import ResumeRefusedError
from tokenswift_cli.kv_journal.journal import Journal, origin_of
from tokenswift_cli.kv_journal.journal_file import Stretch, UnusableRowsError, map_rows, write_rows
from tokenswift_cli.kv_journal.policy import plan_journal
from tokenswift_cli.kv_journal.prefix_digest import PrefixDigest
from tokenswift_cli.kv_journal.stretches import Span, file_of, missing, spans_in, usable
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.kv_range import OverflowFinder

ORIGIN = origin_of({"model": "test"})
ALWAYS = plan_journal("always", 1, 1, 1)


def filled_cache(length: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> KeyValueCache:
    """Two layers of different shapes."""
    generator = torch.Generator().manual_seed(seed)
    cache = KeyValueCache(length + 8, dtype)
    for layer, heads in ((0, 2), (3, 1)):
        keys = torch.randn(heads, length, 4, generator=generator)
        cache.write(layer, keys, torch.randn(heads, length, 3, generator=generator))
    cache.length = length
    return cache


def same_rows(one: KeyValueCache, other: KeyValueCache) -> bool:
    assert one.layout == other.layout and one.length == other.length
    rows = slice(0, one.length)
    return all(
        torch.equal(one.keys(layer)[:, rows], other.keys(layer)[:, rows])
        and torch.equal(one.values(layer)[:, rows], other.values(layer)[:, rows])
        for layer in (0, 3)
    )


def stretch_of(first: int, last: int, ids: list[int]) -> Stretch:
    return Stretch(first, last, PrefixDigest(ids).at(last), ORIGIN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype) -> None:
    cache, ids = filled_cache(37, dtype), list(range(37))
    read = KeyValueCache(4, dtype)
    for first, last in ((0, 20), (20, 37)):
        stretch = stretch_of(first, last, ids)
        path = file_of(tmp_path, Span(first, last))
        assert write_rows(path, stretch, cache) == path.stat().st_size
        assert cache.layout is not None
        assert map_rows(path, stretch, cache.layout).append_to(read, last) == last - first
    assert same_rows(cache, read)


def test_every_bit_of_a_file_counts(tmp_path: Path) -> None:
    cache, ids = filled_cache(3), [5, 6, 7]
    stretch, path = stretch_of(0, 3, ids), tmp_path / "rows.kv"
    write_rows(path, stretch, cache)
    sound = path.read_bytes()
    assert cache.layout is not None
    for position in random.Random(0).sample(range(len(sound)), 300):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(UnusableRowsError):
            map_rows(path, stretch, cache.layout)
    for size in (0, 1, 100, len(sound) - 1, len(sound) + 1):
        path.write_bytes(sound[:size].ljust(size, b"\0"))
        with pytest.raises(UnusableRowsError, match="bytes instead of"):
            map_rows(path, stretch, cache.layout)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tokens_sha256": "0" * 64}, "tokens_sha256"),
        ({"origin": origin_of({"model": "another"})}, "origin"),
        ({"first": 1, "last": 4}, "first, last"),
    ],
)
def test_a_foreign_file_is_told_apart(tmp_path: Path, change: dict[str, object], word: str) -> None:
    cache = filled_cache(3)
    stretch, path = stretch_of(0, 3, [5, 6, 7]), tmp_path / "rows.kv"
    write_rows(path, stretch, cache)
    assert cache.layout is not None
    with pytest.raises(UnusableRowsError, match=f"something else \\({word}"):
        map_rows(path, replace(stretch, **change), cache.layout)  # type: ignore[arg-type]
    with pytest.raises(UnusableRowsError, match=r"something else \(dtype"):
        map_rows(path, stretch, replace(cache.layout, dtype=torch.int32))


def test_hostile_headers_are_damage(tmp_path: Path) -> None:
    cache = filled_cache(3)
    stretch, path = stretch_of(0, 3, [5, 6, 7]), tmp_path / "rows.kv"
    write_rows(path, stretch, cache)
    size = path.stat().st_size
    assert cache.layout is not None
    for header in (b"[" * 3000, b"[]", b"{", b"\xff" * 8, b""):
        import hashlib

        head = b"TSWKVROW" + len(header).to_bytes(4, "little") + header
        path.write_bytes((head + hashlib.sha256(head).digest()).ljust(size, b"\0"))
        with pytest.raises(UnusableRowsError, match="header is damaged"):
            map_rows(path, stretch, cache.layout)
    path.write_bytes((b"TSWKVROW" + b"\xff" * 4).ljust(size, b"\0"))
    with pytest.raises(UnusableRowsError, match="header is damaged"):
        map_rows(path, stretch, cache.layout)


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: Span(pair[0], sum(pair))), max_size=12
)


@given(spans, st.integers(0, 80), st.integers(1, 30))
def test_chosen_and_missing_spans_tile_the_text(found: list[Span], limit: int, longest: int) -> None:
    chosen = usable(sorted(found), limit)
    gaps = missing(chosen, limit, longest)
    tiles = sorted(chosen + gaps)
    assert [span.first for span in tiles] == [0, *(span.last for span in tiles)][: len(tiles)]
    assert not tiles or tiles[-1].last == limit
    assert all(0 < gap.last - gap.first <= longest for gap in gaps)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.data())
def test_prefix_digests_are_hashes_of_prefixes(ids: list[int], data: st.DataObject) -> None:
    import hashlib

    lengths = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    cut = data.draw(st.integers(0, lengths[0] if lengths else 0))
    digest = PrefixDigest(ids[:cut])
    digest.extend(ids[cut:])
    for length in lengths:
        expected = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids[:length])).hexdigest()
        assert digest.at(length) == expected
    if lengths and lengths[-1]:
        with pytest.raises(ValueError, match="cannot hash"):
            digest.at(lengths[-1] - 1)


class _Recomputing:
    """Stands in for a target: "computes" rows by copying them from a full cache, and counts them."""

    def __init__(self, source: KeyValueCache) -> None:
        self.source = source
        self.cache = KeyValueCache(8, torch.float32)
        self.computed: list[Span] = []

    def read(self, token_ids: list[int]) -> None:
        rows = slice(self.cache.length, self.cache.length + len(token_ids))
        for layer in (0, 3):
            self.cache.write(layer, self.source.keys(layer)[:, rows], self.source.values(layer)[:, rows])
        self.computed.append(Span(rows.start, rows.stop))
        self.cache.length = rows.stop


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_only_what_is_missing_is_computed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Case 21, for the journal: any files lost, torn or foreign cost their own rows, never others'."""
    directory = tmp_path_factory.mktemp("run") / "kv"
    length = data.draw(st.integers(2, 60))
    ids = list(range(100, 100 + length))
    source = filled_cache(length)
    ends = sorted({*data.draw(st.sets(st.integers(1, length), max_size=6)), length})
    pieces = [Span(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    directory.mkdir()
    for span in pieces:
        write_rows(file_of(directory, span), stretch_of(span.first, span.last, ids), source)
    harm = data.draw(
        st.lists(
            st.sampled_from(["sound", "lost", "torn", "foreign"]), min_size=len(pieces), max_size=len(pieces)
        )
    )
    for span, kind in zip(pieces, harm, strict=True):
        path = file_of(directory, span)
        if kind == "lost":
            path.unlink()
        elif kind == "torn":
            path.write_bytes(path.read_bytes()[:-1])
        elif kind == "foreign":
            write_rows(path, stretch_of(span.first, span.last, [7] * length), filled_cache(length, seed=1))
    journal = Journal(directory, ORIGIN, ALWAYS)
    target = _Recomputing(source)
    assert source.layout is not None
    with journal.open_rows(ids, source.layout) as rows:
        list(fill(target, ids, 8, rows))  # type: ignore[arg-type]
        assert rows.sound == [span for span, kind in zip(pieces, harm, strict=True) if kind == "sound"]
        assert len(rows.problems) == sum(kind in ("torn", "foreign") for kind in harm)
        journal.begin([*ids, 1], rows.sound, target.cache)
    assert same_rows(source, target.cache)
    lost = {row for span, kind in zip(pieces, harm, strict=True) if kind != "sound" for row in range(*span)}
    assert [row for span in target.computed for row in range(*span)] == sorted(lost)
    # The journal is whole again afterwards.
    journal.save([], last=True)
    again = _Recomputing(source)
    with Journal(directory, ORIGIN, ALWAYS).open_rows(ids, source.layout) as rows:
        list(fill(again, ids, 8, rows))  # type: ignore[arg-type]
        assert not rows.problems
    assert not again.computed and same_rows(source, again.cache)


def test_rows_are_written_while_the_cache_grows(tmp_path: Path) -> None:
    """Growth moves the rows to other memory while the writer may be reading them."""
    cache, ids = filled_cache(300), list(range(1000, 60_000))
    journal = Journal(tmp_path / "kv", ORIGIN, ALWAYS)
    journal.begin(ids[:301], [], cache)
    done = 301
    for _ in range(40):
        rows = torch.randn(2, 500, 4), torch.randn(2, 500, 3)
        cache.write(0, *rows)
        cache.write(3, rows[0][:1], rows[1][:1])
        cache.length += 500
        journal.save(ids[done : done + 500])
        done += 500
    journal.save([], last=True)
    assert journal.take_failure() is None
    read = KeyValueCache(4, torch.float32)
    assert cache.layout is not None
    with Journal(tmp_path / "kv", ORIGIN, ALWAYS).open_rows(ids[: cache.length], cache.layout) as stored:
        while read.length < cache.length and stored.restore(read, cache.length):
            pass
        assert not stored.problems
    assert same_rows(cache, read)


@pytest.mark.parametrize(("start", "limit"), [(0, 15), (0, 20), (7, 33), (20, 21), (33, 37), (36, 37)])
def test_a_part_of_a_file_will_do(tmp_path: Path, start: int, limit: int) -> None:
    cache, ids = filled_cache(37), list(range(37))
    for span in (Span(0, 20), Span(20, 37)):
        write_rows(file_of(tmp_path, span), stretch_of(*span, ids), cache)
    read = filled_cache(37)
    read.length = start
    assert cache.layout is not None
    with Journal(tmp_path, ORIGIN, ALWAYS).open_rows(ids, cache.layout) as stored:
        while read.length < limit:
            assert stored.restore(read, limit)
        assert stored.restored == limit - start
    cache.length = limit
    assert same_rows(cache, read)


def test_a_file_serves_more_than_once(tmp_path: Path) -> None:
    """Rows of the middle of it are computed, as those of audited tokens are; the rest is still there."""
    cache, ids = filled_cache(37), list(range(37))
    for span in (Span(0, 20), Span(20, 37)):
        write_rows(file_of(tmp_path, span), stretch_of(*span, ids), cache)
    target = _Recomputing(cache)
    assert cache.layout is not None
    with Journal(tmp_path, ORIGIN, ALWAYS).open_rows(ids, cache.layout) as stored:
        for end in (4, 9, 18, 30, 37):
            list(fill(target, ids[: end - 1], 8, stored))  # type: ignore[arg-type]
            target.read(ids[end - 1 : end])
        assert stored.sound == [Span(0, 20), Span(20, 37)] and not stored.problems
    assert target.computed == [Span(end - 1, end) for end in (4, 9, 18, 30, 37)]
    assert same_rows(cache, target.cache)


def test_rows_go_where_the_cache_is(tmp_path: Path) -> None:
    cache = filled_cache(3)
    stretch, path = stretch_of(0, 3, [5, 6, 7]), tmp_path / "rows.kv"
    write_rows(path, stretch, cache)
    elsewhere = KeyValueCache(8, torch.float32, torch.device("meta"))
    assert cache.layout is not None
    map_rows(path, stretch, cache.layout).append_to(elsewhere, 3)
    assert elsewhere.length == 3 and elsewhere.keys(0).is_meta and elsewhere.values(3).is_meta


def test_restored_rows_are_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16 each row is looked at once, when it is committed; a restored text is long."""
    cache = filled_cache(300, torch.float16)
    stretch, path = stretch_of(0, 300, list(range(300))), tmp_path / "rows.kv"
    write_rows(path, stretch, cache)
    read = KeyValueCache(400, torch.float16)
    assert cache.layout is not None
    map_rows(path, stretch, cache.layout).append_to(read, 300)
    looked: list[tuple[int, int]] = []
    monkeypatch.setattr(OverflowFinder, "find", lambda self, first, end: looked.append((first, end)))
    for layer, heads in ((0, 2), (3, 1)):
        read.write(layer, torch.randn(heads, 1, 4), torch.randn(heads, 1, 3))
    read.commit([0])
    assert looked == [(300, 301)]


def test_leaving_early_waits_for_one_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C must not wait for gigabytes."""
    begun, go_on, honest = threading.Event(), threading.Event(), write_rows

    def slow(path: Path, stretch: Stretch, cache: KeyValueCache) -> int:
        begun.set()
        assert go_on.wait(30)
        return honest(path, stretch, cache)

    monkeypatch.setattr("tokenswift_cli.kv_journal.writer.write_rows", slow)
    monkeypatch.setattr("tokenswift_cli.kv_journal.journal.MOST_ROWS", 10)
    journal = Journal(tmp_path / "kv", ORIGIN, ALWAYS)
    journal.begin(list(range(101)), [], filled_cache(100))
    assert begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    journal.close()
    assert spans_in(tmp_path / "kv") == [Span(0, 10)]
    assert journal.written_bytes == file_of(tmp_path / "kv", Span(0, 10)).stat().st_size


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_a_text_that_ends_within_a_step(tmp_path: Path, kept: int) -> None:
    """The step committed five tokens, the text took fewer: what the text did not take is not written."""
    cache, ids = filled_cache(15), list(range(10))
    cache.length = 9
    journal = Journal(tmp_path / "kv", ORIGIN, ALWAYS)
    journal.begin(ids, [], cache)
    cache.length = 14
    journal.save([100 + token for token in range(kept)], last=True)
    assert journal.take_failure() is None
    assert spans_in(tmp_path / "kv") == [Span(0, 9), Span(9, 9 + kept)]


def test_tiny_chunks_do_not_make_tiny_files(tmp_path: Path) -> None:
    cache = filled_cache(10)
    journal = Journal(tmp_path / "kv", ORIGIN, ALWAYS)
    journal.begin(list(range(11)), [], cache)
    for _ in range(300):
        cache.write(0, torch.randn(2, 1, 4), torch.randn(2, 1, 3))
        cache.write(3, torch.randn(1, 1, 4), torch.randn(1, 1, 3))
        cache.length += 1
        journal.save([0])
    journal.save([], last=True)
    assert spans_in(tmp_path / "kv") == [Span(0, 10), Span(10, 266), Span(266, 310)]


def test_a_journal_elsewhere_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "kv").symlink_to(elsewhere)
    with pytest.raises(ResumeRefusedError, match="symbolic link"):
        spans_in(tmp_path / "kv")


def test_a_full_disk_ends_the_journal_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> NoReturn:
        raise OSError(28, "No space left on device", str(path))

    cache = filled_cache(10)
    journal = Journal(tmp_path / "kv", ORIGIN, ALWAYS)
    monkeypatch.setattr(durable, "replacing", full)
    journal.begin(list(range(11)), [], cache)
    journal.save([], last=True)
    failure = journal.take_failure()
    assert isinstance(failure, OSError) and failure.errno == 28
    assert journal.take_failure() is None and journal.written_bytes == 0
    journal.save([1, 2])  # nothing more is tried


@pytest.mark.parametrize(
    ("mode", "tokens", "free", "held", "kept", "reason"),
    [
        ("auto", 100_000, 10**10, 0, True, "need not read"),
        ("auto", 4095, 10**10, 0, False, "quickly"),
        ("auto", 100_000, 9 * 10**8, 0, False, "half"),
        ("auto", 100_000, 6 * 10**8, 4 * 10**8, True, "need not read"),
        ("always", 1, 0, 0, True, "always"),
        ("never", 100_000, 10**10, 0, False, "never"),
    ],
)
def test_the_plan(mode: str, tokens: int, free: int, held: int, kept: bool, reason: str) -> None:
    plan = plan_journal(mode, tokens, 5000, free, held)
    assert plan.kept == kept and reason in plan.reason
    assert plan.disk_bytes == (max(0, tokens * 5000 - held) if kept else 0)
