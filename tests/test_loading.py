"""Loading models from directories: what is accepted, what is refused, and what is known afterwards."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_model_directory import END_ID, save_tiny_model
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from tokenswift_cli.config import ModelConfig
from tokenswift_cli.errors import ModelError, TokenSwiftError
from tokenswift_cli.models.device import choose_device, choose_dtype
from tokenswift_cli.models.loading import LoadedModel, end_of_text_ids, load_model


def silent(message: str) -> None:
    """Ignore progress."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def load(directory: Path, **changes: Any) -> LoadedModel:
    return load_model(ModelConfig(name=str(directory), device="cpu", **changes), silent)


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_directory_loads(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Case 24: no progress bar or warning of a library reaches the terminal."""
    said: list[str] = []
    loaded = load_model(ModelConfig(name=str(directory), device="cpu"), said.append)
    assert capfd.readouterr() == ("", "")
    assert loaded.name == "tiny"
    assert loaded.eos_ids == (END_ID,)
    assert loaded.position_limit == 16384
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.identity.architecture == "LlamaForCausalLM"
    assert loaded.identity.vocab_size == 257
    assert set(loaded.identity.files) == {"config.json", "model.safetensors"}
    stored = load_file(directory / "model.safetensors")
    assert torch.equal(loaded.model.lm_head.weight, stored["lm_head.weight"])
    assert said == ["Loading tiny"]


def test_identity_is_of_content_not_of_place(directory: Path, tmp_path: Path) -> None:
    """Case 22."""
    first = load(directory).identity
    moved = load(directory.rename(tmp_path / "elsewhere")).identity
    assert first.differences(moved) == []
    assert moved.name == "elsewhere"
    weights = load_file(tmp_path / "elsewhere" / "model.safetensors")
    weights["model.norm.weight"][0] += 0.5
    save_file(weights, tmp_path / "elsewhere" / "model.safetensors", metadata={"format": "pt"})
    (difference,) = first.differences(load(tmp_path / "elsewhere").identity)
    assert "model.safetensors" in difference
    half = load(tmp_path / "elsewhere", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    assert any("data type" in line for line in first.differences(half.identity))


def test_sharded_weights_load(directory: Path) -> None:
    loaded = load(directory)
    (directory / "model.safetensors").unlink()
    loaded.model.save_pretrained(directory, max_shard_size="100KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    sharded = load(directory)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, sharded.model.state_dict()[name])
    assert {name for name in sharded.identity.files if name.endswith("safetensors")} == {
        path.name for path in directory.glob("*.safetensors")
    }


def no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def gguf_only(directory: Path) -> None:
    no_config(directory)
    (directory / "weights.gguf").touch()


def broken_config(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": "llama",')


def unknown_model_type(directory: Path) -> None:
    change_config(directory, model_type="from_the_future")


def custom_code(directory: Path) -> None:
    change_config(
        directory,
        model_type="own",
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    )


def no_tokenizer(directory: Path) -> None:
    for path in directory.glob("tokenizer*"):
        path.unlink()


def broken_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")


def no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def pickled_weights(directory: Path) -> None:
    no_weights(directory)
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def torn_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def missing_tensor(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def wrong_shape(directory: Path) -> None:
    change_config(directory, hidden_size=128)


def missing_shard(directory: Path) -> None:
    no_weights(directory)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def shard_outside(directory: Path) -> None:
    no_weights(directory)
    index = {"weight_map": {"a": "../../elsewhere.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def encoder_only(directory: Path) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=300, **shape)).save_pretrained(directory)


def encoder_disguised(directory: Path) -> None:
    encoder_only(directory)
    change_config(directory, architectures=["BertLMHeadModel"])


def encoder_decoder(directory: Path) -> None:
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=300, **shape)).save_pretrained(directory)


def without_a_head(directory: Path) -> None:
    change_config(directory, architectures=["LlamaModel"])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_config, "has no config.json"),
        (gguf_only, "weights.gguf"),
        (broken_config, "not valid JSON"),
        (unknown_model_type, "from_the_future"),
        (custom_code, "trust_remote_code"),
        (no_tokenizer, "no tokenizer"),
        (broken_tokenizer, "the tokenizer of tiny cannot be loaded"),
        (no_weights, "no weights"),
        (pickled_weights, "pickle"),
        (torn_weights, "download the model again"),
        (missing_tensor, "lm_head.weight"),
        (wrong_shape, "do not fit its config.json"),
        (missing_shard, "model-00001-of-00002.safetensors"),
        (shard_outside, "outside"),
        (encoder_only, "not a causal language model (BertForMaskedLM)"),
        (encoder_disguised, "not a causal language model (BertLMHeadModel)"),
        (encoder_decoder, "encoder-decoder"),
        (without_a_head, "not a causal language model (LlamaModel)"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    directory: Path, spoil: Callable[[Path], None], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each message is one line, names the model and says what is wrong."""
    spoil(directory)
    capfd.readouterr()
    with pytest.raises(ModelError) as caught:
        load(directory)
    message = str(caught.value)
    assert words.lower() in message.lower()
    assert "tiny" in message
    assert "\n" not in message
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "No model is named"),
        ("./nothing", "no model directory"),
        ("/nothing/here", "no model directory"),
        ("~/nothing here", "no model directory"),
        ("a/b/c", "no model directory"),
        ("two words", "no model directory"),
        ("organisation/absent", "Hub cache"),
    ],
)
def test_names_that_lead_nowhere(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelError, match=words):
        load_model(ModelConfig(name=name, device="cpu", offline=True), silent)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_custom_code_runs_only_when_trusted(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    custom_code(directory)
    (directory / "own.py").write_text(OWN_CODE)
    with pytest.raises(ModelError, match="trust_remote_code"):
        load(directory)
    loaded = load(directory, trust_remote_code=True)
    assert loaded.identity.architecture == "OwnModel"
    assert set(loaded.identity.files) == {"config.json", "model.safetensors", "own.py"}


def test_a_weight_file_is_not_a_model(directory: Path) -> None:
    with pytest.raises(ModelError, match="Give the directory"):
        load(directory / "model.safetensors")


def test_the_home_directory_is_understood(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory.parent))
    assert load(Path("~/tiny")).name == "tiny"


