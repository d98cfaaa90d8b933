"""The tokens so far, on the model's device, with the penalty window as a view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GROWTH = 65536


class TokenHistory:
    """Append-only token ids in a preallocated int64 buffer; no copy and no sync per token."""

    def __init__(self, token_ids: Sequence[int], device: torch.device | str) -> None:
        self.length = len(token_ids)
        self._take(torch.zeros(self.length + _GROWTH, dtype=torch.int64, device=device))
        self._buffer[: self.length] = torch.tensor(token_ids, dtype=torch.int64)

    def append(self, token_id: int) -> None:
        """Add one token."""
        if self.length == self._buffer.numel():
            grown = self._buffer.new_zeros(self.length + _GROWTH)
            grown[: self.length] = self._buffer
            self._take(grown)
        self._cells[self.length] = token_id
        self.length += 1

    def _take(self, buffer: Tensor) -> None:
        self._buffer = buffer
        # The same memory: on the CPU numpy writes one number in a tenth of the time.
        self._cells = buffer.numpy() if buffer.is_cpu else buffer

    def rewind(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens (drafted ones)."""
        self.length = length

    def window(self, size: int) -> Tensor:
        """The last ``size`` tokens (fewer at the start), int64, as a view."""
        first = max(0, self.length - size)
        return self._buffer.narrow(0, first, self.length - first)
