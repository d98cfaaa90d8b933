"""Pickles and code of a model run only when they are trusted, whatever the model's files say."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_model_directory import save_tiny_model

from tokenswift_cli import cli
from tokenswift_cli.config import Config, ModelConfig
from tokenswift_cli.errors import ModelError, ResumeRefusedError
from tokenswift_cli.models.loading import LoadedModel, load_model
from tokenswift_cli.options import resolve_resume


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def load(directory: Path, **changes: Any) -> LoadedModel:
    return load_model(ModelConfig(name=str(directory), device="cpu", **changes), lambda message: None)


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def pickled(directory: Path, shards: int = 0) -> dict[str, torch.Tensor]:
    """Turn the weights of a saved model into pickles; gives the weights."""
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    if not shards:
        torch.save(weights, directory / "pytorch_model.bin")
        return weights
    weight_map: dict[str, str] = {}
    for index in range(shards):
        name = f"pytorch_model-{index + 1:05d}-of-{shards:05d}.bin"
        part = {key: weights[key] for number, key in enumerate(sorted(weights)) if number % shards == index}
        torch.save(part, directory / name)
        weight_map |= dict.fromkeys(part, name)
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / "pytorch_model.bin.index.json").write_text(index_text)
    return weights


@pytest.mark.parametrize("shards", [0, 3])
def test_pickled_weights_need_the_flag(directory: Path, shards: int) -> None:
    original = load(directory).identity
    weights = pickled(directory, shards)
    with pytest.raises(ModelError) as caught:
        load(directory)
    message = str(caught.value)
    assert "--trust-pickle" in message and "pytorch_model" in message and "\n" not in message
    loaded = load(directory, trust_pickle=True)
    for name, tensor in weights.items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    # The content of the files decides, not how much they are trusted.
    assert {name for name in loaded.identity.files if name != "config.json"} == {
        path.name for path in directory.glob("pytorch_model*.bin")
    }
    assert any("pytorch_model" in line for line in original.differences(loaded.identity))


def test_safetensors_come_first_even_where_pickles_are_trusted(directory: Path) -> None:
    mark = directory / "ran"
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    loaded = load(directory, trust_pickle=True)
    assert set(loaded.identity.files) == {"config.json", "model.safetensors"}
    assert not mark.exists()


@pytest.mark.parametrize("name", ["consolidated.00.pth", "model.pt", "weights.pkl"])
def test_pickles_that_cannot_be_loaded_are_named_without_the_flag(directory: Path, name: str) -> None:
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(pickle.dumps({}))
    for trusted in (False, True):
        with pytest.raises(ModelError, match=name) as caught:
            load(directory, trust_pickle=trusted)
        assert "--trust-pickle" not in str(caught.value)  # it would not help


@pytest.mark.parametrize("trusted", [False, True])
def test_even_a_trusted_pickle_is_read_as_weights_only(directory: Path, trusted: bool) -> None:
    (directory / "model.safetensors").unlink()
    mark = directory / "ran"
    torch.save({"lm_head.weight": Payload(mark)}, directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model|weights of tiny") as caught:
        load(directory, trust_pickle=trusted)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def index_of_pickles(directory: Path) -> str:
    """A safetensors index that names pickles: transformers would unpickle them."""
    weights = pickled(directory)
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "pytorch_model.bin")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return "pytorch_model.bin"


def configured_pickle(directory: Path) -> str:
    """A configuration that names another file: transformers would prefer it to model.safetensors."""
    torch.save(load_file(directory / "model.safetensors"), directory / "adapter_model.bin")
    change_config(directory, transformers_weights="adapter_model.bin")
    return "adapter_model.bin"


def configured_deeper(directory: Path) -> str:
    change_config(directory, text_config={"transformers_weights": "other.safetensors"})
    return "other.safetensors"


@pytest.mark.parametrize("spoil", [index_of_pickles, configured_pickle, configured_deeper])
def test_weights_come_from_no_other_files_than_those_that_are_identified(
    directory: Path, spoil: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = spoil(directory)
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("something was unpickled"))
    with pytest.raises(ModelError, match=name) as caught:
        load(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_configuration_cannot_name_kernels_of_the_hub(directory: Path, key: str) -> None:
    """transformers fetches such kernels, which are compiled code, where the package kernels is installed."""
    change_config(directory, **{key: "kernels-community/flash-attn2"})
    loaded = load(directory)
    assert loaded.model.config._attn_implementation in ("sdpa", "eager")
    assert "/" not in str(loaded.model.config._experts_implementation)


@pytest.mark.parametrize("content", ["[" * 10_000, '{"a":' * 10_000, "9" * 10_000, "null"])
def test_a_hostile_configuration_is_one_sentence(directory: Path, content: str) -> None:
    (directory / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config.json"):
        load(directory)


OWN_TOKENIZER = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast

Path(MARK).touch()

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def test_a_tokenizer_s_code_runs_only_when_trusted(directory: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (directory / "own.py").write_text(OWN_TOKENIZER.replace("MARK", repr(str(mark))))
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings |= {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
    }
    path.write_text(json.dumps(settings))
    try:
        load(directory)
    except ModelError as error:
        assert "\n" not in str(error)
    assert not mark.exists()
    assert type(load(directory, trust_remote_code=True).tokenizer).__name__ == "OwnTokenizer"
    assert mark.exists()


@pytest.mark.parametrize(
    ("name", "flag"), [("trust_remote_code", "--trust-code"), ("trust_pickle", "--trust-pickle")]
)
def test_a_run_directory_cannot_ask_for_trust(name: str, flag: str) -> None:
    stored = Config(model=replace(ModelConfig(name="organisation/own"), **{name: True}))  # type: ignore[arg-type]
    with pytest.raises(ResumeRefusedError, match=flag) as caught:
        resolve_resume({}, stored, {})
    assert "organisation/own" in str(caught.value) and "\n" not in str(caught.value)
    assert getattr(resolve_resume({f"model.{name}": True}, stored, {}).config.model, name) is True
    assert getattr(resolve_resume({f"model.{name}": False}, stored, {}).config.model, name) is False
    assert getattr(resolve_resume({}, Config(), {}).config.model, name) is False


def test_both_are_off_unless_asked_for() -> None:
    assert (ModelConfig().trust_remote_code, ModelConfig().trust_pickle) == (False, False)


def test_a_run_of_pickled_weights_goes_on_only_when_they_are_trusted_again(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled(directory)
    run_dir, common = tmp_path / "run", ["-n", "6", "--ignore-eos", "-q"]
    words = ["generate", "-m", str(directory), "--prompt-text", "Once", "-o", str(run_dir), *common]
    assert cli.run(words) == 1
    assert "--trust-pickle" in capsys.readouterr().err
    assert not run_dir.exists()
    assert cli.run([*words, "--trust-pickle"]) == 0
    capsys.readouterr()
    resume = ["resume", str(run_dir), "-n", "12", "-q"]
    assert cli.run(resume) == 3
    error = capsys.readouterr().err
    assert "--trust-pickle" in error and error.count("\n") == 1
    assert cli.run([*resume, "--trust-pickle"]) == 0


def test_an_error_holds_no_escape_sequence_of_a_foreign_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["generate", "-m", "./\x1b]0;title\x07\x1b[2J", "--prompt-text", "x", "-o", str(tmp_path / "r")]
    assert cli.run([*words, "-q"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: There is no model directory")
    assert error.endswith("\n") and error[:-1].isprintable()
