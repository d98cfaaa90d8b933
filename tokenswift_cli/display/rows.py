"""What the dashboard says of a run, one row of words at a time, each within the cells it is given.

A row that does not fit says less: numbers are left out whole, never cut.
"""

from __future__ import annotations

from tokenswift_cli.display.lines import (
    ACCENT,
    ALARM,
    FAINT,
    PLAIN,
    STRONG,
    Part,
    Row,
    dropping,
    fitting,
    shortened,
)
from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.sparkline import MOST_CELLS, SECONDS_PER_CELL, sparkline
from tokenswift_cli.display.wording import about, duration, number, percent, size, speed, visible
from tokenswift_cli.events import DrafterShare, LoopDetected, Progress

RECENT_LOOP_TOKENS = 4096
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
UNKNOWN = "-"
LABEL_CELLS = 13
LEAST_BAR = 6
CELLS_PER_MINUTE = int(60 / SECONDS_PER_CELL)


# Across the whole width ------------------------------------------------------------------------


def title(view: RunView) -> Row:
    """The program and the model."""
    name: list[Part] = [("tokenswift", STRONG)]
    return name if view.started is None else [*name, (" · ", FAINT), (visible(view.started.model), ACCENT)]


def settings(view: RunView) -> str:
    """Method and seed; empty before they are known."""
    started = view.started
    return "" if started is None else f"{visible(started.method)} · seed {started.seed}"


def bar(view: RunView, cells: int, now: float) -> Row:
    """How far the run is; a spinner and what is being done while that cannot be told."""
    if view.phase == "loading":
        spinner = SPINNER[int(now * 8) % len(SPINNER)]
        return [(f"{spinner} ", ACCENT), (visible(view.loading), PLAIN)]
    if view.phase == "reading" and view.prefill is not None:
        label, done, total = "Reading ", view.prefill.done_tokens, view.prefill.total_tokens
    else:
        assert view.progress is not None
        label, done, total = "Writing ", view.progress.tokens, view.progress.max_tokens
    share = min(1.0, done / total) if total > 0 else 0.0
    # Padded to the widest count there will be, so that the bar keeps its length.
    slash = "/" if cells < 50 else " / "
    part = f"{int(share * 100):3d}%"
    count = f"{done:,}{slash}{total:,}".rjust(2 * len(f"{total:,}") + len(slash)) + f" {part}"
    for before, after in ((label, f" {count}"), ("", f" {count}"), ("", f" {part}")):
        length = cells - len(before) - len(after)
        if length >= LEAST_BAR:
            filled = int(share * length)
            line = [("━" * filled, ACCENT), ("─" * (length - filled), FAINT), (after, PLAIN)]
            return [(before, STRONG), *line] if before else line
    return fitting([[(part.strip(), PLAIN)]], cells)


def times(view: RunView, cells: int, now: float) -> Row:
    """Time passed and time left."""
    groups: list[Row] = [[("elapsed ", FAINT), (duration(view.elapsed(now)), PLAIN)]]
    if view.phase == "writing":
        groups.append([("left about ", FAINT), (about(view.seconds_left), PLAIN)])
    elif view.phase == "reading" and view.prefill is not None and view.prefill.done_tokens > 0:
        done, total = view.prefill.done_tokens, view.prefill.total_tokens
        rate = done / view.prefill.seconds if view.prefill.seconds > 0 else 0.0
        left = about((total - done) / rate) if rate else UNKNOWN
        groups += [[("left about ", FAINT), (left, PLAIN)], [(f"{number(rate, 0)} tok/s", FAINT)]]
    if view.started is not None and view.started.resumed_tokens:
        groups.append([(f"resumed at {view.started.resumed_tokens:,}", FAINT)])
    return dropping(groups, cells)


# Labelled, for a pane --------------------------------------------------------------------------


