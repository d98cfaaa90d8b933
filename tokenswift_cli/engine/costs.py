"""What a pass costs on this machine, by the number of rows, kept current from live timings."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque

# The median of the last timings follows a growing text within a few steps. What disturbs a timing makes
# it longer, so of two middle ones the shorter is taken.
_KEPT = 9


class CostModel:
    """Seconds per forward pass as a table over row counts, interpolated between measured ones."""

    def __init__(self) -> None:
        self._timings: dict[int, deque[float]] = {}
        self._seconds: dict[int, float] = {}
        self._rows: list[int] = []

    def observe(self, rows: int, seconds: float) -> None:
        """Take in one timing of a pass over ``rows`` tokens."""
        if rows not in self._timings:
            self._rows.insert(bisect_left(self._rows, rows), rows)
            self._timings[rows] = deque(maxlen=_KEPT)
        timings = self._timings[rows]
        timings.append(seconds)
        self._seconds[rows] = statistics.median_low(timings)

    def seconds(self, rows: int) -> float | None:
        """Estimated seconds of a pass over ``rows`` tokens; None before any timing."""
        if rows in self._seconds:
            return self._seconds[rows]
        if not self._rows:
            return None
        place = bisect_left(self._rows, rows)
        if place == 0:
            return self._seconds[self._rows[0]]
        low = self._rows[place - 1]
        if place == len(self._rows):
            return self._beyond(rows)
        high = self._rows[place]
        share = (rows - low) / (high - low)
        return self._seconds[low] * (1 - share) + self._seconds[high] * share

    @property
    def largest_to_try(self) -> int:
        """Rows of a pass whose estimate can still be trusted: twice the largest that was timed."""
        return 2 * self._rows[-1] if self._rows else 1

    def _beyond(self, rows: int) -> float:
        """Beyond what was seen, each row costs the most that rows have cost so far."""
        first, last = self._rows[0], self._rows[-1]
        if first == last:
            return self._seconds[last] * rows / last
        before = self._rows[-2]
        per_row = max(
            (self._seconds[last] - self._seconds[before]) / (last - before),
            (self._seconds[last] - self._seconds[first]) / (last - first),
            0.0,
        )
        return self._seconds[last] + per_row * (rows - last)
