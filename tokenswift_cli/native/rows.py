"""Copying rows of all layers' keys and values in one call, where torch would need one for each store."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenswift_cli.native.functions import functions_of

if TYPE_CHECKING:
    from torch import Tensor

INTERFACE = 1


class _Store(ctypes.Structure):
    """As ``RowStore`` in rows.cpp."""

    _fields_ = (
        ("to", ctypes.c_void_p),
        ("from_", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("to_stride", ctypes.c_int64),
        ("from_stride", ctypes.c_int64),
    )


class _Call(ctypes.Structure):
    """As ``RowCall`` in rows.cpp."""

    _fields_ = (
        ("stores", ctypes.c_void_p),
        ("stores_size", ctypes.c_int64),
        ("from_rows", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("to_row", ctypes.c_int64),
        ("rows", ctypes.c_int64),
    )


class RowCopy:
    """Copies rows from some stores into others, or within them; it holds on to both.

    Args:
        library: the compiled library.
        targets: contiguous [heads, rows, size] each, on the CPU.
        sources: likewise, of the same heads, sizes and types, pairwise; they may be the targets.

    Raises:
        BuildError: the library is another version's.
        ValueError: the stores do not fit.
    """

    def __init__(self, library: ctypes.CDLL, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        (self._copy,) = functions_of(library, "rows", INTERFACE, "copy_rows")
        self._copy.argtypes = (ctypes.c_void_p,)
        self._copy.restype = None
        self._held = (tuple(targets), tuple(sources))
        self._target_rows, self._source_rows = (
            min((store.shape[1] for store in stores), default=0) for stores in self._held
        )
        stores = [_store(*pair) for pair in zip(targets, sources, strict=True)]
        self._stores = (_Store * len(stores))(*stores)
        self._call = _Call(stores=ctypes.addressof(self._stores), stores_size=len(stores))
        self._address = ctypes.addressof(self._call)

    def stretch(self, first: int, count: int, to_row: int) -> None:
        """Copy the rows ``first`` .. ``first + count - 1`` to ``to_row`` and on.

        Raises:
            ValueError: there are not so many rows.
        """
        self._require(first, first + count, to_row, count)
        call = self._call
        call.from_rows = None
        call.first, call.to_row, call.rows = first, to_row, count
        self._copy(self._address)

    def gather(self, rows: Sequence[int], to_row: int) -> None:
        """Copy ``rows``, ascending, to ``to_row`` and on; within one store none may lie before its new place.

        Raises:
            ValueError: there are not so many rows.
        """
        self._require(rows[0], rows[-1] + 1, to_row, len(rows))
        places = (ctypes.c_int64 * len(rows))(*rows)
        call = self._call
        call.from_rows = ctypes.addressof(places)
        call.to_row, call.rows = to_row, len(rows)
        self._copy(self._address)

    def _require(self, first: int, end: int, to_row: int, count: int) -> None:
        if not (0 <= first <= end <= self._source_rows and 0 <= to_row <= self._target_rows - count):
            raise ValueError(
                f"{count} rows of {first} .. {end - 1} cannot be copied to {to_row} and on: there are "
                f"{self._source_rows} and {self._target_rows}"
            )


def _store(target: Tensor, source: Tensor) -> _Store:
    heads, _, size = target.shape
    alike = (source.shape[0], source.shape[2], source.dtype) == (heads, size, target.dtype)
    if not alike or not all(store.is_contiguous() and store.is_cpu for store in (target, source)):
        raise ValueError(
            f"rows of {source.dtype} {tuple(source.shape)} on {source.device} cannot be copied into "
            f"{target.dtype} {tuple(target.shape)} on {target.device}"
        )
    row_bytes = size * target.element_size()
    return _Store(
        to=target.data_ptr(),
        from_=source.data_ptr(),
        heads=heads,
        row_bytes=row_bytes,
        to_stride=target.shape[1] * row_bytes,
        from_stride=source.shape[1] * row_bytes,
    )
