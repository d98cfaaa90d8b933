"""What one token's keys and values are made of, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LayerLayout:
    """One attention layer, and what a token leaves there: [heads, key size] and [heads, value size]."""

    index: int
    heads: int
    key_size: int
    value_size: int

    @property
    def elements(self) -> int:
        """Numbers per token."""
        return self.heads * (self.key_size + self.value_size)


@dataclass(frozen=True)
class KeyValueLayout:
    """All layers, in ascending order of their indices, and the type that they are stored in."""

    layers: tuple[LayerLayout, ...]
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Over all layers."""
        return self.dtype.itemsize * sum(layer.elements for layer in self.layers)
