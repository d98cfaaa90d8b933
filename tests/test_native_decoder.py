"""The compiled pass computes what the models' own code does, and a row's bits depend on nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from llama_families import DEPTHS, IDS, MODELS, TREE, make, visibility
from models_in_memory import SHAPE
from quantized_gguf import write_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tokenswift_cli.config import ModelConfig
from tokenswift_cli.models import native_decoder
from tokenswift_cli.models.attention import AttentionStep
from tokenswift_cli.models.decoder import SWITCH
from tokenswift_cli.models.gguf_blocks import Blocks
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.loading import load_model
from tokenswift_cli.models.native_decoder import NativeDecoder, joined_blocks
from tokenswift_cli.models.target import Target
from tokenswift_cli.native.attention import load

pytestmark = pytest.mark.skipif(load().kernel is None, reason=load().description)


@pytest.fixture(params=list(MODELS))
def model(request):
    return make(request.param)


def decoder_of(model, keep_model=True) -> NativeDecoder:
    decoder = NativeDecoder.of(model, load().kernel, None, keep_model)
    assert isinstance(decoder, NativeDecoder), decoder
    return decoder


@torch.inference_mode()
def passed(decoder, cache: KeyValueCache, ids: torch.Tensor, wanted: int | None = None):
    """A chain behind the cache."""
    offsets = torch.arange(len(ids))
    step = AttentionStep(cache, None, offsets)
    return decoder.forward(ids, offsets + cache.length, step, len(ids) if wanted is None else wanted)


def read(decoder, cache: KeyValueCache, count: int) -> None:
    """Prefill in pieces, longer than what is computed at once, the last ones odd."""
    while cache.length < count:
        piece = IDS[0, cache.length : min(cache.length + 333, count)]
        passed(decoder, cache, piece, 0)
        cache.length += len(piece)


def test_logits_and_states_are_the_models_own(model):
    """Chains of several lengths behind a prefix, across segments and windows, and some last rows alone."""
    with torch.inference_mode():
        # On a copy: asking for hidden states leaves hooks on a model.
        expected = copy.deepcopy(model)(IDS, output_hidden_states=True)
    decoder = decoder_of(model)
    cache = KeyValueCache(1300)
    read(decoder, cache, 1000)
    for rows in (1, 2, 3, 8, 40, 200):
        position = cache.length
        logits, states = passed(decoder, cache, IDS[0, position : position + rows])
        wanted = expected.logits[0, position : position + rows]
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=2e-4)
        own = expected.hidden_states[-1][0, position : position + rows]  # behind the final norm
        with torch.inference_mode():
            torch.testing.assert_close(model.model.norm(states), own, rtol=1e-4, atol=2e-4)
        cache.length += rows
    cache.length = 1000
    last, _ = passed(decoder, cache, IDS[0, 1000:1290], 150)  # from two pieces
    torch.testing.assert_close(last, expected.logits[0, 1140:1290], rtol=1e-4, atol=2e-4)


def test_a_tree_and_its_queries_are_those_of_the_generic_path(model, monkeypatch):
    """Case 3: positions are depths; a partial cache gets the queries it needs, windows are reported."""
    monkeypatch.setenv(SWITCH, "generic")
    target = Target(copy.deepcopy(model), 400)
    target.read(IDS[0, :300].tolist())
    wanted_queries: dict[int, torch.Tensor] = {}
    wanted = target.verify(TREE.tolist(), DEPTHS.tolist(), visibility(), wanted_queries)
    decoder = decoder_of(model)
    cache = KeyValueCache(400)
    queries: dict[int, torch.Tensor] = {}
    windows: set[int] = set()
    read(decoder, cache, 300)
    with torch.inference_mode():
        step = AttentionStep(cache, visibility(), DEPTHS, queries, windows)
        logits, _ = decoder.forward(TREE, DEPTHS + 300, step, len(TREE))
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=2e-4)
    assert queries.keys() == wanted_queries.keys()
    for layer, rows in queries.items():
        assert rows.shape == wanted_queries[layer].shape
        torch.testing.assert_close(rows, wanted_queries[layer], rtol=1e-4, atol=2e-4)
    assert windows == target._windows
    for layer in range(cache.layers):
        torch.testing.assert_close(
            cache.keys(layer)[:, :306], target.cache.keys(layer)[:, :306], rtol=1e-4, atol=2e-4
        )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kv_dtype", [None, torch.float16])
@pytest.mark.parametrize("name", ["llama", "mistral with a window", "qwen 3"])
def test_a_row_has_the_same_bits_whatever_is_computed_with_it(name, kv_dtype, threads):
    """One token at a time, in pieces of any size, and as a tree: logits, states, keys and values."""
    decoder = decoder_of(make(name))
    whole = KeyValueCache(800, kv_dtype)
    torch.set_num_threads(threads)
    logits, states = passed(decoder, whole, IDS[0, :700])
    torch.set_num_threads(3 - threads)
    cache = KeyValueCache(800, kv_dtype)
    sizes = [1, 2, 3, 5, 8, 13, 40, 100, 200, 1, 327]
    for rows in sizes:
        first = cache.length
        some, own = passed(decoder, cache, IDS[0, first : first + rows])
        assert torch.equal(some, logits[first : first + rows]), (first, rows)
        assert torch.equal(own, states[first : first + rows]), (first, rows)
        cache.length += rows
    for layer in range(cache.layers):
        assert torch.equal(cache.keys(layer)[:, :700], whole.keys(layer)[:, :700])
        assert torch.equal(cache.values(layer)[:, :700], whole.values(layer)[:, :700])
    # Each path of the tree, read alone.
    cache.length = 600
    with torch.inference_mode():
        step = AttentionStep(cache, visibility(), DEPTHS)
        tree, _ = decoder.forward(TREE, DEPTHS + 600, step, len(TREE))
        for node in range(len(TREE)):
            path = visibility()[node].nonzero().squeeze(1)
            alone, _ = passed(decoder, cache, TREE[path])
            assert torch.equal(alone[-1], tree[node])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_weights_compute_in_float32_and_are_kept_short(dtype):
    """The same model as its float32 form, whose weights are stored short because nothing is lost."""
    torch.manual_seed(0)
    short = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype).eval()
    single = copy.deepcopy(short).float()
    one, other = decoder_of(short), decoder_of(single)
    assert one.weight_bytes == other.weight_bytes
    assert str(dtype).removeprefix("torch.") in one.description
    logits, _ = passed(one, KeyValueCache(64), IDS[0, :64])
    same, _ = passed(other, KeyValueCache(64), IDS[0, :64])
    assert torch.equal(logits, same)
    with torch.inference_mode():
        torch.testing.assert_close(logits, single(IDS[:, :64]).logits[0], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_quantized_matrices_stay_as_they_are_stored(architecture, tied, tmp_path, monkeypatch):
    """All types mixed, so that matrices that are computed as one come in different blocks."""
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))
    types = ("Q4_1", "Q6_K", "Q8_0", "Q4_K", "Q5_1", "Q2_K", "Q4_0")
    path = write_model(tmp_path / "tiny.gguf", architecture, types, tied)
    monkeypatch.setattr("tokenswift_cli.models.loading._load_tokenizer", lambda *given: _Tokenizer())
    monkeypatch.setattr("tokenswift_cli.models.loading.tokenizer_fingerprint", lambda tokenizer: "")
    monkeypatch.setattr("tokenswift_cli.models.loading.require_tokenizer_files", lambda *given: None)
    monkeypatch.setattr("tokenswift_cli.models.gguf_conversion.tokenizer_fingerprint", lambda tokenizer: "")
    loaded = _load(path, monkeypatch)
    with torch.inference_mode():
        expected = loaded.model(input_ids=IDS[:, :40] % 96, use_cache=False).logits[0]
    target = Target(loaded.model, 64, gguf=loaded.gguf, keep_model=False)
    assert "blocks" in target.path and "float32" not in target.path
    assert loaded.model.model.layers[0].mlp.up_proj.weight.numel() == 0
    actual = target.verify((IDS[0, :40] % 96).tolist())
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


class _Tokenizer:
    eos_token_id = None
    chat_template = None

    def save_pretrained(self, directory):
        pass


def _load(path, monkeypatch):
    """A model file without a tokenizer, through the loader."""
    from transformers import AutoTokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *given, **keywords: _Tokenizer())
    return load_model(ModelConfig(name=str(path), device="cpu"), lambda message: None)


def test_blocks_of_different_kinds_are_joined_exactly():
    """4 and 8 bits, blocks of 16 and 32, with and without minima: the values are the parts' own."""
    generator = torch.Generator().manual_seed(0)

    def part(bits, block, minima):
        levels = torch.randint(0, 16, (3, 64), generator=generator)
        factors = [torch.rand((3, 64 // block), generator=generator) for _ in range(2)]
        dtype = torch.uint8 if bits == 4 else torch.int8
        return Blocks(levels.to(dtype), factors[0], factors[1] if minima else None, block, bits)

    kinds = [(4, 32, True), (4, 16, True), (8, 32, False), (8, 16, True)]
    for kind in kinds:
        for other in kinds:
            parts = [part(*kind), part(*other)]
            joined = joined_blocks(parts)
            assert torch.equal(joined.values(), torch.cat([single.values() for single in parts]))


def test_the_models_own_code_runs_afterwards_only_if_it_was_kept():
    """Memory: the matrices of the layers are freed as they are packed, unless somebody still needs them."""
    kept, emptied = make("llama tied"), make("llama tied")
    decoder_of(kept)
    decoder_of(emptied, keep_model=False)
    assert kept.model.layers[1].mlp.down_proj.weight.numel() > 0
    assert emptied.model.layers[1].mlp.down_proj.weight.numel() == 0
    assert emptied.lm_head.weight.numel() > 0


def test_other_families_are_not_taken():
    """The reason names the model."""
    reason = NativeDecoder.of(
        GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2)).eval(), load().kernel, None, True
    )
    assert isinstance(reason, str) and "GPT2LMHeadModel" in reason


def test_long_prefixes_are_read_in_smaller_pieces(monkeypatch):
    """The workspace is bounded; the result does not change by a bit."""
    decoder = decoder_of(make("llama"))
    logits, _ = passed(decoder, KeyValueCache(200), IDS[0, :200])
    monkeypatch.setattr(native_decoder, "_WORKSPACE_BYTES", 1)
    assert decoder._most_rows(200) == 16
    again, _ = passed(decoder, KeyValueCache(200), IDS[0, :200])
    assert torch.equal(logits, again)


def test_instruction_sets_give_the_same_bits():
    """AVX2 and AVX-512, so that a text does not depend on the processor's age."""
    decoder = decoder_of(make("qwen 3"))
    given = decoder._kernel._pass
    best = given.instructions
    if best < 2:
        pytest.skip("this processor has one of them only")
    logits, _ = passed(decoder, KeyValueCache(200), IDS[0, :200])
    given.instructions = best - 1
    older, _ = passed(decoder, KeyValueCache(200), IDS[0, :200])
    assert torch.equal(logits, older)
