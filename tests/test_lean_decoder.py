"""The lean decoder computes what the models' own code does, for every family and setting it takes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from llama_families import DEPTHS, IDS, MODELS, TREE, make, visibility
from models_in_memory import SHAPE
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tokenswift_cli.models import attention
from tokenswift_cli.models.attention import AttentionStep
from tokenswift_cli.models.decoder import SWITCH
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.lean import plan_store
from tokenswift_cli.models.lean.decoder import LeanDecoder
from tokenswift_cli.models.lean.plan import LinearPlan
from tokenswift_cli.models.target import Target


@pytest.fixture(params=list(MODELS))
def model(request):
    return make(request.param)


@pytest.fixture(scope="session")
def plans(tmp_path_factory):
    """Shared, so that each set of shapes is measured once."""
    return tmp_path_factory.mktemp("plans")


def passed(decoder: LeanDecoder, cache: KeyValueCache, ids: torch.Tensor, wanted: int | None = None):
    """A chain behind the cache."""
    offsets = torch.arange(len(ids))
    step = AttentionStep(cache, None, offsets)
    return decoder.forward(ids, offsets + cache.length, step, len(ids) if wanted is None else wanted)


def read(decoder: LeanDecoder, cache: KeyValueCache, count: int) -> None:
    """Prefill in pieces, the last ones odd."""
    while cache.length < count:
        piece = IDS[0, cache.length : min(cache.length + 333, count)]
        passed(decoder, cache, piece, 0)
        cache.length += len(piece)


@pytest.mark.parametrize("tolerance", [0.0, math.inf], ids=["fastest", "row-invariant"])
def test_logits_and_states_are_the_models_own(model, tolerance, plans):
    """Chains of several lengths behind a prefix, across segments and windows, and a last one alone."""
    with torch.inference_mode():
        # On a copy: asking for hidden states leaves hooks on a model.
        expected = copy.deepcopy(model)(IDS, output_hidden_states=True)
        decoder = LeanDecoder.of(model, packed=False, tolerance=tolerance, plans=plans)
        assert isinstance(decoder, LeanDecoder)
        cache = KeyValueCache(1300)
        read(decoder, cache, 1020)
        for rows in (1, 2, 3, 8, 40):
            position = cache.length
            logits, states = passed(decoder, cache, IDS[0, position : position + rows])
            wanted = expected.logits[0, position : position + rows]
            torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=2e-4)
            scale = decoder._final_scale
            own = expected.hidden_states[-1][0, position : position + rows]  # behind the final norm
            torch.testing.assert_close(decoder._norm(states, scale), own, rtol=1e-4, atol=2e-4)
            cache.length += rows
        last, _ = passed(decoder, cache, IDS[0, cache.length : cache.length + 5], 2)
        torch.testing.assert_close(
            last, expected.logits[0, cache.length + 3 : cache.length + 5], rtol=1e-4, atol=2e-4
        )


def test_a_tree_and_its_queries_are_those_of_the_generic_path(model, plans, monkeypatch):
    """Case 3: positions are depths; a partial cache gets the queries it needs, windows are reported."""
    monkeypatch.setenv(SWITCH, "generic")
    target = Target(copy.deepcopy(model), 400)
    target.read(IDS[0, :300].tolist())
    wanted_queries: dict[int, torch.Tensor] = {}
    wanted = target.verify(TREE.tolist(), DEPTHS.tolist(), visibility(), wanted_queries)
    decoder = LeanDecoder.of(model, packed=False, plans=plans)
    cache = KeyValueCache(400)
    queries: dict[int, torch.Tensor] = {}
    windows: set[int] = set()
    with torch.inference_mode():
        read(decoder, cache, 300)
        step = AttentionStep(cache, visibility(), DEPTHS, queries, windows)
        logits, states = decoder.forward(TREE, DEPTHS + 300, step, len(TREE))
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=2e-4)
    assert states.shape == (len(TREE), model.config.hidden_size)
    assert queries.keys() == wanted_queries.keys()
    for layer, rows in queries.items():
        torch.testing.assert_close(rows, wanted_queries[layer], rtol=1e-4, atol=2e-4)
    assert windows == target._windows
    for layer in range(cache.layers):
        torch.testing.assert_close(
            cache.keys(layer)[:, :306], target.cache.keys(layer)[:, :306], rtol=1e-4, atol=2e-4
        )


def test_packed_weights_change_the_logits_by_rounding_only(model, plans):
    """Against the same weights rounded to float16 beforehand: what is left is float32 rounding."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(module.weight.half().float())
    with torch.inference_mode():
        expected = model(IDS[:, :300]).logits[0]
        half = copy.deepcopy(model)
        for parameter in half.parameters():  # not the buffers: loading keeps the rotary ones in float32
            parameter.data = parameter.data.half()
        for loaded in (model, half):
            decoder = LeanDecoder.of(loaded, packed=True, plans=plans)
            assert isinstance(decoder, LeanDecoder), decoder
            cache = KeyValueCache(300)
            read(decoder, cache, 280)
            logits, states = passed(decoder, cache, IDS[0, 280:300])
            assert logits.dtype == states.dtype == torch.float32
            # The half model also rounded its embeddings, norms and biases.
            tolerance = 5e-4 if loaded is model else 2e-2
            torch.testing.assert_close(logits, expected[280:], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "packed"])
