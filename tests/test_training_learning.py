"""Heads learn what can be learned, and it is the right token that they learn."""

from __future__ import annotations

import pytest
import torch
from models_in_memory import tiny_llama
from training_in_memory import WORDS, Lesson, chain_llama, chain_texts, successors

FOLLOWING = successors()


def share(guesses: list[int], text: list[int], k: int) -> float:
    """How often head k is right, over the positions where its token exists."""
    places = range(len(text) - 1 - k)
    return sum(guesses[t] == text[t + 1 + k] for t in places) / len(places)


@pytest.mark.parametrize("variant", ["linear", "conditioned"])
@pytest.mark.parametrize("labels", ["tokens", "target"])
def test_the_copy_task_is_learned_at_the_right_offset(tmp_path, variant: str, labels: str) -> None:
    """Case 30: labels shifted by one position gave no error and 0 % acceptance.

    The text is a chain without short cycles, so a head that learned its neighbour's token is never right.
    """
    lesson = Lesson(
        tmp_path, chain_llama(FOLLOWING), chain_texts(FOLLOWING), variant, labels=labels, steps=60
    )
    lesson.learn()
    text = chain_texts(FOLLOWING, count=9)[8]
    for k, guesses in enumerate(lesson.guesses(text), start=1):
        assert share(guesses, text, k) > 0.95
        assert share(guesses, text, k - 1) == share(guesses, text, k + 1) == 0
    assert min(lesson.trainer.trained.top1_shares) > 0.95


def test_an_untrained_head_says_what_the_target_says(tmp_path) -> None:
    """So the offset test above starts from heads that are one token late, and not from chance."""
    lesson = Lesson(tmp_path, chain_llama(FOLLOWING), chain_texts(FOLLOWING))
    text = chain_texts(FOLLOWING)[0]
    assert share(lesson.guesses(text)[0], text, 0) == 1


def test_a_language_with_choices_is_learned_from_the_drafted_token(tmp_path) -> None:
    """Two words taken at random alternate: later words follow only from the words before them.

    Pairs of words that were never seen come out right, so it is the rule that was learned.
    """
    model = tiny_llama(vocab_size=WORDS).requires_grad_(False)
    pairs = [[first, second] for first in range(8) for second in range(8)]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(3)).tolist()
    texts = [pairs[index] * 12 for index in order]
    settings = {"heads": 2, "batch_windows": 8, "learning_rate": 5e-3, "steps": 150}
    lesson = Lesson(tmp_path, model, texts[:50], "conditioned", **settings)
    lesson.learn()
    for k in (1, 2):
        right = [share(lesson.guesses(text)[k - 1], text, k) for text in texts[50:]]
        assert sum(right) / len(right) > 0.95


def test_a_restricted_vocabulary_proposes_only_its_tokens(tmp_path) -> None:
    """Tokens outside are left out of the loss, and never guessed."""
    kept = torch.tensor(sorted(set(range(WORDS)) - {3, 17, 40}))
    lesson = Lesson(tmp_path, chain_llama(FOLLOWING), chain_texts(FOLLOWING), vocabulary=kept, steps=60)
    lesson.learn()
    text = chain_texts(FOLLOWING)[0]
    guesses = lesson.guesses(text)[0]
    known = [t for t in range(len(text) - 2) if text[t + 2] not in (3, 17, 40)]
    assert sum(guesses[t] == text[t + 2] for t in known) / len(known) > 0.95
    assert not {3, 17, 40} & set(guesses)
    positions = sum(len(text) - 2 for text in chain_texts(FOLLOWING))
    batches = lesson.examples.batches(lesson.examples.windows)
    learned = sum(int(lesson.trainer._labels(batch).valid[0].sum()) for batch in batches)
    outside = sum(word in (3, 17, 40) for text in chain_texts(FOLLOWING) for word in text[2:])
    assert learned == positions - outside
