"""Processed logits equal transformers' own warpers, and choices have the right distribution."""

import math

import numpy as np
import pytest
import torch
from transformers import (
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import NonFiniteLogitsError

VOCABULARY = 3000
PLAIN = {"min_p": 0.0, "penalty": 1.0}

SETTINGS = [
    {},
    {"temperature": 0.7},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 10_000},
    {"top_p": 0.05},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"eta": 3e-4},
    {"eta": 0.3},
    {"penalty": 1.2},
    {"penalty": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "eta": 1e-3, "temperature": 1.3},
    {"penalty": 1.3, "penalty_window": 7, "suppress_ids": (3, 5), "temperature": 0.5, "min_p": 0.05},
]


def reference(settings: SamplingSettings) -> LogitsProcessorList:
    """transformers' processors in the same order."""
    steps = LogitsProcessorList()
    if settings.suppress_ids:
        steps.append(SuppressTokensLogitsProcessor(list(settings.suppress_ids)))
    if settings.penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(settings.penalty))
    if settings.temperature != 1.0:
        steps.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k:
        steps.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        steps.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        steps.append(MinPLogitsWarper(settings.min_p))
    if settings.eta > 0.0:
        steps.append(EtaLogitsWarper(settings.eta))
    return steps


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_processed_logits_equal_transformers(changes, scale):
    """Case 5, and the order of the processors."""
    settings = SamplingSettings(**(PLAIN | changes))
    sampler = Sampler(settings, VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        logits = torch.randn(VOCABULARY, generator=generator) * scale
        history = torch.randint(VOCABULARY, (400,), generator=generator)
        window = history[-settings.penalty_window :]
        expected = reference(settings)(window[None], logits[None].clone())[0]
        candidates = sampler.candidates(logits, window, 17)
        actual = torch.full((VOCABULARY,), -math.inf)
        actual[candidates.token_ids] = candidates.scores
        assert torch.equal(torch.isfinite(actual), torch.isfinite(expected))
        torch.testing.assert_close(actual, expected)


def test_choice_leaves_its_inputs_alone():
    logits, window = torch.randn(50), torch.arange(10)
    before = logits.clone()
    Sampler(SamplingSettings(suppress_ids=(1,)), 50).choose(logits, window, 3)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.5}, {"min_p": 0.2}, {"top_k": 3}, {"top_p": 0.7}], ids=str
)
def test_choices_follow_the_softmax(changes):
    """Chi-square of 20,000 positions against the processed softmax; chance of a false alarm 1e-6 each."""
    settings = SamplingSettings(**(PLAIN | changes), seed=5)
    logits = torch.tensor([2.0, 1.5, 0.0, 1.0, -1.0, 0.5, -3.0, 1.2])
    sampler = Sampler(settings, len(logits))
    window = torch.tensor([], dtype=torch.int64)
    candidates = sampler.candidates(logits, window, 0)
    probabilities = torch.softmax(candidates.scores.double(), dim=0).numpy()
    draws = 20_000
    chosen = [sampler.choose(logits, window, position) for position in range(draws)]
    counts = np.bincount(chosen, minlength=len(logits))
    kept = candidates.token_ids.numpy()
    assert counts[kept].sum() == draws
    statistic = float(((counts[kept] - draws * probabilities) ** 2 / (draws * probabilities)).sum())
    # Chi-square limits for chance 1e-6 with len(kept) - 1 degrees of freedom (1 .. 7).
    limit = {1: 23.9, 2: 27.6, 3: 30.7, 4: 33.4, 5: 35.9, 6: 38.3, 7: 40.5}[len(kept) - 1]
    assert statistic < limit


def test_greedy_is_the_argmax_of_the_penalized_logits():
    logits = torch.tensor([1.0, 5.0, 4.9, -2.0])
    sampler = Sampler(SamplingSettings(temperature=0.0, penalty=1.2), 4)
    assert sampler.choose(logits, torch.tensor([0]), 9) == 1
    assert sampler.choose(logits, torch.tensor([1]), 9) == 2


def test_held_ids_come_free_at_their_position():
    logits = torch.tensor([0.0, 9.0, 1.0])
    sampler = Sampler(SamplingSettings(temperature=0.0, penalty=1.0), 3, held_ids=[1], held_until=10)
    window = torch.tensor([], dtype=torch.int64)
    assert [sampler.choose(logits, window, position) for position in (9, 10)] == [2, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_are_an_error_with_the_position(bad, temperature):
    logits = torch.zeros(10)
    logits[4] = bad
    sampler = Sampler(SamplingSettings(temperature=temperature), 10)
    with pytest.raises(NonFiniteLogitsError, match="position 1234"):
        sampler.choose(logits, torch.tensor([], dtype=torch.int64), 1234)


def test_suppressing_everything_is_an_error():
    sampler = Sampler(SamplingSettings(suppress_ids=(0, 1, 2)), 3)
    with pytest.raises(NonFiniteLogitsError, match="suppress"):
        sampler.choose(torch.zeros(3), torch.tensor([], dtype=torch.int64), 0)
