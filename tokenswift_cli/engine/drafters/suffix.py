"""Suffix automaton over the text so far: how did it go on when it last looked like this?

SAM-Decoding (arXiv 2411.10666) and SuffixDecoding (arXiv 2411.04975): the longer the suffix that
occurred before, the longer the draft. The online automaton (Blumer et al., 1985) takes O(1) amortised
time per token and is never rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenswift_cli.engine.tree import Draft

# Occurrences are refreshed this far up the suffix links per token, to keep the update O(1).
_REFRESHED_LINKS = 8


class SuffixAutomaton:
    """All substrings of a growing token sequence, with an end position for each class of them.

    Attributes:
        text: the tokens so far.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self._transitions: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        # An end position (exclusive) of each state's strings: a recent one where known.
        self._end = [0]
        self._last = 0

    def append(self, token: int) -> None:
        """Extend the text by one token."""
        self._refresh_ends()
        self.text.append(token)
        transitions, link, length = self._transitions, self._link, self._length
        new = self._add_state({}, 0, length[self._last] + 1, len(self.text))
        state = self._last
        while state != -1 and token not in transitions[state]:
            transitions[state][token] = new
            state = link[state]
        if state != -1:
            target = transitions[state][token]
            if length[target] == length[state] + 1:
                link[new] = target
            else:
                clone = self._add_state(
                    transitions[target].copy(), link[target], length[state] + 1, self._end[target]
                )
                link[target] = link[new] = clone
                while state != -1 and transitions[state].get(token) == target:
                    transitions[state][token] = clone
                    state = link[state]
        self._last = new

    def matches(self, count: int, min_length: int) -> list[tuple[int, int]]:
        """Earlier occurrences of the text's own suffixes, longest suffix first.

        Args:
            count: most matches to return.
            min_length: shortest suffix to consider, in tokens.

        Returns:
            (length of the suffix, end position of an earlier occurrence) pairs.
        """
        found: list[tuple[int, int]] = []
        # Strings of the last state end only here; its suffix link is the longest suffix seen before.
        state = self._link[self._last]
        while state > 0 and len(found) < count and self._length[state] >= min_length:
            found.append((self._length[state], self._end[state]))
            state = self._link[state]
        return found

    def _add_state(self, transitions: dict[int, int], link: int, length: int, end: int) -> int:
        self._transitions.append(transitions)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._link) - 1

    def _refresh_ends(self) -> None:
        """Before the text moves on, its suffixes learn that they end here too."""
        end = len(self.text)
        state = self._link[self._last]
        for _ in range(_REFRESHED_LINKS):
            if state <= 0:
                return
            self._end[state] = end
            state = self._link[state]


class SuffixDrafter:
    """Proposes what followed the longest suffixes that occurred before.

    Args:
        max_draft: longest draft, in tokens.
        branches: most different continuations offered.
        min_match: shortest suffix that is worth a draft, in tokens.
    """

    name = "suffix"

    def __init__(self, max_draft: int, branches: int = 3, min_match: int = 2) -> None:
        self._automaton = SuffixAutomaton()
        self._max_draft = max_draft
        self._branches = branches
        self._min_match = min_match

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._automaton.append(token)

    def propose(self, path: Sequence[int] = ()) -> list[Draft]:
        if path:
            return []
        text = self._automaton.text
        drafts: list[Draft] = []
        for length, end in self._automaton.matches(self._branches, self._min_match):
            tokens = tuple(text[end : end + min(self._max_draft, length)])
            if tokens:
                drafts.append(Draft(tokens, self.name, (length.bit_length(),) * len(tokens)))
        return drafts
