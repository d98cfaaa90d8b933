"""The journal of one run, as the run uses it: rows back at the start, new rows after every chunk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenswift_cli.kv_journal.journal_file import Stretch
from tokenswift_cli.kv_journal.policy import JournalPlan
from tokenswift_cli.kv_journal.prefix_digest import PrefixDigest
from tokenswift_cli.kv_journal.reader import JournalRows
from tokenswift_cli.kv_journal.stretches import Span, keep_only, missing, spans_in, usable
from tokenswift_cli.kv_journal.writer import JournalWriter
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.kv_layout import KeyValueLayout

# Fewer rows than this wait for the next chunk: a run with tiny chunks must not make thousands of files.
LEAST_ROWS = 256
# A long prompt is written in pieces of this size, so that damage to one costs no more than its rows.
MOST_ROWS = 4096


def origin_of(facts: Mapping[str, object]) -> str:
    """Fingerprint of what decides the rows of a text besides its tokens; ``facts`` must be JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("ascii")).hexdigest()


class Journal:
    """The journal of one text: :meth:`open_rows`, :meth:`begin`, :meth:`save` after a chunk, :meth:`close`.

    Rows that are there are always read; whether new ones are written is for the plan to say.

    Args:
        directory: of the journal.
        origin: fingerprint of model and settings.
        plan: whether it is kept.
    """

    def __init__(self, directory: Path, origin: str, plan: JournalPlan) -> None:
        self.required = plan.required
        self._directory = directory
        self._origin = origin
        self._kept = plan.kept
        self._writer: JournalWriter | None = None
        self._written_before = 0
        self._digest = PrefixDigest()
        self._known = 0
        self._covered = 0

    def open_rows(self, token_ids: Sequence[int], layout: KeyValueLayout) -> JournalRows:
        """The rows that there are of the first tokens of a text; changes no file.

        Args:
            token_ids: of the text, as far as it is known.
            layout: of the cache that they are for.

        Raises:
            ResumeRefusedError: the directory is a symbolic link.
            OSError: it cannot be read.
        """
        spans = usable(spans_in(self._directory), len(token_ids))
        return JournalRows(self._directory, spans, token_ids, self._origin, layout)

    def begin(self, token_ids: Sequence[int], kept: Sequence[Span], cache: KeyValueCache) -> None:
        """Take over the files of ``kept``, remove others, and have the rest of the cache's rows written.

        Args:
            token_ids: of the text so far, the last one not yet in the cache.
            kept: ascending spans whose files hold rows of this text; they may reach beyond the cache.
            cache: of the text; what is committed there from now on is for :meth:`save`.
        """
        if not self._kept:
            return
        keep_only(self._directory, kept)
        self._writer = JournalWriter(self._directory, cache)
        self._digest.extend(token_ids)
        self._known = len(token_ids)
        self._put(missing([span for span in kept if span.first < cache.length], cache.length, MOST_ROWS))
        self._covered = cache.length

    def save(self, token_ids: Sequence[int], *, last: bool = False) -> None:
        """Have the rows committed since written, unless they are few and more will come.

        Args:
            token_ids: those that were added to the text since the last call.
            last: nothing more will come; returns when all is on the disk.
        """
        if self._writer is None:
            return
        self._digest.extend(token_ids)
        self._known += len(token_ids)
        # A step that ended the text may have committed more than the text took, and the row of its last token
        # is computed by whoever goes on.
        length = min(self._writer.cache.length, self._known - 1)
        if length - self._covered >= (1 if last else LEAST_ROWS):
            self._put(missing([Span(0, self._covered)], length, MOST_ROWS))
            self._covered = length
        if last:
            self._writer.finish()

    def take_failure(self) -> Exception | None:
        """The error that ended the writing, once; None while all is well."""
        if self._writer is None or self._writer.failure is None:
            return None
        failure = self._writer.failure
        self.close()
        return failure

    @property
    def written_bytes(self) -> int:
        """Of files that this session has put on the disk."""
        return self._written_before + (0 if self._writer is None else self._writer.written_bytes)

    def close(self) -> None:
        """Wait for the file being written, and leave out what comes after it; harmless when called twice."""
        if self._writer is not None:
            self._writer.abandon()
            self._written_before += self._writer.written_bytes
            self._writer = None

    def _put(self, spans: Sequence[Span]) -> None:
        assert self._writer is not None
        for span in spans:
            self._writer.put(Stretch(span.first, span.last, self._digest.at(span.last), self._origin))
