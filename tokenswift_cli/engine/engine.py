"""The generation engine: prefill, then one verified step after another.

Knows token ids and tensors; nothing of tokenizers, files, consoles or configuration formats. Whatever
drafters and planner it is given, the text is that of plain decoding with the same target, sampling
settings and seed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tokenswift_cli.engine.drafters.base import Drafter
from tokenswift_cli.engine.drafting import DraftingStage
from tokenswift_cli.engine.filling import Filled, StoredRows, fill
from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.planner import Planner
from tokenswift_cli.engine.probes import FILLER
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.engine.text_sampler import text_sampler
from tokenswift_cli.engine.tree import TokenTree
from tokenswift_cli.engine.verify import Walk, walk
from tokenswift_cli.errors import NonFiniteLogitsError
from tokenswift_cli.models.heads import DraftHeads
from tokenswift_cli.models.target import Target


@dataclass(frozen=True, slots=True)
class Step:
    """One verification.

    Attributes:
        tokens: the tokens committed, in order; at least one.
        drafted: drafted positions: the depth of the verified tree.
        accepted: drafted tokens among ``tokens``.
        rows: tokens in the forward pass, the root included.
        shares: drafted and accepted positions by drafter.
        draft_seconds: proposing and planning.
        verify_seconds: the forward pass and the walk.
        plain_seconds: estimated cost of a plain step now, for the speed-up; None before it is known.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    rows: int
    shares: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    plain_seconds: float | None = None


class Engine:
    """Writes one text.

    Args:
        target: the model with an empty cache.
        sampling: what decides the text.
        drafting: what decides the speed.
        end_ids: end-of-text ids; the text ends with the first one chosen.
        ignore_end: never choose an end-of-text id.
        min_tokens: no end-of-text before this many generated tokens.
        heads: drafting heads trained for the target; None for none.
        drafters: instead of the method's own that cost nothing.
        planner: instead of the method's own.

    Raises:
        HeadsError: the method needs heads, or another number of them.
        UnsupportedModelError: heads cannot be used with the model.
    """

    def __init__(
        self,
        target: Target,
        sampling: SamplingSettings,
        drafting: DraftingSettings,
        *,
        end_ids: Sequence[int] = (),
        ignore_end: bool = False,
        min_tokens: int = 0,
        heads: DraftHeads | None = None,
        drafters: Sequence[Drafter] | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._target = target
        self._sampling = sampling
        self._drafting = drafting
        self._held_ids = tuple(end_ids)
        self._end_ids = frozenset() if ignore_end else frozenset(end_ids)
        self._ignore_end = ignore_end
        self._min_tokens = min_tokens
        self._stage = DraftingStage(
            target, drafting, frozenset(end_ids), heads=heads, drafters=drafters, planner=planner
        )
        self._sampler: Sampler | None = None
        self._history: TokenHistory | None = None
        self._root = -1

    def prefill(
        self, token_ids: Sequence[int], prompt_tokens: int, stored: StoredRows | None = None
    ) -> Iterator[Filled]:
        """Read what stands already, in chunks; tokens whose rows the target's cache holds are not read again.

        Args:
            token_ids: the prompt and, on resume, the text so far; not empty.
            prompt_tokens: how many of them are prompt.
            stored: rows of the cache that need not be computed.

        Yields:
            after each piece; the last token is read by the first step.

        Raises:
            ValueError: ``token_ids`` is empty, shorter than the cache, or holds an id outside the vocabulary.
            ModelError: the cache's type cannot hold the model's keys and values.
        """
        if not token_ids:
            raise ValueError("the prompt holds no token")
        if not 0 <= min(token_ids) <= max(token_ids) < self._target.vocabulary_size:
            raise ValueError(f"token ids must lie in 0..{self._target.vocabulary_size - 1}")
        self._sampler = text_sampler(
            self._sampling,
            self._target,
            prompt_tokens=prompt_tokens,
            end_ids=self._held_ids,
            ignore_end=self._ignore_end,
            min_tokens=self._min_tokens,
        )
        self._history = TokenHistory(token_ids, self._target.device)
        self._root = token_ids[-1]
        # The last token is the first root: its logits come with the first verification.
        before_root = token_ids[:-1]
        cached = self._target.cache.length
        self._stage.extend(before_root[:cached])
        for filled in fill(self._target, before_root, self._drafting.prefill_chunk, stored):
            self._stage.extend(before_root[cached : filled.length])
            cached = filled.length
            yield filled
        self._stage.extend(token_ids[-1:])

    def steps(self, max_tokens: int) -> Iterator[Step]:
        """Write until end-of-text or exactly ``max_tokens`` more tokens.

        May be left and called again; each step's tokens are final.

        Raises:
            NonFiniteLogitsError: the model produced NaN or Inf.
            ModelError: the cache's type cannot hold the model's keys and values.
        """
        if self._history is None:
            raise RuntimeError("prefill comes before steps")
        left = max_tokens
        while left > 0:
            step = self._step(left)
            left -= len(step.tokens)
            yield step
            if step.tokens[-1] in self._end_ids:
                return

    @torch.inference_mode()
    def _step(self, limit: int) -> Step:
        assert self._history is not None and self._sampler is not None
        started = time.perf_counter()
        proposal = self._stage.propose(self._history, self._sampler, self._root, limit)
        tree = proposal.tree
        drafted_at = time.perf_counter()

        plain = tree.is_chain
        queries: dict[int, torch.Tensor] | None = {} if proposal.refresh else None
        logits = self._target.verify(
            tree.tokens, None if plain else tree.depths, None if plain else tree.visibility(), queries
        )
        try:
            done = walk(tree, logits, self._history, self._sampler, end_ids=self._end_ids, limit=limit)
        except NonFiniteLogitsError:
            # A store that cannot hold the model's keys and values is a better explanation.
            self._target.cache.require_in_range(self._target.cache.length + len(tree))
            raise
        self._target.commit(done.nodes)
        verified_at = time.perf_counter()

        self._stage.planner.costs.observe(len(tree), verified_at - drafted_at)
        self._stage.committed(proposal, done, queries, verified_at - started)
        self._root = done.tokens[-1]
        shares = _shares(tree, done)
        return Step(
            tokens=tuple(done.tokens),
            drafted=sum(drafted for drafted, _ in shares.values()),
            accepted=sum(accepted for _, accepted in shares.values()),
            rows=len(tree),
            shares=shares,
            draft_seconds=drafted_at - started,
            verify_seconds=verified_at - drafted_at,
            plain_seconds=self._stage.planner.costs.seconds(1),
        )


def _shares(tree: TokenTree, done: Walk) -> dict[str, tuple[int, int]]:
    """Who drafted the positions of the path: the accepted nodes, then the rest of the deepest branch."""
    path = done.nodes[1:]
    deepest = max(range(len(tree)), key=tree.depths.__getitem__)
    branch: list[int] = []
    while deepest:
        branch.append(deepest)
        deepest = tree.parents[deepest]
    branch.reverse()
    shares: dict[str, tuple[int, int]] = {}
    for node, accepted in [(n, 1) for n in path] + [(n, 0) for n in branch[len(path) :]]:
        draft = tree.drafts[node]
        if draft is None or draft.drafter == FILLER:
            continue
        drafted_before, accepted_before = shares.get(draft.family, (0, 0))
        shares[draft.family] = (drafted_before + 1, accepted_before + accepted)
    return shares
