"""Keys and values stored as float16: half the memory, one text for all methods, and no silent overflow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_in_memory import tiny_llama, tiny_mistral
from tiny_model_directory import save_tiny_model

from tokenswift_cli.config import Config, GenerationConfig, ModelConfig, RunConfig
from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.errors import ConfigError, ModelError, PreflightError, ResumeRefusedError
from tokenswift_cli.models import attention
from tokenswift_cli.models.attention import AttentionStep
from tokenswift_cli.models.kv_cache import GROWTH_TOKENS, KeyValueCache
from tokenswift_cli.models.kv_range import OverflowFinder
from tokenswift_cli.models.partial_cache import PartialCache
from tokenswift_cli.models.target import Target
from tokenswift_cli.options import resolve, resolve_resume
from tokenswift_cli.prompt_input import PromptText
from tokenswift_cli.runner import generate, resume
from tokenswift_cli.training.configuration import resolve_training
from tokenswift_cli.yaml_config import load_run_yaml

HALF = torch.float16
PROMPT = [(i * 37) % 256 for i in range(40)]
SAMPLING = SamplingSettings(seed=5, min_p=0.05)


def random_rows(count, seed=0, heads=2, size=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, count, size, generator=generator)


def filled(count, dtype=HALF, layers=2, capacity=None):
    cache = KeyValueCache(capacity or count, dtype)
    for layer in range(layers):
        cache.write(layer, random_rows(count, 2 * layer), random_rows(count, 2 * layer + 1))
    cache.commit(range(count))
    return cache


# The store.


def test_half_the_bytes_and_the_nearest_float16():
    whole, half = filled(100, None), filled(100)
    assert whole.dtype == torch.float32 and half.dtype == HALF
    assert half.bytes_per_token * 2 == whole.bytes_per_token
    assert half.used_bytes * 2 == whole.used_bytes
    for layer in range(2):
        assert torch.equal(half.keys(layer)[:, :100], whole.keys(layer)[:, :100].half())
        assert torch.equal(half.values(layer)[:, :100], whole.values(layer)[:, :100].half())


def test_without_a_type_rows_stay_as_they_are_written():
    assert KeyValueCache(8).dtype is None
    for dtype in (torch.float32, torch.bfloat16, HALF):
        cache = KeyValueCache(8)
        rows = random_rows(4).to(dtype)
        cache.write(0, rows, rows)
        assert cache.dtype == dtype and torch.equal(cache.keys(0)[:, :4], rows)


def test_a_wider_store_loses_nothing():
    cache = KeyValueCache(8, torch.float32)
    rows = random_rows(4).bfloat16()
    cache.write(0, rows, rows)
    assert cache.dtype == torch.float32 and torch.equal(cache.keys(0)[:, :4], rows.float())


def test_commit_moves_stored_rows():
    cache = filled(10, capacity=20)
    rows = random_rows(5, seed=9)
    for layer in range(2):
        cache.write(layer, rows, -rows)
    cache.commit([0, 2, 4])
    assert cache.length == 13
    for layer in range(2):
        assert torch.equal(cache.keys(layer)[:, 10:13], rows[:, [0, 2, 4]].half())
        assert torch.equal(cache.values(layer)[:, 10:13], -rows[:, [0, 2, 4]].half())


def test_growth_keeps_type_and_rows():
    cache = filled(10)
    before = cache.keys(1)[:, :10].clone()
    cache.write(0, random_rows(3), random_rows(3))
    cache.write(1, random_rows(3), random_rows(3))
    assert cache.keys(1).shape[1] == 10 + GROWTH_TOKENS
    assert cache.keys(1).dtype == cache.values(1).dtype == HALF
    assert torch.equal(cache.keys(1)[:, :10], before)


def test_room_made_for_a_writer_in_place_has_the_chosen_type():
    cache = KeyValueCache(10, HALF)
    cache.make_room(2, 2, 8, 12, torch.float32)
    assert cache.keys(1).dtype == cache.values(0).dtype == HALF and cache.keys(1).shape[1] >= 12


# The partial cache.


def test_refresh_scores_in_float32_and_takes_rows_as_they_are(monkeypatch):
    """In pieces of a few rows, too: what is chosen is what float32 scores of the stored keys choose."""
    monkeypatch.setattr("tokenswift_cli.models.partial_cache._MAX_CONVERTED", 2 * 8 * 7)
    full = filled(200)
    queries = {layer: torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(1)) for layer in (0, 1)}
    partial = PartialCache(budget=64, sinks=4, dtype=HALF)
    partial.refresh(full, queries, row=2)
    recent, important = 32, 64 - 16 - 32 - 4
    for layer in range(2):
        keys, values = full.keys(layer), full.values(layer)
        assert partial.keys(layer).dtype == HALF
        for head in range(2):
            scores = keys[head].float() @ queries[layer][head, :, 2].sum(0)
            middle = scores[4 : 200 - recent].topk(important).indices + 4
            rows = [*range(4), *sorted(middle.tolist()), *range(200 - recent, 200)]
            assert torch.equal(partial.keys(layer)[head, :48], keys[head, rows])
            assert torch.equal(partial.values(layer)[head, :48], values[head, rows])


def test_follow_takes_over_stored_rows():
    full = filled(200, capacity=240)
    partial = PartialCache(budget=64, sinks=4, dtype=full.dtype)
    partial.refresh(full, {layer: torch.randn(2, 1, 1, 8) for layer in range(2)}, row=0)
    for layer in range(2):
        full.write(layer, random_rows(6, 7), random_rows(6, 8))
    full.commit(range(6))
    partial.follow(full)
    assert partial.length == 54 and partial.dtype == HALF
    assert torch.equal(partial.keys(1)[:, 48:54], full.keys(1)[:, 200:206])


# Attention.


def attend(query, keys, values, start, rows, group, window=None, tree=None):
    cache = KeyValueCache(1)
    cache.length = start
    depths = torch.arange(rows) if tree is None else tree.sum(dim=1) - 1
    step = AttentionStep(cache, tree, depths)
    return attention._attend(step, query, keys, values, start, rows, group, 0.3, window)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("rows", [1, 5, 80])
@pytest.mark.parametrize("start", [3, 1024, 5000])
def test_float16_store_is_float32_attention_over_the_rounded_rows(monkeypatch, start, rows, window, portable):
    """``rows`` 80 takes the path of many rows; the small bound converts one segment at a time."""
    if portable:
        monkeypatch.setattr(attention, "_attention_part", attention._portable_attention_part)
    keys, values = random_rows(start + rows, 1).half(), random_rows(start + rows, 2).half()
    query = random_rows(2 * rows, 3)
    expected = attend(query, keys.float(), values.float(), start, rows, 2, window)
    for bound in (1, 1 << 15, 1 << 20):
        monkeypatch.setattr(attention, "_MAX_CONVERTED", bound)
        actual = attend(query, keys, values, start, rows, 2, window)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    if window is None and rows < 64:
        assert torch.equal(actual, expected)  # one piece: the very same sums


def test_trees_see_their_own_branch_in_a_float16_store():
    keys, values = random_rows(2100, 1).half(), random_rows(2100, 2).half()
    tree = torch.eye(4, dtype=torch.bool)
    tree[:, 0] = True
    tree[3, 2] = True
    query = random_rows(8, 3)
    expected = attend(query, keys.float(), values.float(), 2096, 4, 2, tree=tree)
    torch.testing.assert_close(attend(query, keys, values, 2096, 4, 2, tree=tree), expected)


@pytest.mark.parametrize(("model_type", "stored"), [(torch.bfloat16, torch.float32), (torch.bfloat16, HALF)])
def test_other_pairs_of_types_are_computed_in_float32(model_type, stored):
    """As on an accelerator: a bfloat16 model with another store. Only the result is rounded to its type."""
    keys, values = random_rows(2100, 1).to(stored), random_rows(2100, 2).to(stored)
    query = random_rows(6, 3).to(model_type)
    expected = attend(query.float(), keys.float(), values.float(), 2097, 3, 2)
    actual = attend(query, keys, values, 2097, 3, 2)
    assert actual.dtype == model_type
    torch.testing.assert_close(actual, expected.to(model_type), rtol=1e-2, atol=1e-3)


def test_conversion_never_holds_the_whole_cache(monkeypatch):
    """The largest piece of converted keys is bounded, for few and for many rows."""
    sizes = []
    stock = attention._attention_part

    def watched(query, keys, values, *settings):
        sizes.append(keys.numel())
        return stock(query, keys, values, *settings)

    monkeypatch.setattr(attention, "_attention_part", watched)
    monkeypatch.setattr(attention, "_MAX_CONVERTED", 3 * 1024 * 2 * 8)
    keys = random_rows(20_000).half()
    for rows in (2, 100):
        attend(random_rows(2 * rows, 3), keys, keys, 20_000 - rows, rows, 2)
    assert len(sizes) > 8 and max(sizes) <= 3 * 1024 * 2 * 8


# Texts.


def write(model, count, method, kv_dtype=HALF, planner=None, **drafting):
    target = Target(model, len(PROMPT) + count + 32, kv_dtype=kv_dtype)
    engine = Engine(target, SAMPLING, DraftingSettings(method=method, **drafting), planner=planner)
    list(engine.prefill(PROMPT, len(PROMPT)))
    steps = list(engine.steps(count))
    return [token for step in steps for token in step.tokens], steps, target


@pytest.fixture(scope="module")
def plain():
    tokens, _, target = write(tiny_llama(), 1300, "autoregressive")
    assert target.cache.dtype == HALF
    return tokens


def test_lookup_writes_the_plain_text_of_a_float16_store(plain):
    tokens, steps, _ = write(tiny_llama(), 1300, "lookup", planner=FixedPlanner(15))
    assert sum(step.accepted for step in steps) > 20 and tokens == plain


def test_self_drafts_over_a_float16_partial_cache_write_the_plain_text(plain):
    planner = FixedPlanner(8, depth=3)
    tokens, steps, _ = write(tiny_llama(), 1300, "auto", planner=planner, partial_cache=256)
    accepted = sum(step.shares.get("self", (0, 0))[1] for step in steps)
    assert accepted > 100 and tokens == plain


def test_sliding_windows_too():
    model = tiny_mistral(sliding_window=100)
    expected, _, _ = write(model, 400, "autoregressive")
    assert write(model, 400, "lookup", planner=FixedPlanner(15))[0] == expected


def test_a_rounded_store_is_another_model_and_float32_is_the_models_own(plain):
    own, _, _ = write(tiny_llama(), 300, "autoregressive", kv_dtype=None)
    same, _, target = write(tiny_llama(), 300, "autoregressive", kv_dtype=torch.float32)
    assert own == same and target.cache.dtype == torch.float32
    model = tiny_llama()
    whole, half = Target(model, 200), Target(model, 200, kv_dtype=HALF)
    for target in (whole, half):
        target.read(PROMPT)
    difference = (whole.verify([7]) - half.verify([7])).abs().max()
    assert 0 < difference < 0.5
    assert half.cache.bytes_per_token * 2 == whole.cache.bytes_per_token


# Overflow.


def with_large_keys(scale):
    """The first layer's keys times ``scale``, its queries divided by it: the same model in float32."""
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(scale)
        model.model.layers[0].self_attn.q_proj.weight.div_(scale)
    return model


