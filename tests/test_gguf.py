"""Converting .gguf files, and the cache of converted models, on a tiny file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from tiny_gguf import END_ID, TEMPLATE, save_tiny_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from tokenswift_cli.config import ModelConfig
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models import gguf, gguf_conversion
from tokenswift_cli.models.demo import demo_gguf_path
from tokenswift_cli.models.gguf import MANIFEST_NAME, converted_model, entry_fault
from tokenswift_cli.models.gguf_conversion import read_gguf
from tokenswift_cli.models.loading import LoadedModel, load_model

ROOT = Path(__file__).resolve().parent.parent
TEXTS = (
    "Hello, the world!",
    " leading and trailing ",
    "\U0001f600 emoji \U0001f469\u200d\U0001f680",
    "\u6f22\u5b57 \u304b\u306a \ud55c\uae00",
    "one\r\ntwo\r\n\r\nthree\ttab\x00nul",
    "<|im_start|>user\nhi<|im_end|>\n",
    "3.14159, 1984 and 2001",
)


def silent(message: str) -> None:
    """Ignore progress."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny model.gguf")


@pytest.fixture
def source(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(written, tmp_path))


def logits_of(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_converted_model_is_the_same_model(source: Path, dtype: str) -> None:
    tokenizer, model = read_gguf(source, dtype)
    directory = converted_model(source, dtype, silent).directory
    stored = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    stored_tokenizer = AutoTokenizer.from_pretrained(directory)
    assert torch.equal(logits_of(model, [5, 6, 7, 200]), logits_of(stored, [5, 6, 7, 200]))
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert stored_tokenizer(text)["input_ids"] == ids
        assert stored_tokenizer.decode(ids) == tokenizer.decode(ids) == text
    assert stored_tokenizer.chat_template == tokenizer.chat_template == TEMPLATE
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())


def test_a_gguf_file_loads_like_any_model(source: Path) -> None:
    said: list[str] = []
    loaded = load_model(ModelConfig(name=str(source), device="cpu"), said.append)
    assert loaded.name == "tiny model.gguf"
    assert loaded.eos_ids == (END_ID,)
    assert loaded.position_limit == 512
    assert set(loaded.identity.files) == {"model.gguf"}
    assert any("Converting" in line for line in said)
    renamed = source.rename(source.with_name("other.gguf"))
    again = load_model(ModelConfig(name=str(renamed), device="cpu"), said.append)
    assert loaded.identity.differences(again.identity) == []
    changed = save_tiny_gguf(source, seed=1)
    other = load_model(ModelConfig(name=str(changed), device="cpu"), said.append)
    (difference,) = loaded.identity.differences(other.identity)
    assert "model.gguf" in difference


def test_an_entry_is_made_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = converted_model(source, "float32", silent)
    monkeypatch.setattr(gguf_conversion, "convert_gguf", lambda *arguments: pytest.fail("converted again"))
    assert converted_model(source, "float32", silent) == first
    assert entry_fault(first.directory, first.source_sha256) is None
    assert [path.name for path in first.directory.parent.iterdir() if path.name.startswith(".")] == []


def truncate(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 5)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", MANIFEST_NAME])
def test_a_damaged_entry_is_made_again(source: Path, name: str, damage: object) -> None:
    """Case 21: truncated, bit-flipped and missing files are noticed and replaced, with a message."""
    converted = converted_model(source, "float32", silent)
    before = {path.name: path.read_bytes() for path in converted.directory.iterdir()}
    damage(converted.directory / name)  # type: ignore[operator]
    said: list[str] = []
    again = converted_model(source, "float32", said.append)
    assert again == converted
    assert {path.name: path.read_bytes() for path in converted.directory.iterdir()} == before
    assert any("damaged" in line for line in said)


