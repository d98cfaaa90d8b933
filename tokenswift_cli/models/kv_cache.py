"""The key-value store: preallocated, written in place, never concatenated.

Rows past ``length`` are scratch: a verification writes its whole tree there, and committing the
accepted path moves those rows together. Rejected rows are simply overwritten by the next step.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.kv_layout import KeyValueLayout, LayerLayout
from tokenswift_cli.models.kv_range import OverflowFinder
from tokenswift_cli.native.attention import loaded_library
from tokenswift_cli.native.rows import RowCopy

# Long runs grow in steps of this many tokens; a copy per step, one layer at a time.
GROWTH_TOKENS = 16384


class KeyValueCache:
    """Keys and values of one sequence for every attention layer.

    Layers are allocated when first written, from the shapes the model itself produces. On the CPU the
    system backs preallocated memory with real pages only as rows are written; elsewhere a cache grows in
    steps.

    Args:
        capacity: tokens to make room for; more when more are written.
        dtype: rows are stored in this type, rounded if need be; None for the type they are written in.
            float16 for a model that computes in more is half the memory and traffic, and another text.
        device: where rows are stored; None for where they are first written from.

    Attributes:
        length: committed tokens; the same for all layers.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> None:
        self.length = 0
        self._wanted_device = device
        self._capacity = max(capacity, 1)
        self._dtype = dtype
        self._checked = 0
        self._finder: OverflowFinder | None = None
        self._generation = 0
        self._copy: RowCopy | None = None
        self._copied: tuple[object, int, int] | None = None  # what the copy is between
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put T rows behind the committed ones.

        Args:
            layer: index of the attention layer.
            keys: [KV heads, T, key size] of any float type.
            values: [KV heads, T, value size], likewise.
        """
        end = self.length + keys.shape[1]
        if layer not in self._keys or end > self._keys[layer].shape[1]:
            self._allocate(layer, keys, values, end)
        self._keys[layer][:, self.length : end] = keys
        self._values[layer][:, self.length : end] = values

    def make_room(self, layers: int, heads: int, size: int, rows: int, dtype: torch.dtype) -> None:
        """See that ``rows`` more rows can be written in place, in layers 0 .. ``layers`` - 1 on the CPU.

        Args:
            layers, heads, size, dtype: of keys and values alike, as :meth:`write` would be given them.
            rows: behind the committed ones.
        """
        end = self.length + rows
        for layer in range(layers):
            if layer not in self._keys or end > self._keys[layer].shape[1]:
                shape = torch.empty((heads, 0, size), dtype=dtype)
                self._allocate(layer, shape, shape, end)

    def keys(self, layer: int) -> Tensor:
        """[KV heads, capacity, key size]; rows past the written ones hold anything."""
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        """[KV heads, capacity, value size]; rows past the written ones hold anything."""
        return self._values[layer]

    def accept(self, count: int) -> None:
        """Keep the ``count`` rows just written, which were committed before, in a cache like this one."""
        if self._checked == self.length:
            self._checked += count
        self.length += count

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these of the rows just written, in this order, and drop the others.

        Args:
            rows: ascending offsets from ``length``.

        Raises:
            ModelError: see :meth:`require_in_range`; nothing is committed.
        """
        count = len(rows)
        if rows[-1] != count - 1:
            moved = next(i for i, row in enumerate(rows) if row != i)
            self._gather([self.length + row for row in rows[moved:]], self.length + moved)
        self.require_in_range(self.length + count)
        self.length += count
        self._checked = self.length

    def _gather(self, rows: Sequence[int], to_row: int) -> None:
        """Bring ascending ``rows`` together from ``to_row`` on; none lies before its new place."""
        copy = self._copy_from(self)
        if copy is not None:
            copy.gather(rows, to_row)
            return
        # Neighbours may overlap: gather first, then write.
        sources = torch.tensor(rows, device=self._device)
        span = slice(to_row, to_row + len(rows))
        for tensor in self._stores:
            tensor[:, span] = tensor.index_select(1, sources)

    def _copy_from(self, other: KeyValueCache) -> RowCopy | None:
        """Compiled copying of rows of ``other`` into this cache; None where there is none."""
        # A cache that has grown has its rows elsewhere. Weak, as a cache copies within itself, too.
        between = (weakref.ref(other), other._generation, self._generation)
        if self._copied != between:
            self._copied, self._copy = between, None
            library = loaded_library()
            if library is not None and self._device.type == "cpu" and self.layout == other.layout:
                self._copy = RowCopy(library, self._stores, other._stores)
        return self._copy

    def require_in_range(self, end: int) -> None:
        """See that the store holds what was written, in the rows since the last such look up to ``end`` - 1.

        Costs nothing where the type is not a chosen float16. :meth:`commit` does it; whoever reads a text in
        without it does so himself, to hear of a fault at once.

        Raises:
            ModelError: a key or value is beyond float16's range.
        """
        if self._dtype is not torch.float16 or not self._keys:
            return
        if self._finder is None:
            self._finder = OverflowFinder(self._stores)
        found = self._finder.find(min(self._checked, self.length), end)
        if found is not None:
            layers = sorted(self._keys) * 2
            raise ModelError(
                f"A {'key' if found < len(self._keys) else 'value'} in layer {layers[found]} is beyond the "
                f"range of float16 ({torch.finfo(torch.float16).max:.0f}), so this model cannot be used with "
                "kv_dtype float16. What was checkpointed is kept; start a new run with --kv-dtype float32."
            )
        self._checked = min(end, self.length)

    @property
    def dtype(self) -> torch.dtype | None:
        """The type rows are stored in; None if that of the first rows decides, and none are written yet."""
        if self._dtype is not None or not self._keys:
            return self._dtype
        return next(iter(self._keys.values())).dtype

    @property
    def _stores(self) -> list[Tensor]:
        return [store[layer] for store in (self._keys, self._values) for layer in sorted(store)]

    @property
    def _device(self) -> torch.device:
        return next(iter(self._keys.values())).device

    @property
    def layers(self) -> int:
        """Number of layers written so far."""
        return len(self._keys)

    @property
    def layout(self) -> KeyValueLayout | None:
        """What its rows are made of; None before the first write."""
        dtype = self.dtype
        if dtype is None or not self._keys:
            return None
        layers = (
            LayerLayout(layer, keys.shape[0], keys.shape[2], self._values[layer].shape[2])
            for layer, keys in sorted(self._keys.items())
        )
        return KeyValueLayout(tuple(layers), dtype)

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token takes over all layers; 0 before the first write."""
        layout = self.layout
        return 0 if layout is None else layout.bytes_per_token

    @property
    def used_bytes(self) -> int:
        """Bytes of the committed tokens."""
        return self.bytes_per_token * self.length

    def _allocate(self, layer: int, keys: Tensor, values: Tensor, end: int) -> None:
        while self._capacity < end:
            self._capacity += GROWTH_TOKENS
        capacity = self._capacity
        if (self._wanted_device or keys.device).type != "cpu":
            # There memory is taken at once, so take what the next steps need only.
            capacity = min(capacity, -(-end // GROWTH_TOKENS) * GROWTH_TOKENS)
        self._finder = None
        self._generation += 1
        self._copy = self._copied = None
        for store, rows in ((self._keys, keys), (self._values, values)):
            dtype = store[layer].dtype if layer in store else self._dtype or rows.dtype
            device = self._wanted_device or rows.device
            grown = torch.empty(rows.shape[0], capacity, rows.shape[2], dtype=dtype, device=device)
            if layer in store:
                grown[:, : self.length] = store[layer][:, : self.length]
            store[layer] = grown
