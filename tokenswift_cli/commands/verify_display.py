"""How an audit shows its progress on standard error: one moving line on a terminal, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from rich.text import Text

from tokenswift_cli.display.base import Display, LineWriter
from tokenswift_cli.display.choose import dashboard_obstacle, open_display
from tokenswift_cli.display.region import TerminalRegion, in_foreground, terminal_size
from tokenswift_cli.display.wording import duration, number, visible
from tokenswift_cli.events import Event, Loading, Notice, PrefillProgress, Progress

_SECONDS_BETWEEN_LINES: Final = 10.0
_SECONDS_BETWEEN_DRAWINGS: Final = 0.25
_LEAST_BAR: Final = 4
_MOST_BAR: Final = 40


def open_verify_display(
    mode: str, stderr: TextIO | None = None, environ: Mapping[str, str] | None = None
) -> Display:
    """The display for ``mode`` (auto, rich, plain, json or none), as a context manager."""
    stderr = sys.stderr if stderr is None else stderr
    environ = os.environ if environ is None else environ
    if mode in ("json", "none"):
        return open_display(mode, stream=False, stderr=stderr, environ=environ, write_text=False)
    obstacle = dashboard_obstacle(stderr, environ, text_to_terminal=False)
    if mode == "plain" or obstacle is not None:
        lines = AuditLines(LineWriter(stderr))
        if mode == "rich":
            lines.handle(Notice(f"No moving line: {obstacle}. Plain lines instead.", "warning"))
        return lines
    return AuditBar(stderr, no_color=bool(environ.get("NO_COLOR")))


class AuditLines(Display):
    """A line every ten seconds, and one for each thing worth knowing."""

    def __init__(self, writer: LineWriter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._last_line = clock()

    def handle(self, event: Event) -> None:
        if isinstance(event, Loading):
            self._writer.line(f"loading: {event.message}")
        elif isinstance(event, Notice):
            self._writer.line(f"{event.level}: {event.message}")
        elif isinstance(event, PrefillProgress | Progress):
            done, total, rate, left = _state(event)
            if done and self._clock() - self._last_line >= _SECONDS_BETWEEN_LINES:
                self._last_line = self._clock()
                what = "read" if isinstance(event, PrefillProgress) else "checked"
                self._writer.line(f"{what}={done}/{total} tok/s={number(rate, 1)} eta={duration(left)}")


class AuditBar(Display):
    """One line at the bottom of a terminal; gone when the display closes."""

    def __init__(
        self, stream: TextIO, *, no_color: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._region = TerminalRegion(
            LineWriter(stream).raw, lambda: terminal_size(stream), no_color=no_color
        )
        self._drawn: float | None = None
        self._line = Text()

    def handle(self, event: Event) -> None:
        if isinstance(event, Notice):
            style = "bold yellow" if event.level == "warning" else "dim"
            self._region.print_above([Text.assemble((f"{event.level}: ", style), visible(event.message))])
            self._draw()
        elif isinstance(event, Loading):
            self._line = Text(f"{visible(event.message)} ...", style="dim")
            self._draw()
        elif isinstance(event, PrefillProgress | Progress):
            self._line = progress_text(event, terminal_size(self._stream)[0])
            if self._drawn is None or self._clock() - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
                self._draw()

    def close(self) -> None:
        self._region.print_above([])

    def _draw(self) -> None:
        if in_foreground(self._stream):
            self._drawn = self._clock()
            line = self._line.copy()
            line.truncate(terminal_size(self._stream)[0])
            self._region.paint([line])


def progress_text(event: PrefillProgress | Progress, columns: int) -> Text:
    """The moving line, for instance ``Checking ━━━━──── 5,000 / 10,000  50%  320 tok/s  about 16s left``."""
    done, total, rate, left = _state(event)
    share = min(1.0, done / total) if total else 1.0
    label = "Reading " if isinstance(event, PrefillProgress) else "Checking "
    # Padded to the widest count, so that the bar keeps its length.
    count = f"{done:,} / {total:,}".rjust(2 * len(f"{total:,}") + 3)
    speed = "" if rate is None else f"  {number(rate, 0)} tok/s"
    end = "" if left is None else f"  about {duration(left)} left"
    rest = f" {count} {int(100 * share):3d}%"
    fits = len(label) + _LEAST_BAR + len(rest + speed + end) < columns
    rest += speed + end if fits else end
    room = columns - len(label) - len(rest) - 2
    length = min(max(room, _LEAST_BAR), _MOST_BAR)
    filled = int(share * length)
    return Text.assemble(
        (label, "bold"), ("━" * filled, "cyan"), ("─" * (length - filled), "dim"), (rest, "")
    )


def _state(event: PrefillProgress | Progress) -> tuple[int, int, float | None, float | None]:
    """Tokens done and in all, tokens per second, and seconds left."""
    if isinstance(event, Progress):
        return event.tokens, event.max_tokens, event.tokens_per_second, event.eta_seconds
    rate = event.done_tokens / event.seconds if event.done_tokens and event.seconds > 0 else None
    left = (event.total_tokens - event.done_tokens) / rate if rate else None
    return event.done_tokens, event.total_tokens, rate, left
