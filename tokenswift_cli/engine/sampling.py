"""``choose``: the one pure function that decides the token at a position.

    choose(logits, window, position) = argmax_i  processed_logits_i + gumbel(seed, position, i)

over the candidates that survive truncation; at temperature 0 the noise is zero. Plain decoding,
verification, resume and audit all call it, which is what makes their texts equal.

Processing order: suppressed ids, contextual penalty, temperature, top-k, top-p, min-p, eta. On the CPU the
first part of it is compiled, where the process has the compiled library; the bits are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import CDLL
from operator import itemgetter

import torch
from torch import Tensor

from tokenswift_cli.engine.noise import gumbel
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.engine.truncation import (
    Candidates,
    keep_eta,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize,
)
from tokenswift_cli.errors import NonFiniteLogitsError
from tokenswift_cli.native.attention import loaded_library
from tokenswift_cli.native.choice import RowScan, Scanned

# Python sorts so few as fast as torch finds the best of them.
_FEW = 64


class Sampler:
    """The processing chain and the choice for one run; holds constants, and room for one row's candidates.

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
        held = sorted({*suppressed, *held_ids})
        self._suppressed = torch.tensor(suppressed, dtype=torch.int64, device=device)
        self._held = torch.tensor(held, dtype=torch.int64, device=device)
        self._scan: _CompiledScan | None = None
        library = loaded_library() if self._all_ids.is_cpu else None
        if library is not None:
            self._scan = _CompiledScan(library, settings, vocabulary_size, suppressed, held)
        self._uniforms = None if self._scan is None else self._scan.rows.uniforms

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
        token_ids, scores = self._survivors(logits, window, position)
        return Candidates(token_ids.clone(), scores.clone())

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
            candidates = self._scored(logits, window, position, 1)
        else:
            candidates = self._survivors(logits, window, position)
            if candidates.token_ids.numel() > 1:
                candidates = self._noisy(candidates, position, self.settings.seed)
        return _first(candidates)

    def ranked(
        self, logits: Tensor, window: Tensor, position: int, count: int, seed: int
    ) -> list[tuple[int, float]]:
        """The best tokens for a draft by the score that :meth:`choose` maximises, with their scores.

        A draft that knows the noise of the position proposes what the target will choose unless their
        logits differ by more than the gap to the runner-up (coupling, arXiv 2408.07978). Of equal scores the
        one that :meth:`choose` would take comes first.

        Args:
            logits, window, position: as in :meth:`choose`.
            count: most tokens to return.
            seed: of the noise; the settings' own for shared noise.
        """
        if self.settings.temperature == 0.0:
            return _best(self._scored(logits, window, position, count), count)
        return _best(self._noisy(self._survivors(logits, window, position), position, seed), count)

    def _noisy(self, candidates: Candidates, position: int, seed: int) -> Candidates:
        token_ids, scores = candidates
        return Candidates(token_ids, scores + gumbel(seed, position, token_ids, self._uniforms))

    def _survivors(self, logits: Tensor, window: Tensor, position: int) -> Candidates:
        """As :meth:`candidates`, maybe in room that the next call uses again."""
        settings = self.settings
        survivors = self._scored(logits, window, position, settings.top_k)
        if settings.top_k:
            survivors = keep_top_k(survivors, settings.top_k)
        if settings.top_p < 1.0:
            survivors = keep_top_p(survivors, settings.top_p)
        if settings.min_p > 0.0 and not (self._scan and self._scan.keeps_min_p):
            survivors = keep_min_p(survivors, settings.min_p)
        if settings.eta > 0.0:
            survivors = keep_eta(survivors, settings.eta)
        return survivors

    def _scored(self, logits: Tensor, window: Tensor, position: int, at_least: int) -> Candidates:
        """Tokens with their logits after suppression, penalty and temperature.

        All tokens; the compiled scan leaves out what min-p will drop, if that commutes, and what is not among
        the best ``at_least``, if that is not 0.
        """
        if self._scan is not None:
            if logits.dtype is not torch.float32:
                logits = logits.to(torch.float32)
            held = position < self.held_until
            best, token_ids, scores = self._scan.scan(logits.contiguous(), window, held, at_least)
            _require_finite(best, position)
            return Candidates(token_ids, scores)
        scores = self.penalized(logits, window, position)
        # ``max`` hands on NaN and +Inf, so the best score alone tells whether the row is usable.
        _require_finite(float(scores.max()), position)
        if self.settings.temperature not in (0.0, 1.0):
            scores.div_(self.settings.temperature)
        return Candidates(self._all_ids, scores)


class _CompiledScan:
    """The first part of the processing chain in compiled code.

    Attributes:
        keeps_min_p: whether min-p is part of it. Top-p comes before and needs all scores; top-k may as well
            come after.
        rows: the scan itself, which knows neither settings nor what is held.
    """

    def __init__(
        self,
        library: CDLL,
        settings: SamplingSettings,
        vocabulary_size: int,
        suppressed: Sequence[int],
        held: Sequence[int],
    ) -> None:
        self.keeps_min_p = settings.min_p > 0.0 and settings.top_p == 1.0
        greedy = settings.temperature == 0.0
        self.rows = RowScan(
            library,
            vocabulary_size,
            penalty=settings.penalty,
            temperature=1.0 if greedy else settings.temperature,
            log_min_p=math.log(settings.min_p) if self.keeps_min_p and not greedy else -math.inf,
        )
        self._suppressed = self.rows.mask(suppressed) if suppressed else None
        self._held = self.rows.mask(held) if held else None

    def scan(self, logits: Tensor, window: Tensor, held: bool, at_least: int) -> Scanned:
        """As :meth:`RowScan.__call__`, ``held`` telling which ids are suppressed."""
        return self.rows(logits, window, self._held if held else self._suppressed, at_least)


def _first(candidates: Candidates) -> int:
    """The id with the highest score; of equals the first."""
    token_ids, scores = candidates
    if scores.numel() > _FEW or not scores.is_cpu:
        return int(token_ids[scores.argmax()])
    values = scores.tolist()
    token_id: int = token_ids.tolist()[values.index(max(values))]
    return token_id


def _best(candidates: Candidates, count: int) -> list[tuple[int, float]]:
    """The ``count`` best, best first; of equals the one that comes first."""
    if candidates.scores.numel() > _FEW:
        candidates = keep_top_k(candidates, count)
    pairs = zip(candidates.token_ids.tolist(), candidates.scores.tolist(), strict=True)
    return sorted(pairs, key=itemgetter(1), reverse=True)[:count]


def _require_finite(best: float, position: int) -> None:
    if math.isfinite(best):
        return
    if best == -math.inf:
        raise NonFiniteLogitsError(
            f"No token can be chosen at position {position}: every logit is suppressed or -Inf. "
            "Check sampling.suppress_ids."
        )
    raise NonFiniteLogitsError(
        f"The model produced NaN or Inf at position {position}. What was checkpointed is kept; try "
        "another --dtype, or check the model's weights and its position limit."
    )
