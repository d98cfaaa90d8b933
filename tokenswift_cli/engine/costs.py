"""What a verification costs on this machine, by the number of rows, kept current from live timings."""

from __future__ import annotations

from bisect import bisect_left

# Weight of the newest timing. Costs drift with the length of the text; single timings are noisy.
_NEWEST = 0.1

# One timing can move the estimate at most as if it were this many times larger or smaller.
_OUTLIER = 2.0


class CostModel:
    """Seconds per forward pass as a table over row counts, interpolated between measured ones."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._rows: list[int] = []

    def observe(self, rows: int, seconds: float) -> None:
        """Take in one timing of a pass over ``rows`` tokens."""
        known = self._seconds.get(rows)
        if known is None:
            self._rows.insert(bisect_left(self._rows, rows), rows)
            self._seconds[rows] = seconds
            return
        seconds = min(max(seconds, known / _OUTLIER), known * _OUTLIER)
        self._seconds[rows] = known + _NEWEST * (seconds - known)

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
            # Beyond what was seen, assume the worst: each row costs as much as the average one.
            return self._seconds[low] * rows / low
        high = self._rows[place]
        share = (rows - low) / (high - low)
        return self._seconds[low] * (1 - share) + self._seconds[high] * share
