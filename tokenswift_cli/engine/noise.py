"""Counter-based Gumbel noise: a pure function of (seed, position, token id).

There is no generator state, so nothing has to be saved or replayed: plain decoding, verification,
drafting, resume and audit all ask for the noise of a position and get the same numbers. The hash is
the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over a counter stream that is keyed
by seed and position.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# (h + 0.5) / 2**32 of each id's hash h, float64, in a counter stream that starts at the key.
Uniforms = Callable[[int, Tensor], Tensor]

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_ONE64, _GOLDEN64, _MIX1_64, _MIX2_64 = (np.uint64(value) for value in (1, _GOLDEN, _MIX1, _MIX2))
_SHIFT30, _SHIFT27, _SHIFT31, _SHIFT32 = (np.uint64(bits) for bits in (30, 27, 31, 32))


def _mix(value: int) -> int:
    """SplitMix64's finaliser on one unsigned 64-bit Python integer."""
    value = ((value ^ (value >> 30)) * _MIX1) & _MASK64
    value = ((value ^ (value >> 27)) * _MIX2) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _stream_key(seed: int, position: int) -> int:
    """Where the counter stream of one position starts."""
    return _mix((_mix((seed + _GOLDEN) & _MASK64) + position * _GOLDEN) & _MASK64)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def hash32(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """32 random bits for each token id at one position.

    Args:
        seed: 0 .. 2**63 - 1.
        position: absolute position of the token to be chosen.
        token_ids: int64 of any shape.

    Returns:
        int64 of the same shape and device, values in [0, 2**32).
    """
    key = _stream_key(seed, position)
    # Of a few ids, numpy hashes them in a third of the time.
    return (
        torch.from_numpy(_hash32(key, token_ids.numpy()))
        if token_ids.is_cpu
        else _hash32_there(key, token_ids)
    )


def _hash32(key: int, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    value = (token_ids.astype(np.uint64) + _ONE64) * _GOLDEN64 + np.uint64(key)
    value = (value ^ (value >> _SHIFT30)) * _MIX1_64
    value = (value ^ (value >> _SHIFT27)) * _MIX2_64
    return ((value ^ (value >> _SHIFT31)) >> _SHIFT32).astype(np.int64)


def _hash32_there(key: int, token_ids: Tensor) -> Tensor:
    """The same where the ids are."""
    value = (token_ids + 1) * _signed(_GOLDEN) + _signed(key)
    value = (value ^ _shift_right(value, 30)) * _signed(_MIX1)
    value = (value ^ _shift_right(value, 27)) * _signed(_MIX2)
    return _shift_right(value ^ _shift_right(value, 31), 32)


def gumbel_from_hash(bits: Tensor) -> Tensor:
    """Map 32 hash bits to a standard Gumbel variate, -log(-log(u)) with u = (h + 0.5) / 2**32.

    The half keeps u strictly between 0 and 1, so the result is finite for every hash
    (-3.13 .. 22.87).

    Args:
        bits: int64, values in [0, 2**32).

    Returns:
        float64 of the same shape; float32 on devices without float64 (MPS).
    """
    if bits.device.type != "mps":
        return _gumbel_from_uniform((bits.to(torch.float64) + 0.5) * 2.0**-32)
    # In float32 (h + 0.5) / 2**32 rounds to 1 near the top: take the logarithm from the nearer end.
    lower = (bits.to(torch.float32) + 0.5) * 2.0**-32
    upper = (((1 << 32) - 1 - bits).to(torch.float32) + 0.5) * 2.0**-32
    exponential = torch.where(bits < (1 << 31), -torch.log(lower), -torch.log1p(-upper))
    return -torch.log(exponential)


def gumbel(seed: int, position: int, token_ids: Tensor, uniforms: Uniforms | None = None) -> Tensor:
    """Standard Gumbel noise of each token id at one position.

    Adding it to log-probabilities and taking the argmax draws an exact sample of the softmax
    (the Gumbel-max trick).

    Args and device as in :func:`hash32`; dtype as in :func:`gumbel_from_hash`.

    Args:
        uniforms: hashes in compiled code, for ids on the CPU; its numbers are the same.
    """
    if uniforms is not None:
        return _gumbel_from_uniform(uniforms(_stream_key(seed, position), token_ids))
    return gumbel_from_hash(hash32(seed, position, token_ids))


def _gumbel_from_uniform(uniform: Tensor) -> Tensor:
    """In place."""
    return uniform.log_().neg_().log_().neg_()