def speed_rows(view: RunView, cells: int) -> list[Row]:
    """Five rows: now, overall, against plain decoding, the last minutes, this session."""
    progress = view.progress
    ratio = None if progress is None else progress.speedup
    times_as_fast = UNKNOWN if ratio is None else f"{number(ratio, 2)}x"
    minutes, history = _history(view, cells - LABEL_CELLS)
    return [
        _labelled(
            "now", speed(None if progress is None else progress.recent_tokens_per_second), " tok/s", STRONG
        ),
        _labelled("overall", speed(None if progress is None else progress.tokens_per_second), " tok/s"),
        _labelled("speed-up", times_as_fast, " plain decoding"),
        _labelled(f"last {minutes} min", history, "", ACCENT),
        _labelled("session", UNKNOWN if progress is None else f"{progress.session_tokens:,}", " tokens"),
    ]


def drafting_rows(view: RunView, cells: int) -> list[Row]:
    """Five rows: acceptance, then the drafters whose tokens were accepted most."""
    progress = view.progress
    rate = number(None if progress is None else progress.acceptance_rate, 2)
    length = number(None if progress is None else progress.mean_acceptance_length, 1)
    label: Part = ("acceptance".ljust(LABEL_CELLS), FAINT)
    rows = [
        fitting(
            (
                [label, (rate, STRONG), (" · mean length ", FAINT), (length, PLAIN)],
                [label, (rate, STRONG), (" · length ", FAINT), (length, PLAIN)],
            ),
            cells,
        )
    ]
    mix = drafter_mix(progress, 4)
    for name, share, part in mix:
        name_cell: Part = (shortened(visible(name), LABEL_CELLS - 1).ljust(LABEL_CELLS), FAINT)
        rate = number(share.accepted / share.drafted, 2)
        rows.append([name_cell, (rate, PLAIN), (f" · {percent(part)} of accepted", FAINT)])
    if not mix:
        rows.append(_labelled("drafters", UNKNOWN))
    return rows + [[]] * (5 - len(rows))


def text_rows(view: RunView, cells: int, now: float) -> list[Row]:
    """Three rows: variety, repetition, what is on disk."""
    room = cells - LABEL_CELLS
    return [
        _labelled("distinct 1-4", distinct(view)),
        [("repetition".ljust(LABEL_CELLS), FAINT), *repetition(view, room)],
        [("saved".ljust(LABEL_CELLS), FAINT), *saved(view, room, now)],
    ]


def machine_rows(view: RunView) -> list[Row]:
    """Three rows: device, key-value cache, process."""
    started, progress = view.started, view.progress
    device = UNKNOWN if started is None else f"{visible(started.device)} · {started.dtype}"
    return [
        _labelled("device", device),
        _labelled("KV cache", UNKNOWN if progress is None else size(progress.kv_bytes)),
        _labelled("process", UNKNOWN if progress is None else size(progress.process_bytes)),
    ]


# Without a box ---------------------------------------------------------------------------------


def speed_line(view: RunView, cells: int) -> Row:
    """Speed now and overall, and against plain decoding."""
    progress = view.progress
    if progress is None:
        return [(UNKNOWN, PLAIN), (" tok/s", FAINT)]
    recent, overall = speed(progress.recent_tokens_per_second), speed(progress.tokens_per_second)
    both: Row = [(recent, STRONG), (" now · ", FAINT), (overall, PLAIN), (" overall tok/s", FAINT)]
    options: list[Row] = [both, [(recent, STRONG), (" tok/s", FAINT)], [(recent, STRONG)]]
    if progress.speedup is not None:
        ratio: list[Part] = [(" · ", FAINT), (f"{number(progress.speedup, 2)}x", PLAIN)]
        options = [[*both, *ratio, (" plain decoding", FAINT)], [*both, *ratio], *options]
    return fitting(options, cells)


def history_line(view: RunView, cells: int) -> Row:
    """The speed of the last minutes."""
    minutes, line = _history(view, cells - len("last 5 min "))
    return fitting([[(f"last {minutes} min ", FAINT), (line, ACCENT)]], cells)


def acceptance_line(view: RunView, cells: int) -> Row:
    """Acceptance rate and mean acceptance length."""
    progress = view.progress
    rate = number(None if progress is None else progress.acceptance_rate, 2)
    length = number(None if progress is None else progress.mean_acceptance_length, 1)
    start: list[Part] = [("accepted ", FAINT), (rate, STRONG)]
    more: list[Part] = [*start, (" · ", FAINT), (length, PLAIN)]
    return fitting(([*more, (" per verification", FAINT)], more, start), cells)


