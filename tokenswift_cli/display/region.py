"""A few lines at the bottom of a terminal that are painted over again and again.

The cursor is never hidden and no terminal mode is changed, so the terminal is in order at any
moment, also after kill -9. Standard output and standard error are left alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from tokenswift_cli.display.cells import text_cells

ERASE_RIGHT, ERASE_BELOW = "\x1b[K", "\x1b[J"


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
        glyphs: what to write instead of some characters, as wide as they are; for ``str.translate``.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], tuple[int, int]],
        *,
        no_color: bool,
        glyphs: Mapping[int, str] | None = None,
    ) -> None:
        self._write = write
        self._size = size
        self._no_color = no_color
        self._glyphs = glyphs or {}
        # Rich only knows the styles here, whatever it thinks of the terminal.
        self._console = Console(file=io.StringIO(), highlight=False, emoji=False, markup=False)
        self._widths: list[int] = []
        self._painted: list[tuple[Text, str]] = []  # the last picture's lines, as they are and as written
        self._columns = 0

    def paint(self, lines: Sequence[Text]) -> None:
        """Replace the picture."""
        columns, _ = self._size()
        # Written over the old line, not erased before: nothing flickers. After a full line the cursor
        # still stands on its last column, and erasing would take that character away.
        before = self._painted if columns == self._columns else []
        # Most lines are what they were: they are written again, so that the picture heals where something
        # else has written into it, but not made again.
        painted = [(line, self._in_place(line, columns)) for line in lines[len(before) :]]
        painted = [
            (line, shown if (old, old.style) == (line, line.style) else self._in_place(line, columns))
            for line, (old, shown) in zip(lines, before, strict=False)
        ] + painted
        body = "".join(f"{shown}\n" for _, shown in painted)
        self._write(self._to_top() + body + ERASE_BELOW)
        self._widths = [text_cells(line.plain) for line in lines]
        self._painted, self._columns = painted, columns

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

    def _in_place(self, line: Text, columns: int) -> str:
        """The line, and nothing of what stood there before."""
        *parts, (last, last_styled) = self._styled_parts(line) or [("", "")]
        start = "".join(styled for _, styled in parts)
        width = text_cells(line.plain)
        if width != len(line.plain):
            # Terminals differ in the width of such characters: the border goes where it belongs.
            start += f"{ERASE_RIGHT}\x1b[{width - text_cells(last) + 1}G"
        return start + last_styled + (ERASE_RIGHT if width < columns else "")

    def _styled(self, line: Text) -> str:
        return "".join(styled for _, styled in self._styled_parts(line))

    def _styled_parts(self, line: Text) -> list[tuple[str, str]]:
        """The line's pieces, each as it is and with its escape sequences."""
        parts = []
        for text, style, _ in line.render(self._console):
            shown = text.translate(self._glyphs) if self._glyphs else text
            if style is None:
                parts.append((shown, shown))
            else:
                style = style.without_color if self._no_color else style
                parts.append((shown, style.render(shown, color_system=ColorSystem.STANDARD)))
        return parts
