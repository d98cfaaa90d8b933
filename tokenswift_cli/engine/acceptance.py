"""How often each drafter is right, learned while the text is written."""

from __future__ import annotations

from collections.abc import Sequence

from tokenswift_cli.engine.tree import Draft

# Observations fade with this factor, so that a change in the text is noticed within some 50 tokens.
_FADE = 0.98

# What is assumed before anything was seen, and the number of observations that it weighs. A draft by the
# target itself is mostly right, one by heads often. The first token of a repetition is judged for free, so it
# can wait to be trusted; once it is right, the next ones often are.
_PRIORS = {"self": 0.8, "heads": 0.4, "heads-drafted": 0.4}
_PRIOR_FIRST = 0.1
_PRIOR_LATER = 0.4
_PRIOR_WEIGHT = 2.0

# Depths from here on share one estimate.
_DEEPEST = 4

_Key = tuple[str, int, int]


class AcceptanceModel:
    """Estimates P(token accepted | the tokens before it on its path were) by (drafter, strength, depth).

    Proposals are scored against the committed text whether or not they were verified, so a drafter
    that was switched off is still being judged, for free. The depth counts from a drafter's own first
    token.
    """

    def __init__(self) -> None:
        self._hits: dict[_Key, float] = {}
        self._trials: dict[_Key, float] = {}

    def probability(self, drafter: str, strength: int, depth: int) -> float:
        """Estimated chance of the token at ``depth`` (1 is the first drafted one)."""
        key = (drafter, strength, min(depth, _DEEPEST))
        trials = self._trials.get(key, 0.0)
        prior = _PRIORS.get(drafter, _PRIOR_FIRST if depth == 1 else _PRIOR_LATER)
        return (self._hits.get(key, 0.0) + prior * _PRIOR_WEIGHT) / (trials + _PRIOR_WEIGHT)

    def with_probabilities(self, draft: Draft) -> Draft:
        """The draft with an estimate for each of its tokens."""
        strengths = draft.strengths or (0,) * len(draft.tokens)
        levels = tuple(
            1.0 if index < draft.given else self.probability(draft.drafter, strength, index + 1 - draft.given)
            for index, strength in enumerate(strengths)
        )
        return Draft(draft.tokens, draft.drafter, draft.strengths, draft.given, levels)

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """Compare proposals with the tokens that were committed after the same root."""
        for draft in drafts:
            given = draft.given
            if len(committed) <= given or draft.tokens[:given] != tuple(committed[:given]):
                continue
            for index in range(given, min(len(draft.tokens), len(committed))):
                strength = draft.strengths[index] if draft.strengths else 0
                key = (draft.drafter, strength, min(index + 1 - given, _DEEPEST))
                hit = draft.tokens[index] == committed[index]
                self._trials[key] = self._trials.get(key, 0.0) * _FADE + 1.0
                self._hits[key] = self._hits.get(key, 0.0) * _FADE + hit
                if not hit:
                    break