def test_unused_tensors_are_told(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    weights["another.head"] = torch.zeros(3)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    said: list[str] = []
    load_model(ModelConfig(name=str(directory), device="cpu"), said.append)
    assert any("another.head" in line for line in said)


def test_several_ends_of_text_and_none(directory: Path) -> None:
    """Case 9: no end-of-text id, one, and several."""
    path = directory / "generation_config.json"
    generation = json.loads(path.read_text())
    path.write_text(json.dumps(generation | {"eos_token_id": [7, 3]}))
    assert load(directory).eos_ids == (3, 7, END_ID)
    generation.pop("eos_token_id")
    path.write_text(json.dumps(generation))
    change_config(directory, eos_token_id=None)
    settings_path = directory / "tokenizer_config.json"
    tokenizer = json.loads(settings_path.read_text())
    tokenizer.pop("eos_token")
    settings_path.write_text(json.dumps(tokenizer))
    assert load(directory).eos_ids == ()


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-1, 50) | st.lists(st.integers(-1, 50)), max_size=5))
def test_end_of_text_ids_are_a_sorted_union(sources: list[int | list[int] | None]) -> None:
    """Case 9."""
    found = end_of_text_ids(*sources)
    wanted = {
        token for source in sources for token in ([source] if isinstance(source, int) else source or [])
    } - {-1}
    assert found == tuple(sorted(wanted))


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1", "mps", "toaster", "meta", ""):
        with pytest.raises(TokenSwiftError):
            choose_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto").type == "cuda"
    assert choose_device("cuda:1").index == 1
    with pytest.raises(ModelError, match="cuda:1"):
        choose_device("cuda:2")


def test_data_types() -> None:
    assert choose_dtype("auto", "cpu", "bfloat16") == "float32"
    assert choose_dtype("auto", "cuda", "bfloat16") == "bfloat16"
    assert choose_dtype("auto", "cuda", "torch.float16") == "float16"
    assert choose_dtype("auto", "mps", None) == "float32"
    assert choose_dtype("auto", "cuda", "float8_e4m3fn") == "float32"
    assert choose_dtype("float16", "cpu", "float32") == "float16"


def test_threads_are_set(directory: Path) -> None:
    before = torch.get_num_threads()
    try:
        load(directory, threads=1)
        assert torch.get_num_threads() == 1
        load(directory, threads=0)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
