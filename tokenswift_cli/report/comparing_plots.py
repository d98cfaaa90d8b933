"""Figures that several runs can share: a line for each of them, or the lines of the only one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tokenswift_cli.report.plot import Absent, Line, Plot, line_through, present
from tokenswift_cli.report.run_data import RunData
from tokenswift_cli.report.stretch import FEWEST_DRAFTED, Stretch, thinned

MOST_POINTS: Final = 240
MOST_RATES: Final = 60  # over few tokens a rate is mostly chance
TOKENS: Final = "tokens written"
RESUMED: Final = "resumed here"
_GIB: Final = float(2**30)

Points = Sequence[tuple[float, float | None]]


def speed(runs: Sequence[RunData]) -> Plot | Absent:
    """Tokens per second, with plain decoding beside it."""
    title = "Speed, tokens per second"
    lines: list[Line | None] = []
    for series, run in enumerate(runs):
        stretches = thinned(run.stretches, MOST_POINTS)
        own = [(one.middle, one.decoding.tokens_per_second) for one in stretches]
        plain = [(one.middle, one.plain.tokens_per_second) for one in stretches]
        alone = len(runs) == 1
        lines += [
            line_through("this run" if alone else run.name, series, own),
            line_through("plain decoding, estimated" if alone else "", series, plain, "dotted"),
        ]
    if not present(lines):
        return Absent(title, "no time was recorded")
    told = "Dotted: what plain (autoregressive) decoding would do at that length, as the run estimated it."
    return Plot(
        "speed",
        title,
        f"Mean of each chunk. {told}" if any(line and line.style == "dotted" for line in lines) else "",
        TOKENS,
        present(lines),
        x_most=_longest(runs),
        marks=_resumes(runs),
        mark_label=RESUMED,
    )


def time_line(runs: Sequence[RunData]) -> Plot | Absent:
    """Tokens against the time of work, with checkpoints and resumes."""
    title = "Time line, tokens written"
    lines = [_checkpoints(run, series, alone=len(runs) == 1) for series, run in enumerate(runs)]
    seconds = max((moment.seconds for run in runs for moment in run.moments), default=0.0)
    if not present(lines) or not seconds:
        return Absent(title, "no time was recorded")
    unit, length = ("seconds", 1) if seconds < 120 else ("minutes", 60)
    if seconds >= 2 * 3600:
        unit, length = "hours", 3600
    scaled = [
        Line(line.label, line.series, tuple(x / length for x in line.xs), line.ys, line.style, line.points)
        for line in present(lines)
    ]
    resumed = _starts(runs[0]) if len(runs) == 1 else ()
    return Plot(
        "timeline",
        title,
        "Each dot is a checkpoint. The clock counts decoding and getting ready; pauses between sessions are "
        "left out.",
        f"{unit} of work",
        tuple(scaled),
        x_axis="seconds",
        y_axis="tokens",
        x_most=seconds / length,
        marks=tuple(moment / length for moment in resumed),
        mark_label=RESUMED,
    )


def accepted_length(runs: Sequence[RunData]) -> Plot | Absent:
    """Tokens per verification."""
    title = "Mean acceptance length, tokens"
    lines: list[Line | None] = []
    for series, run in enumerate(runs):
        stretches = thinned(run.stretches, MOST_RATES)
        points: Points = [(one.middle, one.mean_acceptance_length) for one in stretches]
        lines.append(line_through("per verification" if len(runs) == 1 else run.name, series, points))
    if not present(lines):
        return Absent(title, "nothing was drafted")
    if len(runs) == 1:
        stretches = thinned(runs[0].stretches, MOST_RATES)
        steps: Points = [(one.middle, _per_step(one)) for one in stretches]
        lines.append(line_through("per step, drafted or not", 1, steps))
    return Plot(
        "length",
        title,
        "Tokens that a pass of the model yields; plain decoding is 1.",
        TOKENS,
        present(lines),
        x_most=_longest(runs),
        y_low=1.0,
    )


def acceptance(runs: Sequence[RunData]) -> Plot | Absent:
    """Accepted drafted tokens / drafted positions."""
    return _rates(
        runs,
        "acceptance",
        "Acceptance rate",
        "Accepted drafted tokens / drafted positions, all drafters together.",
        lambda one: one.acceptance.rate if one.acceptance.drafted >= FEWEST_DRAFTED else None,
        "nothing was drafted",
        most=MOST_RATES,
    )


def distinct(runs: Sequence[RunData], size: int) -> Plot | Absent:
    """Distinct-n of the text so far."""
    return _rates(
        runs,
        f"distinct-{size}",
        f"Distinct-{size}",
        f"Distinct {size}-grams / all {size}-grams of the text so far.",
        lambda one: None if one.distinct is None else one.distinct[size - 1],
        "it was not recorded",
        at_end=True,
    )


def novelty(runs: Sequence[RunData]) -> Plot | Absent:
    """Share of new 4-grams."""
    return _rates(
        runs,
        "novelty",
        "Novelty",
        "Share of the last 1,024 tokens that ended a 4-gram not written shortly before.",
        lambda one: one.novelty,
        "it was not recorded",
        at_end=True,
    )


def memory(runs: Sequence[RunData]) -> Plot | Absent:
    """Process, key-value cache and, for one run, its journal."""
    alone = len(runs) == 1
    lines: list[Line | None] = []
    for series, run in enumerate(runs):
        stretches = thinned(run.stretches, MOST_POINTS)
        process: Points = [(one.last, _gib(one.process_bytes)) for one in stretches]
        cache: Points = [(one.last, _gib(one.kv_bytes)) for one in stretches]
        lines.append(line_through("process" if alone else run.name, series, process))
        if alone:
            lines.append(line_through("key-value cache", 1, cache))
            lines += _journal(run)
        else:
            lines.append(line_through("", series, cache, "dotted"))
    if not present(lines):
        return Absent("Memory", "it was not recorded")
    caption = (
        "The process holds the cache. The journal is on the disk; it counts what its session wrote."
        if alone
        else "Resident memory of the process; dotted: the key-value cache in it."
    )
    return Plot(
        "memory",
        "Memory, GiB",
        caption,
        TOKENS,
        present(lines),
        x_most=_longest(runs),
        marks=_resumes(runs),
        mark_label=RESUMED,
    )


def _journal(run: RunData) -> list[Line | None]:
    """A line for each session, as each counts from nothing; the first one alone has a label."""
    lines: list[Line | None] = []
    for session in run.sessions:
        within = [one for one in run.stretches if session.stretch.first <= one.first < session.stretch.last]
        points = [(one.last, _gib(one.journal_bytes)) for one in thinned(within, MOST_POINTS)]
        label = "" if present(lines) else "journal, written in the session"
        lines.append(line_through(label, 2, points, "dashed"))
    return lines


def _rates(
    runs: Sequence[RunData],
    key: str,
    title: str,
    caption: str,
    value: Callable[[Stretch], float | None],
    why_absent: str,
    *,
    at_end: bool = False,
    most: int = MOST_POINTS,
) -> Plot | Absent:
    lines: list[Line | None] = []
    for series, run in enumerate(runs):
        stretches = thinned(run.stretches, most)
        points: Points = [(one.last if at_end else one.middle, value(one)) for one in stretches]
        lines.append(line_through(run.name, series, points))
    if not present(lines):
        return Absent(title, why_absent)
    return Plot(key, title, caption, TOKENS, present(lines), y_axis="share", x_most=_longest(runs))


def _checkpoints(run: RunData, series: int, *, alone: bool) -> Line | None:
    # The start of each session and the last checkpoint always stay.
    step = max(1, -(-len(run.moments) // MOST_POINTS))
    before = -1
    kept: list[tuple[float, float]] = []
    for index, moment in enumerate(run.moments):
        if index % step == 0 or index == len(run.moments) - 1 or moment.session != before:
            kept.append((moment.seconds, moment.tokens))
        before = moment.session
    if len(kept) < 2:
        return None
    label = "checkpoints" if alone else run.name
    return Line(label, series, tuple(x for x, _ in kept), tuple(y for _, y in kept), points=True)


def _starts(run: RunData) -> tuple[float, ...]:
    """When, on the clock of work, the sessions after the first began to write."""
    sessions = [moment.session for moment in run.moments]
    firsts = [sessions.index(session) for session in sorted(set(sessions)) if session]
    return tuple(run.moments[index].seconds for index in firsts)


def _resumes(runs: Sequence[RunData]) -> tuple[float, ...]:
    if len(runs) > 1:
        return ()
    return tuple(float(session.stretch.first) for session in runs[0].resumes)


def _per_step(stretch: Stretch) -> float | None:
    return (stretch.last - stretch.first) / stretch.steps if stretch.steps else None


def _gib(number_of_bytes: int | None) -> float | None:
    return None if number_of_bytes is None else number_of_bytes / _GIB


def _longest(runs: Sequence[RunData]) -> float:
    return float(max(run.manifest.token_count for run in runs))
