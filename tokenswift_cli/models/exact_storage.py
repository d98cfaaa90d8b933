"""The shortest floating point type that holds a float32 tensor without change."""

from __future__ import annotations

import torch
from torch import Tensor

# In order of preference: at the same size, float16 is what more processors convert in one instruction.
CANDIDATES = (torch.float16, torch.bfloat16)
SLICE_ELEMENTS = 2**17


def exact_storage(weight: Tensor) -> torch.dtype:
    """float16 if every element survives a round trip through it, else bfloat16 if so, else float32.

    ``weight``: float32 (or a shorter floating point type) of any shape and strides. "Survives" means bit for
    bit: zeros keep their sign, infinities are kept, overflow and lost digits are not; a tensor with a NaN
    stays float32. An empty tensor survives anything. Looks at one slice after another and stops as soon
    as the answer is known, so that the memory needed besides the tensor is about a MiB.

    Raises:
        ValueError: the elements are not floating point numbers of at most 32 bits.
    """
    if not weight.is_floating_point() or weight.element_size() > 4:
        raise ValueError(f"exact_storage needs float32 or a shorter floating point type, not {weight.dtype}.")
    remaining: tuple[torch.dtype, ...] = CANDIDATES
    for part in _slices(weight.detach()):
        values = part.to(torch.float32)
        if bool(values.isnan().any()):
            return torch.float32
        remaining = tuple(dtype for dtype in remaining if _survives(values, dtype))
        if not remaining:
            return torch.float32
    return remaining[0]


def _survives(values: Tensor, dtype: torch.dtype) -> bool:
    # Compared as whole numbers: a processor told to flush subnormal numbers would call them equal to 0.
    back = values.to(dtype).to(torch.float32)
    return torch.equal(back.view(torch.int32), values.view(torch.int32))


def _slices(weight: Tensor) -> tuple[Tensor, ...]:
    """Views of a bounded number of elements each: of any part if the tensor is contiguous, else of rows."""
    if weight.numel() == 0:
        return ()
    flat = weight.view(-1) if weight.is_contiguous() else weight
    return flat.split(max(1, SLICE_ELEMENTS * flat.shape[0] // flat.numel()))