@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen 2", "qwen 3"])
def test_rows_round_alike_whatever_they_are_computed_with(name, packed, plans, monkeypatch):
    """All but the attention, which is replaced by something that has no rounding of its own."""

    def values_of_the_row(step, query, keys, values, start, rows, group, *rest):
        return values[:, start : start + rows].repeat(1, group, 1)

    monkeypatch.setattr(attention, "_attend", values_of_the_row)
    decoder = LeanDecoder.of(make(name), packed=packed, tolerance=math.inf, plans=plans)
    if not decoder.plan.row_invariant:
        pytest.skip("this machine has no kernel that rounds rows alike")
    with torch.inference_mode():
        cache = KeyValueCache(400)
        together, states = passed(decoder, cache, IDS[0, :300])
        for rows in (1, 2, 3, 5, 7, 11, 13, 31, 64, 65, 129):
            first = 0
            while first < 140:
                cache.length = first
                logits, some = passed(decoder, cache, IDS[0, first : first + rows])
                assert torch.equal(logits, together[first : first + rows])
                assert torch.equal(some, states[first : first + rows])
                first += rows


def test_the_model_still_runs_where_its_weights_became_views(tmp_path, monkeypatch):
    """Fusing takes no second copy: the model's parameters lie inside the fused storage."""
    monkeypatch.setattr(plan_store, "make_plan", lambda shapes, *_: all_by("rows", shapes))
    model = make("llama with biases")
    with torch.inference_mode():
        expected = model(IDS[:, :50]).logits
    decoder = LeanDecoder.of(model, packed=False, plans=tmp_path)
    layer, bound = model.model.layers[1], decoder._layers[1]
    assert layer.self_attn.q_proj.weight.data_ptr() == bound.query_key_value.matrix.data_ptr()
    for parts, linear in (
        ((layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj), bound.query_key_value),
        ((layer.mlp.gate_proj, layer.mlp.up_proj), bound.gate_up),
    ):
        storage = linear.matrix.untyped_storage()
        assert all(part.weight.untyped_storage().data_ptr() == storage.data_ptr() for part in parts)
    with torch.inference_mode():
        assert torch.equal(model(IDS[:, :50]).logits, expected)


def test_opaque_storage_leaves_nothing_behind_that_could_be_used_by_mistake(plans):
    model = make("llama tied")
    LeanDecoder.of(model, packed=True, plans=plans)
    assert model.model.layers[0].mlp.down_proj.weight.numel() == 0
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with pytest.raises(RuntimeError):
        model(IDS[:, :5])


def all_by(name, shapes):
    return LinearPlan({shape: ((1, name),) for shape in shapes}, ())


class OtherNorm(nn.Module):
    def forward(self, rows):
        return rows


def broken_models():
    config = SHAPE
    yield "GPT2LMHeadModel", GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4))
    yield "activation is gelu", LlamaForCausalLM(LlamaConfig(**config, hidden_act="gelu"))
    yield "pretraining_tp is 2", LlamaForCausalLM(LlamaConfig(**config, pretraining_tp=2))
    yield "training mode", LlamaForCausalLM(LlamaConfig(**config)).train()
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.model.layers[1].mlp.half()
    yield "more than one dtype", model
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.model.layers[0].input_layernorm = OtherNorm()
    yield r"model\.layers\.0\.input_layernorm is a OtherNorm", model
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: None)
    yield "hooks attached", model


@pytest.mark.parametrize(("words", "model"), list(broken_models()), ids=lambda v: v if type(v) is str else "")
def test_anything_unknown_is_left_to_the_generic_path(words, model, plans):
    import re

    if words != "training mode":
        model.eval()
    before = {key: value.data_ptr() for key, value in model.named_parameters()}
    reason = LeanDecoder.of(model, packed=False, plans=plans)
    assert isinstance(reason, str) and re.search(words, reason), reason
    assert {key: value.data_ptr() for key, value in model.named_parameters()} == before


def test_a_plan_is_measured_once_and_damage_is_repaired(tmp_path, monkeypatch):
    """A text must not be rounded in two ways because the clock ran differently."""
    calls = []
    real = plan_store.make_plan
    monkeypatch.setattr(plan_store, "make_plan", lambda *given: calls.append(1) or real(*given))
    first = LeanDecoder.of(make("llama"), packed=False, plans=tmp_path).plan
    assert LeanDecoder.of(make("llama"), packed=False, plans=tmp_path).plan == first
    assert len(calls) == 1
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    LeanDecoder.of(make("llama"), packed=False, plans=tmp_path)
    assert len(calls) == 2
