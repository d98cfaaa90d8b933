"""Which display fits: chosen from isatty() and the environment, never by Rich's own guess."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from tokenswift_cli.config import PROGRESS_MODES
from tokenswift_cli.display.base import Display, LineWriter
from tokenswift_cli.display.jsonl import JsonDisplay
from tokenswift_cli.display.plain import PlainDisplay, QuietDisplay
from tokenswift_cli.display.text_sink import TextSink
from tokenswift_cli.errors import UsageError
from tokenswift_cli.events import Event, Notice, TextAppended


def open_display(
    mode: str,
    *,
    stream: bool,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
    verbosity: int = 0,
    write_text: bool = True,
) -> Display:
    """The display for ``mode`` (auto, rich, plain, json or none), as a context manager.

    Generated text goes to standard output if that is not a terminal, or with ``stream``; with
    ``write_text`` False it never does. Everything else goes to standard error: with ``auto`` a
    dashboard if that is a terminal that can be drawn on, else plain lines. ``none`` leaves
    warnings and the resume command of an interrupted run.

    Raises:
        UsageError: unknown mode.
    """
    if mode not in PROGRESS_MODES:
        raise UsageError(f"Unknown display {mode!r}; choose one of {', '.join(PROGRESS_MODES)}.")
    stdout = sys.stdout if stdout is None else stdout
    stderr = sys.stderr if stderr is None else stderr
    environ = os.environ if environ is None else environ
    text_to_terminal = stream and write_text and is_terminal(stdout)
    sink = TextSink(stdout, terminal=is_terminal(stdout)) if write_text else None
    if not (stream or not is_terminal(stdout)):
        sink = None

    shared = sink if text_to_terminal and is_terminal(stderr) else None
    writer = LineWriter(stderr, before_line=shared.end_line if shared is not None else None)
    obstacle = dashboard_obstacle(stderr, environ, text_to_terminal=text_to_terminal)
    status: Display
    if mode == "json":
        status = JsonDisplay(writer)
    elif mode == "none":
        status = QuietDisplay(writer)
    elif mode == "plain" or obstacle is not None:
        status = PlainDisplay(writer, verbosity=verbosity)
        if mode == "rich":
            status.handle(Notice(f"No dashboard: {obstacle}. Plain lines instead.", "warning"))
    else:
        from tokenswift_cli.display.dashboard import Dashboard

        # The console's font has no more than 512 characters.
        plain_glyphs = environ.get("TERM") == "linux"
        status = Dashboard(stderr, no_color=bool(environ.get("NO_COLOR")), plain_glyphs=plain_glyphs)
    return status if sink is None else _WithText(status, sink)


def is_terminal(stream: TextIO) -> bool:
    """isatty(), and False for a closed stream."""
    try:
        return stream.isatty()
    except (ValueError, AttributeError):
        return False


def dashboard_obstacle(stderr: TextIO, environ: Mapping[str, str], *, text_to_terminal: bool) -> str | None:
    """Why a dashboard cannot be drawn, in words, or None if it can."""
    if not is_terminal(stderr):
        return "standard error is not a terminal"
    if sys.platform != "win32" and environ.get("TERM", "") in ("", "dumb", "unknown"):
        return f"the terminal cannot be drawn on (TERM={environ.get('TERM', '')})"
    if text_to_terminal:
        return "the text is streamed to the same terminal"
    encoding = (getattr(stderr, "encoding", None) or "utf-8").lower().replace("-", "")
    if encoding not in ("utf8", "utf8sig"):
        return f"the terminal's encoding is {encoding}, not UTF-8"
    return None


class _WithText(Display):
    """A status display, and the text on standard output beside it."""

    def __init__(self, status: Display, sink: TextSink) -> None:
        self._status = status
        self._sink = sink

    def handle(self, event: Event) -> None:
        if isinstance(event, TextAppended):
            trouble = self._sink.write(event.text)
            if trouble is not None:
                self._status.handle(Notice(trouble, "warning"))
        self._status.handle(event)

    def close(self) -> None:
        self._sink.end_line()
        self._status.close()
