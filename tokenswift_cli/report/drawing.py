"""Plots drawn by matplotlib, without its global state, the same each time."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tokenswift_cli.report.plot import Axis, Plot, Style
from tokenswift_cli.report.svg import INKS, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Units of the drawing; at 72 to the inch a unit is a point, and on a telephone nearly a pixel.
WIDTH, HEIGHT, SQUARE_HEIGHT = 400, 230, 390
_LEFT, _RIGHT, _BOTTOM, _TOP = 40, 14, 40, 10
_TEXT_SIZE: Final = 12
_TICKS: Final = 5
_FEW_POINTS: Final = 2
_DASHES: Final[dict[Style, str | tuple[float, tuple[float, ...]]]] = {
    "solid": "solid",
    "dashed": (0.0, (5.0, 2.5)),
    "dotted": (0.0, (1.5, 2.0)),
}
# Any: the type of their names differs between versions of matplotlib.
_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tokenswift",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that positions are the same everywhere
    "font.size": _TEXT_SIZE,
    "path.simplify": False,
}


def draw(plot: Plot, prefix: str) -> str:
    """The figure as an ``<svg>`` element whose ids begin with ``prefix``."""
    # It would say on standard error that it looks for fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)

    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what a matplotlibrc of the user says
        matplotlib.rcParams.update(_SETTINGS)
        height = SQUARE_HEIGHT if plot.levels else HEIGHT
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        FigureCanvasSVG(figure)
        _draw(figure, plot, height)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline_svg(written.getvalue(), prefix, plot.title)


def _draw(figure: Figure, plot: Plot, height: int) -> None:
    axes = figure.add_axes(
        (
            _LEFT / WIDTH,
            _BOTTOM / height,
            (WIDTH - _LEFT - _RIGHT) / WIDTH,
            (height - _BOTTOM - _TOP) / height,
        )
    )
    _frame(axes, plot)
    for place in plot.marks:
        axes.axvline(place, color=INKS["quiet"], linewidth=1, linestyle=_DASHES["dashed"], zorder=1.5)
    _layers(axes, plot)
    _lines(axes, plot)
    _levels(axes, plot)
    _limits(axes, plot)


def _frame(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INKS["quiet"])
    axes.grid(axis="both" if plot.levels else "y", color=INKS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5, labelsize=_TEXT_SIZE, labelcolor=INKS["quiet"])
    axes.set_xlabel(plot.x_label, color=INKS["quiet"], fontsize=_TEXT_SIZE, labelpad=4)
    for axis, kind in ((axes.xaxis, plot.x_axis), (axes.yaxis, plot.y_axis)):
        axis.set_major_locator(MaxNLocator(nbins=_TICKS, steps=[1, 2, 2.5, 5, 10], integer=kind == "tokens"))
        axis.set_major_formatter(FuncFormatter(_label(kind)))


def _layers(axes: Axes, plot: Plot) -> None:
    if not plot.layers:
        return
    floor = [0.0] * len(plot.layers[0].heights)
    for layer in plot.layers:
        top = [low + height for low, height in zip(floor, layer.heights, strict=True)]
        axes.stairs(
            top, plot.edges, baseline=floor, fill=True, color=INKS[f"series-{layer.series}"], linewidth=0
        )
        floor = top


def _lines(axes: Axes, plot: Plot) -> None:
    for line in plot.lines:
        # One point is no line, and would not be seen.
        marked = line.points or len(line.xs) <= _FEW_POINTS
        axes.plot(
            line.xs,
            line.ys,
            color=INKS[f"series-{line.series}"],
            linestyle=_DASHES[line.style],
            linewidth=1.8,
            marker="o" if marked else "",
            markersize=2.6 if line.points else 4.5,
            solid_joinstyle="round",
            clip_on=False,  # half of a point at the edge would be missing
            zorder=3,
        )


def _levels(axes: Axes, plot: Plot) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for level in plot.levels:
        if not level.rectangles:
            continue
        corners: list[tuple[float, float]] = []
        codes: list[Any] = []
        for one in level.rectangles:
            corners += [
                (one.left, one.bottom),
                (one.right, one.bottom),
                (one.right, one.top),
                (one.left, one.top),
                (one.left, one.bottom),
            ]
            codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
        axes.add_patch(
            PathPatch(
                Path(corners, codes),
                facecolor=INKS["series-0"],
                edgecolor="none",
                alpha=level.opacity,
                linewidth=0,
                zorder=2,
            )
        )


def _limits(axes: Axes, plot: Plot) -> None:
    across = plot.x_most or 1.0
    axes.set_xlim(0, across)
    if plot.levels:
        axes.set_ylim(0, across)
    elif plot.y_axis == "share":
        axes.set_ylim(0, 1)
    else:
        tops = [sum(heights) for heights in zip(*(layer.heights for layer in plot.layers), strict=True)]
        values = [plot.y_low, *tops, *(y for line in plot.lines for y in line.ys)]
        lowest, span = min(values), max(values) - min(values)
        axes.set_ylim(lowest, lowest + (1.08 * span or 1))


def _label(kind: Axis) -> Callable[[float, object], str]:
    return short_count if kind == "tokens" else _plain


def short_count(value: float, _: object = None) -> str:
    """500, 20k, 1.5M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def _plain(value: float, _: object = None) -> str:
    return short_count(value) if abs(value) >= 1e4 else f"{value:g}"
