"""How often each drafter is right, learned while the text is written."""

from __future__ import annotations

from collections.abc import Sequence

from tokenswift_cli.engine.tree import Draft

# Observations fade with this factor, so that a change in the text is noticed within some 50 tokens.
_FADE = 0.98

# What is assumed before anything was seen, and the number of observations that it weighs.
_PRIOR = 0.5
_PRIOR_WEIGHT = 2.0

# Depths from here on share one estimate.
_DEEPEST = 4


class AcceptanceModel:
    """Estimates P(token accepted | the tokens before it on its path were) by (drafter, strength, depth).

    Proposals are scored against the committed text whether or not they were verified, so a drafter
    that was switched off is still being judged, for free.
    """

    def __init__(self) -> None:
        self._hits: dict[tuple[str, int, int], float] = {}
        self._trials: dict[tuple[str, int, int], float] = {}

    def probability(self, drafter: str, strength: int, depth: int) -> float:
        """Estimated chance of the token at ``depth`` (1 is the first drafted one)."""
        key = (drafter, strength, min(depth, _DEEPEST))
        trials = self._trials.get(key, 0.0)
        return (self._hits.get(key, 0.0) + _PRIOR * _PRIOR_WEIGHT) / (trials + _PRIOR_WEIGHT)

    def with_probabilities(self, draft: Draft) -> Draft:
        """The draft with an estimate for each of its tokens."""
        levels = [
            self.probability(draft.drafter, draft.strength, depth)
            for depth in range(1, min(len(draft.tokens), _DEEPEST) + 1)
        ]
        levels += [levels[-1]] * (len(draft.tokens) - len(levels))
        return Draft(draft.tokens, draft.drafter, draft.strength, tuple(levels))

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """Compare proposals with the tokens that were committed after the same root."""
        for draft in drafts:
            for depth, (drafted, token) in enumerate(zip(draft.tokens, committed, strict=False), start=1):
                key = (draft.drafter, draft.strength, min(depth, _DEEPEST))
                hit = drafted == token
                self._trials[key] = self._trials.get(key, 0.0) * _FADE + 1.0
                self._hits[key] = self._hits.get(key, 0.0) * _FADE + hit
                if not hit:
                    break
