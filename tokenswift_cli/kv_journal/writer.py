"""Writing the journal beside the decoding: a thread of low priority reads committed rows where they are."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from pathlib import Path

from tokenswift_cli import durable
from tokenswift_cli.kv_journal.journal_file import Stretch, write_rows
from tokenswift_cli.kv_journal.stretches import Span, file_of
from tokenswift_cli.models.kv_cache import KeyValueCache

_LOWEST_PRIORITY = 19


class JournalWriter:
    """Writes files one after the other, in the background.

    Committed rows never change, so nothing has to be copied for it before decoding goes on.

    Args:
        directory: of the journal; made when the first file is written.
        cache: of the text.

    Attributes:
        written_bytes: of files that are on the disk.
        failure: the error that ended the writing; None while all is well.
    """

    def __init__(self, directory: Path, cache: KeyValueCache) -> None:
        self._directory = directory
        self.cache = cache
        self._stretches: queue.SimpleQueue[Stretch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.written_bytes = 0
        self.failure: Exception | None = None
        self._abandoned = False

    def put(self, stretch: Stretch) -> None:
        """Have these committed rows written."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kv-journal", daemon=True)
            self._thread.start()
        self._stretches.put(stretch)

    def finish(self) -> None:
        """Wait until all is written, or failed."""
        if self._thread is not None:
            self._stretches.put(None)
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """Wait for the file being written; the others are left out."""
        self._abandoned = True
        self.finish()

    def _work(self) -> None:
        # Decoding has every core; threads that meet at barriers suffer most from a third one.
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while (stretch := self._stretches.get()) is not None:
            if self._abandoned or self.failure is not None:
                continue
            try:
                if not self._directory.is_dir():
                    durable.make_directory(self._directory)
                path = file_of(self._directory, Span(stretch.first, stretch.last))
                self.written_bytes += write_rows(path, stretch, self.cache)
            except Exception as error:  # told by whoever waits for the files
                self.failure = error
