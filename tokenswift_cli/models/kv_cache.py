"""The key-value store: preallocated, written in place, never concatenated.

Rows past ``length`` are scratch: a verification writes its whole tree there, and committing the
accepted path moves those rows together. Rejected rows are simply overwritten by the next step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Long runs grow in steps of this many tokens; a copy per step, one layer at a time.
GROWTH_TOKENS = 16384


class KeyValueCache:
    """Keys and values of one sequence for every attention layer.

    Layers are allocated when first written, from the shapes the model itself produces. On the CPU the
    system backs preallocated memory with real pages only as rows are written.

    Args:
        capacity: tokens to allocate for; grows when more are written.

    Attributes:
        length: committed tokens; the same for all layers.
    """

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self._capacity = max(capacity, 1)
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put T rows behind the committed ones.

        Args:
            layer: index of the attention layer.
            keys: [KV heads, T, key size].
            values: [KV heads, T, value size].
        """
        end = self.length + keys.shape[1]
        if layer not in self._keys or end > self._keys[layer].shape[1]:
            self._allocate(layer, keys, values, end)
        self._keys[layer][:, self.length : end] = keys
        self._values[layer][:, self.length : end] = values

    def keys(self, layer: int) -> Tensor:
        """[KV heads, capacity, key size]; rows past the written ones hold anything."""
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        """[KV heads, capacity, value size]; rows past the written ones hold anything."""
        return self._values[layer]

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these of the rows just written, in this order, and drop the others.

        Args:
            rows: ascending offsets from ``length``.
        """
        count = len(rows)
        if rows[-1] != count - 1:
            # Ascending rows only move down, but neighbours may overlap: gather first, then write.
            moved = next(i for i, row in enumerate(rows) if row != i)
            sources = torch.tensor([self.length + row for row in rows[moved:]], device=self._device)
            span = slice(self.length + moved, self.length + count)
            for store in (self._keys, self._values):
                for tensor in store.values():
                    tensor[:, span] = tensor.index_select(1, sources)
        self.length += count

    @property
    def _device(self) -> torch.device:
        return next(iter(self._keys.values())).device

    @property
    def layers(self) -> int:
        """Number of layers written so far."""
        return len(self._keys)

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token takes over all layers; 0 before the first write."""
        return sum(
            tensor.shape[0] * tensor.shape[2] * tensor.element_size()
            for store in (self._keys, self._values)
            for tensor in store.values()
        )

    @property
    def used_bytes(self) -> int:
        """Bytes of the committed tokens."""
        return self.bytes_per_token * self.length

    def _allocate(self, layer: int, keys: Tensor, values: Tensor, end: int) -> None:
        while self._capacity < end:
            self._capacity += GROWTH_TOKENS
        for store, rows in ((self._keys, keys), (self._values, values)):
            grown = torch.empty(
                rows.shape[0], self._capacity, rows.shape[2], dtype=rows.dtype, device=rows.device
            )
            if layer in store:
                grown[:, : self.length] = store[layer][:, : self.length]
            store[layer] = grown
