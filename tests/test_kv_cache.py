"""How much room a cache takes, and when."""

from __future__ import annotations

import torch

from tokenswift_cli.models.kv_cache import GROWTH_TOKENS, KeyValueCache

LONG = 100_000


def rows(count, device):
    return torch.zeros(2, count, 4, device=device)


def write(cache, count, device):
    for layer in range(2):
        cache.write(layer, rows(count, device), rows(count, device))
    cache.accept(count)


def test_on_the_cpu_all_is_reserved_at_once_and_nothing_moves():
    """The system takes memory for rows that are written only."""
    cache = KeyValueCache(LONG)
    write(cache, 3, "cpu")
    place = cache.keys(0).data_ptr()
    write(cache, GROWTH_TOKENS, "cpu")
    assert cache.keys(0).shape == (2, LONG, 4) and cache.keys(0).data_ptr() == place


def test_on_other_devices_memory_is_taken_in_steps():
    """There it is taken when it is asked for. The device "meta" has shapes without memory."""
    cache = KeyValueCache(LONG)
    write(cache, 3, "meta")
    assert cache.keys(0).shape == cache.values(1).shape == (2, GROWTH_TOKENS, 4)
    write(cache, GROWTH_TOKENS - 3, "meta")
    assert cache.keys(1).shape[1] == GROWTH_TOKENS
    write(cache, 1, "meta")
    assert cache.keys(1).shape[1] == 2 * GROWTH_TOKENS
    write(cache, LONG - cache.length, "meta")
    assert cache.keys(0).shape[1] == LONG, "never more than was asked for"


def test_a_cache_that_grows_keeps_its_rows():
    cache = KeyValueCache(4)
    first = torch.arange(16.0).view(2, 2, 4)
    cache.write(0, first, -first)
    cache.accept(2)
    cache.write(0, rows(5, "cpu"), rows(5, "cpu"))
    assert cache.keys(0).shape[1] == 4 + GROWTH_TOKENS
    assert torch.equal(cache.keys(0)[:, :2], first) and torch.equal(cache.values(0)[:, :2], -first)
