"""How each quantized type of GGUF lays out its weights in bytes, and how to take them apart.

All types covered here code a weight as ``scale * level + minimum``: a small whole number ``level`` for each
weight, a scale (and, for some, a minimum) for each block of 16 or 32 weights. The K types put 256 weights
into one unit whose blocks have small whole factors that multiply a float16 of the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Unit = NDArray[np.void]

# The 16 levels that the non-linear 4-bit types can have, part of the format.
NON_LINEAR_LEVELS: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8
)


@dataclass(frozen=True)
class Parts:
    """Units taken apart: ``levels`` [units, weights], ``scales`` and ``minima`` [units, blocks] float32.

    ``levels`` are uint8 or int8, as :attr:`BlockType.bits` says; ``minima`` None stands for zeros.
    """

    levels: NDArray[np.uint8] | NDArray[np.int8]
    scales: Floats
    minima: Floats | None


@dataclass(frozen=True)
class BlockType:
    """A quantized type.

    Attributes:
        unit: what the file repeats, as a numpy record type.
        weights: that a unit codes.
        block: weights that share a scale.
        bits: 4 if the levels are unsigned and at most 15 (then they are uint8), else 8 (int8).
        take_apart: from [units] records to their parts.
    """

    unit: np.dtype[np.void]
    weights: int
    block: int
    bits: int
    take_apart: Callable[[Unit], Parts]


def _fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """Take bytes [units, n] apart into fields of ``bits`` bits: [units, n * 8 / bits].

    Within each run of ``run`` bytes, the lowest fields of all its bytes come first, then the next ones.
    """
    units, size = packed.shape
    runs = packed.reshape(units, size // run, run)
    found = np.empty((units, size // run, 8 // bits, run), dtype=np.uint8)
    for place in range(8 // bits):
        np.right_shift(runs, place * bits, out=found[:, :, place])
    found &= (1 << bits) - 1
    return found.reshape(units, -1)


def _floats(values: NDArray[Any]) -> Floats:
    """A float16 of each unit [units] as a column [units, 1]."""
    return values.astype(np.float32)[:, None]


def _q4_0(unit: Unit) -> Parts:
    scale = _floats(unit["scale"])
    return Parts(_fields(unit["low"], 4, 16), scale, -8 * scale)


def _q4_1(unit: Unit) -> Parts:
    return Parts(_fields(unit["low"], 4, 16), _floats(unit["scale"]), _floats(unit["minimum"]))


def _five_bits(unit: Unit) -> NDArray[np.int8]:
    high = np.unpackbits(unit["high"], axis=-1, bitorder="little")
    return (_fields(unit["low"], 4, 16) | high << 4).view(np.int8)


def _q5_0(unit: Unit) -> Parts:
    return Parts(_five_bits(unit) - np.int8(16), _floats(unit["scale"]), None)


def _q5_1(unit: Unit) -> Parts:
    return Parts(_five_bits(unit), _floats(unit["scale"]), _floats(unit["minimum"]))


def _q8_0(unit: Unit) -> Parts:
    return Parts(unit["levels"], _floats(unit["scale"]), None)


def _q2_k(unit: Unit) -> Parts:
    factors = unit["factors"]
    scales = _floats(unit["scale"]) * (factors & 15)
    return Parts(_fields(unit["low"], 2, 32), scales, -(_floats(unit["minimum"]) * (factors >> 4)))


def _q3_k(unit: Unit) -> Parts:
    low, high = unit["factors"][:, :8], unit["factors"][:, 8:]
    factors = (_fields(low, 4, 8) | _fields(high, 2, 4) << 4).view(np.int8) - np.int8(32)
    levels = _fields(unit["low"], 2, 32) | _fields(unit["high"], 1, 32) << 2
    scales = _floats(unit["scale"]) * factors
    # The format means levels of -4..3; 0..7 with a minimum needs half a byte only, and is as exact.
    return Parts(levels, scales, -4 * scales)


def _six_bit_factors(packed: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes as the 8 factors of the scales and the 8 of the minima, each [units, 8]."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    of_scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    of_minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return of_scales, of_minima


def _scales_and_minima(unit: Unit) -> tuple[Floats, Floats]:
    of_scales, of_minima = _six_bit_factors(unit["factors"])
    return _floats(unit["scale"]) * of_scales, -(_floats(unit["minimum"]) * of_minima)


def _q4_k(unit: Unit) -> Parts:
    return Parts(_fields(unit["low"], 4, 32), *_scales_and_minima(unit))


def _q5_k(unit: Unit) -> Parts:
    levels = _fields(unit["low"], 4, 32) | _fields(unit["high"], 1, 32) << 4
    return Parts(levels.view(np.int8), *_scales_and_minima(unit))


def _q6_k(unit: Unit) -> Parts:
    levels = _fields(unit["low"], 4, 64) | _fields(unit["high"], 2, 32) << 4
    return Parts(levels.view(np.int8) - np.int8(32), _floats(unit["scale"]) * unit["factors"], None)


def _iq4_nl(unit: Unit) -> Parts:
    return Parts(NON_LINEAR_LEVELS[_fields(unit["low"], 4, 16)], _floats(unit["scale"]), None)


def _iq4_xs(unit: Unit) -> Parts:
    low, high = _fields(unit["factors"], 4, 1), _fields(unit["high_factors"], 2, 1)
    factors = (low | high << 4).view(np.int8) - np.int8(32)
    levels = NON_LINEAR_LEVELS[_fields(unit["low"], 4, 16)]
    return Parts(levels, _floats(unit["scale"]) * factors, None)


def _unit(**fields: str) -> np.dtype[np.void]:
    return np.dtype(list(fields.items()))


_Type = GGMLQuantizationType

BLOCK_TYPES: Final[dict[GGMLQuantizationType, BlockType]] = {
    _Type.Q4_0: BlockType(_unit(scale="<f2", low="16u1"), 32, 32, 4, _q4_0),
    _Type.Q4_1: BlockType(_unit(scale="<f2", minimum="<f2", low="16u1"), 32, 32, 4, _q4_1),
    _Type.Q5_0: BlockType(_unit(scale="<f2", high="4u1", low="16u1"), 32, 32, 8, _q5_0),
    _Type.Q5_1: BlockType(_unit(scale="<f2", minimum="<f2", high="4u1", low="16u1"), 32, 32, 8, _q5_1),
    _Type.Q8_0: BlockType(_unit(scale="<f2", levels="32i1"), 32, 32, 8, _q8_0),
    _Type.Q2_K: BlockType(_unit(factors="16u1", low="64u1", scale="<f2", minimum="<f2"), 256, 16, 4, _q2_k),
    _Type.Q3_K: BlockType(_unit(high="32u1", low="64u1", factors="12u1", scale="<f2"), 256, 16, 4, _q3_k),
    _Type.Q4_K: BlockType(_unit(scale="<f2", minimum="<f2", factors="12u1", low="128u1"), 256, 32, 4, _q4_k),
    _Type.Q5_K: BlockType(
        _unit(scale="<f2", minimum="<f2", factors="12u1", high="32u1", low="128u1"), 256, 32, 8, _q5_k
    ),
    _Type.Q6_K: BlockType(_unit(low="128u1", high="64u1", factors="16i1", scale="<f2"), 256, 16, 8, _q6_k),
    _Type.IQ4_NL: BlockType(_unit(scale="<f2", low="16u1"), 32, 32, 8, _iq4_nl),
    _Type.IQ4_XS: BlockType(
        _unit(scale="<f2", high_factors="2u1", factors="4u1", low="128u1"), 256, 32, 8, _iq4_xs
    ),
}
