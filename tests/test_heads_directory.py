"""Heads on disk: what comes back, and everything that is refused, by name."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from heads_in_memory import random_heads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tokenswift_cli.errors import HeadsError, TokenSwiftError
from tokenswift_cli.models import heads_writing
from tokenswift_cli.models.heads import VARIANTS, DraftHeads, HeadsShape
from tokenswift_cli.models.heads_directory import load_heads, read_heads_config, save_heads
from tokenswift_cli.models.identity import ModelIdentity

SIZE, VOCABULARY = 8, 50
BASE = ModelIdentity(
    name="tiny",
    architecture="LlamaForCausalLM",
    files={"config.json": "a" * 64, "model.safetensors": "b" * 64},
    tokenizer_sha256="c" * 64,
    dtype="float32",
    vocab_size=VOCABULARY,
)
OTHER = replace(BASE, name="other", files={"config.json": "a" * 64, "model.safetensors": "d" * 64})


def save(directory: Path, heads: DraftHeads | None = None, **changes: Any) -> Path:
    heads = heads or random_heads(HeadsShape(2, SIZE), torch.tensor([1, 5, 49]))
    save_heads(directory, heads, **({"base": BASE, "card": "# Card\n", "training": {"steps": 7}} | changes))
    return directory


def load(directory: Path, base: ModelIdentity = BASE, size: int = SIZE, rows: int = VOCABULARY) -> DraftHeads:
    return load_heads(directory, base, size, rows)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "heads")


def edit_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def edit_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors and keep the recorded hash true, so that the tensors themselves are judged."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    keep_hash_true(directory)


def keep_hash_true(directory: Path) -> None:
    digest = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    edit_config(directory, lambda config: config.update(weights_sha256=digest))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 4),
    st.sampled_from(VARIANTS),
    st.none() | st.sets(st.integers(0, VOCABULARY - 1), min_size=1),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_what_is_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    variant: str,
    vocabulary: set[int] | None,
    dtype: torch.dtype,
) -> None:
    ids = None if vocabulary is None else torch.tensor(sorted(vocabulary))
    heads = random_heads(HeadsShape(count, SIZE, variant, 1e-6), ids)
    directory = save(tmp_path_factory.mktemp("round") / "heads", heads, dtype=dtype)
    loaded = load(directory)
    assert loaded.shape == heads.shape
    expected, found = heads.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        if name == "draft_vocabulary":
            assert torch.equal(found[name], tensor) and found[name].dtype == torch.int64
        else:
            assert torch.equal(found[name], tensor.to(dtype).float()) and found[name].dtype == torch.float32
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_the_files_are_what_others_read(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert (saved / "README.md").read_text() == "# Card\n"
    config = json.loads((saved / "config.json").read_text())
    assert config["format"] == "tokenswift-heads"
    assert config["shape"] == {"count": 2, "hidden_size": 8, "variant": "conditioned", "norm_eps": 1e-5}
    assert config["base_model"] == BASE.to_json()
    assert config["training"] == {"steps": 7}
    assert config["draft_vocabulary_size"] == 3
    assert config["created_with"].startswith("tokenswift")
    tensors = load_file(saved / "model.safetensors")
    assert {name for name in tensors if not name.startswith("heads.1.")} == {
        "draft_vocabulary",
        "heads.0.input_layernorm.weight",
        "heads.0.linear.weight",
        "heads.0.mix.weight",
        "heads.0.post_layernorm.weight",
        "heads.0.token_layernorm.weight",
    }
    assert tensors["draft_vocabulary"].dtype == torch.int32
    assert tensors["heads.0.linear.weight"].dtype == torch.float16
    assert read_heads_config(saved) == config


def test_loaded_heads_do_not_hang_on_the_file(tmp_path: Path) -> None:
    heads = random_heads(HeadsShape(1, SIZE))
    loaded = load(save(tmp_path / "heads", heads, dtype=torch.float32))
    path = tmp_path / "heads" / "model.safetensors"
    with path.open("r+b") as stream:
        stream.truncate(0)
    assert torch.equal(loaded.heads[0].linear.weight, heads.heads[0].linear.weight)


def test_the_same_model_elsewhere_is_accepted(saved: Path) -> None:
    """What changes how often drafts are accepted, and not which model it is, is no reason to refuse."""
    load(saved, replace(BASE, name="renamed", dtype="bfloat16", tokenizer_sha256="e" * 64))
    load(saved, replace(BASE, files={"config.json": "f" * 64, "other-name.safetensors": "b" * 64}))


@pytest.mark.parametrize(
    ("base", "size", "rows", "words"),
    [
        (OTHER, SIZE, VOCABULARY, ["tiny (LlamaForCausalLM)", "other (LlamaForCausalLM)", "other weights"]),
        (
            replace(BASE, name="qwen", architecture="Qwen2ForCausalLM"),
            SIZE,
            VOCABULARY,
            ["tiny (LlamaForCausalLM)", "qwen (Qwen2ForCausalLM)", "another model"],
        ),
        (replace(OTHER, name="tiny"), SIZE, VOCABULARY, ["tiny (LlamaForCausalLM)", "were trained for"]),
        (replace(BASE, files={}), SIZE, VOCABULARY, ["tiny (LlamaForCausalLM)"]),
        (replace(BASE, files={**BASE.files, "b.safetensors": "9" * 64}), SIZE, VOCABULARY, ["tiny"]),
        (BASE, 16, VOCABULARY, ["tiny (LlamaForCausalLM)", "width 8", "has 16"]),
        (replace(BASE, name="wide", vocab_size=60), SIZE, 60, ["tiny", "wide", "vocabulary of 50", "has 60"]),
    ],
)
def test_another_model_is_refused_with_both_names(
    saved: Path, base: ModelIdentity, size: int, rows: int, words: list[str]
) -> None:
    """Case 29."""
    with pytest.raises(HeadsError) as caught:
        load(saved, base, size, rows)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "train-heads" in message
    assert "\n" not in message


def test_without_recorded_hashes_the_kind_of_model_decides(tmp_path: Path) -> None:
    """Case 29, for heads that came from a published checkpoint."""
    saved = save(tmp_path / "heads", base=replace(BASE, files={}))
    load(saved)
    load(saved, OTHER)
    with pytest.raises(HeadsError, match="Qwen2ForCausalLM"):
        load(saved, replace(BASE, architecture="Qwen2ForCausalLM"))
    with pytest.raises(HeadsError, match="width 8"):
        load(saved, BASE, 16)
    with pytest.raises(HeadsError, match="vocabulary of 50"):
        load(saved, replace(OTHER, vocab_size=60), SIZE, 60)


CONFIG_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no format": (lambda c: c.pop("format"), "not a heads directory"),
    "a model": (lambda c: c.update(format=None, architectures=["Llama"]), "not a heads directory"),
    "published": (lambda c: c.update(format=None, medusa_heads=3), "--convert"),
    "newer": (lambda c: c.update(format_version=2), "Update tokenswift"),
    "version text": (lambda c: c.update(format_version="1"), "format_version"),
    "no shape": (lambda c: c.pop("shape"), "shape"),
    "shape lacks": (lambda c: c["shape"].pop("variant"), "variant"),
    "huge count": (lambda c: c["shape"].update(count=10**9), "count"),
    "wrong count": (lambda c: c["shape"].update(count=3), "lacks heads.2"),
    "fewer": (lambda c: c["shape"].update(count=1), "holds 'heads.1"),
    "true count": (lambda c: c["shape"].update(count=True), "count"),
    "text count": (lambda c: c["shape"].update(count="2"), "count"),
    "huge size": (lambda c: c["shape"].update(hidden_size=10**15), "hidden_size"),
    "variant": (lambda c: c["shape"].update(variant="x"), "variant"),
    "list variant": (lambda c: c["shape"].update(variant=["linear"]), "variant"),
    "other variant": (lambda c: c["shape"].update(variant="linear"), "mix"),
    "eps": (lambda c: c["shape"].update(norm_eps=float("nan")), "norm_eps"),
    "no base": (lambda c: c.pop("base_model"), "identity"),
    "base text": (lambda c: c["base_model"].update(files={"a": 1}), "files"),
    "rows": (lambda c: c.update(draft_vocabulary_size=4), "draft_vocabulary"),
    "hostile rows": (lambda c: c.update(draft_vocabulary_size=10**12), "draft_vocabulary_size"),
    "no rows": (lambda c: c.update(draft_vocabulary_size=None), "draft_vocabulary"),
    "hash": (lambda c: c.update(weights_sha256="0" * 64), "model.safetensors"),
    "no hash": (lambda c: c.pop("weights_sha256"), "model.safetensors"),
}


@pytest.mark.parametrize("kind", CONFIG_DAMAGE)
def test_a_damaged_configuration_is_refused(saved: Path, kind: str) -> None:
    change, words = CONFIG_DAMAGE[kind]
    edit_config(saved, change)
    with pytest.raises(HeadsError) as caught:
        load(saved)
    assert words in str(caught.value)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (5 << 20)])
def test_a_configuration_that_is_none_is_refused(saved: Path, content: bytes) -> None:
    (saved / "config.json").write_bytes(content)
    with pytest.raises(HeadsError, match=r"config\.json"):
        load(saved)


WEIGHT_DAMAGE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (lambda t: t.pop("heads.1.mix.weight"), r"lacks heads\.1\.mix\.weight"),
    "foreign": (lambda t: t.update(extra=torch.zeros(1)), "extra"),
    "shape": (lambda t: t.update({"heads.0.linear.weight": torch.zeros(4, 16)}), r"\[4, 16\], not \[8, 8\]"),
    "type": (lambda t: t.update({"heads.0.linear.weight": torch.zeros(8, 8, dtype=torch.int32)}), "type I32"),
    "nan": (lambda t: t["heads.0.mix.weight"][0].fill_(torch.nan), r"heads\.0\.mix\.weight .* not finite"),
    "inf": (lambda t: t["heads.1.post_layernorm.weight"][0].fill_(torch.inf), "not finite"),
    "ids type": (lambda t: t.update(draft_vocabulary=torch.tensor([1, 5, 49])), "type I64"),
    "ids order": (lambda t: t["draft_vocabulary"].copy_(torch.tensor([5, 1, 49])), "ascending"),
    "ids twice": (lambda t: t["draft_vocabulary"].copy_(torch.tensor([5, 5, 49])), "ascending"),
    "ids below": (lambda t: t["draft_vocabulary"].copy_(torch.tensor([-1, 5, 49])), "negative"),
    "ids beyond": (lambda t: t["draft_vocabulary"].copy_(torch.tensor([1, 5, 50])), "beyond"),
}


@pytest.mark.parametrize("kind", WEIGHT_DAMAGE)
def test_damaged_weights_are_refused(saved: Path, kind: str) -> None:
    change, words = WEIGHT_DAMAGE[kind]
    edit_weights(saved, change)
    with pytest.raises(HeadsError, match=words):
        load(saved)


def test_any_flipped_bit_is_noticed(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(HeadsError):
            load(saved)


def test_a_torn_file_is_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        keep_hash_true(saved)
        with pytest.raises(HeadsError, match="damaged"):
            load(saved)


def test_hostile_files_are_refused_before_they_are_read(saved: Path) -> None:
    path = saved / "model.safetensors"
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)  # sparse: nothing is written
    with pytest.raises(HeadsError, match="larger"):
        load(saved)
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(HeadsError, match="damaged"):
        load(saved)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch exploded",)


def test_pickles_are_refused_and_never_run(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (saved / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    keep_hash_true(saved)
    with pytest.raises(HeadsError, match="damaged"):
        load(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(HeadsError, match=r"lacks model\.safetensors"):
        load(saved)
    (saved / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(HeadsError, match=r"pickle \(pytorch_model\.bin\)"):
        load(saved)
    assert not (tmp_path / "exploded").exists()


def test_a_place_without_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadsError, match="no heads directory"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(HeadsError, match="no heads directory"):
        load(tmp_path / "file")
    with pytest.raises(HeadsError, match=r"no config\.json"):
        load(tmp_path)


# Writing.


def test_what_is_there_is_never_overwritten(saved: Path, tmp_path: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    with pytest.raises(HeadsError, match="not empty"):
        save(saved, random_heads(HeadsShape(1, SIZE)))
    assert (saved / "model.safetensors").read_bytes() == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(HeadsError, match="is a file"):
        save(tmp_path / "file", replace=True)
    (tmp_path / "empty").mkdir()
    load(save(tmp_path / "empty"))
    load(save(tmp_path / "new" / "parents" / "heads"))
    assert leftovers(tmp_path) == []


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob(".*"))


def test_replacing_swaps_whole_heads(saved: Path) -> None:
    save(saved, random_heads(HeadsShape(3, SIZE, "linear")), replace=True)
    assert load(saved).shape.count == 3
    assert leftovers(saved.parent) == []


def test_replacing_spares_what_is_not_ours(saved: Path, tmp_path: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(HeadsError, match=r"notes\.txt"):
        save(saved, replace=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(HeadsError, match="something else"):
        save(tmp_path / "model", replace=True)
    assert (saved / "notes.txt").read_text() == "mine"


def test_a_link_is_followed_to_the_heads_behind_it(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(saved)
    save(tmp_path / "link", random_heads(HeadsShape(3, SIZE)), replace=True)
    assert (tmp_path / "link").is_symlink()
    assert load(saved).shape.count == 3


@pytest.mark.parametrize("step", ["_write", "_sync_directory", "_swap"])
def test_a_failure_leaves_the_old_heads(saved: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Case 20: the old heads are there until the new ones are whole."""

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(heads_writing, step, fail)
        with pytest.raises(HeadsError, match="No space left"):
            save(saved, random_heads(HeadsShape(3, SIZE)), replace=True)
    assert load(saved).shape.count == 2
    assert leftovers(saved.parent) == []


