"""Speed decides what is drafted: each step, the tree with the most expected tokens per second.

Expected tokens of a tree are one (the target's own choice) plus the sum over its nodes of the chance
that the node is accepted; its time is the measured cost of a pass over that many rows. Plain decoding
is the tree without drafted nodes and always among the choices, so drafting switches itself off where it
loses. Nothing here can change the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenswift_cli.engine.acceptance import AcceptanceModel
from tokenswift_cli.engine.costs import CostModel
from tokenswift_cli.engine.tree import Draft, TokenTree, build_tree

# A draft must promise this much more speed than plain decoding, as estimates err both ways.
_MARGIN = 1.03


class Planner(Protocol):
    """Turns proposals into the tree to verify, and learns from the outcome."""

    costs: CostModel

    def plan(self, root: int, drafts: Sequence[Draft]) -> TokenTree:
        """The tree to verify after ``root``."""

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """What the text turned out to be after the same root."""


class SpeedPlanner:
    """Chooses the tree of most expected tokens per second.

    Args:
        max_nodes: most drafted nodes.
        may_skip: whether plain decoding is among the choices when there are proposals.
    """

    def __init__(self, max_nodes: int, *, may_skip: bool) -> None:
        self.costs = CostModel()
        self._acceptance = AcceptanceModel()
        self._max_nodes = max_nodes
        self._may_skip = may_skip

    def plan(self, root: int, drafts: Sequence[Draft]) -> TokenTree:
        rated = [self._acceptance.with_probabilities(draft) for draft in drafts]
        tree = build_tree(root, rated, self._max_nodes)
        plain = self.costs.seconds(1)
        if plain is None or len(tree) == 1:
            return tree
        fewest = 1 if self._may_skip else 2
        best_rows, best_rate = fewest, _MARGIN / plain if self._may_skip else 0.0
        expected = 1.0
        for rows in range(2, len(tree) + 1):
            expected += tree.reach[rows - 1]
            rate = expected / (self.costs.seconds(rows) or plain)
            if rate > best_rate:
                best_rows, best_rate = rows, rate
        return tree.truncated(best_rows)

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        self._acceptance.learn(drafts, committed)


class FixedPlanner:
    """Verifies everything proposed up to a node budget; with budget 0 it is plain decoding."""

    def __init__(self, max_nodes: int) -> None:
        self.costs = CostModel()
        self._max_nodes = max_nodes

    def plan(self, root: int, drafts: Sequence[Draft]) -> TokenTree:
        return build_tree(root, drafts, self._max_nodes)

    def learn(self, drafts: Sequence[Draft], committed: Sequence[int]) -> None:
        """Nothing: the budget is fixed."""
