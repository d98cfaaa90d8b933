"""The last lines of a growing text, wrapped so that lines already shown stay as they are."""

from __future__ import annotations

from collections import deque

from tokenswift_cli.display.cells import character_cells, text_cells
from tokenswift_cli.display.wording import visible

KEEP_CHARACTERS = 4096
KEEP_LINES = 64

# Selectors of the text or picture form and of a skin tone: terminals differ in the width they give to
# them with the character before, so they are left out.
_WITHOUT_SELECTORS = dict.fromkeys([0xFE0E, 0xFE0F, *range(0x1F3FB, 0x1F400)])


class TextTail:
    """Takes text, gives its last lines for a width. Work is proportional to the new text."""

    def __init__(self) -> None:
        self._recent = ""
        self._fresh: list[str] = []
        self._fresh_length = 0
        self._width = 0
        self._done: deque[str] = deque(maxlen=KEEP_LINES)
        self._line = ""
        self._cells = 0

    def append(self, text: str) -> None:
        """Add text; it is wrapped only when lines are asked for."""
        self._fresh.append(text)
        self._fresh_length += len(text)
        if self._fresh_length > 4 * KEEP_CHARACTERS:  # nobody has looked for a long time
            kept = "".join(self._fresh)[-KEEP_CHARACTERS:]
            self._fresh, self._fresh_length = [kept], len(kept)

    def lines(self, width: int, count: int) -> list[str]:
        """The last ``count`` lines, each at most ``width`` cells wide (at least 2), oldest first."""
        fresh = "".join(self._fresh)
        self._fresh.clear()
        self._fresh_length = 0
        self._recent = (self._recent + fresh)[-KEEP_CHARACTERS:]
        if max(2, width) != self._width:
            self._width = max(2, width)
            self._done.clear()
            self._line, self._cells = "", 0
            fresh = self._recent
        self._wrap(fresh)
        if count <= 0:
            return []
        return [*self._done, self._line][-count:]

    def _wrap(self, text: str) -> None:
        for character in visible(text, line_end="\n").translate(_WITHOUT_SELECTORS):
            if character == "\n":
                if self._line or (self._done and self._done[-1]):  # one blank line, not many
                    self._end_line(self._line, "")
                continue
            cells = character_cells(character)
            if self._cells + cells > self._width:
                if character == " ":  # a space that does not fit is the line end
                    self._end_line(self._line, "")
                    continue
                self._break_line()
            self._line += character
            self._cells += cells

    def _break_line(self) -> None:
        """End the full line at its last space; without one, where it is full."""
        head, space, rest = self._line.rpartition(" ")
        if space and head.strip():
            self._end_line(head, rest)
        else:
            self._end_line(self._line, "")

    def _end_line(self, line: str, rest: str) -> None:
        self._done.append(line)
        self._line = rest
        self._cells = text_cells(rest)
