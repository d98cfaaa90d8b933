"""Rows of styled words, made to fit a number of terminal cells, and the borders around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from tokenswift_cli.display.cells import first_cells, text_cells

Part = tuple[str, str]  # text, style
Row = Sequence[Part]

FAINT, PLAIN, STRONG, ACCENT, ALARM = "dim", "", "bold", "cyan", "bold yellow"


def row_cells(row: Row) -> int:
    """Width of a row in terminal cells."""
    return sum(text_cells(text) for text, _ in row)


def fitting(options: Iterable[Row], cells: int) -> Row:
    """The first of the options that fits; an empty row if none does, as half a number misleads."""
    return next((row for row in options if row_cells(row) <= cells), [])


def dropping(groups: Sequence[Row], cells: int) -> Row:
    """The groups with dots between them, as many from the front as fit."""
    return fitting((joined(groups[:count]) for count in range(len(groups), 0, -1)), cells)


def joined(groups: Iterable[Row]) -> Row:
    """The groups that are not empty, with dots between them."""
    row: list[Part] = []
    for group in groups:
        if group:
            row += [(" · ", FAINT), *group] if row else group
    return row


def shortened(text: str, cells: int) -> str:
    """``text`` cut to ``cells`` cells with an ellipsis where it is longer."""
    if text_cells(text) <= cells:
        return text
    return first_cells(text, cells - 1) + "…" if cells > 1 else text[:0]


def shortened_path(path: str, cells: int) -> str:
    """``path`` cut at its front: its end tells runs apart."""
    if text_cells(path) <= cells:
        return path
    return "…" + first_cells(path[::-1], cells - 1)[::-1] if cells > 1 else ""


def wrapped(text: str, cells: int) -> list[str]:
    """``text`` broken between words; what follows the first line is indented.

    A word that is longer than a line (a path, a command) stays whole, so that it can be copied.
    """
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line.strip() and text_cells(longer) > cells:
            lines.append(line)
            longer = word if text_cells(word) + 2 > cells else f"  {word}"
        line = longer
    return [*lines, line]


def styled_line(row: Row, cells: int, *, pad: bool = False) -> Text:
    """The row as styled text, never wider than ``cells``; padded to exactly that if asked."""
    line = Text(no_wrap=True, end="")
    free = cells
    for text, style in row:
        if free <= 0:
            break
        shown = shortened(text, free)
        line.append(shown, style or None)
        free -= text_cells(shown)
    if pad and free > 0:
        line.append(" " * free)
    return line


def boxed(row: Row, width: int) -> Text:
    """A row between the borders of a box of ``width`` cells."""
    return Text.assemble(("│ ", FAINT), styled_line(row, width - 4, pad=True), (" │", FAINT), end="")


def pair(first: Row, second: Row, left: int, right: int) -> Text:
    """Two rows side by side in a box whose panes are ``left`` and ``right`` cells wide."""
    return Text.assemble(
        ("│ ", FAINT),
        styled_line(first, left - 2, pad=True),
        (" │ ", FAINT),
        styled_line(second, right - 2, pad=True),
        (" │", FAINT),
        end="",
    )


def rule(start: str, end: str, width: int, left: Row, right: str) -> Text:
    """A border line with words at both ends; the right words go first if there is no room for both."""
    room = width - 8
    right = right if text_cells(right) + 12 <= room else ""
    words = styled_line(left, room - (text_cells(right) + 3 if right else 0))
    line = Text(no_wrap=True, end="")
    line.append(f"{start}─", FAINT)
    if words:
        line.append(" ").append_text(words).append(" ")
    tail = f" {right} ─{end}" if right else f"─{end}"
    line.append("─" * (width - text_cells(line.plain) - text_cells(tail)) + tail, FAINT)
    return line


def split_rule(start: str, middle: str, end: str, left: int, right: int, first: str, second: str) -> Text:
    """A border line over or under two panes, with a title for each."""
    return Text(f"{start}{_titled(first, left)}{middle}{_titled(second, right)}{end}", style=FAINT, end="")


def _titled(title: str, cells: int) -> str:
    words = f"─ {title} " if title else ""
    return words + "─" * (cells - text_cells(words))
