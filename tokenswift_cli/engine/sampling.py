"""``choose``: the one pure function that decides the token at a position.

    choose(logits, window, position) = argmax_i  processed_logits_i + gumbel(seed, position, i)

over the candidates that survive truncation; at temperature 0 the noise is zero. Plain decoding,
verification, resume and audit all call it, which is what makes their texts equal.

Processing order: suppressed ids, contextual penalty, temperature, top-k, top-p, min-p, eta.
Truncations work on the surviving candidates only, so that a choice costs a few passes over the
vocabulary and noise is computed for few tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokenswift_cli.engine.noise import gumbel
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import NonFiniteLogitsError

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


class Sampler:
    """The processing chain and the choice for one run; holds constants only.

    Args:
        settings: the sampling settings.
        vocabulary_size: length V of a logits row.
        device: where the logits live.
        held_ids: ids that cannot be chosen before position ``held_until`` (end-of-text and
            ``min_tokens``).
        held_until: absolute position.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        vocabulary_size: int,
        device: torch.device | str = "cpu",
        *,
        held_ids: Sequence[int] = (),
        held_until: int = 0,
    ) -> None:
        self.settings = settings
        self.held_until = held_until
        self._all_ids = torch.arange(vocabulary_size, device=device)
        suppressed = sorted(set(settings.suppress_ids))
        self._suppressed = torch.tensor(suppressed, dtype=torch.int64, device=device)
        self._held = torch.tensor(sorted({*suppressed, *held_ids}), dtype=torch.int64, device=device)

    def penalized(self, logits: Tensor, window: Tensor, position: int) -> Tensor:
        """Logits after suppression and penalty, as a new float32 [V] tensor."""
        scores = logits.to(torch.float32, copy=True)
        suppressed = self._held if position < self.held_until else self._suppressed
        if suppressed.numel():
            scores[suppressed] = -math.inf
        if self.settings.penalty != 1.0 and window.numel():
            penalize(scores, window, self.settings.penalty)
        return scores

    def candidates(self, logits: Tensor, window: Tensor, position: int) -> Candidates:
        """The tokens that survive truncation, with their processed logits.

        Args and errors as in :meth:`choose`; needs temperature > 0.
        """
        settings = self.settings
        scores = self.penalized(logits, window, position)
        _require_finite(scores.max(), position)
        if settings.temperature != 1.0:
            scores.div_(settings.temperature)
        survivors = Candidates(self._all_ids, scores)
        if settings.top_k:
            survivors = keep_top_k(survivors, settings.top_k)
        if settings.top_p < 1.0:
            survivors = keep_top_p(survivors, settings.top_p)
        if settings.min_p > 0.0:
            survivors = keep_min_p(survivors, settings.min_p)
        if settings.eta > 0.0:
            survivors = keep_eta(survivors, settings.eta)
        return survivors

    def choose(self, logits: Tensor, window: Tensor, position: int) -> int:
        """The token at ``position``.

        Args:
            logits: [V] of any float dtype, raw output of the model; not changed.
            window: int64 [<= penalty_window], the tokens just before ``position``.
            position: absolute position of the token to be chosen (prompt included).

        Returns:
            the token id.

        Raises:
            NonFiniteLogitsError: the logits hold NaN or +Inf, or nothing can be chosen.
        """
        if self.settings.temperature == 0.0:
            scores = self.penalized(logits, window, position)
            best = scores.max(dim=0)
            _require_finite(best.values, position)
            return int(best.indices)
        token_ids, scores = self.candidates(logits, window, position)
        noisy = scores + gumbel(self.settings.seed, position, token_ids)
        return int(token_ids[noisy.argmax()])

    def ranked(
        self, logits: Tensor, window: Tensor, position: int, count: int, seed: int
    ) -> list[tuple[int, float]]:
        """The best tokens for a draft by the score that :meth:`choose` maximises, with their scores.

        A draft that knows the noise of the position proposes what the target will choose unless their
        logits differ by more than the gap to the runner-up (coupling, arXiv 2408.07978).

        Args:
            logits, window, position: as in :meth:`choose`.
            count: most tokens to return.
            seed: of the noise; the settings' own for shared noise.
        """
        if self.settings.temperature == 0.0:
            best = torch.topk(self.penalized(logits, window, position), count)
            return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        token_ids, scores = self.candidates(logits, window, position)
        noisy = scores + gumbel(seed, position, token_ids)
        best = torch.topk(noisy, min(count, noisy.numel()))
        return list(zip(token_ids[best.indices].tolist(), best.values.tolist(), strict=True))


def _require_finite(best: Tensor, position: int) -> None:
    """``max`` hands on NaN and +Inf, so the best score alone tells whether the row is usable."""
    value = float(best)
    if math.isfinite(value):
        return
    if value == -math.inf:
        raise NonFiniteLogitsError(
            f"No token can be chosen at position {position}: every logit is suppressed or -Inf. "
            "Check sampling.suppress_ids."
        )
    raise NonFiniteLogitsError(
        f"The model produced NaN or Inf at position {position}. What was checkpointed is kept; try "
        "another --dtype, or check the model's weights and its position limit."
    )
