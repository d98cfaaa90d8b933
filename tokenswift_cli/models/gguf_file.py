"""The tensors of a .gguf file, mapped into memory, and the plain values of its header.

``gguf.GGUFReader`` makes several Python objects for each word of the vocabulary, which takes seconds. Here
the vocabulary is stepped over, so that a file is open in a fraction of one.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from tokenswift_cli.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# What the format allows, or more than any model has: a count in a header is nobody's word.
MOST_DIMENSIONS = 4
MOST_ENTRIES = 2**20
MOST_TEXT_BYTES = 2**26
STRING, ARRAY = 8, 9
# Code of a value's type in the header -> how struct reads it, little-endian.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as it lies in the file; has what is needed here of ``gguf.ReaderTensor``.

    Attributes:
        name: in the file, e.g. ``blk.0.attn_q.weight``.
        tensor_type: how the weights are coded.
        shape: innermost dimension first, as in the file: (inputs, outputs) for a matrix.
        data: uint8 [..., outputs, bytes of a row], read-only, a view of the mapped file.
    """

    name: str
    tensor_type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class GgufFile:
    """An open file: ``values`` are the header's numbers and texts (no arrays), ``tensors`` go by name."""

    values: dict[str, Any]
    tensors: dict[str, StoredTensor]


def open_gguf(path: Path) -> GgufFile:
    """Map ``path`` into memory and read its header.

    Raises:
        ModelError: the file cannot be read, is no little-endian GGUF file, or is damaged.
    """
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"Cannot read the model file {path}: {error}.") from error
    try:
        return _Header(content).read()
    except (ValueError, OverflowError, RecursionError, struct.error) as error:
        raise ModelError(f"{path} is not a whole GGUF file: {error}. Download it again.") from error


class _Header:
    """Reads from the start of a file onwards; ``struct.error`` where it ends too early."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self._content = content
        self._bytes = content.data
        self._at = 0

    def read(self) -> GgufFile:
        if bytes(self._bytes[: len(MAGIC)]) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = len(MAGIC)
        if (version := self._scalar("I")) not in VERSIONS:
            raise ValueError(f"its version is {version:#x}, not one of {', '.join(map(str, VERSIONS))}")
        tensor_count, value_count = self._scalar("Q"), self._scalar("Q")
        if max(tensor_count, value_count) > MOST_ENTRIES:
            raise ValueError(f"it counts {tensor_count} tensors and {value_count} values")
        values: dict[str, Any] = {}
        keys: set[str] = set()
        for _ in range(value_count):
            key, kind = self._text(), self._scalar("I")
            if key in keys:
                raise ValueError(f"{key!r} stands there twice")
            keys.add(key)
            if kind == ARRAY:
                self._skip_array()
            elif kind == STRING:
                values[key] = self._text()
            elif kind in SCALARS:
                values[key] = self._scalar(SCALARS[kind])
            else:
                raise ValueError(f"{key} is of the unknown type {kind}")
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensor_count):
            name, entry = self._text(), self._entry()
            if name in entries:
                raise ValueError(f"{name!r} stands there twice")
            entries[name] = entry
        alignment = int(values.get("general.alignment", DEFAULT_ALIGNMENT))
        if alignment < 1:
            raise ValueError(f"its alignment is {alignment}")
        start = -(-self._at // alignment) * alignment
        tensors = {name: self._tensor(start, name, *entry) for name, entry in entries.items()}
        return GgufFile(values, tensors)

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _text(self) -> str:
        if (size := self._scalar("Q")) > MOST_TEXT_BYTES:
            raise ValueError(f"a text in it has {size} bytes")
        (value,) = struct.unpack_from(f"<{size}s", self._bytes, self._at)
        self._at += size
        return str(value, encoding="utf-8")

    def _skip_array(self) -> None:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind in SCALARS:
            self._at += count * struct.calcsize("<" + SCALARS[kind])
            return
        if kind == ARRAY:
            for _ in range(count):
                self._skip_array()
            return
        if kind != STRING:
            raise ValueError(f"it holds an array of the unknown type {kind}")
        at, source, length = self._at, self._bytes, struct.Struct("<Q")
        for _ in range(count):
            at += length.size + length.unpack_from(source, at)[0]
        self._at = at

    def _entry(self) -> tuple[tuple[int, ...], int, int]:
        """(shape, code of the type, offset) of one tensor, which follow its name."""
        if (dimensions := self._scalar("I")) > MOST_DIMENSIONS:
            raise ValueError(f"a tensor in it has {dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))
        return shape, self._scalar("I"), self._scalar("Q")

    def _tensor(self, start: int, name: str, shape: tuple[int, ...], code: int, offset: int) -> StoredTensor:
        kind = GGMLQuantizationType(code)
        block_weights, block_bytes = GGML_QUANT_SIZES[kind]
        inputs = shape[0] if shape else 1
        if inputs % block_weights:
            raise ValueError(f"rows of {name} have {inputs} weights, no multiple of {block_weights}")
        stored = (*reversed(shape[1:]), inputs // block_weights * block_bytes)
        first, size = start + offset, math.prod(stored)
        if first + size > self._content.size:
            raise ValueError(f"it ends within {name}")
        data = np.asarray(self._content[first : first + size]).reshape(stored)
        return StoredTensor(name, kind, shape, data)
