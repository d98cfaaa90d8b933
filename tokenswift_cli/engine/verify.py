"""The walk down a verified tree: one choice per position, so a wrong draft costs time, never text."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from torch import Tensor

from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.tree import TokenTree


class Walk(NamedTuple):
    """What one verification committed.

    Attributes:
        nodes: indices of the tree nodes whose tokens are now part of the text, from the root on;
            their key-value rows are valid.
        tokens: the tokens chosen, in order: the accepted drafts and the target's own last choice.
    """

    nodes: list[int]
    tokens: list[int]


def walk(
    tree: TokenTree,
    logits: Tensor,
    history: TokenHistory,
    sampler: Sampler,
    *,
    end_ids: Container[int] = (),
    limit: int,
) -> Walk:
    """Choose from the root on and follow the child that holds the chosen token, while there is one.

    Every chosen token is what plain decoding would have written, so it is appended to the history at
    once and the next choice sees it in its penalty window.

    The paper picks at random among equally long accepted paths. Here there is nothing to pick: one
    draw per position decides the path, and which drafted node held the token has no effect on text.

    Args:
        tree: T nodes.
        logits: [T, V], row i after reading node i.
        history: the text up to and including the root; extended in place.
        sampler: makes the choices.
        end_ids: the walk ends after choosing one of these.
        limit: most tokens to choose; >= 1.
    """
    window = sampler.settings.penalty_window
    node: int | None = 0
    nodes: list[int] = []
    tokens: list[int] = []
    while node is not None:
        nodes.append(node)
        token = sampler.choose(logits[node], history.window(window), history.length)
        history.append(token)
        tokens.append(token)
        if token in end_ids or len(tokens) == limit:
            break
        node = tree.children[node].get(token)
    return Walk(nodes, tokens)
