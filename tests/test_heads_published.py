"""Published TokenSwift checkpoints, made here in their shape: what is read, and that it drafts the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model_directory import save_tiny_model
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from tokenswift_cli.config import ModelConfig
from tokenswift_cli.errors import HeadsError, ModelError
from tokenswift_cli.models.heads_directory import load_heads
from tokenswift_cli.models.loading import LoadedModel, load_model
from tokenswift_cli.models.published_heads import convert_published, read_published

COUNT = 3
SIZE = 64


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))


def medusa_tensors(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"linear": (SIZE, SIZE), "input_layernorm": (SIZE,), "post_layernorm": (SIZE,)}
    return {
        f"model.medusa_layers.{index}.{part}.weight": torch.randn(shape, generator=generator).to(dtype)
        for index in range(COUNT)
        for part, shape in shapes.items()
    }


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def publish(directory: Path, sharded: bool, tensors: dict[str, Tensor] | None = None) -> Path:
    """Turn a plain model directory into a published checkpoint."""
    change_config(directory, medusa_heads=COUNT)
    plain, medusa = load_file(directory / "model.safetensors"), tensors or medusa_tensors()
    if not sharded:
        save_file(plain | medusa, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    (directory / "model.safetensors").unlink()
    last = [name for name in medusa if name.startswith("model.medusa_layers.2")]
    second = {name: medusa[name] for name in medusa if name not in last}
    shards = {"1": plain, "2": second, "3": {name: medusa[name] for name in last}}
    weight_map = {}
    for number, part in shards.items():
        file = f"model-0000{number}-of-00003.safetensors"
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


@pytest.fixture(params=[False, True], ids=["one file", "shards"])
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return publish(save_tiny_model(tmp_path / "published"), request.param)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return publish(save_tiny_model(tmp_path / "published"), sharded=False)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return publish(save_tiny_model(tmp_path / "published"), sharded=True)


def load(directory: Path) -> LoadedModel:
    return load_model(ModelConfig(name=str(directory), device="cpu"), lambda message: None)


def rms_norm(state: Tensor, weight: Tensor, eps: float) -> Tensor:
    return state * torch.rsqrt(state.square().mean(-1, keepdim=True) + eps) * weight


def test_the_heads_compute_what_the_published_form_does(checkpoint: Path) -> None:
    heads = read_published(checkpoint)
    assert heads.shape.variant == "linear"
    assert heads.shape.count == COUNT
    assert heads.draft_vocabulary is None
    assert heads.dtype == torch.bfloat16
    heads = heads.float()
    tensors = {name: tensor.float() for name, tensor in medusa_tensors().items()}
    eps = json.loads((checkpoint / "config.json").read_text())["rms_norm_eps"]
    expected = state = torch.randn(5, SIZE)
    for index in range(COUNT):
        linear, inner, outer = (
            tensors[f"model.medusa_layers.{index}.{part}.weight"]
            for part in ("linear", "input_layernorm", "post_layernorm")
        )
        expected = expected + rms_norm(expected, inner, eps) @ linear.T
        state, normed = heads.step(index, state, None)
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(normed, rms_norm(expected, outer, eps), rtol=1e-4, atol=1e-4)


def test_the_converted_heads_serve_the_checkpoint_and_the_plain_model(
    checkpoint: Path, tmp_path: Path
) -> None:
    convert_published(checkpoint, tmp_path / "heads")
    plain = save_tiny_model(tmp_path / "plain")
    for directory in (checkpoint, plain):
        loaded = load(directory)
        heads = load_heads(tmp_path / "heads", loaded.identity, SIZE, 257)
        for name, tensor in read_published(checkpoint).state_dict().items():
            assert torch.equal(heads.state_dict()[name], tensor.float())  # without loss
    card = (tmp_path / "heads" / "README.md").read_text()
    assert "published" in card and "not recorded" in card
    assert str(tmp_path) not in card + (tmp_path / "heads" / "config.json").read_text()
    with pytest.raises(HeadsError, match="not empty"):
        convert_published(checkpoint, tmp_path / "heads")
    convert_published(checkpoint, tmp_path / "heads", replace=True)


def test_a_qwen2_checkpoint_is_read_and_kept_apart_from_llama(tmp_path: Path) -> None:
    """Case 29."""
    source = tmp_path / "qwen"
    config = Qwen2Config(
        vocab_size=257, hidden_size=SIZE, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    Qwen2ForCausalLM(config).save_pretrained(source)
    convert_published(publish(source, sharded=False), tmp_path / "heads")
    llama = load(save_tiny_model(tmp_path / "plain"))
    with pytest.raises(HeadsError, match=r"qwen \(Qwen2ForCausalLM\), not to plain \(LlamaForCausalLM\)"):
        load_heads(tmp_path / "heads", llama.identity, SIZE, 257)


def test_only_the_shards_with_heads_are_needed(shards: Path) -> None:
    (shards / "model-00001-of-00003.safetensors").unlink()
    assert read_published(shards).shape.count == COUNT
    (shards / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(HeadsError, match=r"model-00003-of-00003\.safetensors is missing"):
        read_published(shards)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"medusa_heads": None}, "no medusa_heads"),
        ({"medusa_heads": 2}, r"holds model\.medusa_layers\.2"),
        ({"medusa_heads": 4}, r"lacks model\.medusa_layers\.3.*3 of 12"),
        ({"medusa_heads": 10**9}, "medusa_heads"),
        ({"medusa_heads": "3"}, "medusa_heads"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "LlamaForCausalLM and Qwen2ForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "LlamaForCausalLM and Qwen2ForCausalLM"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 32}, r"\[64, 64\].*\[32, 32\]"),
        ({"rms_norm_eps": -1.0}, "norm_eps"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    single: Path, changes: dict[str, object], words: str
) -> None:
    change_config(single, **changes)
    with pytest.raises(HeadsError, match=words):
        read_published(single)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    name = "model.medusa_layers.1.linear.weight"
    plain = save_tiny_model(tmp_path / "plain")
    for number, (change, words) in enumerate(
        [
            ({name: torch.zeros(SIZE, SIZE, dtype=torch.int8)}, "I8"),
            ({name: torch.full((SIZE, SIZE), torch.nan)}, "not finite"),
            ({"model.medusa_layers.1.linear.bias": torch.zeros(SIZE)}, r"linear\.bias"),
        ]
    ):
        directory = tmp_path / f"published{number}"
        directory.mkdir()
        for file in plain.iterdir():
            (directory / file.name).write_bytes(file.read_bytes())
        publish(directory, sharded=False, tensors=medusa_tensors() | change)
        with pytest.raises(HeadsError, match=words):
            read_published(directory)


def test_mixed_types_are_widened(tmp_path: Path) -> None:
    tensors = medusa_tensors()
    name = "model.medusa_layers.0.linear.weight"
    tensors[name] = tensors[name].to(torch.float16)
    directory = publish(save_tiny_model(tmp_path / "published"), sharded=False, tensors=tensors)
    heads = read_published(directory)
    assert heads.dtype == torch.float32
    assert torch.equal(heads.heads[0].linear.weight, tensors[name].float())


def test_missing_and_damaged_files_are_told(single: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_published(tmp_path / "nowhere")
    (single / "model.safetensors").write_bytes(b"\x80torn")
    with pytest.raises(HeadsError, match="damaged"):
        read_published(single)


def test_a_damaged_index_is_told(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name = "model.medusa_layers.0.linear.weight"
    content["weight_map"][name] = "model-00003-of-00003.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(HeadsError, match="index places there"):
        read_published(shards)
    content["weight_map"][name] = "../elsewhere.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="outside"):
        read_published(shards)
    index.write_text("{}")
    with pytest.raises(ModelError, match="weight_map"):
        read_published(shards)


def test_pickles_are_refused(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle"):
        read_published(single)
