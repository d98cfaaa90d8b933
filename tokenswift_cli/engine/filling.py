"""Bringing the cache to where a text goes on: rows that are stored are taken, the others computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.target import Target


class StoredRows(Protocol):
    """Rows of the cache that were kept from an earlier time."""

    def restore(self, cache: KeyValueCache, limit: int) -> int:
        """Put the rows that are stored for ``cache.length`` and on behind the cache's own, up to ``limit``.

        Returns how many; 0 if there are none, or they proved unusable.
        """
        ...

    def next_after(self, length: int, limit: int) -> int:
        """Where the next stored rows behind ``length`` begin; ``limit`` if there are none before it."""
        ...


class NoStoredRows:
    """There are none."""

    def restore(self, cache: KeyValueCache, limit: int) -> int:
        """See :class:`StoredRows`."""
        return 0

    def next_after(self, length: int, limit: int) -> int:
        """See :class:`StoredRows`."""
        return limit


class Filled(NamedTuple):
    """The cache holds the rows of the first ``length`` tokens; the last ``restored`` of them were stored."""

    length: int
    restored: int


def fill(
    target: Target, token_ids: Sequence[int], chunk: int, stored: StoredRows | None = None
) -> Iterator[Filled]:
    """Read the tokens whose rows the target's cache lacks.

    Args:
        target: its cache holds the rows of the first ``cache.length`` of the tokens already.
        token_ids: all tokens from the first one on.
        chunk: most tokens per pass.
        stored: rows that need not be computed.

    Yields:
        after each piece.

    Raises:
        ValueError: the cache holds more than these tokens.
        ModelError: the cache's type cannot hold the model's keys and values.
    """
    cache, end = target.cache, len(token_ids)
    if cache.length > end:
        raise ValueError(f"the cache holds {cache.length} tokens, more than the {end} that were given")
    rows = stored or NoStoredRows()
    while cache.length < end:
        first = cache.length
        restored = rows.restore(cache, end)
        if not restored:
            last = min(first + chunk, rows.next_after(first, end))
            target.read(token_ids[first:last])
            cache.require_in_range(cache.length)
        yield Filled(cache.length, restored)
