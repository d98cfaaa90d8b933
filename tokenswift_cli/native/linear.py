"""A linear layer whose matrix is packed for few rows, as a function of tensors.

Matrices stay in the type they are stored in, down to four bits a weight, and are widened to float32 in
registers; inputs, sums and outputs are float32. A row's result depends, to the last bit, only on the row and
on the weights: not on the rows computed with it, not on threads. All x86-64 processors with AVX2 give the
same bits.

The library is the one that :mod:`tokenswift_cli.native.build` makes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING

from tokenswift_cli.native.functions import functions_of
from tokenswift_cli.native.threads import Team, find_team

if TYPE_CHECKING:
    from torch import Tensor

INTERFACE = 1

# As Format in linear_weights.h.
SINGLES, HALVES, BRAINS, NIBBLES, BYTES = range(5)

_ALIGNMENT = 64
_WORKSPACE_TOO_SMALL = 1
_OUTCOMES = {
    2: "a size is out of range",
    3: "this processor does not have the instructions asked for",
}
_kept = threading.local()


class WeightsStruct(ctypes.Structure):
    """As ``Weights`` in linear_weights.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("has_minimum", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class _Call(ctypes.Structure):
    """As ``LinearCall`` in linear_weights.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("y", ctypes.c_void_p),
        ("y_stride", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("add", ctypes.c_int32),
        ("instructions", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class PackedLinear:
    """y = x W^T + bias with a packed W. Make one with :meth:`of_matrix` or :meth:`of_blocks`.

    Attributes:
        outputs, inputs: the shape of W.
        weight_bytes: bytes of the packed matrix.
        weights: what native code takes; its pointers are good as long as this object lives.
    """

    def __init__(
        self, library: ctypes.CDLL, storage: Tensor, weights: WeightsStruct, bias: Tensor | None
    ) -> None:
        self._library = library
        self._storage = storage
        self._bias = bias
        self.weights = weights
        self.outputs: int = weights.outputs
        self.inputs: int = weights.inputs
        self.weight_bytes = storage.numel()

    @classmethod
    def of_matrix(cls, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
        """Pack a matrix in its own type.

        Args:
            library: the compiled library.
            weight: float32, float16 or bfloat16 [O, I] on the CPU.
            bias: [O], of any floating type, or None.

        Raises:
            ValueError: shapes or types do not fit.
            BuildError: the library is another version's.
        """
        import torch

        formats = {torch.float32: SINGLES, torch.float16: HALVES, torch.bfloat16: BRAINS}
        if weight.dim() != 2 or weight.dtype not in formats or not weight.is_cpu:
            raise ValueError(
                f"the weight is {_described(weight)}, not a float32, float16 or bfloat16 matrix on the CPU"
            )
        weight = weight.detach().contiguous()
        weights = WeightsStruct(outputs=weight.shape[0], inputs=weight.shape[1], format=formats[weight.dtype])
        storage = _storage(library, weights)
        _require_done(
            library.tokenswift_pack_rows(
                ctypes.byref(weights), ctypes.c_void_p(weight.data_ptr()), ctypes.c_void_p(weights.data)
            )
        )
        return cls(library, storage, weights, _add_bias(weights, bias))

    @classmethod
    def of_blocks(
        cls,
        library: ctypes.CDLL,
        levels: Tensor,
        scales: Tensor,
        minima: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        bits: int,
    ) -> PackedLinear:
        """Pack a quantized matrix, whose weights are ``scale * level + minimum``.

        Args:
            library: the compiled library.
            levels: [O, I]; uint8 of 0 to 15 for 4 bits, int8 for 8 bits.
            scales: float32 [O, I / block], where a block is 16 or 32 weights side by side in a row.
            minima: as the scales; None for zeros.
            bias: [O], of any floating type, or None.
            bits: 4 or 8, what a level takes when packed.

        Raises:
            ValueError: shapes, types or levels do not fit.
            BuildError: the library is another version's.
        """
        import torch

        kinds = {4: (torch.uint8, NIBBLES), 8: (torch.int8, BYTES)}
        if bits not in kinds:
            raise ValueError(f"a level takes 4 or 8 bits, not {bits}")
        dtype, form = kinds[bits]
        if levels.dim() != 2 or levels.dtype is not dtype or not levels.is_cpu or not levels.numel():
            raise ValueError(f"the levels are {_described(levels)}, not a matrix of {dtype} on the CPU")
        outputs, inputs = levels.shape
        for name, factors in (("scales", scales), ("minima", minima)):
            if factors is None:
                continue
            if factors.dtype is not torch.float32 or factors.shape != scales.shape or not factors.is_cpu:
                wanted = f"float32 of shape {tuple(scales.shape)} on the CPU"
                raise ValueError(f"the {name} are {_described(factors)}, not {wanted}")
        blocks = scales.shape[1] if scales.dim() == 2 and scales.shape[0] == outputs else 0
        if not blocks or inputs % blocks or inputs // blocks not in (16, 32):
            raise ValueError(
                f"scales of shape {tuple(scales.shape)} do not cut {outputs} rows of {inputs} weights into "
                "blocks of 16 or 32"
            )
        if bits == 4 and int(levels.max()) > 15:
            raise ValueError(f"a level of {int(levels.max())} does not fit 4 bits")
        weights = WeightsStruct(
            outputs=outputs,
            inputs=inputs,
            format=form,
            block=inputs // blocks,
            has_minimum=minima is not None,
        )
        storage = _storage(library, weights)
        # Named, so that they live until they are packed.
        levels, scales = levels.contiguous(), scales.contiguous()
        minima = None if minima is None else minima.contiguous()
        _require_done(
            library.tokenswift_pack_blocks(
                ctypes.byref(weights),
                ctypes.c_void_p(levels.data_ptr()),
                ctypes.c_void_p(scales.data_ptr()),
                ctypes.c_void_p(None if minima is None else minima.data_ptr()),
                ctypes.c_void_p(weights.data),
            )
        )
        return cls(library, storage, weights, _add_bias(weights, bias))

    def __call__(
        self,
        rows: Tensor,
        *,
        add_to: Tensor | None = None,
        threads: int | None = None,
        instructions: int = -1,
    ) -> Tensor:
        """Multiply.

        Args:
            rows: float32 [T, I] on the CPU, the elements of a row side by side.
            add_to: float32 [T, O] to add the result to, in place; None for a new tensor.
            threads: None for as many as torch uses.
            instructions: index into ``INSTRUCTIONS`` of :mod:`tokenswift_cli.native.attention`; -1 for the
                best that the processor has.

        Returns:
            float32 [T, O]; ``add_to`` if that was given.

        Raises:
            ValueError: shapes, strides or types do not fit.
        """
        import torch

        _check_rows("rows", rows, self.inputs)
        output = rows.new_empty((rows.shape[0], self.outputs)) if add_to is None else add_to
        _check_rows("the tensor to add to", output, self.outputs)
        if output.shape[0] != rows.shape[0]:
            raise ValueError(f"{rows.shape[0]} rows cannot be added to {output.shape[0]}")
        if torch.is_grad_enabled() and (rows.requires_grad or output.requires_grad):
            raise ValueError("the packed linear layer has no gradient; use torch.inference_mode()")
        if not rows.shape[0]:
            return output
        team = _team()
        call = _Call(
            weights=ctypes.addressof(self.weights),
            x=rows.data_ptr(),
            x_stride=rows.stride(0),
            rows=rows.shape[0],
            y=output.data_ptr(),
            y_stride=output.stride(0),
            parallel=None if team is None else team.parallel,
            threads=1 if team is None else threads or torch.get_num_threads(),
            add=add_to is not None,
            instructions=instructions,
        )
        needed = self._library.tokenswift_linear_workspace(ctypes.byref(call))
        workspace: Tensor | None = getattr(_kept, "workspace", None)
        if workspace is None or workspace.numel() < needed:
            workspace = _kept.workspace = torch.empty(needed * 5 // 4, dtype=torch.uint8)
        call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
        _require_done(self._library.tokenswift_linear(ctypes.byref(call)))
        return output


@functools.cache
def _team() -> Team | None:
    return find_team()


def _storage(library: ctypes.CDLL, weights: WeightsStruct) -> Tensor:
    """uint8 [bytes], aligned, for the packed matrix; ``weights.data`` points to it."""
    import torch

    pack_bytes, workspace = functions_of(library, "linear", INTERFACE, "pack_bytes", "linear_workspace")
    pack_bytes.restype = workspace.restype = ctypes.c_int64
    size = pack_bytes(ctypes.byref(weights))
    if size < 0:
        raise ValueError(f"a matrix of {weights.outputs} x {weights.inputs} weights cannot be packed")
    room = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
    storage = room[-room.data_ptr() % _ALIGNMENT :][:size]
    weights.data = storage.data_ptr()
    return storage


def _add_bias(weights: WeightsStruct, bias: Tensor | None) -> Tensor | None:
    if bias is None:
        return None
    if bias.shape != (weights.outputs,) or not bias.is_floating_point() or not bias.is_cpu:
        raise ValueError(f"a bias of {_described(bias)} does not fit {weights.outputs} outputs on the CPU")
    single = bias.detach().float().contiguous()
    weights.bias = single.data_ptr()
    return single


def _check_rows(name: str, rows: Tensor, width: int) -> None:
    import torch

    if rows.dim() != 2 or rows.shape[1] != width or rows.dtype is not torch.float32 or not rows.is_cpu:
        raise ValueError(f"{name}: {_described(rows)}, not float32 [T, {width}] on the CPU")
    if rows.stride(1) != 1:
        raise ValueError(f"{name}: the elements of a row must lie side by side")


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"


def _require_done(outcome: int) -> None:
    if outcome:
        raise ValueError(f"the packed linear layer: {_OUTCOMES.get(outcome, f'error {outcome}')}")
