"""Figures about one run alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tokenswift_cli.report.comparing_plots import MOST_POINTS, MOST_RATES, RESUMED, TOKENS
from tokenswift_cli.report.plot import Absent, Layer, Line, Plot, Style, line_through, present
from tokenswift_cli.report.repetition import RepetitionMap
from tokenswift_cli.report.repetition_cells import levels_of
from tokenswift_cli.report.run_data import RunData
from tokenswift_cli.report.stretch import FEWEST_DRAFTED, Stretch, Timed, Tried, thinned

# As many lines as can be told apart; what comes after is drawn together.
_MOST_LINES: Final = 6
_SPARSE: Final = f"Points of fewer than {FEWEST_DRAFTED} drafted positions are left out."


def drafters(run: RunData) -> Plot | Absent:
    """Acceptance rate of each drafter."""
    total = run.total.drafters if run.total else {}
    names = sorted(total, key=lambda name: (-total[name].drafted, name))
    groups = [(name, [name]) for name in names]
    if len(groups) > _MOST_LINES:
        groups[_MOST_LINES - 1 :] = [("others", names[_MOST_LINES - 1 :])]

    drafted = sum(share.drafted for share in total.values())
    parts = [
        (_with_share(label, sum(total[name].drafted for name in members), drafted), partial(_by, members))
        for label, members in groups
    ]
    return _tried_plot(
        run,
        "drafters",
        "Acceptance rate by drafter",
        f"Accepted / drafted positions, and each drafter's part of all drafted positions. {_SPARSE}",
        parts,
    )


def depths(run: RunData) -> Plot | Absent:
    """Acceptance rate by depth of the drafted path."""
    deepest = len(run.total.depths) if run.total else 0
    groups = [(depth, depth + 1) for depth in range(deepest)]
    if deepest > _MOST_LINES:
        groups[_MOST_LINES - 1 :] = [(_MOST_LINES - 1, deepest)]

    return _tried_plot(
        run,
        "depths",
        "Acceptance rate by depth",
        "Share of the drafted tokens at each depth, 1 being the first after the text, that were accepted "
        f"with all before them. {_SPARSE}",
        [
            (
                f"depth {start + 1}" if end == start + 1 else f"depths {start + 1}-{end}",
                partial(_at, start, end),
            )
            for start, end in groups
        ],
    )


def repetitiveness(run: RunData) -> Plot | Absent:
    """Distinct-1..4 and novelty of one run."""
    title = "Distinct-n and novelty"
    stretches = thinned(run.stretches, MOST_POINTS)
    lines: list[Line | None] = []
    for index in range(4):
        points = [(one.last, one.distinct[index] if one.distinct else None) for one in stretches]
        lines.append(line_through(f"Distinct-{index + 1}", index, points))
    new = [(one.last, one.novelty) for one in stretches]
    lines.append(line_through("novelty", 4, new, "dashed"))
    if not present(lines):
        return Absent(title, "they were not recorded")
    return Plot(
        "repetitiveness",
        title,
        "Distinct n-grams / all n-grams of the text so far, which falls in any text as it grows; novelty: "
        "share of the last 1,024 tokens that ended a 4-gram not written shortly before.",
        TOKENS,
        present(lines),
        y_axis="share",
        x_most=float(run.manifest.token_count),
    )


def time_split(run: RunData) -> Plot | Absent:
    """Where the time of a token goes."""
    title = "Time per token, milliseconds"
    stretches = [one for one in thinned(run.stretches, MOST_POINTS) if one.decoding.tokens]
    parts: list[tuple[str, int, Callable[[Stretch], Timed]]] = [
        ("verifying (the model's pass)", 0, lambda one: one.verifying),
        ("drafting", 1, lambda one: one.drafting),
        ("host: text and metrics", 2, lambda one: one.hosting),
    ]
    split = [one for one in stretches if one.verifying.tokens and one.drafting.tokens and one.hosting.tokens]
    if not split:
        return Absent(title, "no time was recorded")
    plain = [(one.middle, one.plain.milliseconds_per_token) for one in split]
    edges, holes = _intervals(split)
    layers = tuple(
        Layer(label, series, _with_holes([part(one).milliseconds_per_token or 0.0 for one in split], holes))
        for label, series, part in parts
    )
    return Plot(
        "split",
        title,
        "Mean of each chunk, stacked. Dotted: a step of plain decoding, as the run estimated it.",
        TOKENS,
        present([line_through("plain decoding, estimated", 3, plain, "dotted")]),
        x_most=float(run.manifest.token_count),
        marks=tuple(float(session.stretch.first) for session in run.resumes),
        mark_label=RESUMED,
        edges=edges,
        layers=layers,
    )


def repetition(run: RunData, found: RepetitionMap) -> Plot | Absent:
    """Where n-grams recur."""
    title = f"Repetition map, {found.size}-grams"
    if found.share is None:
        return Absent(title, f"the text has fewer than {found.size} tokens")
    if not found.recurring:
        return Absent(title, "none recurs")
    cell = "token" if found.cell_tokens == 1 else f"{found.cell_tokens:,} tokens"
    return Plot(
        f"map-{found.size}",
        title,
        f"{found.share:.1%} of the {found.size}-grams stood in the text before. Across: where one stands; "
        "up: where it stood last before. On the diagonal that was just before, far below it long ago. A cell "
        f"is {cell} wide and high, shaded by the share of its column's tokens.",
        "position, tokens",
        x_most=float(run.manifest.token_count),
        y_axis="tokens",
        levels=tuple(levels_of(found)),
    )


def _tried_plot(
    run: RunData,
    key: str,
    title: str,
    caption: str,
    parts: Sequence[tuple[str, Callable[[Stretch], Tried]]],
) -> Plot | Absent:
    stretches = thinned(run.stretches, MOST_RATES)
    lines: list[Line | None] = []
    for series, (label, part) in enumerate(parts):
        tried = [(one.middle, part(one)) for one in stretches]
        points = [(x, each.rate if each.drafted >= FEWEST_DRAFTED else None) for x, each in tried]
        style: Style = "solid" if series < 4 else "dashed"
        lines.append(line_through(label, series, points, style))
    if not present(lines):
        drafted = run.total and (run.total.drafters or run.total.depths)
        return Absent(title, "too little was drafted" if drafted else "nothing was drafted")
    return Plot(
        key,
        title,
        caption,
        TOKENS,
        present(lines),
        y_axis="share",
        x_most=float(run.manifest.token_count),
    )


def _by(drafters: Sequence[str], stretch: Stretch) -> Tried:
    return sum((stretch.drafters.get(name, Tried()) for name in drafters), Tried())


def _at(first_depth: int, end: int, stretch: Stretch) -> Tried:
    return sum(stretch.depths[first_depth:end], Tried())


def _with_share(label: str, drafted: int, total: int) -> str:
    return f"{label} ({drafted / total:.0%})" if total else label


def _intervals(stretches: Sequence[Stretch]) -> tuple[tuple[float, ...], list[int]]:
    """Edges of the stretches, and at which places among them there is a hole, for want of a record."""
    edges = [float(stretches[0].first)]
    holes: list[int] = []
    for stretch in stretches:
        if stretch.first > edges[-1]:
            holes.append(len(edges) - 1)
            edges.append(float(stretch.first))
        edges.append(float(stretch.last))
    return tuple(edges), holes


def _with_holes(values: Sequence[float], holes: Sequence[int]) -> tuple[float, ...]:
    filled = list(values)
    for hole in holes:  # ascending, so each index counts the holes before it
        filled.insert(hole, 0.0)
    return tuple(filled)
