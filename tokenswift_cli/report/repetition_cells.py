"""A repetition map as rectangles of few shades, for drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenswift_cli.report.repetition import RepetitionMap

# Of the tokens of a cell's column; each shade from one of these on. The same for all texts, so that maps of
# several runs can be compared.
SHADES: Final = ((0.0, 0.2), (0.01, 0.4), (0.03, 0.6), (0.1, 0.8), (0.3, 1.0))


@dataclass(frozen=True)
class Rectangle:
    """Tokens ``left`` .. ``right`` of the text against ``bottom`` .. ``top``."""

    left: int
    right: int
    bottom: int
    top: int


@dataclass(frozen=True)
class Level:
    """All cells of one shade: opacity, the least share of a column's tokens that each holds, and where."""

    opacity: float
    least: float
    rectangles: tuple[Rectangle, ...]


def levels_of(found: RepetitionMap) -> list[Level]:
    """The cells that are not empty, by shade; neighbours along a row become one rectangle."""
    counts, side = found.counts, found.cell_tokens
    columns: list[list[Rectangle]] = [[] for _ in SHADES]
    for row in range(counts.shape[1]):
        shades = [_shade(int(count), side) for count in counts[:, row]]
        start = 0
        for column in range(1, len(shades) + 1):
            if column == len(shades) or shades[column] != shades[start]:
                if shades[start] >= 0:
                    columns[shades[start]].append(
                        Rectangle(start * side, column * side, row * side, (row + 1) * side)
                    )
                start = column
    return [
        Level(opacity, least, tuple(rectangles))
        for (least, opacity), rectangles in zip(SHADES, columns, strict=True)
    ]


def _shade(count: int, side: int) -> int:
    """Index of the shade for so many recurring n-grams in a cell; -1 for none."""
    if not count:
        return -1
    return max(index for index, (least, _) in enumerate(SHADES) if count >= least * side)
