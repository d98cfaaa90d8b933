"""The last word on whether drafting pays: what it really gave, against what plain steps really take.

The planner reasons from estimates of acceptance and cost, which a busy machine makes wrong for a while. The
guard compares the outcome and pauses a way of drafting that was slower than plain decoding, for longer each
time. It sees times and counts only, so it cannot change the text.
"""

from __future__ import annotations

import statistics
from collections import deque

# Steps of a way of drafting that are compared at once. With fewer, a way that is right once in four times,
# and worth it, would often look useless by chance.
_TRIAL_STEPS = 24

# Before that it is paused as soon as it has cost so many plain steps.
_MOST_LOST = 4.0

# Plain steps that tell the plain speed.
_PLAIN_STEPS = 9

# Steps of the first pause, and of the longest.
_FIRST_PAUSE = 96
_LONGEST_PAUSE = 3072

# While something else is drafted throughout, every so many steps one is plain, to know its price.
_REFRESH_STEPS = 32


class DraftingGuard:
    """Watches several ways of drafting, each by its name."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        self._trials: dict[str, list[tuple[int, float]]] = {}
        self._pauses: dict[str, int] = {}
        self._paused_until: dict[str, int] = {}
        self._steps = 0
        self._last_plain = 0

    def allows(self, way: str) -> bool:
        """Whether ``way`` may be used in this step."""
        if self._steps - self._last_plain >= _REFRESH_STEPS:
            return False
        return self._steps >= self._paused_until.get(way, 0)

    def record(self, way: str | None, tokens: int, seconds: float) -> None:
        """One step is done.

        Args:
            way: how it was drafted; None for a plain step.
            tokens: committed.
            seconds: drafting and verification.
        """
        self._steps += 1
        if way is None:
            self._plain.append(seconds)
            self._last_plain = self._steps
            return
        trial = self._trials.setdefault(way, [])
        trial.append((tokens, seconds))
        if not self._plain:
            return
        plain = statistics.median_low(self._plain)
        lost = sum(spent for _, spent in trial) - plain * sum(gained for gained, _ in trial)
        if len(trial) < _TRIAL_STEPS and lost <= _MOST_LOST * plain:
            return
        trial.clear()
        if lost <= 0:
            self._pauses.pop(way, None)
            return
        pause = min(2 * self._pauses.get(way, _FIRST_PAUSE // 2), _LONGEST_PAUSE)
        self._pauses[way] = pause
        self._paused_until[way] = self._steps + pause
