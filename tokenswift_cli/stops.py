"""Stop strings over streamed text: found across every border, never shown.

The first stop string to be *completed* ends the text; of several completed by the same
character the longest wins. That rule looks at no later character, so how the text was cut
into pieces (tokens, blocks, chunks) cannot change what is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenswift_cli.errors import UsageError


@dataclass(frozen=True)
class StopResult:
    """``text`` is now safe to show; ``stop`` is the stop string that ended the text, or None."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Passes text through until a stop string is complete.

    Text that may turn out to be the beginning of a stop string is held back; :meth:`flush`
    releases it when the text ends for another reason. Work per push is bounded by the text
    pushed and the length of the stop strings, not by what came before.

    Raises:
        UsageError: a stop string is empty (it would match everywhere).
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if any(not stop for stop in stops):
            raise UsageError("A stop string is empty; give --stop at least one character.")
        self._stops = tuple(dict.fromkeys(stops))
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    @property
    def held(self) -> str:
        """Text pushed and not released: the beginning of a possible stop string."""
        return self._held

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._matched

    def push(self, text: str) -> StopResult:
        """Take more text. After a match everything further is discarded."""
        if self._matched is not None:
            return StopResult("", self._matched)
        text = self._held + text
        start, stop = self._first_completed(text)
        if stop is not None:
            self._matched, self._held = stop, ""
            return StopResult(text[:start], stop)
        keep = self._partial_length(text)
        released = text[: len(text) - keep]
        self._held = text[len(released) :]
        return StopResult(released)

    def flush(self) -> str:
        """Release what is held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_completed(self, text: str) -> tuple[int, str | None]:
        """Start and text of the stop string completed first (the longest of those), or (0, None)."""
        best_end, best_start, best = len(text) + 1, 0, None
        for stop in self._stops:
            start = text.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if end < best_end or (end == best_end and start < best_start):
                best_end, best_start, best = end, start, stop
        return best_start, best

    def _partial_length(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins some stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters:
                end_of_text = text[start:]
                if any(stop.startswith(end_of_text) for stop in self._stops):
                    return len(end_of_text)
        return 0
