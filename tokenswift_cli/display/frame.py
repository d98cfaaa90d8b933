"""One picture of the dashboard: a pure function of what is known, the size and the time.

For one terminal size every picture has the same height, whatever the phase of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, chop_cells
from rich.text import Text

from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.wording import duration, number, size, visible
from tokenswift_cli.events import LoopDetected, Progress

Part = tuple[str, str]  # text, style
Row = Sequence[Part]

WIDE_COLUMNS = 78
WIDE_LINES = 17  # terminal lines from which the boxed layout fits
MOST_COLUMNS = 110
RECENT_LOOP_TOKENS = 4096

FAINT, PLAIN, STRONG, ACCENT, ALARM = "dim", "", "bold", "cyan", "bold yellow"
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
UNKNOWN = "-"
LABEL_CELLS = 13


def frame(view: RunView, columns: int, lines: int, now: float) -> list[Text]:
    """The lines to show, each at most ``columns`` cells wide, at most ``lines - 1`` of them."""
    width = max(10, min(columns, MOST_COLUMNS))
    if columns >= WIDE_COLUMNS and lines >= WIDE_LINES:
        return _wide(view, width, lines, now)
    return _compact(view, width, lines, now)


def _wide(view: RunView, width: int, lines: int, now: float) -> list[Text]:
    right = (width - 3) // 2
    left = width - 3 - right
    tail_lines = max(2, min(8, lines - 19))
    inner = width - 4
    tail = view.tail.lines(inner, tail_lines)
    tail += [""] * (tail_lines - len(tail))
    cells = zip(_speed_rows(view.progress), _drafting_rows(view.progress), strict=True)
    state = zip(_text_rows(view, now), _machine_rows(view), strict=True)
    return [
        _rule("╭", "╮", width, [("tokenswift", STRONG), *_model_part(view)], _settings(view)),
        _boxed(_bar_row(view, inner, now), width),
        _boxed(_time_row(view, now), width),
        _split_rule("├", "┬", "┤", left, right, "speed", "drafting"),
        *(_pair(first, second, left, right) for first, second in cells),
        _split_rule("├", "┼", "┤", left, right, "text", "machine"),
        *(_pair(first, second, left, right) for first, second in state),
        _split_rule("├", "┴", "┤", left, right, "latest", ""),
        *(_boxed([(line, PLAIN)], width) for line in tail),
        _rule("╰", "╯", width, _directory(view), "Ctrl-C saves and stops"),
    ]


def _compact(view: RunView, width: int, lines: int, now: float) -> list[Text]:
    speed, drafting = _speed_rows(view.progress), _drafting_rows(view.progress)
    text, machine = _text_rows(view, now), _machine_rows(view)
    speedup = [(" · ", FAINT), speed[2][1]] if view.progress and view.progress.speedup else []
    rows: list[Row] = [
        [("tokenswift", STRONG), *_model_part(view)],
        _bar_row(view, width, now),
        _time_row(view, now),
        [speed[0][1], (" now · ", FAINT), speed[1][1], (" overall tok/s", FAINT), *speedup],
        [("accepted ", FAINT), drafting[0][1], (" · ", FAINT), *drafting[1][1:]],
        [("repetition ", FAINT), *text[1][1:]],
        [("distinct 1-4 ", FAINT), *text[0][1:]],
        [("saved ", FAINT), *text[2][1:]],
        [("KV ", FAINT), *machine[1][1:], (" · process ", FAINT), *machine[2][1:]],
        [("by drafter ", FAINT), *drafting[2][1:]],
    ]
    rows = rows[: max(1, lines - 1)]
    tail_lines = max(0, min(8, lines - 2 - len(rows)))
    tail = view.tail.lines(width - 2, tail_lines)
    tail += [""] * (tail_lines - len(tail))
    return [
        *(_line(row, width) for row in rows),
        *(_line([("│ ", FAINT), (line, PLAIN)], width) for line in tail),
    ]


# Rows ----------------------------------------------------------------------------------------


def _model_part(view: RunView) -> list[Part]:
    return [] if view.started is None else [(" · ", FAINT), (visible(view.started.model), ACCENT)]


def _settings(view: RunView) -> str:
    started = view.started
    if started is None:
        return ""
    return f"{visible(started.method)} · seed {started.seed}"


def _directory(view: RunView) -> list[Part]:
    return [] if view.started is None else [(visible(view.started.run_dir), FAINT)]


def _bar_row(view: RunView, cells: int, now: float) -> Row:
    if view.phase == "loading":
        spinner = SPINNER[int(now * 8) % len(SPINNER)]
        return [(f"{spinner} ", ACCENT), (visible(view.loading), PLAIN)]
    if view.phase == "reading" and view.prefill is not None:
        label, done, total = "Reading", view.prefill.done_tokens, view.prefill.total_tokens
    else:
        assert view.progress is not None
        label, done, total = "Writing", view.progress.tokens, view.progress.max_tokens
    share = min(1.0, done / total) if total > 0 else 0.0
    # Padded to the widest count there will be, so that the bar keeps its length.
    slash = "/" if cells < 50 else " / "
    count = f"{done:,}{slash}{total:,}".rjust(2 * len(f"{total:,}") + len(slash)) + f" {int(share * 100):3d}%"
    length = max(4, cells - len(label) - len(count) - 2)
    filled = int(share * length)
    return [
        (f"{label} ", STRONG),
        ("━" * filled, ACCENT),
        ("─" * (length - filled), FAINT),
        (f" {count}", PLAIN),
    ]


def _time_row(view: RunView, now: float) -> Row:
    parts: list[Part] = [("elapsed ", FAINT), (duration(view.elapsed(now)), PLAIN)]
    if view.phase == "writing" and view.progress is not None:
        parts += [(" · left about ", FAINT), (duration(view.progress.eta_seconds), PLAIN)]
    elif view.phase == "reading" and view.prefill is not None and view.prefill.done_tokens > 0:
        done, total = view.prefill.done_tokens, view.prefill.total_tokens
        rate = done / view.prefill.seconds if view.prefill.seconds > 0 else 0.0
        left = duration((total - done) / rate) if rate else UNKNOWN
        parts += [(" · left about ", FAINT), (left, PLAIN), (f" · {number(rate, 0)} tok/s", FAINT)]
    if view.started is not None and view.started.resumed_tokens:
        parts.append((f" · resumed at {view.started.resumed_tokens:,}", FAINT))
    return parts


def _labelled(label: str, value: str, unit: str = "", style: str = PLAIN) -> list[Part]:
    return [(label.ljust(LABEL_CELLS), FAINT), (value, style), (unit if value != UNKNOWN else "", FAINT)]


def _speed_rows(progress: Progress | None) -> list[list[Part]]:
    now = None if progress is None else progress.recent_tokens_per_second
    overall = None if progress is None else progress.tokens_per_second
    speedup = None if progress is None else progress.speedup
    session = UNKNOWN if progress is None else f"{progress.session_tokens:,}"
    times = UNKNOWN if speedup is None else f"{number(speedup, 2)}x"
    return [
        _labelled("now", number(now, 1), " tok/s", STRONG),
        _labelled("overall", number(overall, 1), " tok/s"),
        _labelled("speed-up", times, " plain decoding"),
        _labelled("session", session, " tokens"),
    ]


def _drafting_rows(progress: Progress | None) -> list[list[Part]]:
    rate = None if progress is None else progress.acceptance_rate
    length = None if progress is None else progress.mean_acceptance_length
    shares = [] if progress is None else sorted(progress.drafters.items(), key=lambda item: -item[1].drafted)
    named = [
        f"{visible(name)} {number(share.accepted / share.drafted, 2)}"
        for name, share in shares
        if share.drafted > 0
    ]
    return [
        _labelled("acceptance", number(rate, 2), "", STRONG),
        _labelled("mean length", number(length, 1), " per verification"),
        _labelled("by drafter", ", ".join(named[:2]) or UNKNOWN),
        _labelled("", ", ".join(named[2:4]), f", {len(named) - 4} more" if len(named) > 4 else ""),
    ]


def _text_rows(view: RunView, now: float) -> list[list[Part]]:
    distinct = None if view.progress is None else view.progress.distinct
    values = UNKNOWN if distinct is None else "  ".join(number(share, 2) for share in distinct)
    tokens = 0 if view.progress is None else view.progress.tokens
    words, style = _loop_words(view.loop, tokens)
    saved, age = "nothing yet", ""
    if view.checkpoint is not None:
        saved, age = f"{view.checkpoint.tokens:,}", f" · {duration(now - view.checkpoint_at)} ago"
    return [
        _labelled("distinct 1-4", values),
        _labelled("repetition", words, "", style),
        _labelled("saved", saved, age),
    ]


def _loop_words(loop: LoopDetected | None, tokens: int) -> Part:
    if loop is None:
        return "none", PLAIN
    kind = f"cycle of {loop.period:,}" if loop.period else "little new text"
    recent = tokens - loop.tokens <= RECENT_LOOP_TOKENS
    return f"{'' if recent else 'was '}{kind} at {loop.tokens:,}", ALARM if recent else FAINT


def _machine_rows(view: RunView) -> list[list[Part]]:
    started, progress = view.started, view.progress
    device = UNKNOWN if started is None else f"{visible(started.device)} · {started.dtype}"
    return [
        _labelled("device", device),
        _labelled("KV cache", UNKNOWN if progress is None else size(progress.kv_bytes)),
        _labelled("process", UNKNOWN if progress is None else size(progress.process_bytes)),
    ]


# Lines ---------------------------------------------------------------------------------------


def shortened(text: str, cells: int) -> str:
    """``text`` cut to ``cells`` cells with an ellipsis where it is longer."""
    if cell_len(text) <= cells:
        return text
    return chop_cells(text, cells - 1)[0] + "…" if cells > 1 else text[:0]


def _line(row: Row, cells: int, *, pad: bool = False) -> Text:
    """The row as styled text, never wider than ``cells``; padded to exactly that if asked."""
    line = Text(no_wrap=True, end="")
    free = cells
    for text, style in row:
        if free <= 0:
            break
        shown = shortened(text, free)
        line.append(shown, style or None)
        free -= cell_len(shown)
    if pad and free > 0:
        line.append(" " * free)
    return line


def _boxed(row: Row, width: int) -> Text:
    return Text.assemble(("│ ", FAINT), _line(row, width - 4, pad=True), (" │", FAINT), end="")


def _pair(first: Row, second: Row, left: int, right: int) -> Text:
    return Text.assemble(
        ("│ ", FAINT),
        _line(first, left - 2, pad=True),
        (" │ ", FAINT),
        _line(second, right - 2, pad=True),
        (" │", FAINT),
        end="",
    )


def _rule(start: str, end: str, width: int, left: Row, right: str) -> Text:
    """A border line with words at both ends; the right words go first if there is no room."""
    room = width - 8
    right = right if cell_len(right) + 12 <= room else ""
    words = _line(left, room - (cell_len(right) + 3 if right else 0))
    line = Text(no_wrap=True, end="")
    line.append(f"{start}─", FAINT)
    if words:
        line.append(" ").append_text(words).append(" ")
    tail = f" {right} ─{end}" if right else f"─{end}"
    line.append("─" * (width - line.cell_len - cell_len(tail)) + tail, FAINT)
    return line


def _split_rule(start: str, middle: str, end: str, left: int, right: int, first: str, second: str) -> Text:
    return Text(f"{start}{_titled(first, left)}{middle}{_titled(second, right)}{end}", style=FAINT, end="")


def _titled(title: str, cells: int) -> str:
    words = f"─ {title} " if title else ""
    return words + "─" * (cells - cell_len(words))
