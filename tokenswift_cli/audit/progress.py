"""How far an audit is, as events: what stands before the first position is read, then choices are checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenswift_cli.events import Event, PrefillProgress, Progress

if TYPE_CHECKING:
    from tokenswift_cli.audit.recompute import Piece


class AuditProgress:
    """Turns pieces of work into events, and keeps the times.

    Args:
        publish: gets the events: ``PrefillProgress`` while reading, then ``Progress`` whose tokens are the
            positions checked.
        rows_before: tokens read before the first position is checked.
        rows: tokens read when all are checked.
        positions: to check.
        clock: seconds.
    """

    def __init__(
        self,
        publish: Callable[[Event], None],
        *,
        rows_before: int,
        rows: int,
        positions: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._publish = publish
        self._rows_before = rows_before
        self._rows = rows
        self._positions = positions
        self._clock = clock
        self._started = clock()
        self._checking_since = self._started
        self._now = self._started
        self._read = 0
        self.checked = 0
        self._publish(PrefillProgress(0, rows_before, 0.0))

    @property
    def read_seconds(self) -> float:
        """Until the first position could be checked, or until now."""
        return (self._checking_since if self._read >= self._rows_before else self._now) - self._started

    @property
    def check_seconds(self) -> float:
        """After that."""
        return self._now - self._started - self.read_seconds

    def update(self, piece: Piece) -> None:
        """One more piece is done."""
        self._now = self._clock()
        self._read = piece.rows
        self.checked += piece.checked
        if not self.checked:
            if piece.rows <= self._rows_before:
                self._checking_since = self._now
                self._publish(PrefillProgress(piece.rows, self._rows_before, self._now - self._started))
            return
        # By rows, as a sample reads much more than it checks.
        seconds = self.check_seconds
        speed = (piece.rows - self._rows_before) / seconds if seconds > 0 else 0.0
        rate = self.checked / seconds if seconds > 0 else None
        self._publish(
            Progress(
                tokens=self.checked,
                max_tokens=self._positions,
                session_tokens=self.checked,
                decode_seconds=seconds,
                tokens_per_second=rate,
                recent_tokens_per_second=None,
                speedup=None,
                acceptance_rate=None,
                mean_acceptance_length=None,
                distinct=None,
                eta_seconds=(self._rows - piece.rows) / speed if speed else None,
            )
        )
