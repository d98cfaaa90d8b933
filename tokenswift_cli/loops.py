"""Notices while a text is being written that it repeats itself.

Two signs, each at constant work per token and with bounded memory:

- an *exact cycle* of period 1 .. 2048 tokens. The last eight tokens, seen before at distance p,
  make p the candidate; from then on each token is compared with the one p before it. It is a
  cycle when the repetition covers three periods and 64 tokens, or two periods while novelty is low;
- *low novelty*: of the last 1024 tokens, fewer than 20 % ended a 4-gram that was new within the
  last 16384 tokens. This catches cycles with small changes, such as a counter.

Each onset is reported once. The detector arms again when the text is mostly new for a while.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_PERIOD = 2048
MIN_CYCLE_TOKENS = 64
NOVELTY_WINDOW = 1024
NOVELTY_HISTORY = 16384
LOW_NOVELTY = 0.2
# An exact repetition of this length explains low novelty: wait for its period instead.
EXPLAINED_BY_REPETITION = 256
# Armed again when the moving average of novelty, about 128 tokens long, is back above this.
REARM_NOVELTY = 0.5
REARM_TOKENS = 128

_KEY = 8
_RING = 1 << (MAX_PERIOD + _KEY).bit_length()


@dataclass(frozen=True)
class LoopReport:
    """A repetition that has just been noticed.

    Attributes:
        period: length of the exact cycle in tokens, or 0 for low novelty.
        start: index of the first token of the first copy (or of the window of low novelty),
            counted from the first token pushed.
        message: one plain sentence.
    """

    period: int
    start: int
    message: str


class _RecentPlaces:
    """Where each key stood last, for keys pushed one per position, forgotten after ``reach`` positions."""

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self._last: dict[tuple[int, ...], int] = {}
        self._order: deque[tuple[int, ...]] = deque()
        self._next = 0

    def push(self, key: tuple[int, ...]) -> int:
        """Distance to the last place of ``key`` (1 .. reach), or 0 if there is none."""
        position = self._next
        self._next += 1
        before = self._last.get(key)
        self._last[key] = position
        self._order.append(key)
        if len(self._order) > self._reach:
            oldest = self._order.popleft()
            if self._last[oldest] == position - self._reach:
                del self._last[oldest]
        return 0 if before is None else position - before


class LoopDetector:
    """Push every generated token; get a report at the onset of a repetition."""

    def __init__(self) -> None:
        self._count = 0
        self._ring = [-1] * _RING
        self._last: tuple[int, ...] = ()
        self._keys = _RecentPlaces(MAX_PERIOD)
        self._period = 0
        self._run = 0  # latest tokens that equal the one a period before
        self._grams = _RecentPlaces(NOVELTY_HISTORY)
        self._flags: deque[bool] = deque()  # for each token of the window: was its 4-gram new?
        self._new_in_window = 0
        self._armed = True
        self._recovery = 0.0

    @property
    def looping(self) -> bool:
        """Whether a repetition was reported and novelty has not returned since."""
        return not self._armed

    @property
    def novelty(self) -> float | None:
        """Share of the last tokens that ended a 4-gram not written shortly before; None before any token."""
        return self._new_in_window / len(self._flags) if self._flags else None

    def push(self, token_id: int) -> LoopReport | None:
        """Take the next token; return a report if it makes a repetition evident."""
        position = self._count
        self._count += 1
        self._ring[position % _RING] = token_id
        self._last = (*self._last[-(_KEY - 1) :], token_id)
        self._follow_cycle(position, token_id)
        self._follow_novelty()
        if not self._armed:
            return None
        report = self._cycle_report() or self._novelty_report()
        if report is not None:
            self._armed = False
            self._recovery = 0.0
        return report

    def _follow_cycle(self, position: int, token_id: int) -> None:
        distance = self._keys.push(self._last) if len(self._last) == _KEY else 0
        if self._period and self._ring[(position - self._period) % _RING] == token_id:
            self._run += 1
        elif distance:
            self._period, self._run = distance, _KEY
        else:
            self._period, self._run = 0, 0

    def _follow_novelty(self) -> None:
        new = len(self._last) < 4 or self._grams.push(self._last[-4:]) == 0
        self._flags.append(new)
        self._new_in_window += new
        if len(self._flags) > NOVELTY_WINDOW:
            self._new_in_window -= self._flags.popleft()
        if not self._armed:
            self._recovery += (new - self._recovery) / REARM_TOKENS
            if self._recovery >= REARM_NOVELTY:
                self._armed = True
                # The old repetition must not be counted again.
                self._flags.clear()
                self._new_in_window = 0

    def _novelty_is_low(self) -> bool:
        return len(self._flags) == NOVELTY_WINDOW and self._new_in_window < LOW_NOVELTY * NOVELTY_WINDOW

    def _cycle_report(self) -> LoopReport | None:
        period, run = self._period, self._run
        if not period or run + period < MIN_CYCLE_TOKENS:
            return None
        if run < 2 * period and not (run >= period and self._novelty_is_low()):
            return None
        start = self._count - run - period
        unit = "the same token" if period == 1 else f"a cycle of {period:,} tokens"
        return LoopReport(
            period=period, start=start, message=f"The text repeats {unit} since generated token {start:,}."
        )

    def _novelty_report(self) -> LoopReport | None:
        if not self._novelty_is_low() or self._run >= EXPLAINED_BY_REPETITION:
            return None
        share = self._new_in_window / NOVELTY_WINDOW
        return LoopReport(
            period=0,
            start=self._count - NOVELTY_WINDOW,
            message=f"Little new text: only {share:.0%} of the 4-grams in the last {NOVELTY_WINDOW:,} tokens "
            "had not been written shortly before.",
        )
