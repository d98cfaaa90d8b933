"""RMS norm, y = x / sqrt(mean(x^2) + epsilon) * scale, with as few operators as the device allows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class RootMeanSquareNorm:
    """The norm for one width.

    Args:
        size: width of the last dimension.
        epsilon: as above.
        dtype, device: of the rows.
    """

    def __init__(self, size: int, epsilon: float, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (size,)
        self._epsilon = epsilon
        self._inverse_size = 1 / size
        # On the CPU torch takes F.rms_norm apart into twice as many operators. Sums of squares in a
        # shorter type would overflow.
        self._by_hand = device.type == "cpu" and dtype == torch.float32

    def __call__(self, rows: Tensor, scale: Tensor) -> Tensor:
        """A new tensor like ``rows`` [..., size]; ``scale`` broadcasts against it."""
        if self._by_hand:
            return torch.mul(rows, self._inverse_root(rows)).mul_(scale)
        return functional.rms_norm(rows, self._shape, None, self._epsilon).mul_(scale)

    def in_place(self, rows: Tensor, scale: Tensor) -> None:
        """The same, written over ``rows``."""
        if self._by_hand:
            rows.mul_(self._inverse_root(rows)).mul_(scale)
        else:
            rows.copy_(functional.rms_norm(rows, self._shape, None, self._epsilon).mul_(scale))

    def _inverse_root(self, rows: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(rows, 2.0, -1, True)
        return length.mul_(length).mul_(self._inverse_size).add_(self._epsilon).rsqrt_()
