"""Where the n-grams of a text recur: exact (no hashing), linear time, a few arrays of the text's length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]

_DIGIT_BITS = 16
_DIGIT = (1 << _DIGIT_BITS) - 1


@dataclass(frozen=True)
class RepetitionMap:
    """Positions against positions of the previous occurrence, both in cells of ``cell_tokens`` tokens.

    Attributes:
        size: length n of the n-grams.
        ngrams: how many the text has.
        recurring: those of them that the text held before.
        cell_tokens: length of a cell's side.
        counts: int64 [cells, cells]; ``counts[i, j]``: n-grams that start in cell i of the text and whose
            previous occurrence starts in cell j.
    """

    size: int
    ngrams: int
    recurring: int
    cell_tokens: int
    counts: Integers

    @property
    def share(self) -> float | None:
        """Recurring n-grams / n-grams, which is 1 - Distinct-n; None for a shorter text than one n-gram."""
        return self.recurring / self.ngrams if self.ngrams else None


def repetition_map(tokens: Integers, size: int, most_cells: int) -> RepetitionMap:
    """The map of a text.

    Args:
        tokens: ids in 0 .. 2**32 - 1, [tokens].
        size: n, at least 1.
        most_cells: along each side.
    """
    positions, previous = recurrences(tokens, size)
    cell = max(1, -(-len(tokens) // most_cells))
    cells = max(1, -(-len(tokens) // cell))
    flat = (positions // cell) * cells + previous // cell
    counts = np.bincount(flat, minlength=cells * cells).reshape(cells, cells).astype(np.int64)
    return RepetitionMap(size, max(0, len(tokens) - size + 1), len(positions), cell, counts)


def recurrences(tokens: Integers, size: int) -> tuple[Integers, Integers]:
    """Starts of the n-grams that occurred before, ascending, and where each occurred last before."""
    ranks = ngram_ranks(tokens, size)
    order = _stable_order(ranks)
    again = ranks[order][1:] == ranks[order][:-1]
    positions, previous = order[1:][again], order[:-1][again]
    ascending = _stable_order(positions)
    return positions[ascending], previous[ascending]


def ngram_ranks(tokens: Integers, size: int) -> Integers:
    """A number for each n-gram, [tokens - size + 1]; two have the same one if and only if they are equal."""
    if len(tokens) < size:
        return np.empty(0, dtype=np.int64)
    if size == 1:
        return tokens
    half = size // 2
    first = ngram_ranks(tokens, half)
    second = first if size == 2 * half else ngram_ranks(tokens, size - half)
    count = len(tokens) - size + 1
    return _pair_ranks(first[:count], second[half : half + count])


def _pair_ranks(first: Integers, second: Integers) -> Integers:
    order = _stable_order(second)
    order = order[_stable_order(first[order])]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(new) - 1
    return ranks


def _stable_order(values: Integers) -> Integers:
    """Indices that sort values in 0 .. 2**32 - 1; equal ones keep their order."""
    # numpy sorts 16-bit numbers by counting them: two passes are linear, a sort of int64 is not.
    order = np.argsort((values & _DIGIT).astype(np.uint16), kind="stable")
    if len(values) and int(values.max()) > _DIGIT:
        high = (values[order] >> _DIGIT_BITS).astype(np.uint16)
        order = order[np.argsort(high, kind="stable")]
    return order.astype(np.int64)
