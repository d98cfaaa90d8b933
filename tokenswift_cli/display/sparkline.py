"""The speed of the last minutes in one line of block characters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
SECONDS_PER_CELL = 5.0
MOST_CELLS = 60


class SpeedHistory:
    """Tokens per second of decoding, in cells of five seconds; pauses leave no trace."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=MOST_CELLS)
        self._tokens = self._seconds = 0.0  # of the cell that is being filled

    def add(self, tokens: float, seconds: float) -> None:
        """Take in ``tokens`` written in ``seconds``; one long step is spread over the cells it took."""
        if tokens < 0 or seconds <= 0:
            return
        rate = tokens / seconds
        if seconds > MOST_CELLS * SECONDS_PER_CELL:  # older cells would fall out again
            seconds = MOST_CELLS * SECONDS_PER_CELL
        while seconds > 0:
            taken = min(seconds, SECONDS_PER_CELL - self._seconds)
            self._tokens += rate * taken
            self._seconds += taken
            seconds -= taken
            if self._seconds >= SECONDS_PER_CELL - 1e-9:
                self._rates.append(self._tokens / self._seconds)
                self._tokens = self._seconds = 0.0

    def rates(self, cells: int) -> list[float]:
        """Of the last ``cells`` full cells at most, oldest first."""
        return list(self._rates)[-cells:] if cells > 0 else []


def sparkline(values: Sequence[float]) -> str:
    """One block per value, its height from 0 to the largest value; the lowest block is never empty."""
    most = max(values, default=0.0)
    if most <= 0:
        return BLOCKS[0] * len(values)
    top = len(BLOCKS)
    return "".join(BLOCKS[max(0, min(top, round(value / most * top)) - 1)] for value in values)
