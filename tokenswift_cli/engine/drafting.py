"""What a step verifies: asks the drafters, as far as the planner thinks that pays, and shapes the tree.

Nothing here can change the text, only how fast it comes.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from typing import NamedTuple

import torch

from tokenswift_cli.engine.drafters.base import Drafter
from tokenswift_cli.engine.drafters.heads import HeadsDrafter
from tokenswift_cli.engine.drafters.ngram import NgramDrafter
from tokenswift_cli.engine.drafters.self_draft import SelfDrafter
from tokenswift_cli.engine.drafters.suffix import SuffixDrafter
from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.planner import FixedPlanner, Planner, SpeedPlanner
from tokenswift_cli.engine.probes import Probe, ProbeSchedule, fillers
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import DraftingSettings
from tokenswift_cli.engine.tree import Draft, TokenTree, build_tree
from tokenswift_cli.engine.verify import Walk
from tokenswift_cli.errors import HeadsError
from tokenswift_cli.models.heads import DraftHeads
from tokenswift_cli.models.target import Target

# The best and the second best proposal of each head, as of the self-draft.
_HEAD_WIDTH = 2


class Proposal(NamedTuple):
    """What one step does.

    Attributes:
        tree: to be verified.
        drafts: all that was proposed.
        passes: draft passes of the target that were made.
        refresh: whether the partial cache has to be chosen anew from this verification's queries.
        probe: what is measured, if anything.
    """

    tree: TokenTree
    drafts: list[Draft]
    passes: int
    refresh: bool
    probe: Probe | None


class DraftingStage:
    """All drafters of one text and the planner that chooses among them.

    Args:
        target: the model with the full cache.
        settings: which method, and its figures.
        end_ids: nothing is drafted after one of these.
        heads: trained for the target; None for none.
        drafters: instead of the method's own that cost nothing.
        planner: instead of the method's own.

    Raises:
        HeadsError: the method needs heads, or another number of them.
        UnsupportedModelError: heads cannot be used with the model.
    """

    def __init__(
        self,
        target: Target,
        settings: DraftingSettings,
        end_ids: Container[int],
        *,
        heads: DraftHeads | None = None,
        drafters: Sequence[Drafter] | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._target = target
        self._settings = settings
        self._end_ids = end_ids
        self._paper = settings.method == "tokenswift"
        self._drafters = _free_drafters(settings) if drafters is None else list(drafters)
        self._heads = _heads_drafter(settings, target, heads)
        self._self_drafter = _self_drafter(settings, target)
        self.planner = _planner(settings) if planner is None else planner
        # A planner that was handed in knows what it wants to do, and the paper's tree is fixed.
        self._probes = (
            ProbeSchedule(1 + settings.max_nodes, self_drafting=self._self_drafter is not None)
            if planner is None and settings.method not in ("autoregressive", "tokenswift")
            else None
        )
        self._state: torch.Tensor | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in tokens of the text that were not committed by a :meth:`Proposal`'s verification."""
        for drafter in self._drafters:
            drafter.extend(tokens)

    def propose(self, history: TokenHistory, sampler: Sampler, root: int, limit: int) -> Proposal:
        """What to verify next.

        Args:
            history: the text up to and including ``root``; the same afterwards.
            sampler: of the text.
            root: the last committed token.
            limit: tokens still to be written; >= 1.
        """
        started = time.perf_counter()
        # The last of ``limit`` tokens is the target's own: drafting more than the rest is waste.
        longest = limit - 1
        probe = self._next_probe(limit)
        others = [] if self._paper else self._lookups(longest)
        others += self._state_drafts(history, sampler, longest)
        chain, passes, refresh = self._self_draft(history, sampler, root, others, longest, probe)
        drafts = chain + others
        if probe is not None and probe.rows:
            filled = drafts + fillers(root, probe.rows, self._target.vocabulary_size)
            tree = build_tree(root, filled, probe.rows - 1)
        else:
            tree = self.planner.plan(root, drafts, passes)
        by_heads = sum(draft.drafter == HeadsDrafter.name for draft in others)
        if by_heads and not passes:
            # All that a proposal costs, and not only the heads' own matrices: planning its tree counts, too.
            self.planner.head_costs.observe(1, (time.perf_counter() - started) / by_heads)
        return Proposal(tree, drafts, passes, refresh, probe)

    def committed(
        self, proposal: Proposal, done: Walk, queries: dict[int, torch.Tensor] | None, seconds: float
    ) -> None:
        """Learn from a step.

        Args:
            proposal: what was verified.
            done: the outcome; its rows are committed in the target's cache already.
            queries: of the verification, when the proposal asked for a refresh.
            seconds: of the whole step.
        """
        if queries is not None and self._self_drafter is not None:
            self._self_drafter.refresh(queries, done.nodes[-1])
        if self._heads is not None and self._target.states is not None:
            self._state = self._target.states[done.nodes[-1]]
        self.planner.learn(proposal.drafts, done.tokens)
        if proposal.probe is None:
            self.planner.record(proposal.tree, proposal.passes, len(done.tokens), seconds)
        if self._probes:
            # A chain that had to wait for a refresh is still to come.
            self._probes.done(None if proposal.refresh else proposal.probe, len(done.tokens))
        self.extend(done.tokens)

    def _next_probe(self, limit: int) -> Probe | None:
        if self._probes is None:
            return None
        drafter = self._self_drafter
        return self._probes.next(limit, chain_may_pay=drafter is not None and drafter.reads_less)

    def _lookups(self, longest: int, path: Sequence[int] = ()) -> list[Draft]:
        drafts = (draft.cut(longest) for drafter in self._drafters for draft in drafter.propose(path))
        return [draft for draft in drafts if draft is not None]

    def _state_drafts(self, history: TokenHistory, sampler: Sampler, longest: int) -> list[Draft]:
        """The heads' drafts from the state that the last verification left behind."""
        heads, state = self._heads, self._state
        if heads is None or state is None or self._paper:
            return []
        count = self.planner.heads_to_run(min(heads.count, longest))
        return self._run_heads(heads, state, (), history, sampler, count)

    def _run_heads(
        self,
        heads: HeadsDrafter,
        state: torch.Tensor,
        path: Sequence[int],
        history: TokenHistory,
        sampler: Sampler,
        count: int,
    ) -> list[Draft]:
        """What ``count`` heads propose after ``path``."""
        if not count:
            return []
        name = f"{heads.name}-drafted" if path else heads.name
        widths = (_HEAD_WIDTH,) * count
        return heads.draft(state, path, history, sampler, widths, expand_all=False, name=name)

    def _self_draft(
        self,
        history: TokenHistory,
        sampler: Sampler,
        root: int,
        others: list[Draft],
        longest: int,
        probe: Probe | None,
    ) -> tuple[list[Draft], int, bool]:
        """The target's own drafts with what tables and heads add to them, the passes they took, and whether
        the partial cache has to be refreshed by this step's verification."""
        drafter, planner = self._self_drafter, self.planner
        forced = 0 if probe is None else probe.chain
        depth = min(forced or (0 if probe else planner.draft_depth()), longest)
        if drafter is None or depth <= 0:
            return [], 0, False
        if not drafter.ready(depth):
            return [], 0, True
        path: list[tuple[str, int]] = []
        tokens: list[int] = []
        while len(path) < depth and (forced or planner.go_on(path, others)):
            started = time.perf_counter()
            if not path:
                drafter.begin(root, depth)
            drafted = drafter.step(history, sampler)
            planner.draft_costs.observe(1, time.perf_counter() - started)
            path.append((drafter.name, drafted.strength))
            tokens.append(drafted.token)
            if drafted.token in self._end_ids:
                break
        if not path:
            return [], 0, False
        drafts = drafter.end(history)
        if not forced and tokens[-1] not in self._end_ids:
            drafts += self._drafted_state_drafts(history, sampler, tokens, path, longest)
        return drafts + self._lookups(longest, tokens[:1]), len(path), False

    def _drafted_state_drafts(
        self,
        history: TokenHistory,
        sampler: Sampler,
        tokens: list[int],
        chain: Sequence[tuple[str, int]],
        longest: int,
    ) -> list[Draft]:
        """The heads' drafts after a self-drafted chain, from its last state (the paper's form)."""
        heads, states = self._heads, self._target.states
        left = longest - len(tokens)
        if heads is None or states is None or left < 1:
            return []
        if not self._paper:
            count = self.planner.heads_to_run(min(heads.count, left), chain)
            return self._run_heads(heads, states[0], tokens, history, sampler, count)
        widths = self._settings.head_widths[:left]
        name = f"{heads.name}-drafted"
        return heads.draft(states[0], tokens, history, sampler, widths, expand_all=True, name=name)


