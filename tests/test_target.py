"""The target computes the model's own logits through our cache, or refuses by name."""

from __future__ import annotations

import pytest
import torch
from models_in_memory import SHAPE, tiny_llama, tiny_mistral
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    JambaConfig,
    JambaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
)

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models import attention
from tokenswift_cli.models.target import Target

IDS = torch.randint(256, (1, 2600), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["llama", "mistral"])
def model(request, path):
    return tiny_llama() if request.param == "llama" else tiny_mistral(sliding_window=100)


@pytest.mark.parametrize("start", [1, 900, 1024, 2300])
def test_logits_after_chunked_prefill_equal_one_stock_forward(model, start):
    with torch.inference_mode():
        expected = model(IDS).logits[0]
    target = Target(model, 2600)
    for first in range(0, start, 400):
        target.read(IDS[0, first : min(first + 400, start)].tolist())
    for rows in (1, 2, 3, 8, 40):
        position = target.cache.length
        actual = target.verify(IDS[0, position : position + rows].tolist())
        torch.testing.assert_close(actual, expected[position : position + rows], rtol=1e-4, atol=1e-4)
        target.commit(range(rows))


def test_tree_positions_are_depths(model):
    """Case 3: each branch of a tree gets the logits of that branch read alone."""
    target = Target(model, 400)
    target.read(IDS[0, :300].tolist())
    tokens, parents = [5, 6, 7, 8, 9, 10], [-1, 0, 0, 2, 1, 3]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    visible = torch.eye(len(tokens), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            visible[row] |= visible[parent]
    actual = target.verify(tokens, depths, visible)
    for node in range(len(tokens)):
        path, at = [], node
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        with torch.inference_mode():
            model.set_attn_implementation("sdpa")
            alone = model(torch.cat([IDS[:, :300], torch.tensor([path])], dim=1)).logits[0, -1]
            model.set_attn_implementation(attention.NAME)
        torch.testing.assert_close(actual[node], alone, rtol=1e-4, atol=1e-4)


def test_committing_a_branch_leaves_its_rows_in_order(model):
    target = Target(model, 400)
    target.read(IDS[0, :150].tolist())
    visible = torch.eye(4, dtype=torch.bool)
    visible[:, 0] = True
    visible[3, 2] = True
    target.verify([5, 6, 7, 8], [0, 1, 1, 2], visible)
    target.commit([0, 2, 3])
    after = target.verify([9])
    fresh = Target(model, 400)
    fresh.read([*IDS[0, :150].tolist(), 5, 7, 8])
    torch.testing.assert_close(after, fresh.verify([9]), rtol=1e-4, atol=1e-4)


def test_portable_attention_equals_the_cpu_kernel(monkeypatch):
    """The path for other devices, forced on the CPU, with pieces of one row."""
    model = tiny_llama()
    target = Target(model, 1500)
    target.read(IDS[0, :1300].tolist())
    expected = target.verify([5, 6, 7])
    monkeypatch.setattr(attention, "_MAX_SCORES", 1)
    monkeypatch.setattr(attention, "_attention_part", attention._portable_attention_part)
    torch.testing.assert_close(target.verify([5, 6, 7]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["lean", "torch"], indirect=True)
def test_a_model_that_computes_something_else_is_refused(path, monkeypatch):
    """Case 32's net: whatever a family does differently shows in the check of the logits."""
    model = tiny_llama()
    stock = attention._attend

    def wrong(step, query, keys, values, *rest):
        return stock(step, query, keys, values.roll(1, dims=1), *rest)

    monkeypatch.setattr(attention, "_attend", wrong)
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM"):
        Target(model, 10)


def test_cache_memory_is_preallocated_and_linear():
    """Case 13: bytes per token are constant and nothing is concatenated."""
    target = Target(tiny_llama(), 1000)
    assert target.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, size, float32
    target.read(IDS[0, :100].tolist())
    before = [target.cache.keys(layer).data_ptr() for layer in range(2)]
    target.read(IDS[0, 100:900].tolist())
    assert [target.cache.keys(layer).data_ptr() for layer in range(2)] == before
    assert target.cache.used_bytes == 900 * target.kv_bytes_per_token


def other_models():
    shape = {key: value for key, value in SHAPE.items() if key != "tie_word_embeddings"}
    yield DogeForCausalLM, DogeConfig(**shape, sliding_window=50), "window of 50"
    yield (
        Llama4ForCausalLM,
        Llama4TextConfig(**shape, head_dim=16, intermediate_size_mlp=128),
        "chunked_attention",
    )
    yield Lfm2ForCausalLM, Lfm2Config(**shape, layer_types=["conv", "full_attention"]), "conv"
    jamba = JambaConfig(**shape, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False)
    yield JambaForCausalLM, jamba, "only|layers"


@pytest.mark.parametrize(
    ("model_class", "config", "words"), list(other_models()), ids=lambda v: getattr(v, "__name__", "")
)
def test_state_outside_the_attention_is_refused_by_name(model_class, config, words):
    """Case 32: windows that exist only in a mask, chunks, convolutions, state spaces."""
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModelError, match=rf"{model_class.__name__}.*({words})"):
        Target(model_class(config).eval(), 10)


def test_learned_positions_up_to_the_very_last(monkeypatch):
    """The planner's probes stay inside the model's positions, and so do drafts."""
    from tokenswift_cli.engine import engine as engine_module
    from tokenswift_cli.engine import probes
    from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings

    monkeypatch.setattr(probes, "_INTERVAL", 8)
    monkeypatch.setattr(probes, "_SHORTEST", 2)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=128)
    model = GPT2LMHeadModel(config).eval()
    texts = []
    for method in ("autoregressive", "auto"):
        engine = engine_module.Engine(Target(model, 128), SamplingSettings(), DraftingSettings(method=method))
        list(engine.prefill(IDS[0, :40].tolist(), 40))
        texts.append([token for step in engine.steps(88) for token in step.tokens])
    assert len(texts[0]) == 88 and texts[0] == texts[1]
