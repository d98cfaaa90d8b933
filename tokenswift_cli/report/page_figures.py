"""A figure of the page: title, legend, drawing, caption. The legend is text, never over the data."""

from __future__ import annotations

from collections.abc import Iterable

from tokenswift_cli.report.drawing import draw
from tokenswift_cli.report.markup import bullets, escape
from tokenswift_cli.report.plot import Absent, Plot, Style

_DASHES: dict[Style, str] = {"solid": "none", "dashed": "6 3", "dotted": "2 2.4"}


def figures(plots: Iterable[Plot | Absent], prefix: str) -> str:
    """The figures side by side, and which are left out because they would be empty."""
    curves: list[str] = []
    maps: list[str] = []  # taller, so that they stand in rows of their own
    absent: list[str] = []
    for plot in plots:
        if isinstance(plot, Plot):
            (maps if plot.levels else curves).append(_figure(plot, f"{prefix}-{plot.key}"))
        else:
            absent.append(f"{plot.title}: {plot.why}.")
    blocks = [f'<div class="figures">\n{"".join(drawn)}</div>\n' for drawn in (curves, maps) if drawn]
    return "".join(blocks) + (f"<p>Not drawn:</p>\n{bullets(absent)}" if absent else "")


def _figure(plot: Plot, name: str) -> str:
    caption = f"<p>{escape(plot.caption)}</p>\n" if plot.caption else ""
    return (
        f'<figure id="{name}">\n<figcaption><h4>{escape(plot.title)}</h4>\n{_legend(plot)}</figcaption>\n'
        f"{draw(plot, f'{name}-')}\n{caption}</figure>\n"
    )


def _legend(plot: Plot) -> str:
    entries = [(layer.label, _block(f"var(--series-{layer.series})", 1.0)) for layer in plot.layers]
    entries += [
        (line.label, _stroke(f"var(--series-{line.series})", line.style)) for line in plot.lines if line.label
    ]
    entries += [
        (f"{level.least:.0%} and more" if level.least else "any", _block("var(--series-0)", level.opacity))
        for level in plot.levels
    ]
    if plot.marks:
        entries.append((plot.mark_label, _stroke("var(--quiet)", "dashed")))
    items = "".join(f"<li>{swatch}{escape(label)}</li>\n" for label, swatch in entries)
    return f'<ul class="legend">\n{items}</ul>\n' if len(entries) > 1 else ""


def _stroke(colour: str, style: Style) -> str:
    dash = f"stroke:{colour};stroke-dasharray:{_DASHES[style]}"
    return (
        f'<svg class="swatch" viewBox="0 0 20 8" aria-hidden="true"><path d="M0 4H20" style="{dash}"/></svg>'
    )


def _block(colour: str, opacity: float) -> str:
    fill = f"fill:{colour};fill-opacity:{opacity:g}"
    return (
        '<svg class="swatch" viewBox="0 0 20 8" aria-hidden="true">'
        f'<rect width="20" height="8" style="{fill}"/></svg>'
    )
