"""The quantized matrices of a .gguf file as whole numbers, scales and minima: the same model in fewer bytes.

transformers turns each matrix of a .gguf file into float32. A kernel that multiplies by
``scale * level + minimum`` computes with the very same weights and reads a quarter or an eighth of the
bytes. Nothing is taken on trust: what is handed out was compared with what the ``gguf`` package makes of
the same bytes, and :meth:`GgufBlocks.matches` compares it with the weights that a model really has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from tokenswift_cli.models.gguf_block_types import BLOCK_TYPES, BlockType
from tokenswift_cli.models.gguf_file import open_gguf
from tokenswift_cli.models.gguf_names import GgufNames

Rows = NDArray[np.intp]

# A row of scales and minima is computed in float32 in the order that gguf uses; a few units in the last
# place leave room for another order.
RELATIVE_TOLERANCE = 4 * float(np.finfo(np.float32).eps)
SLICE_WEIGHTS = 2**20
SAMPLED_PLACES = 16


class QuantizedTensor(Protocol):
    """What is needed of a tensor in a file; ``gguf.ReaderTensor`` is one, so is ``StoredTensor``."""

    @property
    def tensor_type(self) -> GGMLQuantizationType:
        """How the weights are coded."""

    @property
    def shape(self) -> Sequence[int]:
        """Innermost dimension first: (inputs, outputs) for a matrix."""

    @property
    def data(self) -> NDArray[Any]:
        """[outputs, bytes of a row] for a quantized matrix."""


@dataclass(frozen=True)
class Blocks:
    """A matrix [outputs, inputs] whose weights are ``scale * level + minimum``.

    Attributes:
        levels: [outputs, inputs], one weight to a byte: uint8 of 0..15 if ``bits`` is 4, else int8.
        scales: float32 [outputs, inputs / block].
        minima: float32 [outputs, inputs / block], None if all are zero by the type's definition.
        block: 16 or 32 weights that lie side by side in a row and share a scale.
        bits: 4 or 8, what a level needs.
    """

    levels: Tensor
    scales: Tensor
    minima: Tensor | None
    block: int
    bits: int

    def values(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """The weights of some rows, float32 [rows, inputs]: product and sum each rounded to float32."""
        scales = self.scales[rows].unsqueeze(-1)
        levels = self.levels[rows].unflatten(-1, (-1, self.block))
        products = levels.to(torch.float32) * scales
        if self.minima is not None:
            products += self.minima[rows].unsqueeze(-1)
        return products.flatten(-2)


def blocks_of(tensor: QuantizedTensor, rows: Rows | None = None) -> Blocks | None:
    """The blocks of a quantized matrix, or None if it is no matrix or of a type that is not covered.

    ``rows``: which of the file's rows, in the order wanted; None for all of them. Memory beyond the
    result is bounded.
    """
    layout = BLOCK_TYPES.get(GGMLQuantizationType(tensor.tensor_type))
    if layout is None or len(tensor.shape) != 2:
        return None
    inputs, stored_rows = (int(size) for size in tensor.shape)
    outputs = stored_rows if rows is None else len(rows)
    levels = np.empty((outputs, inputs), dtype=np.uint8 if layout.bits == 4 else np.int8)
    scales = np.empty((outputs, inputs // layout.block), dtype=np.float32)
    minima = np.empty_like(scales)
    has_minima = False
    step = max(1, SLICE_WEIGHTS // inputs)
    for first in range(0, outputs, step):
        here = slice(first, first + step)
        units = _units(layout, tensor.data[here if rows is None else rows[here]])
        parts = layout.take_apart(units)
        levels[here] = parts.levels.reshape(-1, inputs)
        scales[here] = parts.scales.reshape(levels[here].shape[0], -1)
        if parts.minima is not None:
            minima[here] = parts.minima.reshape(scales[here].shape)
            has_minima = True
    return Blocks(
        levels=torch.from_numpy(levels),
        scales=torch.from_numpy(scales),
        minima=torch.from_numpy(minima) if has_minima else None,
        block=layout.block,
        bits=layout.bits,
    )


class GgufBlocks:
    """The quantized matrices of an open .gguf file, by the names that transformers gives to parameters.

    :meth:`blocks` and :meth:`matches` raise ModelError if the file contradicts itself about its heads.

    Attributes:
        refused: why :meth:`blocks` returned None, by name, as the end of a sentence.
    """

    def __init__(self, path: Path) -> None:
        """Map the file into memory.

        Raises:
            ModelError: the file cannot be read or is damaged.
        """
        file = open_gguf(path)
        self._tensors = file.tensors
        self._names = GgufNames.of(file)
        self.refused: dict[str, str] = {}

    def blocks(self, name: str) -> Blocks | None:
        """The blocks of the parameter ``name``, with rows in transformers' order; None: see ``refused``.

        A sample of rows has been compared with ``gguf.quants.dequantize``, and all scales are finite.
        """
        self.refused.pop(name, None)
        found = self._find(name)
        if isinstance(found, str):
            self.refused[name] = found
            return None
        tensor, order = found
        blocks = blocks_of(tensor, order)
        assert blocks is not None  # _find has seen to that
        if fault := _fault(blocks, tensor, order):
            self.refused[name] = fault
            return None
        return blocks

    def matches(self, name: str, weight: Tensor, rows: Sequence[int] | None = None) -> bool:
        """Whether the float32 parameter ``weight`` [outputs, inputs] holds the values of its blocks.

        Looks at ``rows`` only; by default at pairs of neighbours spread over the matrix, the first and the
        last among them, so that rows in another order are noticed. Weights may differ by float32 rounding.
        A name without blocks, another shape or another dtype is False.

        Raises:
            IndexError: one of ``rows`` is not in the matrix.
        """
        found = self._find(name)
        if isinstance(found, str) or weight.dtype != torch.float32:
            return False
        tensor, order = found
        inputs, outputs = (int(size) for size in tensor.shape)
        if tuple(weight.shape) != (outputs, inputs):
            return False
        sample = _sample(outputs) if rows is None else np.asarray(rows, dtype=np.intp)
        blocks = blocks_of(tensor, sample if order is None else order[sample])
        assert blocks is not None  # _find has seen to that
        there = weight.detach()[torch.from_numpy(sample).to(weight.device)].cpu()
        return _equal(blocks.values(), there)

    def _find(self, name: str) -> tuple[QuantizedTensor, Rows | None] | str:
        """(tensor of a covered type, its rows in transformers' order or None for as they are), or why not."""
        stored_name = self._names.stored_name(name)
        if stored_name is None:
            return self._names.why_unknown(name)
        tensor = self._tensors[stored_name]
        kind = GGMLQuantizationType(tensor.tensor_type)
        if len(tensor.shape) != 2:
            return f"{stored_name} has {len(tensor.shape)} dimensions, not 2"
        if kind not in BLOCK_TYPES:
            return f"{stored_name} is stored as {kind.name}, which is not made of blocks with one scale each"
        return tensor, self._names.row_order(stored_name, int(tensor.shape[1]))


def _units(layout: BlockType, data: NDArray[Any]) -> NDArray[np.void]:
    """Rows of bytes as the records they are made of."""
    # A subclass (memmap) would be carried through every step of the arithmetic.
    plain = np.ascontiguousarray(np.asarray(data), dtype=np.uint8)
    return plain.reshape(-1).view(layout.unit)


def _fault(blocks: Blocks, tensor: QuantizedTensor, order: Rows | None) -> str | None:
    """What is wrong with blocks made from ``tensor``, None if nothing is."""
    for part in (blocks.scales, blocks.minima):
        if part is not None and not bool(part.isfinite().all()):
            return "it has a scale that is not finite"
    sample = _sample(blocks.levels.shape[0])
    stored = np.asarray(tensor.data[sample if order is None else order[sample]])
    expected = gguf.dequantize(stored, GGMLQuantizationType(tensor.tensor_type))
    if not _equal(blocks.values(torch.from_numpy(sample)), torch.from_numpy(np.asarray(expected))):
        return "its blocks give other weights than the gguf package"
    return None


def _equal(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=RELATIVE_TOLERANCE, atol=0)


def _sample(rows: int) -> Rows:
    """Numbers of some rows, ascending: pairs of neighbours, the first and the last row among them."""
    places = np.linspace(0, max(0, rows - 2), SAMPLED_PLACES).astype(np.intp)
    pairs = np.unique(np.concatenate([places, places + 1]))
    return pairs[pairs < rows]
