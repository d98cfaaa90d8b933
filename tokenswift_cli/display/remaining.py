"""How long a run will still take, from how fast it wrote so far and how that is changing.

Each token attends to all before it, so the seconds per token grow with the text, nearly along a line, and a
rate of the past promises too little time. Here a line through all that was seen (least squares, each token
counts once) gives the growth, the last minutes give the level, and the area under that line over the tokens
left is the estimate. What is told follows the estimate with a delay and counts down between, so it does not
jump. ``benchmarks/eta.py`` compares it with plain rates on recorded runs.
"""

from __future__ import annotations

LEVEL_SECONDS = 120.0  # half-life of the level's memory
FOLLOW_SECONDS = 15.0  # half-life of the way from what was told to the estimate
# Growth seen over so many tokens is believed to one half; over ten times as many, to ten elevenths.
GROWTH_TOKENS = 1000.0


class RemainingTime:
    """Seconds left of a run. Its clock is the decoding itself: pauses change nothing."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        # Sums over all tokens, each with its position x and its own seconds y.
        self._x = self._xx = self._xy = 0.0
        # The same of the last minutes, older ones forgotten by and by.
        self._late_tokens = self._late_x = self._late_seconds = 0.0
        self._position = 0
        self._told: float | None = None
        self._told_at = 0.0

    def add(self, position: int, tokens: int, seconds: float) -> None:
        """Take in ``tokens`` more, written in ``seconds``, up to ``position`` (prompt and text before it)."""
        if tokens <= 0 or seconds < 0:
            return
        middle = position - tokens / 2
        self._position = position
        self._tokens += tokens
        self._seconds += seconds
        self._x += tokens * middle
        self._xx += tokens * middle * middle
        self._xy += seconds * middle
        keep = 2.0 ** (-seconds / LEVEL_SECONDS)
        self._late_tokens = self._late_tokens * keep + tokens
        self._late_seconds = self._late_seconds * keep + seconds
        self._late_x = self._late_x * keep + tokens * middle

    def seconds_left(self, tokens: int) -> float | None:
        """For ``tokens`` more; None before anything was written. Asking again changes nothing."""
        if tokens <= 0:
            return 0.0
        estimate = self.estimate(tokens)
        if estimate is None:
            return None
        passed = self._seconds - self._told_at
        if self._told is None:
            self._told = estimate
        elif passed > 0:
            # At the start there is little to hold on to, and at the end no time to be late.
            delay = min(FOLLOW_SECONDS, self._seconds, estimate / 4)
            due = self._told - passed
            self._told = max(0.0, due + (estimate - due) * (1.0 - 2.0 ** (-passed / delay)))
        self._told_at = self._seconds
        return self._told

    def estimate(self, tokens: int) -> float | None:
        """The same without the delay."""
        if self._tokens <= 0 or self._seconds <= 0:
            return None
        growth = self._growth()
        behind = self._position - self._late_x / self._late_tokens
        level = self._late_seconds / self._late_tokens + growth * behind
        return tokens * level + growth * tokens * tokens / 2

    def _growth(self) -> float:
        """Seconds per token, per token of length; from 0 to where all of the time is owed to the length."""
        mean = self._x / self._tokens
        spread = self._xx / self._tokens - mean * mean
        if spread <= 0:
            return 0.0
        seconds = self._seconds / self._tokens
        slope = (self._xy / self._tokens - mean * seconds) / spread
        slope *= self._tokens / (self._tokens + GROWTH_TOKENS)
        return min(max(slope, 0.0), seconds / mean)
