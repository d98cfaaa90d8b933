"""How often each drafter is right, learned while the text is written."""

from __future__ import annotations

from collections.abc import Sequence

from tokenswift_cli.engine.tree import Draft

# Observations fade with this factor, so that a change in the text is noticed within some 50 tokens.
_FADE = 0.98

# What is assumed before anything was seen. A draft by the target itself is mostly right, one by heads often.
# The first token of a repetition is judged for free, so it can wait to be trusted; once it is right, the next
# ones often are.
_PRIORS = {"self": 0.8, "heads": 0.4, "heads-drafted": 0.4}
_PRIOR_FIRST = 0.1
_PRIOR_LATER = 0.4

# The observations that this weighs: more where the best of many proposals is picked, for that is the most
# overrated one.
_PRIOR_WEIGHT = 2.0
_PRIOR_WEIGHT_AMONG_MANY = 10.0

# Depths from here on share one estimate.
_DEEPEST = 4

# Standings from here on share one estimate.
_LAST_STANDING = 3

_Key = tuple[str, int, int, int]


class AcceptanceModel:
    """Estimates how often a proposed token is accepted where the tokens before it on its path were.

    By (drafter, strength, depth, standing). Proposals are scored against the committed text whether or not
    they were verified, so a drafter that was switched off is still being judged, for free. The depth counts
    from a drafter's own first token. The standing of a token is how many other tokens earlier drafts propose
    for its place: what a drafter adds to those before it is mostly wrong where they are right, however good
    it is alone.
    """

    def __init__(self) -> None:
        # Hits and trials, faded.
        self._seen: dict[_Key, tuple[float, float]] = {}

    def probability(self, drafter: str, strength: int, depth: int) -> float:
        """Estimated chance of the token at ``depth`` (1 is the first drafted one), with nothing beside it."""
        return self._estimate(_key(drafter, strength, depth, 0), _PRIOR_WEIGHT)

    def chance(self, draft: Draft, index: int, standing: int) -> float:
        """Estimated chance of a draft's token, one of many to choose from; for :func:`build_tree`."""
        return self._estimate(_key_in(draft, index, standing), _PRIOR_WEIGHT_AMONG_MANY)

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """Compare proposals, in order of preference, with the tokens committed after the same root."""
        proposed: list[list[int]] = [[] for _ in committed]
        for draft in drafts:
            for index, (token, truth) in enumerate(zip(draft.tokens, committed, strict=False)):
                others = proposed[index]
                if token not in others:
                    others.append(token)
                if index >= draft.given:
                    key = _key_in(draft, index, others.index(token))
                    hits, trials = self._seen.get(key, (0.0, 0.0))
                    self._seen[key] = hits * _FADE + (token == truth), trials * _FADE + 1.0
                if token != truth:
                    break

    def _estimate(self, key: _Key, weight: float) -> float:
        drafter, _, depth, standing = key
        prior = _PRIORS.get(drafter, _PRIOR_FIRST if depth == 1 else _PRIOR_LATER)
        if standing:
            prior = min(prior, _PRIOR_FIRST)
        hits, trials = self._seen.get(key, (0.0, 0.0))
        return (hits + prior * weight) / (trials + weight)


def _key(drafter: str, strength: int, depth: int, standing: int) -> _Key:
    return drafter, strength, min(depth, _DEEPEST), min(standing, _LAST_STANDING)


def _key_in(draft: Draft, index: int, standing: int) -> _Key:
    """Of a draft's token."""
    strength = draft.strengths[index] if draft.strengths else 0
    return _key(draft.drafter, strength, index + 1 - draft.given, standing)
