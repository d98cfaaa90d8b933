"""The n-gram table counts truly; the suffix automaton finds the longest earlier suffix."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.engine.drafters.ngram import NgramDrafter, NgramTable
from tokenswift_cli.engine.drafters.suffix import SuffixAutomaton, SuffixDrafter

texts = st.lists(st.integers(0, 3), max_size=120)


@given(texts, st.integers(2, 4), st.integers(1, 5), st.data())
@settings(deadline=None)
def test_ngram_ranking_is_by_true_frequency(text, size, candidates, data):
    table = NgramTable(size, candidates)
    cut = data.draw(st.integers(0, len(text)))
    table.extend(text[:cut])
    table.extend(text[cut:])
    true = Counter(tuple(text[i : i + size]) for i in range(len(text) - size + 1))
    for key in range(4):
        counts = sorted((count for ngram, count in true.items() if ngram[0] == key), reverse=True)
        offered = table.continuations(key)
        assert [true[(key, *rest)] for rest in offered] == counts[:candidates]
        assert len(set(offered)) == len(offered)


def test_equal_counts_prefer_the_latest():
    """A continuation that catches up is not kept out by an older one with the same count."""
    table = NgramTable(2, 1)
    table.extend([1, 2, 1, 3])
    assert table.continuations(1) == [(3,)]


def longest_earlier_suffix(text):
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        ends = [end for end in range(length, len(text)) if text[end - length : end] == suffix]
        if ends:
            return length, ends
    return 0, []


@given(texts)
@settings(deadline=None, max_examples=200)
def test_suffix_automaton_finds_the_longest_earlier_suffix(text):
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        automaton.append(token)
        length, _ = longest_earlier_suffix(text[:end])
        matches = automaton.matches(3, 1)
        assert (matches[0][0] if matches else 0) == length
        for found, place in matches:
            assert text[place - found : place] == text[end - found : end]
            assert place < end


def test_suffix_drafts_grow_with_the_match():
    drafter = SuffixDrafter(max_draft=16)
    drafter.extend([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
    assert drafter.propose()[0].tokens == (4, 5, 6)
    drafter.extend([4])
    assert drafter.propose()[0].tokens == (5, 6, 7, 8)


def test_nothing_to_propose_at_the_start():
    assert SuffixDrafter(8).propose() == []
    assert NgramDrafter(4, 20).propose() == []


def test_update_work_does_not_grow_with_the_text():
    """Case 16, counted instead of timed: states and transitions per token stay bounded."""
    import random

    generator = random.Random(0)
    automaton = SuffixAutomaton()
    text = [generator.choice([generator.randrange(20), generator.randrange(2000)]) for _ in range(20_000)]
    for token in text:
        automaton.append(token)
    assert len(automaton._link) < 2 * len(text)
    assert sum(map(len, automaton._transitions)) < 3 * len(text)
