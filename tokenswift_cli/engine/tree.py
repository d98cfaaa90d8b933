"""The token tree: drafted paths merged by shared prefix, ranked by the chance to be accepted.

Node 0 is the root: the last committed token, which the target has not read yet. Every other node
is a drafted token below its parent. A node's position in the text is that of the root plus its
depth, never plus its index; it sees the whole cache and its own ancestors.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """One path proposed by one drafter.

    Attributes:
        tokens: the drafted tokens after the root, in order.
        drafter: name of the proposer.
        strengths: what the drafter knows about the quality of each token, as small whole numbers (for
            example the length of the match it rests on); acceptance is learned by (drafter, strength,
            depth). Empty means 0 for all.
        given: how many leading tokens are another draft's, which this one continues.
    """

    tokens: tuple[int, ...]
    drafter: str
    strengths: tuple[int, ...] = ()
    given: int = 0

    @property
    def family(self) -> str:
        """Whom statistics credit: a drafter's variants ("self-2nd") count as the drafter ("self")."""
        return self.drafter.partition("-")[0]

    def cut(self, length: int) -> Draft | None:
        """The first ``length`` tokens; None if nothing of its own is left."""
        if length >= len(self.tokens):
            return self
        if length <= self.given:
            return None
        return Draft(self.tokens[:length], self.drafter, self.strengths[:length], self.given)


# The estimated chance of a draft's token at an index, given that the ones before it were accepted. The last
# number is the standing of the token: how many other tokens earlier drafts propose for its place.
Chance = Callable[[Draft, int, int], float]


@dataclass(slots=True)
class _Node:
    token: int
    depth: int
    standing: int
    draft: Draft | None
    reach: float
    children: dict[int, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Nodes in an order where parents come before children.

    Attributes:
        tokens: token id of each node; ``tokens[0]`` is the root.
        parents: index of each node's parent; -1 for the root.
        depths: 0 for the root.
        drafts: the draft that first proposed each node; None for the root.
        reach: estimated chance that the node is accepted; 1 for the root.
        children: for each node a map from token to the child's index.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    drafts: tuple[Draft | None, ...]
    reach: tuple[float, ...]
    children: tuple[dict[int, int], ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether each node's parent is the node before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    @property
    def max_depth(self) -> int:
        """Length of the longest drafted path."""
        return max(self.depths)

    def truncated(self, nodes: int) -> TokenTree:
        """The first ``nodes`` nodes (the root included): the best ones, as the tree is ranked."""
        if nodes >= len(self):
            return self
        return TokenTree(
            self.tokens[:nodes],
            self.parents[:nodes],
            self.depths[:nodes],
            self.drafts[:nodes],
            self.reach[:nodes],
            tuple({t: i for t, i in kids.items() if i < nodes} for kids in self.children[:nodes]),
        )

    def visibility(self) -> Tensor:
        """bool [T, T] on the CPU: row i may look at column j (an ancestor of i, or i itself)."""
        # Row by row in numpy: torch takes several times as long for each.
        visible = np.eye(len(self), dtype=np.bool_)
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                visible[index] |= visible[parent]
        return torch.from_numpy(visible)


def build_tree(root: int, drafts: Sequence[Draft], max_nodes: int, chance: Chance | None = None) -> TokenTree:
    """Merge drafts into one tree and keep its most promising nodes.

    Paths that start alike share nodes. Nodes are taken in order of their estimated chance to be
    accepted (a child's never exceeds its parent's, so every prefix of the order is a tree), earlier
    drafts first among equals.

    Args:
        root: the last committed token.
        drafts: proposals, in order of preference.
        max_nodes: most drafted nodes (the root not counted); >= 0.
        chance: of a token; not asked for what is given and there. None: all are certain.
    """
    top = _Node(root, 0, 0, None, 1.0)
    for draft in drafts:
        node = top
        for index, token in enumerate(draft.tokens):
            child = node.children.get(token)
            if index < draft.given and child is not None:
                node = child
                continue
            standing = len(node.children) if child is None else child.standing
            reach = node.reach
            if chance is not None and index >= draft.given:
                reach *= chance(draft, index, standing)
            if child is None:
                child = node.children[token] = _Node(token, node.depth + 1, standing, draft, reach)
            elif reach > child.reach:
                child.reach, child.draft = reach, draft
            node = child

    tokens, parents, depths = [root], [-1], [0]
    origins: list[Draft | None] = [None]
    reaches, children = [1.0], [{}]  # type: tuple[list[float], list[dict[int, int]]]
    queue: list[tuple[float, int, int, _Node]] = []
    serial = 0
    frontier: list[tuple[int, _Node]] = [(0, top)]
    while True:
        for parent, node in frontier:
            for child in node.children.values():
                serial += 1
                heapq.heappush(queue, (-child.reach, serial, parent, child))
        if not queue or len(tokens) > max_nodes:
            break
        _, _, parent, node = heapq.heappop(queue)
        index = len(tokens)
        tokens.append(node.token)
        parents.append(parent)
        depths.append(node.depth)
        origins.append(node.draft)
        reaches.append(node.reach)
        children.append({})
        children[parent][node.token] = index
        frontier = [(index, node)]
    return TokenTree(
        tuple(tokens), tuple(parents), tuple(depths), tuple(origins), tuple(reaches), tuple(children)
    )
