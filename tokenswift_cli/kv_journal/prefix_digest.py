"""SHA-256 of the beginning of a text's token ids, for ascending lengths, at constant work per token."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tokenswift_cli.growing_file import encode_ids
from tokenswift_cli.manifest import TOKEN_BYTES


class PrefixDigest:
    """Tokens go in at the end; digests come out up to any length not shorter than the last one asked for."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._pending = bytearray(encode_ids(token_ids))

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens."""
        self._pending += encode_ids(token_ids)

    def at(self, length: int) -> str:
        """Hex digest of the first ``length`` ids."""
        size = (length - self._hashed) * TOKEN_BYTES
        if not 0 <= size <= len(self._pending):
            raise ValueError(f"cannot hash {length} tokens: {self._hashed} are hashed, others are not there")
        self._hash.update(self._pending[:size])
        del self._pending[:size]
        self._hashed = length
        return self._hash.hexdigest()
