"""Rows of a float16 key-value store that could not hold what the model computed.

A number beyond float16's range is stored as infinity. A key's infinity can have a score of -inf, which no
later check sees: the text would go on without that token. So every committed row is looked at. Infinities
are found by their bits, in all layers at once: on the CPU through numpy, whose views cost a tenth of torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAGNITUDE = 0x7FFF  # all bits of a float16 but the sign
_INFINITY = 0x7C00  # magnitudes above it are NaN

# Rows of all layers that are brought together at once; a longer stretch is looked at in pieces.
_PIECE_ROWS = 64


class OverflowFinder:
    """Looks for infinities in rows of several stores.

    Args:
        stores: float16 [KV heads, capacity, size] each; looked at in place.
    """

    def __init__(self, stores: Sequence[Tensor]) -> None:
        self._on_cpu = all(store.is_cpu for store in stores)
        bits = [store.view(torch.int16) for store in stores]
        self._bits: list[Any] = [store.numpy() for store in bits] if self._on_cpu else list(bits)

    def find(self, first: int, end: int) -> int | None:
        """Index of a store with an infinity in its rows ``first`` .. ``end`` - 1, or None."""
        for start in range(first, end, _PIECE_ROWS):
            rows = slice(start, min(start + _PIECE_ROWS, end))
            # A layer behind an infinity computes NaN, so the largest magnitude alone does not tell.
            if self._largest(rows) >= _INFINITY:
                for index, bits in enumerate(self._bits):
                    if bool(((bits[:, rows] & _MAGNITUDE) == _INFINITY).any()):
                        return index
        return None

    def _largest(self, rows: slice) -> int:
        if self._on_cpu:
            together = np.concatenate([bits[:, rows] for bits in self._bits], axis=None)
            np.bitwise_and(together, _MAGNITUDE, out=together)
            return int(together.max())
        together_there = torch.cat([bits[:, rows].flatten() for bits in self._bits])
        return int((together_there & _MAGNITUDE).amax())
