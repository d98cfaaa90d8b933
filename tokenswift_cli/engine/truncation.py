"""Penalty and truncations: what is left of a row of logits, and with what scores.

Each truncation takes the candidates that the one before left over, so that a choice costs few passes over the
vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Top-p first looks at this many best candidates and widens only when their mass is too small.
_TOP_P_FIRST_LOOK = 256


class Candidates(NamedTuple):
    """What survived truncation.

    Attributes:
        token_ids: int64 [C], distinct.
        scores: float32 [C], processed logits (not normalised).
    """

    token_ids: Tensor
    scores: Tensor


def penalize(logits: Tensor, window: Tensor, theta: float) -> Tensor:
    """Contextual penalty, in place: tokens of the window are divided (> 0) or multiplied (< 0) by theta.

    Each token is penalised once however often it occurs (TokenSwift, section 3.4; CTRL, arXiv
    1909.05858).

    Args:
        logits: float32 [V], changed in place.
        window: int64 [W], the last tokens before the position; repetitions allowed.
        theta: > 0; 1 changes nothing.

    Returns:
        ``logits``.
    """
    seen = logits[window]
    # Repeated ids write the same value, so the order of the scatter does not matter.
    logits[window] = torch.where(seen > 0, seen / theta, seen * theta)
    return logits


def keep_top_k(candidates: Candidates, top_k: int) -> Candidates:
    """Keep scores >= the k-th best score; ties are kept (Fan et al., arXiv 1805.04833)."""
    if top_k >= candidates.scores.numel():
        return candidates
    threshold = torch.topk(candidates.scores, top_k).values[-1]
    return _at_least(candidates, threshold)


def keep_top_p(candidates: Candidates, top_p: float) -> Candidates:
    """Keep a token when the mass of all better tokens is below top_p (nucleus, arXiv 1904.09751)."""
    token_ids, scores = candidates
    log_total = torch.logsumexp(scores, dim=0)
    count = scores.numel()
    look = min(_TOP_P_FIRST_LOOK, count)
    while True:
        best, order = torch.topk(scores, look)
        mass = torch.exp(best - log_total).cumsum(0)
        if look == count or mass[-1] >= top_p:
            break
        look = min(look * 8, count)
    # The best token has no mass above it and always stays.
    keep = 1 + int((mass[:-1] < top_p).sum())
    return Candidates(token_ids[order[:keep]], best[:keep])


def keep_min_p(candidates: Candidates, min_p: float) -> Candidates:
    """Keep probability >= min_p * the highest probability (arXiv 2407.01082), in the log domain."""
    threshold = candidates.scores.max() + math.log(min_p)
    return _at_least(candidates, threshold)


def keep_eta(candidates: Candidates, epsilon: float) -> Candidates:
    """Keep probability >= min(epsilon, sqrt(epsilon) * exp(-entropy)) (arXiv 2210.15191); the best stays."""
    log_probabilities = torch.log_softmax(candidates.scores, dim=0)
    probabilities = log_probabilities.exp()
    # A suppressed token has probability 0 and adds nothing: 0 * -inf must not become NaN.
    entropy = -torch.where(probabilities > 0, probabilities * log_probabilities, 0.0).sum()
    threshold = torch.clamp(math.sqrt(epsilon) * torch.exp(-entropy), max=epsilon)
    keep = (probabilities >= threshold) | (candidates.scores >= candidates.scores.max())
    return _select(candidates, keep)


def _at_least(candidates: Candidates, threshold: Tensor) -> Candidates:
    """Those with a score >= ``threshold``, a float32 scalar tensor."""
    scores = candidates.scores
    if not scores.is_cpu:
        return _select(candidates, scores >= threshold)
    # Few of many are left, and numpy finds them ten times faster than torch.
    rows = torch.from_numpy(np.flatnonzero(scores.numpy() >= threshold.numpy()))
    return Candidates(candidates.token_ids[rows], scores[rows])


def _select(candidates: Candidates, keep: Tensor) -> Candidates:
    rows = keep.nonzero().squeeze(1)
    return Candidates(candidates.token_ids[rows], candidates.scores[rows])
