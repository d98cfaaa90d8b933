"""Copying rows of all layers at once: what torch's operators do, store by store."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.models import kv_cache
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.partial_cache import PartialCache
from tokenswift_cli.native.rows import RowCopy

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def stores(rows: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 4), (1, 7), (3, 1))
    return [torch.randn(heads, rows, size, generator=generator).to(dtype) for heads, size in shapes]


@settings(deadline=None)
@given(st.data(), st.sampled_from(DTYPES))
def test_a_stretch_into_other_stores(library: ctypes.CDLL, data: st.DataObject, dtype: torch.dtype) -> None:
    rows, capacity = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    count = data.draw(st.integers(0, min(rows, capacity)))
    first, to_row = data.draw(st.integers(0, rows - count)), data.draw(st.integers(0, capacity - count))
    sources, targets = stores(rows, dtype, 0), stores(capacity, dtype, 1)
    expected = [target.clone() for target in targets]
    for target, source in zip(expected, sources, strict=True):
        target[:, to_row : to_row + count] = source[:, first : first + count]
    RowCopy(library, targets, sources).stretch(first, count, to_row)
    assert all(torch.equal(*pair) for pair in zip(targets, expected, strict=True))


@settings(deadline=None)
@given(st.sets(st.integers(0, 19), min_size=1), st.data(), st.sampled_from(DTYPES))
def test_rows_come_together_within_a_store(
    library: ctypes.CDLL, chosen: set[int], data: st.DataObject, dtype: torch.dtype
) -> None:
    rows, held = sorted(chosen), stores(20, dtype, 0)
    to_row = data.draw(st.integers(0, rows[0]))
    expected = [store.clone() for store in held]
    for store in expected:
        store[:, to_row : to_row + len(rows)] = store[:, rows].clone()
    RowCopy(library, held, held).gather(rows, to_row)
    assert all(torch.equal(*pair) for pair in zip(held, expected, strict=True))


def test_what_does_not_fit_is_refused(library: ctypes.CDLL) -> None:
    held = stores(5, torch.float32, 0)
    copy = RowCopy(library, held, held)
    for call in (
        lambda: copy.stretch(3, 3, 0),
        lambda: copy.stretch(0, 3, 3),
        lambda: copy.stretch(-1, 1, 0),
        lambda: copy.gather([5], 0),
        lambda: copy.gather([1, 2], 4),
        lambda: copy.gather([1], -1),
        lambda: RowCopy(library, held, stores(5, torch.float16, 0)),
        lambda: RowCopy(library, held, held[::-1]),
        lambda: RowCopy(library, [store[:, ::2] for store in held], held),
    ):
        with pytest.raises(ValueError, match="rows"):
            call()


def _write(cache: KeyValueCache, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for layer in (2, 0, 1):  # the order of the first writes must not matter
        keys = torch.randn(2, count, 4, generator=generator)
        cache.write(layer, keys, torch.randn(2, count, 4, generator=generator))


@pytest.mark.parametrize("compiled", [True, False])
def test_caches_hold_the_same_with_and_without(
    library: ctypes.CDLL, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the full cache has grown, which leaves old rows where it was."""
    if not compiled:
        monkeypatch.setattr(kv_cache, "loaded_library", lambda: None)
    full, partial = KeyValueCache(24), PartialCache(64, 4)
    _write(full, 12, 0)
    full.length = 12
    for layer in (0, 1, 2):  # as after a refresh that chose the first rows
        partial.write(layer, full.keys(layer)[:, :8], full.values(layer)[:, :8])
    partial.length, partial.covered = 8, 8
    expected = {layer: full.keys(layer)[:, :12].clone() for layer in (0, 1, 2)}
    for step, (rows, commit) in enumerate(
        [(5, [0, 2, 4]), (3, [0]), (40, [0, 7, 39]), (4, [0, 1, 3])], start=1
    ):
        length = full.length
        _write(full, rows, step)
        new = {layer: full.keys(layer)[:, [length + row for row in commit]].clone() for layer in (0, 1, 2)}
        full.commit(commit)
        partial.follow(full)
        for layer in (0, 1, 2):
            expected[layer] = torch.cat([expected[layer], new[layer]], dim=1)
            assert torch.equal(full.keys(layer)[:, : full.length], expected[layer])
            assert torch.equal(partial.keys(layer)[:, 8 : partial.length], expected[layer][:, 8:])
    assert (full._copy is not None) == (partial._copy is not None) == compiled
