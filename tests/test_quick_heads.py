"""Heads over short matrices guess what the heads themselves guess."""

from __future__ import annotations

import pytest
import torch
from heads_in_memory import random_heads
from models_in_memory import tiny_llama

from tokenswift_cli.models import quick_heads
from tokenswift_cli.models.heads import VARIANTS, DraftHeads, HeadsOutput, HeadsShape
from tokenswift_cli.models.quick_heads import HeadRunner
from tokenswift_cli.native.attention import Loaded, load

pytestmark = pytest.mark.skipif(load().kernel is None, reason=load().description)


def chain(step, state: torch.Tensor, embeddings: torch.Tensor | None) -> torch.Tensor:
    """[heads, R], the scores of a chain of three heads."""
    scores = []
    for index in range(3):
        state, row = step(index, state, None if embeddings is None else embeddings[index])
        scores.append(row)
    return torch.stack(scores)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("vocabulary", [None, torch.arange(0, 256, 3)])
def test_scores_are_those_of_the_heads_but_for_rounding(variant, vocabulary, monkeypatch):
    model = tiny_llama()
    with torch.no_grad():
        heads: DraftHeads = random_heads(HeadsShape(3, 64, variant))
        heads = DraftHeads(heads.shape, vocabulary)
        heads.load_state_dict(random_heads(heads.shape).state_dict(), strict=False)
        output = HeadsOutput(model, heads)
        generator = torch.Generator().manual_seed(3)
        state = torch.randn(64, generator=generator)
        embeddings = torch.randn(3, 64, generator=generator) if variant == "conditioned" else None
        quick = chain(HeadRunner(heads, output).run, state, embeddings)
        monkeypatch.setattr(quick_heads, "load", lambda: Loaded(None, "off"))
        plain = chain(HeadRunner(heads, output).run, state, embeddings)
    assert quick.shape == plain.shape == (3, 256 if vocabulary is None else len(vocabulary))
    assert not torch.equal(quick, plain)  # they are two ways
    assert float((quick - plain).abs().max()) < 0.02 * float(plain.abs().max())


def test_weights_beyond_float16_are_kept_as_they_are():
    weight = torch.tensor([[1e6, 1.0]])
    assert torch.equal(quick_heads._short(weight), weight)
    assert quick_heads._short(weight / 100).dtype == torch.float16
