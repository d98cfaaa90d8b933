"""Windows, offsets, masks and the order of examples."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.training.examples import Examples, windows_of
from tokenswift_cli.training.sequences import SequenceFacts, split_sequences


class Numbered:
    """Sequences whose token at place p of sequence s is 1000 s + p, and whose states say the same."""

    def __init__(self, lengths: list[tuple[int, int]]) -> None:
        self.facts = [SequenceFacts(length, prompt, "memory") for length, prompt in lengths]

    def tokens(self, index: int) -> torch.Tensor:
        return 1000 * (index + 1) + torch.arange(self.facts[index].length)

    def hidden(self, index: int, start: int, stop: int) -> torch.Tensor:
        assert 0 <= start < stop <= self.facts[index].length
        return self.tokens(index)[start:stop, None].float()


def examples(lengths: list[tuple[int, int]], heads: int, **changes: int) -> Examples:
    options = {"window_tokens": 4, "batch_windows": 3, "gradient_accumulation": 1, "seed": 0} | changes
    return Examples(Numbered(lengths), range(len(lengths)), heads, **options)


LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS, heads=st.integers(1, 4), window=st.integers(0, 9), batch=st.integers(1, 5))
def test_every_head_learns_every_token_behind_the_prompt_once(
    lengths: list[tuple[int, int]], heads: int, window: int, batch: int
) -> None:
    """Row i holds the state after x_i, and head j (from 0) learns x_{i+2+j}, nothing of the prompt."""
    source = examples(lengths, heads, window_tokens=window, batch_windows=batch)
    learned: Counter[tuple[int, int]] = Counter()
    for group in source.batches(source.windows):
        rows = source.hidden(group)[:, 0].long()
        assert group.following.shape == (heads + 1, len(rows)) and group.valid.shape == (heads, len(rows))
        for head, row in group.valid.nonzero().tolist():
            at = int(rows[row])
            assert group.following[head + 1, row] == at + 2 + head
            assert group.following[head, row] == at + 1 + head  # the embedding of the token before
            assert int(rows[row + 1 + head]) == at + 1 + head  # where the target itself predicts it
            learned[head, at + 2 + head] += 1
    wanted = Counter(
        (head, 1000 * (index + 1) + place)
        for index, (length, prompt) in enumerate(lengths)
        for head in range(heads)
        for place in range(max(prompt, 2 + head), length)
    )
    assert learned == wanted


def test_windows_leave_out_what_lies_in_the_prompt() -> None:
    facts = SequenceFacts(20, 10, "memory")
    assert [(window.start, window.stop) for window in windows_of(0, facts, 3, 8)] == [(6, 14), (14, 18)]
    assert windows_of(0, SequenceFacts(10, 10, "memory"), 3, 8) == []
    assert windows_of(0, SequenceFacts(2, 0, "memory"), 3, 8) == []


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**62), batch=st.integers(1, 4), accumulation=st.integers(1, 3))
def test_a_step_depends_on_its_number_only_and_epochs_are_whole(
    seed: int, batch: int, accumulation: int
) -> None:
    def make() -> Examples:
        return examples(
            [(23, 0), (17, 3)], 2, seed=seed, batch_windows=batch, gradient_accumulation=accumulation
        )

    def order(source: Examples, number: int) -> list[object]:
        return [window for group in source.step(number) for window in group.windows]

    source = make()
    count = len(source.windows)
    steps = 3 * count
    forward = [order(source, number) for number in range(steps)]
    backward = [order(make(), number) for number in reversed(range(steps))][::-1]
    assert forward == backward
    shown = [window for group in forward for window in group]
    assert all(len(source.step(number)) == accumulation for number in range(3))
    for epoch in range(len(shown) // count):
        assert set(shown[epoch * count : (epoch + 1) * count]) == set(source.windows)
    assert source.steps_of(1.0) == -(-count // (batch * accumulation))


def test_epochs_have_different_orders() -> None:
    source = examples([(200, 0)], 2, batch_windows=50)
    first, second = (source.step(number)[0].windows for number in (0, 1))
    assert set(first) == set(second) and first != second


@settings(deadline=None, max_examples=60)
@given(count=st.integers(2, 200), share=st.floats(0, 0.6), seed=st.integers(0, 2**63 - 1))
def test_sequences_are_held_out_whole(count: int, share: float, seed: int) -> None:
    split = split_sequences([512] * count, share, seed)
    assert sorted((*split.train, *split.held_out)) == list(range(count))
    assert bool(split.held_out) == (share > 0)
    assert abs(len(split.held_out) - count * share) <= 1
    assert split == split_sequences([512] * count, share, seed)


def test_long_texts_are_held_out_too():
    """So that late positions are measured (case 18)."""
    lengths = [768] * 60 + [4096] * 4
    for seed in range(20):
        split = split_sequences(lengths, 0.05, seed)
        assert sum(lengths[index] == 4096 for index in split.held_out) == 1
        assert sum(lengths[index] == 768 for index in split.held_out) == 3
