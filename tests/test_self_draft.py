"""The partial cache keeps what matters, and shared noise couples draft and target."""

from __future__ import annotations

import pytest
import torch
from models_in_memory import tiny_llama

from tokenswift_cli.engine.noise import gumbel
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.partial_cache import PartialCache
from tokenswift_cli.models.target import Target

IDS = torch.randint(256, (600,), generator=torch.Generator().manual_seed(0)).tolist()
NOTHING = torch.tensor([], dtype=torch.int64)


def full_cache(length, heads=2, size=4):
    generator = torch.Generator().manual_seed(1)
    cache = KeyValueCache(length)
    for layer in range(2):
        cache.write(
            layer,
            torch.randn(heads, length, size, generator=generator),
            torch.randn(heads, length, size, generator=generator),
        )
    cache.length = length
    return cache


def test_refresh_keeps_sinks_recent_and_the_most_important():
    """Importance is summed over the query heads of a group, per layer and key-value head."""
    full = full_cache(200)
    partial = PartialCache(budget=64, sinks=4)
    queries = {layer: torch.randn(2, 3, 5, 4) for layer in range(2)}
    partial.refresh(full, queries, row=2)
    recent, important = 32, 64 - 16 - 32 - 4
    assert partial.length == 48 and partial.covered == 200
    for layer in range(2):
        keys, values = full.keys(layer), full.values(layer)
        for head in range(2):
            scores = torch.stack([keys[head] @ queries[layer][head, g, 2] for g in range(3)]).sum(0)
            middle = scores[4 : 200 - recent].topk(important).indices + 4
            rows = [*range(4), *sorted(middle.tolist()), *range(200 - recent, 200)]
            assert torch.equal(partial.keys(layer)[head, :48], keys[head, rows])
            assert torch.equal(partial.values(layer)[head, :48], values[head, rows])


def test_follow_takes_over_committed_rows_until_the_budget_is_full():
    full = full_cache(200)
    partial = PartialCache(budget=64, sinks=4)
    partial.refresh(full, {layer: torch.randn(2, 1, 1, 4) for layer in range(2)}, row=0)
    full.write(0, torch.ones(2, 10, 4), torch.ones(2, 10, 4))
    full.write(1, torch.ones(2, 10, 4), torch.ones(2, 10, 4))
    full.commit(range(10))
    assert partial.has_room(full, 6) and not partial.has_room(full, 7)
    partial.follow(full)
    assert partial.length == 58 and torch.equal(partial.keys(1)[:, 48:58], torch.ones(2, 10, 4))
    assert partial.has_room(full, 6) and not partial.has_room(full, 7)


def test_a_draft_over_the_whole_cache_is_the_target():
    target = Target(tiny_llama(), 700)
    target.read(IDS[:500])
    expected = target.verify([7])[0]
    actual = target.draft(target.cache, 7, 500)
    assert target.cache.length == 501
    torch.testing.assert_close(actual, expected)


def test_a_partial_cache_keeps_positions():
    """Rows keep their own rotary positions: all rows kept in another cache give the same logits."""
    target = Target(tiny_llama(), 700)
    target.read(IDS[:500])
    expected = target.verify([7])[0]
    copy = KeyValueCache(600)
    for layer in range(2):
        copy.write(layer, target.cache.keys(layer)[:, :500], target.cache.values(layer)[:, :500])
    copy.length = 500
    torch.testing.assert_close(target.draft(copy, 7, 500), expected)


@pytest.mark.parametrize("spread", [0.1, 0.5, 2.0])
def test_shared_noise_reaches_the_coupling_bound(spread):
    """P(accept) >= (1 - TV) / (1 + TV) on random pairs of distributions (arXiv 2408.07978).

    4,000 positions per pair; the bound less 5 standard errors, so a false alarm has chance 3e-7 per pair.
    """
    sampler = Sampler(SamplingSettings(seed=3, min_p=0.0, penalty=1.0), 30)
    generator = torch.Generator().manual_seed(5)
    trials = 4000
    for _ in range(3):
        target = torch.randn(30, generator=generator) * 2
        draft = target + torch.randn(30, generator=generator) * spread
        distance = 0.5 * float((torch.softmax(target, 0) - torch.softmax(draft, 0)).abs().sum())
        bound = (1 - distance) / (1 + distance)
        accepted = sum(
            sampler.choose(target, NOTHING, position) == sampler.ranked(draft, NOTHING, position, 1, 3)[0][0]
            for position in range(trials)
        )
        assert accepted / trials >= bound - 5 * (bound * (1 - bound) / trials) ** 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_ranked_begins_with_the_choice(temperature):
    settings = SamplingSettings(seed=9, temperature=temperature, min_p=0.02, penalty=1.2)
    sampler = Sampler(settings, 100)
    generator = torch.Generator().manual_seed(2)
    for position in range(50):
        logits = torch.randn(100, generator=generator) * 3
        window = torch.randint(100, (20,), generator=generator)
        ranked = sampler.ranked(logits, window, position, 3, seed=9)
        assert ranked[0][0] == sampler.choose(logits, window, position)
        scores = [score for _, score in ranked]
        assert scores == sorted(scores, reverse=True)


def test_own_noise_is_other_noise():
    ids = torch.arange(100)
    assert not torch.equal(gumbel(4, 7, ids), gumbel(4 ^ 0x5EED, 7, ids))
