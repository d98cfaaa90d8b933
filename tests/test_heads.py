"""The heads' formulas, and the output layer and embeddings they share with the target."""

from __future__ import annotations

import math

import pytest
import torch
from heads_in_memory import random_heads
from hypothesis import given, settings
from hypothesis import strategies as st
from models_in_memory import tiny_llama as make_llama
from torch.nn import functional
from transformers import LlamaForCausalLM, OPTConfig, OPTForCausalLM, PhiConfig, PhiForCausalLM

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models.heads import (
    VARIANTS,
    DraftHeads,
    Head,
    HeadsOutput,
    HeadsShape,
    capturing,
    final_norm_of,
    new_heads,
)

SIZE = 8
EPS = 1e-3


def rms(vector: list[float], weight: list[float]) -> list[float]:
    size = math.sqrt(sum(x * x for x in vector) / len(vector) + EPS)
    return [w * x / size for x, w in zip(vector, weight, strict=True)]


def times(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [sum(m * x for m, x in zip(row, vector, strict=True)) for row in matrix]


def by_hand(head: Head, state: list[float], embedding: list[float] | None) -> tuple[list[float], list[float]]:
    """One head as the formula of the paper, number by number."""
    inner = rms(state, head.input_layernorm.weight.tolist())
    if embedding is not None:
        token = rms(embedding, head.token_layernorm.weight.tolist())
        mixed = times(head.mix.weight.tolist(), inner + token)
        inner = [u / (1 + math.exp(-u)) for u in mixed]
    after = [h + d for h, d in zip(state, times(head.linear.weight.tolist(), inner), strict=True)]
    return after, rms(after, head.post_layernorm.weight.tolist())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_chain_computes_the_formula(variant: str) -> None:
    heads = random_heads(HeadsShape(3, SIZE, variant, EPS))
    state = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    tokens = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2))
    expected = state.tolist()
    for index in range(3):
        token = tokens[index] if variant == "conditioned" else None
        state, normed = heads.step(index, state, token)
        expected, expected_normed = by_hand(
            heads.heads[index], expected, None if token is None else token.tolist()
        )
        torch.testing.assert_close(state, torch.tensor(expected), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(normed, torch.tensor(expected_normed), rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(VARIANTS),
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_rows_do_not_see_each_other(variant: str, lead: list[int], dtype: torch.dtype) -> None:
    """Any leading dimensions, any type of state: each row is what it is alone."""
    heads = random_heads(HeadsShape(1, SIZE, variant, EPS))
    state, token = torch.randn(2, *lead, SIZE).to(dtype)
    after, normed = heads.step(0, state, token if variant == "conditioned" else None)
    assert after.shape == normed.shape == state.shape
    assert after.dtype == normed.dtype == torch.float32
    alone, _ = heads.step(
        0, state.reshape(-1, SIZE)[0], token.reshape(-1, SIZE)[0] if variant == "conditioned" else None
    )
    torch.testing.assert_close(after.reshape(-1, SIZE)[0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_untrained_head_repeats_what_the_target_predicts(
    tiny_llama: LlamaForCausalLM, variant: str
) -> None:
    heads = new_heads(tiny_llama, 3, variant)
    assert heads.shape == HeadsShape(3, 64, variant, tiny_llama.config.rms_norm_eps)
    assert {parameter.dtype for parameter in heads.parameters()} == {torch.float32}
    output = HeadsOutput(tiny_llama, heads)
    ids = torch.arange(7)[None]
    with torch.no_grad(), capturing(final_norm_of(tiny_llama)) as states:
        logits = tiny_llama(input_ids=ids, use_cache=False).logits
    (state,) = states
    first = state
    for index in range(3):
        state, normed = heads.step(index, state, output.embed(ids) if variant == "conditioned" else None)
        torch.testing.assert_close(output.logits(normed), logits)
    assert torch.equal(state, first)


def test_a_head_learns_through_the_zero_it_starts_at() -> None:
    for variant in VARIANTS:
        heads = DraftHeads(HeadsShape(1, SIZE, variant))
        token = torch.randn(4, SIZE) if variant == "conditioned" else None
        _, normed = heads.step(0, torch.randn(4, SIZE), token)
        normed[:, 0].sum().backward()
        assert heads.heads[0].linear.weight.grad.abs().max() > 0


def test_the_restricted_output_is_rows_of_the_whole(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.tensor([0, 7, 30, 255], dtype=torch.int32)
    shape = HeadsShape(1, 64, "linear")
    whole = HeadsOutput(tiny_llama, DraftHeads(shape))
    some = HeadsOutput(tiny_llama, DraftHeads(shape, ids))
    normed = torch.randn(2, 5, 64)
    assert whole.token_ids is None
    assert some.token_ids is not None and some.token_ids.tolist() == ids.tolist()
    assert some.token_ids.dtype == torch.int64
    assert whole.weight.data_ptr() == tiny_llama.lm_head.weight.data_ptr()  # no copy of a large matrix
    torch.testing.assert_close(whole.logits(normed), tiny_llama.lm_head(normed))
    torch.testing.assert_close(some.logits(normed), whole.logits(normed)[..., ids.long()])
    assert torch.equal(whole.embed(torch.tensor([[3, 4]])), tiny_llama.model.embed_tokens.weight[3:5][None])


def test_logits_are_float32_whatever_the_model_computes_in() -> None:
    model = make_llama().to(torch.bfloat16)
    heads = new_heads(model, 1, "conditioned")
    output = HeadsOutput(model, heads)
    _, normed = heads.step(0, torch.randn(64, dtype=torch.bfloat16), output.embed(torch.tensor(5)))
    assert output.logits(normed).dtype == torch.float32
    assert output.weight.dtype == torch.bfloat16


def test_a_bias_of_the_output_layer_counts() -> None:
    torch.manual_seed(0)
    model = PhiForCausalLM(
        PhiConfig(
            vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
    ).eval()
    with torch.no_grad():
        model.lm_head.bias.normal_()
    normed = torch.randn(16)
    ids = torch.tensor([1, 39])
    output = HeadsOutput(model, DraftHeads(HeadsShape(1, 16), ids))
    torch.testing.assert_close(output.logits(normed), model.lm_head(normed)[ids])
    assert output.bias is not None
    torch.testing.assert_close(functional.linear(normed, output.weight, output.bias), output.logits(normed))


@pytest.mark.parametrize(
    "values",
    [
        {"count": 0},
        {"count": 65},
        {"count": True},
        {"count": 3.0},
        {"hidden_size": 0},
        {"hidden_size": 1 << 21},
        {"variant": "medusa"},
        {"norm_eps": 0.0},
        {"norm_eps": math.nan},
        {"norm_eps": math.inf},
        {"norm_eps": "1e-5"},
    ],
)
def test_nonsense_is_no_shape(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=name):
        HeadsShape(**({"count": 3, "hidden_size": 8} | values))


@pytest.mark.parametrize("ids", [[], [3, 3], [4, 2], [-1, 2], [[1, 2]], [0.5, 1.0]], ids=lambda ids: str(ids))
def test_nonsense_is_no_draft_vocabulary(ids: list[object]) -> None:
    with pytest.raises(ValueError, match="draft vocabulary"):
        DraftHeads(HeadsShape(1, 8), torch.tensor(ids, dtype=None if ids else torch.int64))


def test_step_refuses_what_it_would_ignore() -> None:
    linear, conditioned = (DraftHeads(HeadsShape(2, SIZE, variant)) for variant in VARIANTS)
    state = torch.zeros(SIZE)
    with pytest.raises(ValueError, match="needs a token embedding"):
        conditioned.step(0, state, None)
    with pytest.raises(ValueError, match="does not take"):
        linear.step(0, state, state)
    for index in (-1, 2):
        with pytest.raises(ValueError, match="no head"):
            linear.step(index, state, None)
    with pytest.raises(ValueError, match="final_norm"):
        DraftHeads(HeadsShape(2, SIZE), final_norm=torch.ones(SIZE + 1))


def test_an_output_that_does_not_fit_is_refused(tiny_llama: LlamaForCausalLM) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM has no output matrix .* width 32"):
        HeadsOutput(tiny_llama, DraftHeads(HeadsShape(1, 32)))
    with pytest.raises(ValueError, match="256"):
        HeadsOutput(tiny_llama, DraftHeads(HeadsShape(1, 64), torch.tensor([0, 256])))


def test_embeddings_of_another_width_leave_the_linear_variant() -> None:
    config = OPTConfig(
        vocab_size=40, hidden_size=16, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2,
        word_embed_proj_dim=8,
    )  # fmt: skip
    model = OPTForCausalLM(config)
    model.lm_head = torch.nn.Linear(16, 40, bias=False)
    HeadsOutput(model, DraftHeads(HeadsShape(1, 16, "linear")))
    with pytest.raises(UnsupportedModelError, match="linear"):
        HeadsOutput(model, DraftHeads(HeadsShape(1, 16, "conditioned")))
