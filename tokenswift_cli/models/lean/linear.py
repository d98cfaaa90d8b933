"""Linear layers y = x W^T + b for few rows: one class for each way of storing and multiplying W.

They compute the same up to rounding; which one is fast, and for which numbers of rows the rounding of a
row does not depend on the others, differs by machine: :mod:`tokenswift_cli.models.lean.calibration`
finds out. All take x as [T, inputs], contiguous, and give [T, outputs], contiguous.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Linear(Protocol):
    """What the decoder needs to know of a linear layer."""

    @property
    def matrix(self) -> Tensor | None:
        """W as a view [outputs, inputs] of the storage, so that other owners need no copy; None if opaque."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes that one pass reads."""
        ...

    def __call__(self, rows: Tensor) -> Tensor: ...


class _Dense:
    """Keeps W in a plain tensor that other owners can look at."""

    matrix: Tensor
    bias: Tensor | None

    @property
    def weight_bytes(self) -> int:
        """Bytes of W and b."""
        bias = 0 if self.bias is None else self.bias.nbytes
        return self.matrix.numel() * self.matrix.element_size() + bias


class RowsLinear(_Dense):
    """W stored by rows, through ``F.linear``.

    Args:
        weight: [outputs, inputs]; not copied if contiguous.
        bias: [outputs], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.matrix = weight.contiguous()
        self.bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.matrix, self.bias)


class TurnedLinear(_Dense):
    """W stored by rows, as (W x^T)^T: another kernel of the same library, faster for some sizes.

    Args: as for :class:`RowsLinear`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.matrix = weight.contiguous()
        self.bias = bias
        self._column = None if bias is None else bias.unsqueeze(1)

    def __call__(self, rows: Tensor) -> Tensor:
        turned = torch.mm(self.matrix, rows.t())
        if self._column is not None:
            turned += self._column
        return turned.t().contiguous()


class ColumnsLinear(_Dense):
    """W stored by columns.

    Args: as for :class:`RowsLinear`, but not copied if its transpose is contiguous.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._columns = weight.t().contiguous()
        self.matrix = self._columns.t()
        self.bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(rows, self._columns)
        return torch.addmm(self.bias, rows, self._columns)


class BlockedLinear:
    """W in oneDNN's own layout, float32. Its rows are rounded alike for almost any number of them.

    Args: as for :class:`RowsLinear`; always copied.

    Raises:
        RuntimeError: this build of torch has no oneDNN.
    """

    matrix: ClassVar[None] = None

    # The layout must serve all numbers of rows; this one is what oneDNN is told to expect.
    _EXPECTED_ROWS = 16

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if not torch.backends.mkldnn.is_available():
            raise RuntimeError("this build of torch has no oneDNN")
        operators = torch.ops.mkldnn
        self._blocked = operators._reorder_linear_weight(weight.contiguous(), self._EXPECTED_ROWS)
        self._bias = bias
        self._multiply: Callable[..., Tensor] = operators._linear_pointwise.default
        self.weight_bytes = weight.numel() * 4 + (0 if bias is None else bias.nbytes)

    def __call__(self, rows: Tensor) -> Tensor:
        return self._multiply(rows, self._blocked, self._bias, "none", [], "")


class Float16Linear:
    """W packed as float16 by FBGEMM; rows, sums and b are float32.

    Args:
        weight: [outputs, inputs], float32; rounded to float16.
        bias: [outputs] float32, or None.

    Raises:
        RuntimeError: this build of torch has no FBGEMM.
    """

    matrix: ClassVar[None] = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            raise RuntimeError("this build of torch has no FBGEMM")
        self.weight_bytes = weight.numel() * 2 + (0 if bias is None else bias.nbytes)
        self._bias = bias
        weight = weight.contiguous()
        direct = _direct_float16(weight, bias)
        if direct is None:
            self._multiply, self._packed = _operator_float16(weight, bias)
            self._operands: tuple[Any, ...] = (self._packed,)
        else:
            self._multiply, self._packed = direct
            self._operands = (self._packed, bias)

    def __call__(self, rows: Tensor) -> Tensor:
        return self._multiply(rows, *self._operands)


class BySizeLinear(_Dense):
    """W stored by rows; the number of rows decides between the two ways of multiplying.

    Args:
        weight, bias: as for :class:`RowsLinear`.
        turned: numbers of rows, ascending, and for each whether up to it :class:`TurnedLinear` is used;
            the last one holds for more rows, too.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, turned: tuple[tuple[int, bool], ...]) -> None:
        self._ways = (RowsLinear(weight, bias), TurnedLinear(weight, bias))
        self.matrix = self._ways[0].matrix
        self.bias = bias
        self._limits = tuple((limit, self._ways[use]) for limit, use in turned)

    def __call__(self, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        for limit, way in self._limits:
            if count <= limit:
                return way(rows)
        return self._limits[-1][1](rows)


VARIANTS: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
    "rows": RowsLinear,
    "turned": TurnedLinear,
    "columns": ColumnsLinear,
    "blocked": BlockedLinear,
    "float16": Float16Linear,
}


def _direct_float16(weight: Tensor, bias: Tensor | None) -> tuple[Callable[..., Tensor], Any] | None:
    """The function behind the operator, a tenth of its cost per call; None where torch lacks it.

    torch announces its removal; :func:`_operator_float16` gives the same bits.
    """
    pack = getattr(torch, "fbgemm_pack_gemm_matrix_fp16", None)
    multiply = getattr(torch, "fbgemm_linear_fp16_weight_fp32_activation", None)
    if pack is None or multiply is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            packed = pack(weight)
            multiply(weight[:1], packed, bias)
        except (RuntimeError, TypeError):  # releases that want a bias
            return None
    return multiply, packed


def _operator_float16(weight: Tensor, bias: Tensor | None) -> tuple[Callable[..., Tensor], Any]:
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    return torch.ops.quantized.linear_dynamic_fp16, packed
