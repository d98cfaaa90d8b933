"""Rows read back from the journal, checked to the last byte; what is not sound is left to be computed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.kv_journal.journal_file import MappedRows, Stretch, UnusableRowsError, map_rows
from tokenswift_cli.kv_journal.prefix_digest import PrefixDigest
from tokenswift_cli.kv_journal.stretches import Span, file_of
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.kv_layout import KeyValueLayout

# Files are hashed ahead by so many threads; each maps one.
_AHEAD = 2


class JournalRows:
    """Stored rows for :func:`tokenswift_cli.engine.filling.fill`. Close it, or use ``with``.

    Args:
        directory: of the journal.
        spans: files to use, ascending and disjoint.
        token_ids: of the text, at least as many as the last span needs.
        origin: fingerprint of model and settings.
        layout: of the cache.

    Attributes:
        restored: rows handed out.
        seconds: time that the text had to wait for them.
        sound: the spans whose files proved sound, so far.
        problems: one line for each file that did not.
    """

    def __init__(
        self,
        directory: Path,
        spans: Sequence[Span],
        token_ids: Sequence[int],
        origin: str,
        layout: KeyValueLayout,
    ) -> None:
        self._directory = directory
        self._waiting = deque(spans)
        self._digest = PrefixDigest(token_ids)
        self._origin = origin
        self._layout = layout
        self._pool = ThreadPoolExecutor(_AHEAD)
        self._coming: deque[tuple[Span, Future[MappedRows]]] = deque()
        self.restored = 0
        self.seconds = 0.0
        self.sound: list[Span] = []
        self.problems: list[str] = []
        self._look_ahead()

    def restore(self, cache: KeyValueCache, limit: int) -> int:
        """See :class:`tokenswift_cli.engine.filling.StoredRows`."""
        started = time.perf_counter()
        self._drop_before(cache.length)
        if not self._coming or self._coming[0][0].first > cache.length:
            return 0
        span, coming = self._coming[0]
        try:
            restored = coming.result().append_to(cache, min(span.last, limit))
        except (UnusableRowsError, OSError) as error:
            why = os_error_text(error) if isinstance(error, OSError) else str(error)
            name = file_of(self._directory, span).name
            self.problems.append(f"{self._directory.name}/{name} cannot be used: {why}")
            self._pass_on()
            return 0
        finally:
            self.seconds += time.perf_counter() - started
        if span not in self.sound[-1:]:
            self.sound.append(span)
        self.restored += restored
        if span.last <= limit:
            self._pass_on()
        return restored

    def next_after(self, length: int, limit: int) -> int:
        """See :class:`tokenswift_cli.engine.filling.StoredRows`."""
        self._drop_before(length)
        return min(self._coming[0][0].first, limit) if self._coming else limit

    @property
    def unread(self) -> list[Span]:
        """The spans whose files were not asked for yet."""
        return [*(span for span, _ in self._coming), *self._waiting]

    def close(self) -> None:
        """Stop looking ahead; harmless when called twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._waiting.clear()
        self._coming.clear()

    def __enter__(self) -> JournalRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop_before(self, length: int) -> None:
        while self._coming and self._coming[0][0].last <= length:
            self._pass_on()

    def _pass_on(self) -> None:
        _, coming = self._coming.popleft()
        coming.cancel()
        self._look_ahead()

    def _look_ahead(self) -> None:
        while self._waiting and len(self._coming) < _AHEAD:
            span = self._waiting.popleft()
            stretch = Stretch(span.first, span.last, self._digest.at(span.last), self._origin)
            path = file_of(self._directory, span)
            self._coming.append((span, self._pool.submit(map_rows, path, stretch, self._layout)))
