"""The seam of all drafters: propose paths, and learn what was committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenswift_cli.engine.tree import Draft


class Drafter(Protocol):
    """Guesses how the text goes on at next to no cost. A wrong guess costs time and never text."""

    name: str

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens (first the prompt, then each step's), O(1) amortised per token."""

    def propose(self, path: Sequence[int] = ()) -> list[Draft]:
        """Paths that go on after the last committed token and ``path``, best first; may be empty.

        Args:
            path: tokens drafted by others after the last committed one; the proposals begin with them.

        O(1) in the length of the text.
        """
