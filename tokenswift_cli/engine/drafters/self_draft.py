"""The target drafts for itself, over a small key-value cache (TokenSwift, section 3.3; TriForce, MagicDec).

Each drafted token costs one pass that reads the weights and the partial cache only; it pays where reading
the full cache is what makes a step slow. The draft knows the noise of each position, so it proposes what
the target will choose unless the partial cache moved their logits apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from tokenswift_cli.engine.drafters.gap import NO_RUNNER_UP, OWN_NOISE, gap_class
from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.tree import Draft
from tokenswift_cli.errors import NonFiniteLogitsError
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.partial_cache import PartialCache
from tokenswift_cli.models.target import Target


class DraftedToken(NamedTuple):
    """One token of the chain.

    Attributes:
        token: what the draft would choose.
        strength: class of its lead over the runner-up; larger is surer.
        runner_up: second best token, or None if nothing else survived truncation.
    """

    token: int
    strength: int
    runner_up: int | None


class SelfDrafter:
    """Drafts a chain with the target itself.

    Args:
        target: the model with the full cache.
        budget: rows of the partial cache; while the text is shorter, the full cache itself is read.
        sinks: first tokens that are always kept.
        shared_noise: whether drafts use the target's own noise.

    A step of the engine calls :meth:`begin`, :meth:`step` as often as it pays, and :meth:`end`.
    """

    name = "self"

    def __init__(self, target: Target, budget: int, sinks: int, *, shared_noise: bool) -> None:
        self._target = target
        self._partial = PartialCache(budget, sinks, target.cache.dtype)
        self._shared_noise = shared_noise
        self._cache: KeyValueCache = target.cache
        self._path: list[DraftedToken] = []
        self._token = -1
        self._position = 0
        self._rows_before = 0

    @property
    def reads_less(self) -> bool:
        """Whether a draft pass reads fewer rows of the cache than a verification."""
        return self._target.cache.length > self._partial.budget

    def ready(self, depth: int) -> bool:
        """Whether a chain of ``depth`` can be drafted now; if not, a refresh must come first."""
        full = self._target.cache
        if full.length + depth <= self._partial.budget:
            return True
        return self._partial.covered > 0 and self._partial.has_room(full, depth)

    def refresh(self, queries: dict[int, Tensor], row: int) -> None:
        """Choose the partial cache anew, from the queries of the verification just committed."""
        if self._target.cache.length > self._partial.budget:
            self._partial.refresh(self._target.cache, queries, row)

    def begin(self, root: int, depth: int) -> None:
        """Start a chain after ``root``; needs :meth:`ready`."""
        full = self._target.cache
        if full.length + depth <= self._partial.budget:
            self._cache = full
        else:
            self._partial.follow(full)
            self._cache = self._partial
        self._rows_before = self._cache.length
        self._path = []
        self._token = root
        self._position = full.length

    def step(self, history: TokenHistory, sampler: Sampler) -> DraftedToken:
        """Draft one more token and add it to ``history``, which :meth:`end` takes back."""
        logits = self._target.draft(self._cache, self._token, self._position)
        settings = sampler.settings
        seed = settings.seed if self._shared_noise else settings.seed ^ OWN_NOISE
        window = history.window(settings.penalty_window)
        try:
            best = sampler.ranked(logits, window, history.length, 2, seed)
        except NonFiniteLogitsError:
            self._cache.require_in_range(self._cache.length)
            raise
        token, score = best[0]
        runner_up = best[1][0] if len(best) > 1 and math.isfinite(best[1][1]) else None
        strength = gap_class(score - best[1][1] if runner_up is not None else NO_RUNNER_UP)
        history.append(token)
        self._token = token
        self._position += 1
        drafted = DraftedToken(token, strength, runner_up)
        self._path.append(drafted)
        return drafted

    def end(self, history: TokenHistory) -> list[Draft]:
        """Finish the chain: the chain itself, then each runner-up as a branch of its own."""
        history.rewind(history.length - len(self._path))
        self._cache.length = self._rows_before
        tokens = tuple(drafted.token for drafted in self._path)
        strengths = tuple(drafted.strength for drafted in self._path)
        if not tokens:
            return []
        drafts = [Draft(tokens, self.name, strengths)]
        for index, drafted in enumerate(self._path):
            if drafted.runner_up is not None:
                branch = (*tokens[:index], drafted.runner_up)
                drafts.append(Draft(branch, f"{self.name}-2nd", strengths[: index + 1], index))
        return drafts
