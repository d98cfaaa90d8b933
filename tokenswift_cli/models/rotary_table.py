"""Rotary angles from the model's own module, kept by position where they depend on nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Kinds whose frequencies change with the length of the text, which only the module itself may judge.
_BY_LENGTH = ("dynamic", "longrope")
_STEP = 4096


class RotaryTable:
    """Cosines and sines by position.

    Args:
        module: the model's rotary embedding; takes states and positions, gives cosine and sine.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._by_length = getattr(module, "rope_type", "dynamic") in _BY_LENGTH
        self._cosine = self._sine = torch.empty(0)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [T, size / 2] each, contiguous, for int64 [T] positions."""
        if self._by_length:
            return self._computed(positions)
        last = int(positions.max())
        if last >= self._cosine.shape[0]:
            self._grow(last)
        return self._cosine.index_select(0, positions), self._sine.index_select(0, positions)

    def _grow(self, last: int) -> None:
        known = self._cosine.shape[0]
        total = (last // _STEP + 1) * _STEP
        cosine, sine = self._computed(torch.arange(known, total))
        if known:
            cosine, sine = torch.cat([self._cosine, cosine]), torch.cat([self._sine, sine])
        self._cosine, self._sine = cosine, sine

    def _computed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        pair = self._module(torch.empty(0), positions[None])
        cosine, sine = (rows[0].float() for rows in pair)
        half = cosine.shape[1] // 2
        # The second half repeats the first.
        return cosine[:, :half].contiguous(), sine[:, :half].contiguous()
