"""The live dashboard on a terminal: fixed height, calm, redrawn a few times a second."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TextIO

from rich.text import Text

from tokenswift_cli.display.base import Display, LineWriter
from tokenswift_cli.display.cells import text_cells
from tokenswift_cli.display.frame import frame
from tokenswift_cli.display.glyphs import PLAIN_GLYPHS
from tokenswift_cli.display.lines import ALARM, FAINT, PLAIN, STRONG, wrapped
from tokenswift_cli.display.region import TerminalRegion, in_foreground, terminal_size
from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.wording import finished_headline, report_command, summary, unfinished, visible
from tokenswift_cli.events import Event, LoopDetected, Notice

REDRAWS_PER_SECOND = 4.0
LEAST_SUMMARY_COLUMNS = 40


class Dashboard(Display):
    """Shows a run on the terminal behind ``stream`` and leaves a summary there when it closes.

    Handling an event only notes it. A thread draws at a fixed pace, so spinner and clock move
    while the engine computes; with ``redraws_per_second`` 0 there is no thread and :meth:`draw`
    is called by hand.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        no_color: bool = False,
        plain_glyphs: bool = False,
        redraws_per_second: float = REDRAWS_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._size = size or (lambda: terminal_size(stream))
        self._region = TerminalRegion(
            LineWriter(stream).raw,
            self._size,
            no_color=no_color,
            glyphs=PLAIN_GLYPHS if plain_glyphs else None,
        )
        self._view = RunView(opened_at=clock())
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._continued = False
        self._signal_before: object = None
        self._thread: threading.Thread | None = None
        if redraws_per_second > 0:
            self._watch_for_continue()
            self._thread = threading.Thread(
                target=self._redraw, args=(1.0 / redraws_per_second,), name="dashboard", daemon=True
            )
            self._thread.start()

    def handle(self, event: Event) -> None:
        with self._lock:
            self._view.apply(event, self._clock())
            if isinstance(event, LoopDetected):
                self._lasting("warning", event.message)
            elif isinstance(event, Notice):
                self._lasting(event.level, event.message)

    def draw(self) -> None:
        """Paint the present state."""
        with self._lock:
            if self._closing.is_set() or not in_foreground(self._stream):
                return
            if self._continued:
                self._continued = False
                self._region.forget()
            columns, lines = self._size()
            self._region.paint(frame(self._view, columns, lines, self._clock()))

    def close(self) -> None:
        """Stop drawing, erase the picture, leave the summary. The terminal stays usable."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
            self._restore_signal()
        with self._lock:
            self._region.print_above(closing_lines(self._view, self._size()[0]))

    def _lasting(self, level: str, message: str) -> None:
        first, *more = wrapped(f"{level}: {visible(message)}", self._size()[0])
        head = f"{level}:"
        style = ALARM if level == "warning" else FAINT
        lines = [Text.assemble((first[: len(head)], style), first[len(head) :]), *map(Text, more)]
        self._region.print_above(lines)
        self.draw()

    def _redraw(self, seconds: float) -> None:
        self.draw()
        while not self._closing.wait(seconds):
            self.draw()

    def _watch_for_continue(self) -> None:
        """After Ctrl-Z and fg the shell has written below the picture: start a new one there."""
        if hasattr(signal, "SIGCONT") and threading.current_thread() is threading.main_thread():
            self._signal_before = signal.signal(signal.SIGCONT, self._on_continue)

    def _on_continue(self, number: int, where: FrameType | None) -> None:
        self._continued = True

    def _restore_signal(self) -> None:
        if self._signal_before is not None:
            with contextlib.suppress(ValueError, TypeError):  # closed by another thread
                signal.signal(signal.SIGCONT, self._signal_before)  # type: ignore[arg-type]
            self._signal_before = None


def closing_lines(view: RunView, columns: int) -> list[Text]:
    """What remains on the terminal: the result, or where the run is if it did not finish.

    A terminal of fewer than 40 columns would break a table within its words: there it is only the
    headline, the run directory and the commands, each whole and alone on its line.
    """
    if view.finished is not None:
        finished = view.finished
        headline = [Text(finished_headline(finished), style=STRONG)]
        rows, indent = summary(finished), "  "
        report = report_command(finished.run_dir) if finished.tokens > 0 else None
        essential = [finished.run_dir, report, finished.resume_command]
    elif view.started is not None:
        headline, rows, indent = [], unfinished(view.started), ""
        essential = [value for _, value in rows]
    else:
        return []
    if columns < LEAST_SUMMARY_COLUMNS:
        return headline + [Text(visible(value)) for value in essential if value is not None]
    return headline + [line for label, value in rows for line in _closing_row(indent, label, value, columns)]


def _closing_row(indent: str, label: str, value: str, columns: int) -> list[Text]:
    """Label and value; where they do not fit, the value alone, so that a command is not broken within."""
    value = visible(value)
    line = Text.assemble((f"{indent}{label:<15}", FAINT), (value, PLAIN))
    if text_cells(line.plain) <= columns:
        return [line]
    room = " " * max(0, min(2 * len(indent), columns - text_cells(value)))
    return [Text(f"{indent}{label}", style=FAINT), Text(f"{room}{value}")]
