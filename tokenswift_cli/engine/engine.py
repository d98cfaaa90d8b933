"""The generation engine: prefill, then one verified step after another.

Knows token ids and tensors; nothing of tokenizers, files, consoles or configuration formats. Whatever
drafters and planner it is given, the text is that of plain decoding with the same target, sampling
settings and seed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tokenswift_cli.engine.drafters.base import Drafter
from tokenswift_cli.engine.drafters.ngram import NgramDrafter
from tokenswift_cli.engine.drafters.self_draft import SelfDrafter
from tokenswift_cli.engine.drafters.suffix import SuffixDrafter
from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.planner import FixedPlanner, Planner, SpeedPlanner
from tokenswift_cli.engine.probes import FILLER, Probe, ProbeSchedule, fillers
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.engine.tree import Draft, TokenTree, build_tree
from tokenswift_cli.engine.verify import Walk, walk
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


def build_drafters(settings: DraftingSettings) -> list[Drafter]:
    """The drafters of a method, most trusted first."""
    if settings.method == "autoregressive":
        return []
    drafters: list[Drafter] = []
    if "suffix" in settings.drafters and settings.suffix_max_draft:
        drafters.append(SuffixDrafter(settings.suffix_max_draft))
    if "ngram" in settings.drafters and settings.ngram_candidates:
        drafters.append(NgramDrafter(settings.ngram_size, settings.ngram_candidates))
    return drafters


def build_self_drafter(settings: DraftingSettings, target: Target) -> SelfDrafter | None:
    """The target as its own drafter, where the method uses it."""
    if settings.method != "auto" or "self" not in settings.drafters or not settings.self_depth:
        return None
    return SelfDrafter(
        target, settings.partial_cache, settings.partial_sinks, shared_noise=settings.shared_noise
    )


def build_planner(settings: DraftingSettings) -> Planner:
    """The planner of a method."""
    if settings.method == "autoregressive":
        return FixedPlanner(0)
    return SpeedPlanner(settings.max_nodes, max_depth=settings.self_depth, may_skip=settings.method == "auto")


class Engine:
    """Writes one text.

    Args:
        target: the model with an empty cache.
        sampling: what decides the text.
        drafting: what decides the speed.
        end_ids: end-of-text ids; the text ends with the first one chosen.
        ignore_end: never choose an end-of-text id.
        min_tokens: no end-of-text before this many generated tokens.
        drafters: instead of the method's own that cost nothing.
        planner: instead of the method's own.
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
        self._drafters = build_drafters(drafting) if drafters is None else list(drafters)
        self._self_drafter = build_self_drafter(drafting, target)
        self._planner = build_planner(drafting) if planner is None else planner
        # A planner that was handed in knows what it wants to do.
        self._probes = (
            ProbeSchedule(1 + drafting.max_nodes, self_drafting=self._self_drafter is not None)
            if planner is None and drafting.method != "autoregressive"
            else None
        )
        self._sampler: Sampler | None = None
        self._history: TokenHistory | None = None
        self._root = -1

    def prefill(self, token_ids: Sequence[int], prompt_tokens: int) -> Iterator[int]:
        """Read what stands already, in chunks; tokens whose rows the target's cache holds are not read again.

        Args:
            token_ids: the prompt and, on resume, the text so far; not empty.
            prompt_tokens: how many of them are prompt.

        Yields:
            the number of tokens read so far.

        Raises:
            ValueError: ``token_ids`` is empty, shorter than the cache, or holds an id outside the vocabulary.
        """
        if not token_ids:
            raise ValueError("the prompt holds no token")
        if not 0 <= min(token_ids) <= max(token_ids) < self._target.vocabulary_size:
            raise ValueError(f"token ids must lie in 0..{self._target.vocabulary_size - 1}")
        self._sampler = Sampler(
            self._sampling,
            self._target.vocabulary_size,
            self._target.device,
            held_ids=self._held_ids,
            held_until=sys.maxsize if self._ignore_end else prompt_tokens + self._min_tokens,
        )
        self._history = TokenHistory(token_ids, self._target.device)
        self._root = token_ids[-1]
        # The last token is the first root: its logits come with the first verification.
        before_root = len(token_ids) - 1
        cached = self._target.cache.length
        if cached > before_root:
            raise ValueError(f"the cache holds {cached} tokens, more than stand before the last of these")
        for drafter in self._drafters:
            drafter.extend(token_ids[:cached])
        for first in range(cached, before_root, self._drafting.prefill_chunk):
            last = min(first + self._drafting.prefill_chunk, before_root)
            self._target.read(token_ids[first:last])
            for drafter in self._drafters:
                drafter.extend(token_ids[first:last])
            yield last
        for drafter in self._drafters:
            drafter.extend(token_ids[-1:])
        yield len(token_ids)

    def steps(self, max_tokens: int) -> Iterator[Step]:
        """Write until end-of-text or exactly ``max_tokens`` more tokens.

        May be left and called again; each step's tokens are final.

        Raises:
            NonFiniteLogitsError: the model produced NaN or Inf.
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
        probe = self._next_probe(limit)
        # The last of ``limit`` tokens is the target's own: drafting more than the rest is waste.
        lookups = self._propose(limit - 1)
        chain, passes, refresh = self._self_draft(lookups, limit - 1, probe)
        drafts = chain + lookups
        if probe is not None and probe.rows:
            filled = drafts + fillers(self._root, probe.rows, self._target.vocabulary_size)
            tree = build_tree(self._root, filled, probe.rows - 1)
        else:
            tree = self._planner.plan(self._root, drafts, passes)
        drafted_at = time.perf_counter()

        plain = tree.is_chain
        queries: dict[int, torch.Tensor] | None = {} if refresh else None
        logits = self._target.verify(
            tree.tokens, None if plain else tree.depths, None if plain else tree.visibility(), queries
        )
        done = walk(tree, logits, self._history, self._sampler, end_ids=self._end_ids, limit=limit)
        self._target.commit(done.nodes)
        verified_at = time.perf_counter()
        if queries is not None and self._self_drafter is not None:
            self._self_drafter.refresh(queries, done.nodes[-1])

        planner = self._planner
        planner.costs.observe(len(tree), verified_at - drafted_at)
        planner.learn(drafts, done.tokens)
        if probe is None:
            planner.record(passes, len(tree), len(done.tokens), verified_at - started)
        if self._probes:
            # A chain that had to wait for a refresh is still to come.
            self._probes.done(None if refresh else probe, len(done.tokens))
        for drafter in self._drafters:
            drafter.extend(done.tokens)
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
            plain_seconds=planner.costs.seconds(1),
        )

    def _next_probe(self, limit: int) -> Probe | None:
        if self._probes is None:
            return None
        drafter = self._self_drafter
        return self._probes.next(limit, chain_may_pay=drafter is not None and drafter.reads_less)

    def _propose(self, longest: int, path: Sequence[int] = ()) -> list[Draft]:
        drafts = (draft.cut(longest) for drafter in self._drafters for draft in drafter.propose(path))
        return [draft for draft in drafts if draft is not None]

    def _self_draft(
        self, lookups: list[Draft], longest: int, probe: Probe | None
    ) -> tuple[list[Draft], int, bool]:
        """The target's own drafts with what the tables add to them, the passes they took, and whether
        the partial cache has to be refreshed by this step's verification."""
        drafter, planner = self._self_drafter, self._planner
        assert self._history is not None and self._sampler is not None
        forced = 0 if probe is None else probe.chain
        depth = min(forced or (0 if probe else planner.draft_depth()), longest)
        if drafter is None or depth <= 0:
            return [], 0, False
        if not drafter.ready(depth):
            return [], 0, True
        path: list[tuple[str, int]] = []
        tokens: list[int] = []
        while len(path) < depth and (forced or planner.go_on(path, lookups)):
            started = time.perf_counter()
            if not path:
                drafter.begin(self._root, depth)
            drafted = drafter.step(self._history, self._sampler)
            planner.draft_costs.observe(1, time.perf_counter() - started)
            path.append((drafter.name, drafted.strength))
            tokens.append(drafted.token)
            if drafted.token in self._end_ids:
                break
        if not path:
            return [], 0, False
        return drafter.end(self._history) + self._propose(longest, tokens[:1]), len(path), False


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
