"""How a measurement goes, on standard error: one moving line on a terminal, else plain lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PLAIN_INTERVAL: Final = 10.0
_REDRAWS_PER_SECOND: Final = 2.0  # drawing takes time from what is measured


class BenchProgress:
    """Shows phases, details and the share of turns done. A context.

    Args:
        stream: standard error.
        animated: whether a line can be redrawn there.
        quiet: show nothing.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        animated: bool,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._quiet = quiet
        self._clock = clock
        self._said = clock()
        self._phase = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if animated and not quiet:
            self._progress, self._task = _rich_progress(stream)

    def __enter__(self) -> BenchProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def expect(self, turns: int) -> None:
        """So many turns are to come."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=turns)

    def notice(self, text: str) -> None:
        """A line that stays."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        elif not self._quiet:
            self._line(text)

    def phase(self, what: str) -> None:
        """This begins now."""
        self._phase = what
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what)
        elif not self._quiet:
            self._line(what)

    def detail(self, text: str) -> None:
        """How far the phase is; as a plain line only every ten seconds."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=f"{self._phase}: {text}" if self._phase else text)
        elif not self._quiet and self._clock() - self._said >= _PLAIN_INTERVAL:
            self._line(text)

    def turn_done(self) -> None:
        """One turn is over."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def _line(self, text: str) -> None:
        self._said = self._clock()
        # If nobody can read it (full disk, closed terminal) the measurement goes on.
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._stream, flush=True)


def _rich_progress(stream: TextIO) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        refresh_per_second=_REDRAWS_PER_SECOND,
        transient=True,
    )
    return progress, progress.add_task("", total=None)
