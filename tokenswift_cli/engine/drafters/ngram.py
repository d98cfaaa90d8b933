"""Token reutilisation (TokenSwift, section 3.3): the most frequent n-grams that start with a token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tokenswift_cli.engine.tree import Draft


class NgramTable:
    """Counts n-grams keyed by their first token and ranks each key's continuations by true frequency.

    Counts only ever grow by one, so a bounded ranking per key stays exact: a continuation outside it
    never has more occurrences than the last one inside. Update and lookup cost O(k), whatever the
    length of the text. Among equal counts the latest seen comes first.

    Args:
        size: n, the first token included; >= 2.
        candidates: k, continuations kept ranked per key.
    """

    def __init__(self, size: int, candidates: int) -> None:
        self._candidates = candidates
        self._recent: deque[int] = deque(maxlen=size)
        self._counts: dict[tuple[int, ...], int] = {}
        self._ranking: dict[int, list[tuple[int, ...]]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Count the n-grams that these next tokens of the text complete."""
        recent = self._recent
        for token in tokens:
            recent.append(token)
            if len(recent) == recent.maxlen:
                self._count(tuple(recent))

    def continuations(self, key: int) -> list[tuple[int, ...]]:
        """Up to k continuations (n - 1 tokens each) of ``key``, most frequent first."""
        return [ngram[1:] for ngram in self._ranking.get(key, ())]

    def _count(self, ngram: tuple[int, ...]) -> None:
        count = self._counts[ngram] = self._counts.get(ngram, 0) + 1
        ranking = self._ranking.setdefault(ngram[0], [])
        if ngram in ranking:
            place = ranking.index(ngram)
        elif len(ranking) < self._candidates:
            place = len(ranking)
            ranking.append(ngram)
        elif self._counts[ranking[-1]] <= count:
            place = len(ranking) - 1
            ranking[-1] = ngram
        else:
            return
        while place and self._counts[ranking[place - 1]] <= count:
            ranking[place] = ranking[place - 1]
            place -= 1
        ranking[place] = ngram


class NgramDrafter:
    """Proposes the table's continuations of the last token of the path (paper: of the drafted next token)."""

    name = "ngram"

    def __init__(self, size: int, candidates: int) -> None:
        self._table = NgramTable(size, candidates)
        self._last: int | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self._table.extend(tokens)
        if tokens:
            self._last = tokens[-1]

    def propose(self, path: Sequence[int] = ()) -> list[Draft]:
        key = path[-1] if path else self._last
        if key is None:
            return []
        given = tuple(path)
        return [
            Draft(
                given + continuation,
                self.name,
                (rank.bit_length(),) * (len(given) + len(continuation)),
                len(given),
            )
            for rank, continuation in enumerate(self._table.continuations(key))
        ]
