"""Speed decides what is drafted: each step, what promises most tokens per second on this machine.

Expected tokens of a tree are one (the target's own choice) plus the sum over its nodes of the chance
that the node is accepted; its time is the measured cost of a pass over that many rows, and of the draft
passes before it. Plain decoding is the tree without drafted nodes and always among the choices, so drafting
switches itself off where it loses. Nothing here can change the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenswift_cli.engine.acceptance import AcceptanceModel
from tokenswift_cli.engine.costs import CostModel
from tokenswift_cli.engine.guard import DraftingGuard
from tokenswift_cli.engine.tree import Draft, TokenTree, build_tree

# A draft must promise this much more speed than doing without: estimates err both ways, timings on a shared
# machine too, and what looks best among many choices is the most overrated one.
_MARGIN = 1.06

# Once a chain is begun it has to be verified anyway, so that going on is compared with little to lose.
_MORE_MARGIN = 1.02

# Steps in which a head proposes before much is known of it, and steps between two looks later.
_HEADS_FIRST_LOOK = 32
_HEADS_INTERVAL = 16

# Class of a self-drafted token that is not drafted yet: it counts as an average one.
_UNSEEN = -1


class Planner(Protocol):
    """Turns proposals into the tree to verify, and learns from the outcome.

    Attributes:
        costs: seconds of a verification by rows.
        draft_costs: seconds of a draft pass (1 row).
        head_costs: seconds of one head's proposals (1 row).
    """

    costs: CostModel
    draft_costs: CostModel
    head_costs: CostModel

    def heads_to_run(self, most: int, chain: Sequence[tuple[str, int]] = ()) -> int:
        """How many of ``most`` heads should propose now.

        Args:
            most: heads there are, or tokens there is room for; maybe 0.
            chain: (drafter, strength) of the tokens that the target drafted for itself before; empty for the
                heads on the last verification's state, asked for once a step.
        """

    def draft_depth(self) -> int:
        """Deepest self-drafted chain worth preparing for now; 0 to do without."""

    def go_on(self, chain: Sequence[tuple[str, int]], others: Sequence[Draft]) -> bool:
        """Whether one more draft pass pays.

        Args:
            chain: (drafter, strength) of the tokens drafted so far in this step.
            others: proposals that cost nothing.
        """

    def plan(self, root: int, drafts: Sequence[Draft], draft_passes: int) -> TokenTree:
        """The tree to verify after ``root``, with that many draft passes already paid for."""

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """What the text turned out to be after the same root."""

    def record(self, tree: TokenTree, draft_passes: int, tokens: int, seconds: float) -> None:
        """How a step went: what was verified, tokens committed, seconds for drafting and verification."""


class SpeedPlanner:
    """Chooses what gives most expected tokens per second.

    Args:
        max_nodes: most drafted nodes.
        max_depth: longest self-drafted chain; 0 without self-drafting.
        may_skip: whether plain decoding is among the choices when there are proposals.
    """

    def __init__(self, max_nodes: int, *, max_depth: int = 0, may_skip: bool) -> None:
        self.costs = CostModel()
        self.draft_costs = CostModel()
        self.head_costs = CostModel()
        self._acceptance = AcceptanceModel()
        self._average = AcceptanceModel()
        self._max_nodes = max_nodes
        self._max_depth = min(max_depth, max_nodes)
        self._may_skip = may_skip
        self._guard = DraftingGuard()
        self._heads_asked: dict[str, int] = {}

    def heads_to_run(self, most: int, chain: Sequence[tuple[str, int]] = ()) -> int:
        name = "heads-drafted" if chain else "heads"
        if not self._may_skip:
            return most
        # A head costs little and is judged whether or not its proposal is verified: one in the first steps
        # and now and then tells whether more are worth it.
        asked = self._heads_asked[name] = self._heads_asked.get(name, 0) + 1
        look = min(most, int(asked <= _HEADS_FIRST_LOOK or asked % _HEADS_INTERVAL == 0))
        plain, cost = self.costs.seconds(1), self.head_costs.seconds(1)
        if plain is None or cost is None or not (chain or self._guard.allows("heads")):
            return look
        reach, expected = self._expected(chain)
        paid = len(chain) * (self.draft_costs.seconds(1) or 0.0)
        now = expected / ((self.costs.seconds(1 + len(chain)) or plain) + paid)
        # Without a chain there may still be one, and then these heads are not needed.
        margin = (
            _MORE_MARGIN if chain else _MARGIN * max(1.0, self._gain(1.0, 1.0, 0, 0) * self._may_self_draft)
        )
        best_count, best_rate = look, margin * now
        for count in range(1, most + 1):
            reach *= self._average.probability(name, _UNSEEN - count, 1)
            expected += reach
            verified = self.costs.seconds(1 + len(chain) + count) or plain
            rate = expected / (verified + paid + count * cost)
            if rate > best_rate:
                best_count, best_rate = count, rate
        return best_count

    def draft_depth(self) -> int:
        return self._max_depth if self._may_self_draft and self._gain(1.0, 1.0, 0, 0) > 1.0 else 0

    def go_on(self, chain: Sequence[tuple[str, int]], others: Sequence[Draft]) -> bool:
        if len(chain) >= self._max_depth:
            return False
        reach, expected = self._expected(chain)
        if not chain and others:
            tree = build_tree(-1, others, self._max_nodes, self._acceptance.chance)
            rows, best = self._best_rows(tree, 0)
            plain = self.costs.seconds(1)
            # Free proposals may be better than anything a draft pass can add.
            if plain is not None and rows > 1 and best * plain >= self._gain(1.0, 1.0, 0, 0):
                return False
        return self._gain(reach, expected, len(chain), len(chain)) > 1.0

    def plan(self, root: int, drafts: Sequence[Draft], draft_passes: int) -> TokenTree:
        if self._may_skip and not draft_passes:
            paused = {way for way in ("lookup", "heads") if not self._guard.allows(way)}
            drafts = [draft for draft in drafts if _way(draft) not in paused]
        tree = build_tree(root, drafts, self._max_nodes, self._acceptance.chance)
        rows, _ = self._best_rows(tree, draft_passes)
        return tree.truncated(rows)

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        self._acceptance.learn(drafts, committed)
        chains = []
        before = 0
        for draft in drafts:
            if draft.drafter == "self":
                before = len(draft.tokens)
                chains.append(Draft(draft.tokens, draft.drafter, (_UNSEEN,) * before))
            elif draft.drafter in ("heads", "heads-drafted"):
                depth = draft.given + 1 - (before if draft.drafter == "heads-drafted" else 0)
                classes = (_UNSEEN - depth,) * len(draft.tokens)
                chains.append(Draft(draft.tokens, draft.drafter, classes, draft.given))
        self._average.learn(chains, committed)

    def record(self, tree: TokenTree, draft_passes: int, tokens: int, seconds: float) -> None:
        way = None
        if draft_passes:
            way = "self"
        elif len(tree) > 1:
            ways = {_way(draft) for draft in tree.drafts if draft is not None}
            way = "heads" if "heads" in ways else "lookup"
        self._guard.record(way, tokens, seconds)

    @property
    def _may_self_draft(self) -> bool:
        return self._max_depth > 0 and self._guard.allows("self")

    def _expected(self, chain: Sequence[tuple[str, int]]) -> tuple[float, float]:
        """Chance that all of the chain is accepted, and the tokens it promises, the target's included."""
        reach, expected = 1.0, 1.0
        for depth, (drafter, strength) in enumerate(chain, start=1):
            reach *= self._acceptance.probability(drafter, strength, depth)
            expected += reach
        return reach, expected

    def _best_rows(self, tree: TokenTree, draft_passes: int) -> tuple[int, float]:
        """Rows of the best part of the tree, and its expected tokens per second."""
        plain = self.costs.seconds(1)
        if plain is None:
            return (1 if self._may_skip else len(tree)), 0.0
        if len(tree) == 1:
            return 1, 0.0
        paid = draft_passes * (self.draft_costs.seconds(1) or 0.0)
        best_rows = 1
        best_rate = _MARGIN / (plain + paid) if self._may_skip else 0.0
        expected = 1.0
        for rows in range(2, min(len(tree), self.costs.largest_to_try) + 1):
            expected += tree.reach[rows - 1]
            rate = expected / ((self.costs.seconds(rows) or plain) + paid)
            if rate > best_rate:
                best_rows, best_rate = rows, rate
        return best_rows, best_rate

    def _gain(self, reach: float, expected: float, drafted: int, passes: int) -> float:
        """Best rate after some more draft passes, relative to verifying what is there now.

        Args:
            reach: chance that all tokens drafted so far are accepted.
            expected: expected tokens of the tree so far.
            drafted: its drafted nodes.
            passes: draft passes paid for.
        """
        plain, draft = self.costs.seconds(1), self.draft_costs.seconds(1)
        if plain is None or draft is None:
            return 0.0
        now = expected / ((self.costs.seconds(1 + drafted) or plain) + passes * draft)
        now *= _MORE_MARGIN if passes else _MARGIN
        best = 0.0
        for more in range(1, self._max_depth - drafted + 1):
            reach *= self._average.probability("self", _UNSEEN, drafted + more)
            expected += reach
            cost = (self.costs.seconds(1 + drafted + more) or plain) + (passes + more) * draft
            best = max(best, expected / cost)
        return best / now


def _way(draft: Draft) -> str:
    """The way of drafting that the guard watches."""
    return draft.family if draft.family in ("self", "heads") else "lookup"


class FixedPlanner:
    """Verifies everything proposed up to a node budget; with budget 0 it is plain decoding.

    Args:
        max_nodes: node budget.
        depth: self-drafted tokens per step.
    """

    def __init__(self, max_nodes: int, depth: int = 0) -> None:
        self.costs = CostModel()
        self.draft_costs = CostModel()
        self.head_costs = CostModel()
        self._max_nodes = max_nodes
        self._depth = depth

    def heads_to_run(self, most: int, chain: Sequence[tuple[str, int]] = ()) -> int:
        return most

    def draft_depth(self) -> int:
        return self._depth

    def go_on(self, chain: Sequence[tuple[str, int]], others: Sequence[Draft]) -> bool:
        return len(chain) < self._depth

    def plan(self, root: int, drafts: Sequence[Draft], draft_passes: int) -> TokenTree:
        return build_tree(root, drafts, self._max_nodes)

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """Nothing: the budget is fixed."""

    def record(self, tree: TokenTree, draft_passes: int, tokens: int, seconds: float) -> None:
        """Nothing: the budget is fixed."""
