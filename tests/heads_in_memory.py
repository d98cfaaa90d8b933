"""Drafting heads with random weights, made in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenswift_cli.models.heads import DraftHeads, HeadsShape


def random_heads(shape: HeadsShape, vocabulary: Tensor | None = None, seed: int = 0) -> DraftHeads:
    """Heads none of whose weights are where training starts."""
    heads = DraftHeads(shape, vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return heads