def test_a_failed_swap_is_undone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def second_fails(source: Path, target: Path) -> None:
        if str(source).endswith(".tmp"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_fails)
        with pytest.raises(HeadsError, match="Input/output error"):
            save(saved, random_heads(HeadsShape(3, SIZE)), replace=True)
    assert load(saved).shape.count == 2
    assert leftovers(saved.parent) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_told(tmp_path: Path) -> None:
    """Case 34."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(HeadsError, match="Permission denied"):
            save(tmp_path / "heads")
    finally:
        tmp_path.chmod(0o700)


def test_heads_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    heads = random_heads(HeadsShape(1, SIZE))
    with torch.no_grad():
        heads.heads[0].linear.weight[0, 0] = 1e6
    with pytest.raises(HeadsError, match=r"do not fit into torch\.float16"):
        save(tmp_path / "heads", heads)
    load(save(tmp_path / "wide", heads, dtype=torch.float32))
    with torch.no_grad():
        heads.heads[0].linear.weight[0, 0] = torch.nan
    with pytest.raises(HeadsError, match="training went wrong"):
        save(tmp_path / "heads", heads, dtype=torch.float32)
    assert not (tmp_path / "heads").exists()


def test_only_what_can_be_stored_is_taken(tmp_path: Path) -> None:
    for changes in (
        {"dtype": torch.float64},
        {"training": {"a": object()}},
        {"training": {"a": float("nan")}},
    ):
        with pytest.raises(ValueError):
            save(tmp_path / "heads", **changes)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_damage_is_an_error_and_never_a_crash(saved: Path, data: st.DataObject) -> None:
    """Case 21."""
    path = saved / data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    torn = whole[:start] + data.draw(st.binary(max_size=20)) + whole[start + data.draw(st.integers(0, 40)) :]
    path.write_bytes(torn)
    try:
        load(saved)
    except TokenSwiftError:
        pass
    finally:
        path.write_bytes(whole)