def test_a_prompt_that_overflows_is_refused_by_name():
    target = Target(with_large_keys(1e7), 200, kv_dtype=HALF)
    engine = Engine(target, SAMPLING, DraftingSettings())
    with pytest.raises(ModelError, match=r"key in layer 0 .*65504.*kv_dtype float16.*--kv-dtype float32"):
        list(engine.prefill(PROMPT, len(PROMPT)))


@pytest.mark.parametrize("method", ["autoregressive", "lookup", "auto"])
@pytest.mark.parametrize("part", ["k_proj", "v_proj"])
def test_a_token_that_overflows_ends_the_text_before_it_is_seen(method, part):
    """One token's embedding is huge; up to its first use, and not a token longer, the text is as ever."""
    model, count = tiny_llama(), 200
    tokens, _, _ = write(model, count, "autoregressive")
    rare = next(token for token in tokens if token not in PROMPT and tokens.index(token) > 20)
    at = tokens.index(rare)
    model = tiny_llama()  # the same one again: targets keep what they packed of a model
    projection = getattr(model.model.layers[0].self_attn, part)
    loud = torch.nn.functional.normalize(model.model.embed_tokens.weight[rare], dim=0)

    class Loud(torch.nn.Module):
        """The projection, and beyond float16's range for the one token."""

        def forward(self, states):
            alike = torch.nn.functional.normalize(states, dim=-1) @ loud > 0.999
            return projection(states) + alike.unsqueeze(-1) * -1e5

    setattr(model.model.layers[0].self_attn, part, Loud())
    target = Target(model, len(PROMPT) + count + 32, kv_dtype=HALF)
    engine = Engine(target, SAMPLING, DraftingSettings(method=method))
    list(engine.prefill(PROMPT, len(PROMPT)))
    written = []
    with pytest.raises(ModelError, match="kv_dtype float16"):
        for step in engine.steps(count):
            written.extend(step.tokens)
    # The step that reads the token is never handed out.
    assert written == tokens[: len(written)] and len(written) <= at + 1
    assert len(written) == at + 1 or method != "autoregressive"


