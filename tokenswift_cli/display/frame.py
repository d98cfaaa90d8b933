"""One picture of the dashboard: a pure function of what is known, the size and the time.

For one terminal size every picture has the same height, whatever the phase of the run.
"""

from __future__ import annotations

from rich.text import Text

from tokenswift_cli.display import rows
from tokenswift_cli.display.lines import (
    FAINT,
    PLAIN,
    Row,
    boxed,
    pair,
    row_cells,
    rule,
    shortened_path,
    split_rule,
    styled_line,
)
from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.wording import visible

WIDE_COLUMNS = 78
WIDE_LINES = 18  # terminal lines from which the boxed layout fits
MOST_COLUMNS = 110
MOST_TEXT_LINES = 8
HINT = "Ctrl-C saves and stops"


def frame(view: RunView, columns: int, lines: int, now: float) -> list[Text]:
    """The lines to show, each at most ``columns`` cells wide, at most ``lines - 1`` of them."""
    width = max(1, min(columns, MOST_COLUMNS))
    if columns >= WIDE_COLUMNS and lines >= WIDE_LINES:
        return _wide(view, width, lines, now)
    return _compact(view, width, lines, now)


def _wide(view: RunView, width: int, lines: int, now: float) -> list[Text]:
    right = (width - 3) // 2
    left = width - 3 - right
    # At 24 lines a few stay free for what was said above.
    text_lines = max(2, min(MOST_TEXT_LINES, lines - 19))
    inner = width - 4
    text = view.tail.lines(inner, text_lines)
    text += [""] * (text_lines - len(text))
    upper = zip(rows.speed_rows(view, left - 2), rows.drafting_rows(view, right - 2), strict=True)
    lower = zip(rows.text_rows(view, left - 2, now), rows.machine_rows(view), strict=True)
    return [
        rule("╭", "╮", width, rows.title(view), rows.settings(view)),
        boxed(rows.bar(view, inner, now), width),
        boxed(rows.times(view, inner, now), width),
        split_rule("├", "┬", "┤", left, right, "speed", "drafting"),
        *(pair(first, second, left, right) for first, second in upper),
        split_rule("├", "┼", "┤", left, right, "text", "machine"),
        *(pair(first, second, left, right) for first, second in lower),
        split_rule("├", "┴", "┤", left, right, "latest", ""),
        *(boxed([(line, PLAIN)], width) for line in text),
        rule("╰", "╯", width, _directory(view, width - 11 - len(HINT)), HINT),
    ]


def _compact(view: RunView, width: int, lines: int, now: float) -> list[Text]:
    """One row below the other; those that matter least give way to the text."""
    # Row and rank, in the order they are shown; the lowest ranks stay longest.
    ranked: list[tuple[Row, int]] = [
        (rows.title(view), 10),
        (rows.bar(view, width, now), 0),
        (rows.times(view, width, now), 1),
        (rows.speed_line(view, width), 2),
        (rows.history_line(view, width), 5),
        (rows.acceptance_line(view, width), 4),
        (rows.drafters_line(view, width), 7),
        ([("repetition ", FAINT), *rows.repetition(view, width - 11)], 6),
        (_whole([("distinct 1-4 ", FAINT), (rows.distinct(view), PLAIN)], width), 8),
        ([("saved ", FAINT), *rows.saved(view, width - 6, now)], 3),
        (rows.memory_line(view, width), 9),
        (_directory(view, width), 11),
        (_whole([(HINT, FAINT)], width), 12),
    ]
    least_text = 3 if lines >= 12 else 2 if lines >= 9 else 1 if lines >= 6 else 0
    spare = 1 if lines >= 12 else 0  # for what was said above
    room = max(1, lines - 1 - spare)
    count = min(len(ranked), max(1, room - least_text))
    kept = [row for row, rank in ranked if rank < count]
    text_lines = max(0, min(MOST_TEXT_LINES, room - count))
    # Blank lines are few here: the text matters more than its paragraphs.
    text = [line for line in view.tail.lines(width - 2, 2 * text_lines) if line][-text_lines or None :]
    text = (text if text_lines else []) + [""] * (text_lines - len(text))
    return [
        *(styled_line(row, width) for row in kept),
        *(styled_line([("│ ", FAINT), (line, PLAIN)], width) for line in text),
    ]


def _directory(view: RunView, cells: int) -> Row:
    return [] if view.started is None else [(shortened_path(visible(view.started.run_dir), cells), FAINT)]


def _whole(row: Row, cells: int) -> Row:
    return row if row_cells(row) <= cells else []