def _free_drafters(settings: DraftingSettings) -> list[Drafter]:
    """The drafters of a method that cost nothing, most trusted first."""
    if settings.method in ("autoregressive", "heads"):
        return []
    drafters: list[Drafter] = []
    if "suffix" in settings.drafters and settings.suffix_max_draft and settings.method != "tokenswift":
        drafters.append(SuffixDrafter(settings.suffix_max_draft))
    if "ngram" in settings.drafters and settings.ngram_candidates:
        drafters.append(NgramDrafter(settings.ngram_size, settings.ngram_candidates))
    return drafters


def _self_drafter(settings: DraftingSettings, target: Target) -> SelfDrafter | None:
    """The target as its own drafter, where the method uses it."""
    wanted = settings.method == "tokenswift" or (
        settings.method == "auto" and "self" in settings.drafters and settings.self_depth > 0
    )
    if not wanted:
        return None
    return SelfDrafter(
        target, settings.partial_rows, settings.partial_sinks, shared_noise=settings.shared_noise
    )


def require_fitting_heads(settings: DraftingSettings, heads: DraftHeads | None) -> None:
    """See that the method has the heads it needs.

    Raises:
        HeadsError: it has none, or another number than its tree is for.
    """
    if settings.method not in ("heads", "tokenswift"):
        return
    if heads is None:
        raise HeadsError(f"Method {settings.method} needs drafting heads: give --heads DIR.")
    widths = settings.head_widths
    if settings.method == "tokenswift" and len(widths) != heads.shape.count:
        raise HeadsError(
            f"The tree of method tokenswift is for {len(widths)} heads (drafting.head_widths "
            f"{list(widths)}), and there are {heads.shape.count} heads in {settings.heads}. Set "
            f"drafting.head_widths to {heads.shape.count} numbers, or use other heads."
        )


def _heads_drafter(
    settings: DraftingSettings, target: Target, heads: DraftHeads | None
) -> HeadsDrafter | None:
    """The heads, where the method uses them."""
    require_fitting_heads(settings, heads)
    if heads is None or settings.method in ("autoregressive", "lookup"):
        return None
    if settings.method == "auto" and "heads" not in settings.drafters:
        return None
    return HeadsDrafter(target, heads, shared_noise=settings.shared_noise)


def _planner(settings: DraftingSettings) -> Planner:
    """The planner of a method."""
    if settings.method == "autoregressive":
        return FixedPlanner(0)
    if settings.method == "tokenswift":
        return FixedPlanner(settings.most_nodes, depth=1)
    return SpeedPlanner(settings.max_nodes, max_depth=settings.self_depth, may_skip=settings.method == "auto")
