"""Which step is made to measure a cost, so that the planner reasons from facts.

A probe is a real step that commits real tokens: only the rows that it verifies besides cost anything.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tokenswift_cli.engine.tree import Draft

# Row counts that are timed: all at the start, then one of them after every so many tokens, as costs grow
# with the text and a size that is not used would keep its old figure. Larger passes are expensive to try and
# are timed when a draft is good enough to use them.
_ROWS = (1, 2, 4)
_INTERVAL = 192

# A chain this long times the draft pass.
_CHAIN = 1

# With fewer tokens to go, measuring is not worth while.
_SHORTEST = 32

# Name of the drafts that fill a probe; statistics leave them out.
FILLER = "probe"


class Probe(NamedTuple):
    """What a step has to do: verify exactly ``rows`` rows, or draft ``chain`` tokens by itself first."""

    rows: int = 0
    chain: int = 0


class ProbeSchedule:
    """Says when which cost is measured.

    Args:
        max_rows: most rows of a verification.
        self_drafting: whether draft passes are to be timed too.
    """

    def __init__(self, max_rows: int, *, self_drafting: bool) -> None:
        self._sizes = [rows for rows in _ROWS if rows <= max_rows]
        # The first pass of all is slow and tells nothing.
        self._due = deque([Probe(rows=1), *(Probe(rows=rows) for rows in self._sizes)])
        self._chain_due = self_drafting
        self._tokens = 0
        self._again = 0

    def next(self, left: int, *, chain_may_pay: bool) -> Probe | None:
        """The probe that this step has to be, if any.

        Args:
            left: tokens still to be written.
            chain_may_pay: whether a draft pass reads less than a plain one; before that it is not timed.
        """
        if left < _SHORTEST:
            return None
        if self._due:
            return self._due[0]
        return Probe(chain=_CHAIN) if self._chain_due and chain_may_pay else None

    def done(self, probe: Probe | None, tokens: int) -> None:
        """A step committed ``tokens``; it was this probe."""
        if probe is not None and probe.chain:
            self._chain_due = False
        elif probe is not None:
            self._due.popleft()
        self._tokens += tokens
        if not self._due and self._tokens >= _INTERVAL:
            self._tokens = 0
            self._due.append(Probe(rows=self._sizes[self._again % len(self._sizes)]))
            self._again += 1


def fillers(root: int, rows: int, vocabulary_size: int) -> list[Draft]:
    """Enough one-token drafts to fill a tree of ``rows`` rows; verified like any other, so harmless."""
    return [Draft(((root + index) % vocabulary_size,), FILLER) for index in range(1, rows)]
