"""Token trees: merged prefixes, parents first, never more nodes than allowed."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.engine.tree import Draft, build_tree

drafts_strategy = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=12).map(
    lambda items: [Draft(tuple(tokens), "d", (), number) for number, tokens in enumerate(items)]
)
chances_strategy = st.none() | st.lists(st.floats(0, 1), min_size=7, max_size=7)


def paths(tree):
    found = []
    for node in range(1, len(tree)):
        path = []
        while node:
            path.append(tree.tokens[node])
            node = tree.parents[node]
        found.append(tuple(reversed(path)))
    return found


@given(drafts_strategy, st.integers(0, 20), chances_strategy)
@settings(deadline=None)
def test_tree_holds_prefixes_of_drafts_and_nothing_else(drafts, max_nodes, chances):
    chance = None if chances is None else lambda draft, index, standing: chances[index]
    tree = build_tree(9, drafts, max_nodes, chance)
    allowed = {draft.tokens[:end] for draft in drafts for end in range(1, len(draft.tokens) + 1)}
    found = paths(tree)
    assert len(found) == len(set(found)) == min(max_nodes, len(allowed))
    assert set(found) <= allowed
    assert tree.tokens[0] == 9
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert parent < node
        assert tree.depths[node] == tree.depths[parent] + 1
        assert tree.children[parent][tree.tokens[node]] == node
        assert tree.reach[node] <= tree.reach[parent]
    assert list(tree.reach[1:]) == sorted(tree.reach[1:], reverse=True)


@given(drafts_strategy, st.integers(1, 20))
@settings(deadline=None)
def test_visibility_is_ancestors_and_self(drafts, nodes):
    tree = build_tree(9, drafts, 20).truncated(nodes)
    visible = tree.visibility()
    assert visible.dtype == torch.bool and visible.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        ancestors = set()
        at = node
        while at >= 0:
            ancestors.add(at)
            at = tree.parents[at]
        assert set(visible[node].nonzero().flatten().tolist()) == ancestors
    assert tree.is_chain == all(len(kids) <= 1 for kids in tree.children)


def test_truncation_keeps_a_tree():
    tree = build_tree(0, [Draft((1, 2, 3), "a"), Draft((1, 4), "b"), Draft((5,), "c")], 10)
    for nodes in range(1, len(tree) + 1):
        small = tree.truncated(nodes)
        assert len(small) == nodes
        assert all(child < nodes for kids in small.children for child in kids.values())


def test_a_continuation_shares_the_nodes_it_was_given():
    """What another draft proposed keeps its own chance; the continuation adds below it."""
    chances = {("self", 0): 0.5, ("self", 1): 0.5, ("ngram", 1): 0.4, ("ngram", 2): 0.5}
    chain = Draft((1, 2), "self")
    more = Draft((1, 7, 8), "ngram", (), 1)
    tree = build_tree(0, [chain, more], 10, lambda draft, index, standing: chances[draft.drafter, index])
    assert dict(zip(paths(tree), tree.reach[1:], strict=True)) == {
        (1,): 0.5,
        (1, 2): 0.25,
        (1, 7): 0.2,
        (1, 7, 8): 0.1,
    }
    assert [draft.drafter for draft in tree.drafts if draft] == ["self", "self", "ngram", "ngram"]


def test_the_standing_of_a_token_is_how_many_others_were_there_before():
    """Whoever proposes it, and below each node anew."""
    asked = []

    def chance(draft, index, standing):
        asked.append((draft.drafter, draft.tokens[index], standing))
        return 0.5

    build_tree(0, [Draft((1, 2), "a"), Draft((3, 2), "b"), Draft((1, 4), "c"), Draft((3,), "d")], 10, chance)
    assert asked == [
        ("a", 1, 0),
        ("a", 2, 0),
        ("b", 3, 1),
        ("b", 2, 0),
        ("c", 1, 0),
        ("c", 4, 1),
        ("d", 3, 1),
    ]


def test_cutting_a_draft_leaves_only_its_own_tokens():
    draft = Draft((1, 2, 3), "d", (4, 5, 6), 1)
    assert draft.cut(3) is draft and draft.cut(1) is None
    assert draft.cut(2) == Draft((1, 2), "d", (4, 5), 1)
