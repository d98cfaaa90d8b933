"""What of a row of logits can be chosen, as one call: suppression, penalty, temperature and min-p.

Each score has the bits that torch's float32 operators give one after another. One pass over the vocabulary
finds the best score of every 64 tokens; only where one of them can be left, the 64 are looked at.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokenswift_cli.native.functions import functions_of

if TYPE_CHECKING:
    from torch import Tensor

INTERFACE = 1

# As CHOICE_BLOCK in choice_job.h.
_BLOCK = 64

_OUTCOMES = {
    1: "a setting or a token id is out of range",
    2: "this processor does not have the instructions asked for",
}


class _Call(ctypes.Structure):
    """As ``ChoiceCall`` in choice_job.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("window", ctypes.c_void_p),
        ("suppressed", ctypes.c_void_p),
        ("penalized", ctypes.c_void_p),
        ("largest", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("window_size", ctypes.c_int64),
        ("at_least", ctypes.c_int64),
        ("penalty", ctypes.c_float),
        ("temperature", ctypes.c_float),
        ("log_min_p", ctypes.c_float),
        ("instructions", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("best", ctypes.c_float),
        ("reserved", ctypes.c_int32),
    )


class Scanned(NamedTuple):
    """What is left of a row.

    Attributes:
        best: the best score before the temperature; if it is not finite, nothing is left.
        token_ids: int64 [C], ascending. Overwritten by the next scan.
        scores: float32 [C]. Overwritten by the next scan.
    """

    best: float
    token_ids: Tensor
    scores: Tensor


class RowScan:
    """Scans rows of one vocabulary, one at a time: it is for one thread, as its room is used again.

    Args:
        library: the compiled library.
        size: length V of a row.
        penalty: divides what is positive, multiplies the rest; > 0.
        temperature: > 0.
        log_min_p: scores below the best one plus this are dropped; -inf for none.
        instructions: index into ``INSTRUCTIONS`` of :mod:`tokenswift_cli.native.attention`; -1 for the best
            that the processor has.

    Raises:
        BuildError: the library is another version's.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        size: int,
        *,
        penalty: float = 1.0,
        temperature: float = 1.0,
        log_min_p: float = -math.inf,
        instructions: int = -1,
    ) -> None:
        import torch

        self._scan, self._uniforms = functions_of(library, "choice", INTERFACE, "choice", "uniforms")
        self._scan.argtypes = (ctypes.c_void_p,)
        self._uniforms.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self._uniforms.restype = None
        self._float32, self._int64 = torch.float32, torch.int64
        self._size = size
        self._penalizes = penalty != 1.0
        self._blocks = -(-size // _BLOCK)
        self._penalized = torch.zeros(self._blocks, dtype=torch.int64)
        self._largest = torch.empty(2 * self._blocks)
        self._token_ids = torch.empty(size, dtype=torch.int64)
        self._scores = torch.empty(size)
        self._numbers = torch.empty(size, dtype=torch.float64)
        self._call = _Call(
            penalized=self._penalized.data_ptr(),
            largest=self._largest.data_ptr(),
            token_ids=self._token_ids.data_ptr(),
            scores=self._scores.data_ptr(),
            size=size,
            penalty=penalty,
            temperature=temperature,
            log_min_p=log_min_p,
            instructions=instructions,
        )
        self._address = ctypes.addressof(self._call)

    def mask(self, token_ids: Sequence[int]) -> Tensor:
        """The ids as bits, for :meth:`__call__`.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        import numpy as np
        import torch

        if any(not 0 <= token_id < self._size for token_id in token_ids):
            raise ValueError(f"a token id to suppress is not in 0..{self._size - 1}")
        bits = np.zeros(self._blocks * _BLOCK, dtype=np.uint8)
        bits[list(token_ids)] = 1
        return torch.from_numpy(np.packbits(bits, bitorder="little").view("<i8").astype(np.int64))

    def __call__(
        self, logits: Tensor, window: Tensor, suppressed: Tensor | None = None, at_least: int = 0
    ) -> Scanned:
        """Scan one row.

        Args:
            logits: float32 [V] on the CPU, contiguous; not changed.
            window: int64 [W] on the CPU, contiguous: ids to penalise, repetitions allowed.
            suppressed: of :meth:`mask`; None for none.
            at_least: drop only what is below so many of the best; 0 for however few are left. What is left
                holds them, and maybe some more.

        Raises:
            ValueError: shapes, types, ids or settings do not fit.
        """
        if (
            logits.dtype is not self._float32
            or logits.dim() != 1
            or logits.numel() != self._size
            or not logits.is_contiguous()
            or not logits.is_cpu
        ):
            raise ValueError(
                f"the logits are {logits.dtype} of shape {tuple(logits.shape)} on {logits.device}, not "
                f"contiguous float32 [{self._size}] on the CPU"
            )
        window_size = self._require_ids("the window", window)
        call = self._call
        call.logits = logits.data_ptr()
        call.window = window.data_ptr()
        call.window_size = window_size if self._penalizes else 0
        call.suppressed = None if suppressed is None else suppressed.data_ptr()
        call.at_least = at_least
        outcome = self._scan(self._address)
        if outcome:
            raise ValueError(f"the compiled choice: {_OUTCOMES.get(outcome, f'error {outcome}')}")
        count = call.count
        return Scanned(call.best, self._token_ids.narrow(0, 0, count), self._scores.narrow(0, 0, count))

    def uniforms(self, key: int, token_ids: Tensor) -> Tensor:
        """(h + 0.5) / 2**32 of each id's 32-bit hash h, in the counter stream that starts at ``key``.

        Args:
            key: 0 .. 2**64 - 1.
            token_ids: int64 [C], C <= V, on the CPU, contiguous.

        Returns:
            float64 [C]. Overwritten by the next call.

        Raises:
            ValueError: the ids do not fit.
        """
        count = self._require_ids("the ids", token_ids)
        if count > self._size:
            raise ValueError(f"{count} ids are more than the vocabulary has")
        numbers = self._numbers.narrow(0, 0, count)
        self._uniforms(key, token_ids.data_ptr(), count, numbers.data_ptr())
        return numbers

    def _require_ids(self, name: str, token_ids: Tensor) -> int:
        """How many they are."""
        row = token_ids.dtype is self._int64 and token_ids.dim() == 1 and token_ids.is_contiguous()
        if row and token_ids.is_cpu:
            return token_ids.numel()
        raise ValueError(
            f"{name} are {token_ids.dtype} of shape {tuple(token_ids.shape)} on {token_ids.device}, not "
            "contiguous int64 [N] on the CPU"
        )