def test_an_interrupted_conversion_leaves_nothing_behind(
    source: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 20: what is half written is never taken for whole, and is cleared away."""
    convert = gguf_conversion.convert_gguf

    def fail(source: Path, target: Path, dtype: str, notify: object) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_conversion, "convert_gguf", fail)
    with pytest.raises(ModelError, match=r"the disk is full.*TOKENSWIFT_CACHE"):
        converted_model(source, "float32", silent)
    assert [path.name for path in (own_cache / "converted").iterdir() if path.is_dir()] == []
    monkeypatch.setattr(gguf_conversion, "convert_gguf", convert)
    converted = converted_model(source, "float32", silent)
    killed = converted.directory.parent / f".{converted.directory.name}.killed"
    killed.mkdir()
    (converted.directory / MANIFEST_NAME).unlink()
    converted_model(source, "float32", silent)
    assert not killed.exists()


def test_two_processes_convert_once(source: Path, own_cache: Path) -> None:
    """Case 33: the second one waits for the first and takes its result."""
    script = (
        "import sys; from pathlib import Path; from tokenswift_cli.models.gguf import converted_model; "
        "print(converted_model(Path(sys.argv[1]), 'float32', lambda m: print(m)).directory)"
    )
    command = [sys.executable, "-c", script, str(source)]
    outputs: list[str] = []

    def work() -> None:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        outputs.append(done.stdout)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum("Converting" in output for output in outputs) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1


def test_a_full_disk_is_foreseen(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 34."""
    usage = shutil.disk_usage(source.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ModelError, match=r"needs .* GiB .* free"):
        converted_model(source, "float32", silent)


def test_a_cache_that_cannot_be_written_is_said(source: Path, own_cache: Path) -> None:
    """Case 34."""
    own_cache.write_text("a file where the directory should be")
    with pytest.raises(ModelError, match="TOKENSWIFT_CACHE"):
        converted_model(source, "float32", silent)


def test_files_that_are_no_models_are_refused(tmp_path: Path, source: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    with pytest.raises(ModelError, match="not a GGUF file"):
        converted_model(text, "float32", silent)
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(source.read_bytes()[:3000])
    with pytest.raises(ModelError, match=r"torn\.gguf"):
        converted_model(torn, "float32", silent)
    with pytest.raises(ModelError, match=r"There is no file .*absent\.gguf"):
        load_model(ModelConfig(name=str(tmp_path / "absent.gguf")), silent)


def test_a_change_by_saving_is_noticed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gguf_conversion.plain_model

    def wrong(model: torch.nn.Module) -> torch.nn.Module:
        result = plain(model)
        result.model.norm.weight = torch.nn.Parameter(result.model.norm.weight * 1.001)
        return result

    monkeypatch.setattr(gguf_conversion, "plain_model", wrong)
    with pytest.raises(ModelError, match=r"without change.*norm"):
        converted_model(source, "float32", silent)


def test_the_entry_depends_on_content_dtype_and_format(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "0" * 64
    base = gguf._entry_directory(source, digest, "float32")
    assert gguf._entry_directory(source, "1" * 64, "float32") != base
    assert gguf._entry_directory(source, digest, "bfloat16") != base
    monkeypatch.setattr(gguf, "FORMAT", 2)
    assert gguf._entry_directory(source, digest, "float32") != base


@pytest.mark.demo
def test_demo_weights_are_those_of_the_file(demo_model: LoadedModel) -> None:
    """Dequantised by the gguf package itself and put in transformers' order of rotary dimensions.

    That all the large matrices are those of the file is tested with the blocks.
    """
    reader = GGUFReader(demo_gguf_path())
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    layers = demo_model.model.model.layers

    def expected(name: str) -> torch.Tensor:
        tensor = tensors[name]
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    config, fields = demo_model.model.config, reader.fields
    assert config.rms_norm_eps == pytest.approx(fields["llama.attention.layer_norm_rms_epsilon"].contents())
    assert config.rope_parameters["rope_theta"] == fields["llama.rope.freq_base"].contents()
    assert config.rope_parameters["rope_type"] == "default"
    embedding = demo_model.model.get_input_embeddings().weight
    assert torch.equal(embedding, expected("token_embd.weight"))
    assert demo_model.model.lm_head.weight is embedding
    assert torch.equal(demo_model.model.model.norm.weight, expected("output_norm.weight"))
    for layer, block in enumerate(layers):
        assert torch.equal(block.input_layernorm.weight, expected(f"blk.{layer}.attn_norm.weight"))
        assert torch.equal(block.post_attention_layernorm.weight, expected(f"blk.{layer}.ffn_norm.weight"))
    for layer in (0, 13, 29):
        block = layers[layer]
        assert torch.equal(block.mlp.down_proj.weight, expected(f"blk.{layer}.ffn_down.weight"))
        assert torch.equal(block.self_attn.v_proj.weight, expected(f"blk.{layer}.attn_v.weight"))
        for name, heads, weight in (
            ("attn_q", 9, block.self_attn.q_proj),
            ("attn_k", 3, block.self_attn.k_proj),
        ):
            # GGUF interleaves the two halves of each head's rotary pairs.
            stored = expected(f"blk.{layer}.{name}.weight").reshape(heads, 32, 2, 576)
            assert torch.equal(weight.weight, stored.transpose(1, 2).reshape(heads * 64, 576))


@pytest.mark.demo
def test_demo_tokenizer_is_the_one_of_the_file(demo_model: LoadedModel) -> None:
    path = demo_gguf_path()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert demo_model.tokenizer(text)["input_ids"] == ids
        assert demo_model.tokenizer.decode(ids) == text
    assert demo_model.tokenizer.chat_template == tokenizer.chat_template
    assert "<|im_start|>" in tokenizer.chat_template


@pytest.mark.demo
def test_demo_facts(demo_model: LoadedModel) -> None:
    assert demo_model.name == "smollm2-135m"
    assert demo_model.eos_ids == (2,)
    assert demo_model.position_limit == 8192
    assert demo_model.identity.vocab_size == 49152
    assert demo_model.identity.dtype == "float32"
    config = demo_model.model.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.num_hidden_layers) == (9, 3, 30)
    # No begin-of-text is added, and special text becomes special ids.
    ids = demo_model.tokenizer("<|im_start|>user")["input_ids"]
    assert ids[0] == 1 and len(ids) == 2