@settings(deadline=None, max_examples=60)
@given(
    row=st.integers(0, 149),
    store=st.integers(0, 3),
    value=st.sampled_from([65519.0, -65519.0, 65520.0, -1e30, float("inf"), float("nan"), 1.0]),
    nan_behind=st.booleans(),
    first=st.integers(0, 149),
    length=st.integers(0, 150),
)
def test_exactly_the_infinities_among_the_rows_are_found(row, store, value, nan_behind, first, length):
    """float16 rounds up to 65519.99 down to 65504; NaN is what the model computed, and told by its logits."""
    stores = [torch.zeros(2, 160, 4, dtype=HALF) for _ in range(4)]
    stores[store][1, row, 2] = torch.tensor(value)
    if nan_behind:
        stores[3][:, row, 3] = float("nan")
    end = min(first + length, 150)
    expected = store if first <= row < end and abs(value) >= 65520 else None
    assert OverflowFinder(stores).find(first, end) == expected


def test_rejected_rows_may_overflow():
    """They are no part of the text, and plain decoding would never compute them."""
    cache = filled(10, capacity=20)
    rows = random_rows(3, seed=9)
    rows[:, 1] = 1e6
    cache.write(0, rows, rows)
    cache.write(1, rows, rows)
    cache.commit([0, 2])
    assert cache.length == 12
    cache.write(0, rows, rows)
    cache.write(1, rows, rows)
    with pytest.raises(ModelError, match="layer 0"):
        cache.commit([0, 1])
    assert cache.length == 12


