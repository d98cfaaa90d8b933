"""A token that the model does not choose, and how close it came."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from tokenswift_cli.engine.sampling import Sampler

# Two right computations of the same logits differ by less than this share of the largest one.
_ROUNDING_FLOAT32 = 1e-4
_ROUNDING_16_BIT = 1e-2


@dataclass(frozen=True)
class Mismatch:
    """The token at ``position`` and the one that the model chooses there.

    Attributes:
        position: among the generated tokens, from 0.
        token: id in tokens.bin.
        chosen: id that the recomputation chooses.
        margin: score of ``chosen`` minus score of ``token``, both with their noise, truncation left aside (it
            can be negative where that alone excludes ``token``); None where ``token`` is suppressed, held
            back or not in the vocabulary.
        rank: place of ``token`` among the candidates, ``chosen`` being 1; None where it is none.
        candidates: number of tokens that survive truncation.
        near: a difference such as rounding makes would turn the choice to ``token``.
    """

    position: int
    token: int
    chosen: int
    margin: float | None
    rank: int | None
    candidates: int
    near: bool


def measure_mismatch(
    sampler: Sampler,
    logits: Tensor,
    window: Tensor,
    absolute: int,
    *,
    position: int,
    token: int,
    chosen: int,
) -> Mismatch:
    """How far ``token`` is from being chosen.

    Args:
        sampler: made the choice.
        logits, window: as it got them.
        absolute: the position, prompt included.
        position: the same, generated tokens only.
        token: in the text; may lie outside the vocabulary.
        chosen: by ``sampler``.
    """
    size = logits.shape[-1]
    best = sampler.ranked(logits, window, absolute, size, sampler.settings.seed)
    candidates = [token_id for token_id, score in best if score > -math.inf]
    known = token < size
    return Mismatch(
        position,
        token,
        chosen,
        margin=_margin(sampler, logits, window, absolute, token, chosen) if known else None,
        rank=candidates.index(token) + 1 if token in candidates else None,
        candidates=len(candidates),
        near=known and sampler.choose(_nudged(logits, token, chosen), window, absolute) == token,
    )


def _margin(
    sampler: Sampler, logits: Tensor, window: Tensor, absolute: int, token: int, chosen: int
) -> float | None:
    import torch

    from tokenswift_cli.engine.noise import gumbel

    settings = sampler.settings
    both = torch.tensor([chosen, token], device=logits.device)
    scores = sampler.penalized(logits, window, absolute)[both]
    if settings.temperature > 0:
        scores = scores / settings.temperature + gumbel(settings.seed, absolute, both)
    margin = float(scores[0] - scores[1])
    return margin if math.isfinite(margin) else None


def _nudged(logits: Tensor, token: int, chosen: int) -> Tensor:
    """``logits`` with those of two tokens moved by what rounding can do, in favour of ``token``."""
    import torch

    share = _ROUNDING_FLOAT32 if logits.dtype == torch.float32 else _ROUNDING_16_BIT
    nudged = logits.to(torch.float32, copy=True)
    step = share * float(nudged[nudged.isfinite()].abs().max())
    nudged[token] += step
    nudged[chosen] -= step
    return nudged
