"""Drafts by trained heads: a few small matrices on one hidden state instead of passes of the model.

The state is the one a verification left behind for the last token it read (Medusa's form, no pass of the
model), or that of a self-draft over the partial cache (the paper's form). Each head proposes by the score
that the target's own choice maximises: penalty, truncation and the noise of the position included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tokenswift_cli.engine.drafters.gap import GAP_CLASSES, NO_RUNNER_UP, OWN_NOISE, gap_class
from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.tree import Draft
from tokenswift_cli.errors import NonFiniteLogitsError
from tokenswift_cli.models.heads import DraftHeads, HeadsOutput
from tokenswift_cli.models.quick_heads import HeadRunner
from tokenswift_cli.models.target import Target

# Acceptance is learned by head, by rank among the head's proposals and by the lead over the next one.
_RANKS = 8


class _Leaf(NamedTuple):
    """A drafted path: its tokens, their strengths, and the state of the head that proposed the last."""

    tokens: tuple[int, ...]
    strengths: tuple[int, ...]
    state: Tensor


class HeadsDrafter:
    """Proposes token trees from one hidden state.

    Args:
        target: the model; it keeps its states from now on.
        heads: trained for it.
        shared_noise: whether drafts use the target's own noise.

    Raises:
        UnsupportedModelError: the model has no hidden state or output matrix that heads can use.
    """

    name = "heads"

    def __init__(self, target: Target, heads: DraftHeads, *, shared_noise: bool) -> None:
        target.keep_states()
        self._heads = heads.to(device=target.device, dtype=target.head_dtype).eval()
        self._output = HeadsOutput(target.model, self._heads)
        self._runner = HeadRunner(self._heads, self._output)
        self._conditioned = heads.shape.variant == "conditioned"
        self._shared_noise = shared_noise
        # Tokens outside the draft vocabulary stay impossible; the others are written anew for each draft.
        self._scores = torch.full((target.vocabulary_size,), -math.inf, device=target.device)

    @property
    def count(self) -> int:
        """Number of heads: the deepest draft."""
        return self._heads.shape.count

    @torch.inference_mode()
    def draft(
        self,
        state: Tensor,
        path: Sequence[int],
        history: TokenHistory,
        sampler: Sampler,
        widths: Sequence[int],
        *,
        expand_all: bool,
        name: str = "heads",
    ) -> list[Draft]:
        """Paths that go on after the last committed token and ``path``.

        Args:
            state: [d], before the final norm, after the target read the token before the last one known:
                the last of ``path``, or the last committed token when ``path`` is empty.
            path: tokens drafted by others after the last committed one; the drafts begin with them.
            history: the text up to the last committed token; unchanged afterwards.
            sampler: ranks the proposals.
            widths: proposals per path by depth; no longer than there are heads.
            expand_all: whether each path of a depth goes on (the paper's tree), or only the best one.
            name: of the best path's drafts; the others get "-2nd" behind it.
        """
        committed = history.length
        for token in path:
            history.append(token)
        known = history.length
        drafts: list[Draft] = []
        leaves = [_Leaf((), (), state)]
        for index, width in enumerate(widths):
            grown: list[_Leaf] = []
            for leaf in leaves:
                for token in leaf.tokens:
                    history.append(token)
                grown.extend(self._grow(index, leaf, history, sampler, width))
                history.rewind(known)
            given, strengths = len(path) + index, (0,) * len(path)
            for place, leaf in enumerate(grown):
                proposer = name if place == 0 else f"{name}-2nd"
                drafts.append(Draft((*path, *leaf.tokens), proposer, (*strengths, *leaf.strengths), given))
            leaves = grown if expand_all else grown[:1]
            if not leaves:
                break
        history.rewind(committed)
        return drafts

    def _grow(
        self, index: int, leaf: _Leaf, history: TokenHistory, sampler: Sampler, width: int
    ) -> list[_Leaf]:
        """The best ``width`` continuations of one path, best first."""
        embedding = self._output.embed(history.window(1))[0] if self._conditioned else None
        state, logits = self._runner.run(index, leaf.state, embedding)
        if self._output.token_ids is not None:
            logits = self._scores.index_copy_(0, self._output.token_ids, logits)
        seed = sampler.settings.seed if self._shared_noise else sampler.settings.seed ^ OWN_NOISE
        window = history.window(sampler.settings.penalty_window)
        try:
            ranked = sampler.ranked(logits, window, history.length, max(width, 2), seed)
        except NonFiniteLogitsError:
            # All that the heads can propose is suppressed: nothing to draft, and no matter for the text.
            return []
        found = []
        for rank, (token, score) in enumerate(ranked[:width]):
            if not math.isfinite(score):
                break
            gap = score - ranked[rank + 1][1] if rank + 1 < len(ranked) else NO_RUNNER_UP
            strength = (index * _RANKS + min(rank, _RANKS - 1)) * GAP_CLASSES + gap_class(gap)
            found.append(_Leaf((*leaf.tokens, token), (*leaf.strengths, strength), state))
        return found
