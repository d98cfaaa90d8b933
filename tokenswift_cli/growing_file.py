"""The three append-only files of a run, and the bytes that go into them."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenswift_cli import durable
from tokenswift_cli.manifest import TOKEN_BYTES

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(frozen=True)
class GrowingFile:
    """The durable part of a file: its first ``size`` bytes, with their running SHA-256.

    The running hash makes the cost of a chunk proportional to the chunk, not to the text.
    """

    path: Path
    size: int
    running_hash: _Hash

    @classmethod
    def holding(cls, path: Path, data: bytes) -> GrowingFile:
        """The state of a file that holds ``data``."""
        return cls(path, len(data), hashlib.sha256(data))

    @property
    def sha256(self) -> str:
        """Hex digest of the first ``size`` bytes."""
        return self.running_hash.hexdigest()

    def extended(self, data: bytes) -> GrowingFile:
        """The state after ``data`` is appended. Touches no file."""
        running_hash = self.running_hash.copy()
        running_hash.update(data)
        return GrowingFile(self.path, self.size + len(data), running_hash)

    def append(self, data: bytes) -> None:
        """Put ``data`` after the durable part (what follows it is a torn tail and goes) and flush."""
        durable.append_at(self.path, self.size, data)

    def cut(self) -> int:
        """Remove what follows the durable part; returns the number of bytes removed."""
        return durable.cut(self.path, self.size)


def encode_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32. Raises ValueError for an id that does not fit."""
    try:
        words = array("I", ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers from 0 to 2**32 - 1: {error}") from error
    return _little_endian(words).tobytes()


def decode_ids(data: bytes) -> list[int]:
    """Inverse of :func:`encode_ids`; ``len(data)`` must be a multiple of 4."""
    words = array("I")
    words.frombytes(data)
    return _little_endian(words).tolist()


def encode_record(metrics: Mapping[str, object], chunk: int) -> bytes:
    """One line of metrics.jsonl. Its "chunk" is always ``chunk``, whatever ``metrics`` says.

    Raises ValueError or TypeError for what JSON cannot hold (NaN included).
    """
    record = {"chunk": chunk, **{name: value for name, value in metrics.items() if name != "chunk"}}
    return (json.dumps(record, allow_nan=False) + "\n").encode("ascii")


def whole_records(data: bytes, last_chunk: int) -> bytes:
    """The lines of a damaged metrics.jsonl that can be trusted: whole JSON objects, in chunk order,
    of chunks up to ``last_chunk``."""
    kept: list[bytes] = []
    previous = 0
    for line in data.split(b"\n")[:-1]:  # what follows the last newline is torn
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        chunk = record.get("chunk") if isinstance(record, dict) else None
        if type(chunk) is int and previous < chunk <= last_chunk:
            kept.append(line + b"\n")
            previous = chunk
    return b"".join(kept)


def _little_endian(words: array[int]) -> array[int]:
    assert words.itemsize == TOKEN_BYTES
    if sys.byteorder == "big":
        words.byteswap()
    return words
