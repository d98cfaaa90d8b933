"""A figure as data: what is drawn, before anything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tokenswift_cli.report.repetition_cells import Level

SERIES: Final = 8
"""How many colours there are; see page.css."""

Style = Literal["solid", "dashed", "dotted"]
Axis = Literal["tokens", "seconds", "number", "share"]


@dataclass(frozen=True)
class Line:
    """Values along an axis.

    Attributes:
        label: in the legend; empty for none.
        series: colour, 0 .. ``SERIES`` - 1.
        xs, ys: the points, as many of each.
        points: whether each point is marked, because it is an event of its own.
    """

    label: str
    series: int
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    style: Style = "solid"
    points: bool = False


@dataclass(frozen=True)
class Layer:
    """One layer of a stack: a height for each interval between two of the plot's ``edges``."""

    label: str
    series: int
    heights: tuple[float, ...]


@dataclass(frozen=True)
class Plot:
    """One figure.

    Attributes:
        key: its id in the page, less the run.
        title: what it shows, with the unit.
        caption: how to read it; sentences.
        x_label: below the axis.
        marks: places of vertical lines, and ``mark_label`` what they are.
        edges, layers: a stack.
        levels: cells of a map; drawn square, with the vertical axis like the horizontal one.
        y_low: where the vertical axis starts, unless a value lies below it.
    """

    key: str
    title: str
    caption: str
    x_label: str
    lines: tuple[Line, ...] = ()
    x_axis: Axis = "tokens"
    y_axis: Axis = "number"
    x_most: float = 0.0
    y_low: float = 0.0
    marks: tuple[float, ...] = ()
    mark_label: str = ""
    edges: tuple[float, ...] = ()
    layers: tuple[Layer, ...] = ()
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Absent:
    """A figure that would be empty, and why, as the end of a sentence."""

    title: str
    why: str


def line_through(
    label: str, series: int, points: Sequence[tuple[float, float | None]], style: Style = "solid"
) -> Line | None:
    """A line through the points that have a value; None if none has."""
    known = [(x, y) for x, y in points if y is not None]
    if not known:
        return None
    return Line(label, series, tuple(x for x, _ in known), tuple(y for _, y in known), style)


def present(lines: Sequence[Line | None]) -> tuple[Line, ...]:
    """Those that are there."""
    return tuple(line for line in lines if line is not None)
