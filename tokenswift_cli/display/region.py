"""A few lines at the bottom of a terminal that are painted over again and again.

The cursor is never hidden and no terminal mode is changed, so the terminal is in order at any
moment, also after kill -9. Standard output and standard error are left alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

ERASE_LINE, ERASE_BELOW = "\x1b[2K", "\x1b[J"


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """(columns, lines) of the terminal behind ``stream``; 80 x 24 if it does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return 80, 24
    return (size.columns or 80), (size.lines or 24)


def in_foreground(stream: TextIO) -> bool:
    """False when the process was sent to the background and must not draw."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return True


class TerminalRegion:
    """Paints lines over those it painted before. The cursor rests below the last line.

    Args:
        write: takes the characters for the terminal; one call per picture.
        size: gives (columns, lines) of the terminal now.
        no_color: bold and faint remain, colours do not.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], tuple[int, int]],
        *,
        no_color: bool,
    ) -> None:
        self._write = write
        self._size = size
        # Rich only turns styles into escape sequences here, whatever it thinks of the terminal.
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard",
            legacy_windows=False,
            no_color=no_color,
            highlight=False,
            emoji=False,
            markup=False,
        )
        self._widths: list[int] = []

    def paint(self, lines: Sequence[Text]) -> None:
        """Replace the picture."""
        # A line is erased before it is written: after a full line the cursor still stands on its
        # last column, and erasing would take that character away.
        body = "".join(f"{ERASE_LINE}{self._styled(line)}\n" for line in lines)
        self._write(self._to_top() + body + ERASE_BELOW)
        self._widths = [line.cell_len for line in lines]

    def print_above(self, lines: Sequence[Text]) -> None:
        """Write lasting lines where the picture stands; the next picture comes below them."""
        body = "".join(f"{self._styled(line)}\n" for line in lines)
        self._write(self._to_top() + ERASE_BELOW + body)
        self._widths = []

    def forget(self) -> None:
        """Begin the next picture at the cursor: something else has written to the terminal."""
        self._widths = []

    def _to_top(self) -> str:
        """Back to the first line of the picture, as the terminal shows it now."""
        columns, lines = self._size()
        # A terminal that became narrower has broken the lines that no longer fit.
        rows = sum(max(1, -(-width // max(1, columns))) for width in self._widths)
        rows = min(rows, lines - 1)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _styled(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, soft_wrap=True, end="")
        return captured.get()