def test_growth_does_not_hide_an_overflow():
    cache = filled(10)
    cache.write(0, random_rows(1), random_rows(1))
    cache.write(1, random_rows(1), random_rows(1) + 1e6)
    with pytest.raises(ModelError, match="value in layer 1"):
        cache.commit([0])


# Configuration and runs.


def test_the_key_its_flag_and_its_rule(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: {kv_dtype: float16}\n")
    assert resolve({}, None, {}).config.model.kv_dtype == "auto"
    assert resolve({}, path, {}).config.model.kv_dtype == "float16"
    assert resolve({"model.kv_dtype": "float32"}, path, {}).config.model.kv_dtype == "float32"
    with pytest.raises(ConfigError, match="--kv-dtype must be one of auto, float32, float16"):
        resolve({"model.kv_dtype": "bfloat16"}, path, {})


def test_no_variable_sets_it_and_one_that_looks_so_is_told():
    resolved = resolve({}, None, {"TOKENSWIFT_KV_DTYPE": "float16"})
    assert resolved.config.model.kv_dtype == "auto" and "no effect" in resolved.notices[0]


def test_training_has_no_such_key(tmp_path):
    """It keeps no cache: a setting that would do nothing is refused."""
    path = tmp_path / "train.yaml"
    path.write_text("model: {kv_dtype: float16}\n")
    with pytest.raises(ConfigError, match=r"unknown key model\.kv_dtype"):
        resolve_training({}, path, {})


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def config(model_directory, tmp_path):
    return Config(
        model=ModelConfig(name=str(model_directory), device="cpu", kv_dtype="float16"),
        sampling=SAMPLING,
        generation=GenerationConfig(max_tokens=60, ignore_eos=True),
        drafting=DraftingSettings(method="lookup"),
        run=RunConfig(directory=str(tmp_path / "run"), chunk_tokens=50),
    )


def run(config):
    return generate(config, PromptText("Once upon", b"Once upon", "test"), publish=lambda event: None)


def stored_in(config):
    return load_run_yaml((Path(config.run.directory) / "run.yaml").read_text())


def go_on(config, flags, count=120):
    stored = stored_in(config)
    requested = resolve_resume({"generation.max_tokens": str(count), **flags}, stored, {}).config
    return resume(Path(config.run.directory), stored, requested, publish=lambda event: None)


def test_a_run_keeps_its_type_and_resumes_to_the_same_text(config, tmp_path):
    run(config)
    assert stored_in(config).model.kv_dtype == "float16"
    records = (Path(config.run.directory) / "metrics.jsonl").read_text().splitlines()
    half = json.loads(records[-1])
    go_on(config, {})
    whole = replace(
        config,
        generation=replace(config.generation, max_tokens=120),
        drafting=DraftingSettings(method="autoregressive"),
        run=replace(config.run, directory=str(tmp_path / "whole")),
    )
    run(whole)
    texts = [(Path(path) / "tokens.bin").read_bytes() for path in (config.run.directory, tmp_path / "whole")]
    assert texts[0] == texts[1]
    own = replace(
        config,
        model=replace(config.model, kv_dtype="auto"),
        run=replace(config.run, directory=str(tmp_path / "own")),
    )
    run(own)
    records = (tmp_path / "own" / "metrics.jsonl").read_text().splitlines()
    assert half["kv_bytes"] * 2 == json.loads(records[-1])["kv_bytes"]


@pytest.mark.parametrize("other", ["auto", "float32"])
def test_a_resume_with_another_type_is_refused(config, other):
    run(config)
    with pytest.raises(ResumeRefusedError, match=f"model.kv_dtype was float16 and is {other}") as refused:
        go_on(config, {"model.kv_dtype": other})
    assert refused.value.exit_code == 3
    assert go_on(config, {"model.kv_dtype": "float16"}).tokens == 120


def test_a_run_from_before_the_setting_is_auto(config):
    config = replace(config, model=replace(config.model, kv_dtype="auto"))
    run(config)
    text = (Path(config.run.directory) / "run.yaml").read_text()
    assert "  kv_dtype: auto\n" in text
    assert load_run_yaml(text.replace("  kv_dtype: auto\n", "")).model.kv_dtype == "auto"
    with pytest.raises(ResumeRefusedError, match="kv_dtype was auto and is float16"):
        go_on(config, {"model.kv_dtype": "float16"})


def test_preflight_counts_what_is_stored_and_names_the_remedy(config, monkeypatch):
    """Memory for the float16 store, and not for the float32 one: the remedy it names helps."""
    monkeypatch.setattr("tokenswift_cli.models.target.Target.free_bytes", lambda self: free)
    own = replace(config, model=replace(config.model, kv_dtype="auto"))
    length = 60 + len("Once upon")
    per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
    free = (1 << 29) + per_token * length * 3 // 4
    with pytest.raises(PreflightError, match="--kv-dtype float16"):
        run(own)
    assert run(config).tokens == 60
    free = (1 << 29) + per_token
    with pytest.raises(PreflightError) as refused:
        run(replace(config, run=replace(config.run, directory=config.run.directory + "-2")))
    assert "--kv-dtype" not in str(refused.value)
