"""The noise is a finite, uniform, independent, pure function of (seed, position, token id)."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.engine.noise import gumbel, gumbel_from_hash, hash32


def test_extreme_hashes_give_finite_noise():
    """Case 7: all ones must not become u = 1."""
    noise = gumbel_from_hash(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert torch.isfinite(noise).all()
    assert noise[0] == min(noise) and noise[-1] == max(noise)
    assert math.isclose(float(noise[-1]), 33 * math.log(2), rel_tol=1e-6)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**7),
    st.lists(st.integers(0, 300_000), min_size=1, max_size=50, unique=True),
)
@settings(deadline=None, max_examples=50)
def test_noise_does_not_depend_on_who_asks(seed, position, token_ids):
    together = gumbel(seed, position, torch.tensor(token_ids))
    alone = [float(gumbel(seed, position, torch.tensor([token_id]))) for token_id in token_ids]
    assert together.tolist() == alone


def test_hash_matches_unsigned_arithmetic():
    """The int64 tensor code equals SplitMix64 on Python's own integers."""
    from tokenswift_cli.engine import noise

    seed, position, token_ids = 2**63 - 1, 123_456, [0, 1, 77, 151_000]
    key = noise._stream_key(seed, position)
    expected = [noise._mix((key + (t + 1) * noise._GOLDEN) % 2**64) >> 32 for t in token_ids]
    assert hash32(seed, position, torch.tensor(token_ids)).tolist() == expected
    # As on an accelerator.
    assert (
        noise._hash32_there(noise._stream_key(seed, position), torch.tensor(token_ids)).tolist() == expected
    )


def test_uniform_over_ids_positions_and_seeds():
    """Chi-square over 256 bins, three ways of counting up; chance of a false alarm about 3e-6 in all."""
    ids = torch.arange(200_000)
    one = torch.zeros(1, dtype=torch.int64)
    samples = [
        hash32(7, 1000, ids).numpy(),
        np.array([int(hash32(7, position, one)) for position in range(20_000)]),
        np.array([int(hash32(seed, 1000, one)) for seed in range(20_000)]),
    ]
    for sample in samples:
        counts = np.bincount(sample >> 24, minlength=256)
        expected = len(sample) / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        # 255 degrees of freedom: mean 255, standard deviation 22.6; the limit has chance 1e-6.
        assert statistic < 376


def test_neighbouring_positions_are_uncorrelated():
    """|correlation| of 50,000 pairs stays under 5 standard errors; chance of a false alarm 6e-7 each."""
    ids = torch.arange(50_000)
    for shift in (1, 2, 1024):
        first, second = hash32(3, 500, ids).double(), hash32(3, 500 + shift, ids).double()
        correlation = float(torch.corrcoef(torch.stack([first, second]))[0, 1])
        assert abs(correlation) < 5 / math.sqrt(50_000)