def drafters_line(view: RunView, cells: int) -> Row:
    """Each drafter's acceptance rate and its share of the accepted tokens, or only the shares."""
    mix = drafter_mix(view.progress, 4)
    if not mix:
        return fitting([[("drafters ", FAINT), (UNKNOWN, PLAIN)]], cells)
    full = [
        f"{visible(name)} {number(share.accepted / share.drafted, 2)} ({percent(part)})"
        for name, share, part in mix
    ]
    shares = [f"{visible(name)} {percent(part)}" for name, _, part in mix]
    choices = [full, *(shares[:count] for count in range(len(shares), 0, -1))]
    return fitting(([(", ".join(choice), PLAIN)] for choice in choices), cells)


def memory_line(view: RunView, cells: int) -> Row:
    """Key-value cache and process."""
    progress = view.progress
    cache, process = (
        (UNKNOWN, UNKNOWN) if progress is None else (size(progress.kv_bytes), size(progress.process_bytes))
    )
    return dropping([[("KV ", FAINT), (cache, PLAIN)], [("process ", FAINT), (process, PLAIN)]], cells)


# Values ----------------------------------------------------------------------------------------


def distinct(view: RunView) -> str:
    """Distinct-1..4 of the text."""
    values = None if view.progress is None else view.progress.distinct
    return UNKNOWN if values is None else "  ".join(number(share, 2) for share in values)


def repetition(view: RunView, cells: int) -> Row:
    """The last loop found in the text, an alarm while it is recent."""
    loop: LoopDetected | None = view.loop
    if loop is None:
        return [("none", PLAIN)]
    recent = (0 if view.progress is None else view.progress.tokens) - loop.tokens <= RECENT_LOOP_TOKENS
    was, at, style = "" if recent else "was ", f"at {loop.tokens:,}", ALARM if recent else FAINT
    kinds = [f"cycle of {loop.period:,} ", "cycle "] if loop.period else ["little new text ", "little new "]
    return fitting(([(words, style)] for words in (*(f"{was}{kind}{at}" for kind in kinds), at)), cells)


def saved(view: RunView, cells: int, now: float) -> Row:
    """Tokens that cannot be lost any more, and since when."""
    if view.checkpoint is None:
        return [("nothing yet", PLAIN)]
    age: Row = [(f"{duration(now - view.checkpoint_at)} ago", FAINT)]
    return dropping([[(f"{view.checkpoint.tokens:,}", PLAIN)], age], cells)


def drafter_mix(progress: Progress | None, most: int) -> list[tuple[str, DrafterShare, float]]:
    """Name, counts and share of the accepted tokens, by share; what is beyond ``most`` as one."""
    named = (
        []
        if progress is None
        else [(n, share) for n, share in progress.drafters.items() if share.drafted > 0]
    )
    named.sort(key=lambda item: (-item[1].accepted, -item[1].drafted, item[0]))
    if len(named) > most:
        rest = [share for _, share in named[most - 1 :]]
        total = DrafterShare(sum(share.drafted for share in rest), sum(share.accepted for share in rest))
        named = [*named[: most - 1], (f"{len(rest)} others", total)]
    accepted = sum(share.accepted for _, share in named)
    return [(name, share, share.accepted / accepted if accepted else 0.0) for name, share in named]


def _history(view: RunView, cells: int) -> tuple[int, str]:
    """Whole minutes that fit, and the speeds in them."""
    minutes = max(1, min(cells, MOST_CELLS) // CELLS_PER_MINUTE)
    return minutes, sparkline(view.speeds.rates(minutes * CELLS_PER_MINUTE)) or UNKNOWN


def _labelled(label: str, value: str, unit: str = "", style: str = PLAIN) -> Row:
    return [(label.ljust(LABEL_CELLS), FAINT), (value, style), (unit if value != UNKNOWN else "", FAINT)]
