"""One plain line now and then, for log files, pipes and simple terminals."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable

from tokenswift_cli.display.base import Display, LineWriter
from tokenswift_cli.display.wording import duration, finished_headline, number, summary, unfinished
from tokenswift_cli.events import (
    CheckpointSaved,
    Event,
    Loading,
    LoopDetected,
    Notice,
    PrefillProgress,
    Progress,
    RunFinished,
    RunStarted,
)

SECONDS_BETWEEN_LINES = 10.0


class _LineDisplay(Display):
    """Lines on a stream; the last ones say how to resume a run that ended without a result."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._unfinished: RunStarted | None = None

    def handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._unfinished = event
        elif isinstance(event, RunFinished):
            self._unfinished = None
        self._show(event)

    def close(self) -> None:
        if self._unfinished is not None:
            for label, value in unfinished(self._unfinished):
                self._writer.line(f"{label}: {value}")
            self._unfinished = None

    @abstractmethod
    def _show(self, event: Event) -> None:
        """Write the lines of one event, if it has any."""


class PlainDisplay(_LineDisplay):
    """A progress line every ten seconds, and a line for each thing worth knowing.

    ``verbosity`` 1 adds a line per checkpoint. Never writes a control character.
    """

    def __init__(
        self, writer: LineWriter, *, verbosity: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(writer)
        self._verbosity = verbosity
        self._clock = clock
        self._last_line = clock()
        self._prefill_shown = -1

    def _show(self, event: Event) -> None:
        if isinstance(event, Progress):
            if self._is_time():
                self._writer.line(progress_line(event))
        elif isinstance(event, PrefillProgress):
            self._prefill(event)
        elif isinstance(event, RunStarted):
            self._last_line = self._clock()
            self._writer.line(start_line(event))
        elif isinstance(event, Loading):
            self._writer.line(f"loading: {event.message}")
        elif isinstance(event, CheckpointSaved):
            if self._verbosity > 0:
                self._writer.line(
                    f"checkpoint: tokens={event.tokens} chunk={event.chunk} seconds={event.seconds:.2f}"
                )
        elif isinstance(event, LoopDetected):
            self._writer.line(f"warning: {event.message} (at token {event.tokens})")
        elif isinstance(event, Notice):
            self._writer.line(f"{event.level}: {event.message}")
        elif isinstance(event, RunFinished):
            self._writer.line(finished_headline(event))
            for label, value in summary(event):
                self._writer.line(f"{label}: {value}")

    def _is_time(self) -> bool:
        now = self._clock()
        if now - self._last_line < SECONDS_BETWEEN_LINES:
            return False
        self._last_line = now
        return True

    def _prefill(self, event: PrefillProgress) -> None:
        ended = event.done_tokens >= event.total_tokens
        if event.done_tokens != self._prefill_shown and (ended or self._is_time()):
            self._prefill_shown = event.done_tokens
            self._last_line = self._clock()
            self._writer.line(
                f"prefill={event.done_tokens}/{event.total_tokens} elapsed={duration(event.seconds)}"
            )


class QuietDisplay(_LineDisplay):
    """Only what must not be missed: warnings, and how to resume an interrupted run."""

    def _show(self, event: Event) -> None:
        if isinstance(event, LoopDetected) or (isinstance(event, Notice) and event.level == "warning"):
            self._writer.line(f"warning: {event.message}")
        elif isinstance(event, RunFinished) and event.finish_reason == "interrupted":
            self._writer.line(finished_headline(event))
            if event.resume_command is not None:
                self._writer.line(f"resume with: {event.resume_command}")


def start_line(started: RunStarted) -> str:
    """The settings of the run as key=value pairs."""
    return (
        f"start: model={started.model} device={started.device} dtype={started.dtype} "
        f"method={started.method} seed={started.seed} prompt={started.prompt_tokens} "
        f"tokens={started.resumed_tokens}/{started.max_tokens} run={started.run_dir}"
    )


def progress_line(progress: Progress) -> str:
    """For instance ``tokens=24576/100000 tok/s=61.2 accept=0.71 len=3.1 distinct-2=0.83 eta=20m31s``.

    What is not known yet is ``-``. The speed is the recent one.
    """
    speed = progress.recent_tokens_per_second
    if speed is None:
        speed = progress.tokens_per_second
    distinct = None if progress.distinct is None else progress.distinct[1]
    return (
        f"tokens={progress.tokens}/{progress.max_tokens} tok/s={number(speed, 1)} "
        f"accept={number(progress.acceptance_rate, 2)} len={number(progress.mean_acceptance_length, 1)} "
        f"distinct-2={number(distinct, 2)} eta={duration(progress.eta_seconds)}"
    )
