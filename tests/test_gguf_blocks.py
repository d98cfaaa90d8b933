"""Quantized matrices of .gguf files: the blocks are the weights that transformers reads, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_gguf import FLOATS_AT, HEADS, KEY_VALUE_HEADS, WIDTH, random_bytes, write_model, write_tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models import gguf_blocks
from tokenswift_cli.models.demo import demo_gguf_path
from tokenswift_cli.models.gguf_block_types import BLOCK_TYPES
from tokenswift_cli.models.gguf_blocks import Blocks, GgufBlocks, blocks_of
from tokenswift_cli.models.gguf_file import StoredTensor
from tokenswift_cli.models.gguf_names import INTERLEAVED
from tokenswift_cli.models.loading import LoadedModel

FOUR_BITS = {"Q4_0", "Q4_1", "Q4_K", "Q2_K", "Q3_K"}
BLOCKS_OF_16 = {"Q2_K", "Q3_K", "Q6_K"}
WITHOUT_MINIMA = {"Q5_0", "Q8_0", "Q6_K", "IQ4_NL", "IQ4_XS"}
EMBEDDING = "model.embed_tokens.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def stored(name: str, data: np.ndarray, inputs: int) -> StoredTensor:
    return StoredTensor("any", GGMLQuantizationType[name], (inputs, len(data)), data)


def blocks_from(name: str, data: np.ndarray, inputs: int) -> Blocks:
    blocks = blocks_of(stored(name, data, inputs))
    assert blocks is not None
    return blocks


def dequantized(name: str, data: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(dequantize(data, GGMLQuantizationType[name])))


def read_model(path: Path) -> Any:
    where = {"gguf_file": path.name, "local_files_only": True}
    return AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **where)


def matrices(model: Any) -> dict[str, torch.Tensor]:
    # The output layer once more: tied to the embedding, it is no parameter of its own.
    found = {name: weight for name, weight in model.named_parameters() if weight.ndim == 2}
    return {**found, "lm_head.weight": model.lm_head.weight}


def test_every_covered_type_is_tested() -> None:
    assert {kind.name for kind in BLOCK_TYPES} == set(FLOATS_AT)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(FLOATS_AT)), st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32))
def test_blocks_are_what_gguf_makes_of_any_bytes(name: str, outputs: int, units: int, seed: int) -> None:
    inputs = 256 * units
    data = random_bytes(name, outputs, inputs, np.random.default_rng(seed))
    assert torch.equal(blocks_from(name, data, inputs).values(), dequantized(name, data))


@pytest.mark.parametrize("name", sorted(FLOATS_AT))
def test_the_form_of_the_blocks(name: str) -> None:
    blocks = blocks_from(name, random_bytes(name, 64, 512, np.random.default_rng(3)), 512)
    assert blocks.bits == (4 if name in FOUR_BITS else 8)
    assert blocks.block == (16 if name in BLOCKS_OF_16 else 32)
    assert blocks.levels.shape == (64, 512)
    assert blocks.levels.dtype == (torch.uint8 if name in FOUR_BITS else torch.int8)
    if blocks.bits == 4:
        assert int(blocks.levels.max()) <= 15
    assert blocks.scales.shape == (64, 512 // blocks.block) and blocks.scales.dtype == torch.float32
    assert (blocks.minima is None) == (name in WITHOUT_MINIMA)
    if blocks.minima is not None:
        assert blocks.minima.shape == blocks.scales.shape and blocks.minima.dtype == torch.float32


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_of_real_weights(name: str) -> None:
    """The types that the gguf package can write itself."""
    weights = np.random.default_rng(5).normal(0, 0.1, (33, 96)).astype(np.float32)
    data = quantize(weights, GGMLQuantizationType[name])
    blocks = blocks_from(name, data, 96)
    assert torch.equal(blocks.values(), dequantized(name, data))
    assert float((blocks.values() - torch.from_numpy(weights)).abs().max()) < 0.05


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_slices_and_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large matrix is read in slices of rows; rows can be asked for in any order."""
    data = random_bytes(name, 50, 256, np.random.default_rng(1))
    expected = dequantized(name, data)
    monkeypatch.setattr(gguf_blocks, "SLICE_WEIGHTS", 7 * 256)
    assert torch.equal(blocks_from(name, data, 256).values(), expected)
    order = np.random.default_rng(2).permutation(50)
    some = blocks_of(stored(name, data, 256), order)
    assert some is not None
    assert torch.equal(some.values(), expected[torch.from_numpy(order)])
    assert torch.equal(some.values(slice(3, 9)), expected[torch.from_numpy(order[3:9])])


def test_a_tensor_of_the_gguf_package_will_do(tmp_path: Path) -> None:
    data = random_bytes("Q4_K", 16, 256, np.random.default_rng(0))
    (tensor,) = GGUFReader(write_tensor(tmp_path / "one.gguf", "Q4_K", data)).tensors
    blocks = blocks_of(tensor)
    assert blocks is not None
    assert torch.equal(blocks.values(), dequantized("Q4_K", data))


def test_other_tensors_have_no_blocks() -> None:
    plain = np.ones((4, 32), dtype=np.float32)
    for kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16):
        assert blocks_of(StoredTensor("any", kind, (32, 4), plain.view(np.uint8))) is None
    experts = random_bytes("Q8_0", 8, 32, np.random.default_rng(0)).reshape(2, 4, -1)
    assert blocks_of(StoredTensor("any", GGMLQuantizationType.Q8_0, (32, 4, 2), experts)) is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", sorted(INTERLEAVED))
def test_blocks_are_the_weights_of_the_loaded_model(tmp_path: Path, architecture: str, tied: bool) -> None:
    """By transformers' names and in transformers' order of rows, for each type of matrix."""
    types = tuple(sorted(FLOATS_AT))
    path = write_model(tmp_path / "tiny.gguf", architecture, types, tied)
    file, weights = GgufBlocks(path), matrices(read_model(path))
    assert len(weights) == 2 + 2 * 7
    for name, weight in weights.items():
        blocks = file.blocks(name)
        assert blocks is not None, file.refused
        assert torch.equal(blocks.values(), weight), name
        assert file.matches(name, weight)
        assert file.matches(name, weight, rows=range(len(weight)))
    assert file.refused == {}
    assert torch.equal(weights["lm_head.weight"], weights[EMBEDDING]) == tied


@pytest.mark.parametrize("architecture", sorted(INTERLEAVED))
def test_the_order_of_rows_is_that_of_transformers(tmp_path: Path, architecture: str) -> None:
    path = write_model(tmp_path / "tiny.gguf", architecture, ("Q8_0",))
    names = GgufBlocks(path)._names
    config = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_VALUE_HEADS}
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config)
    for part, rows in (("attn_q", WIDTH), ("attn_k", WIDTH // 2), ("attn_v", WIDTH // 2), ("ffn_up", 512)):
        numbers = np.arange(rows)
        expected = processor.process(numbers[:, None], f"blk.1.{part}.weight").weights[:, 0]
        order = names.row_order(f"blk.1.{part}.weight", rows)
        assert np.array_equal(numbers if order is None else order, expected)


def test_wrong_weights_do_not_match(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "llama", ("Q4_K",))
    file, weights = GgufBlocks(path), matrices(read_model(path))
    right = weights[QUERY]
    as_in_the_file = right.unflatten(0, (HEADS, 2, -1)).transpose(1, 2).reshape(right.shape)
    assert not torch.equal(as_in_the_file, right)
    assert not file.matches(QUERY, as_in_the_file)
    assert not file.matches(QUERY, right.roll(1, 0))
    assert not file.matches(QUERY, right * (1 + 2**-18))
    assert not file.matches(QUERY, right[:, :-1])
    assert not file.matches(QUERY, right.to(torch.bfloat16))
    assert not file.matches(QUERY, torch.full_like(right, torch.nan))
    assert not file.matches(QUERY.replace("layers.0", "layers.1"), right)
    assert not file.matches("model.norm.weight", torch.ones(WIDTH))
    changed = right.detach().clone()
    changed[100, 17] += 1
    assert not file.matches(QUERY, changed, rows=[100])
    assert file.matches(QUERY, changed, rows=[99, 101])
    assert file.matches(QUERY, torch.nextafter(right, torch.full_like(right, torch.inf)))


@pytest.mark.parametrize("rows", [1, 2, 3, 15, 16, 17, 576])
def test_samples_hold_the_first_and_the_last_row(rows: int) -> None:
    sample = gguf_blocks._sample(rows)
    assert sample[0] == 0 and sample[-1] == rows - 1
    assert len(set(sample.tolist())) == len(sample) <= 2 * gguf_blocks.SAMPLED_PLACES


def test_refusals_have_a_reason(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "llama", ("Q4_0",))
    file = GgufBlocks(path)
    assert file.blocks("model.norm.weight") is None
    assert file.blocks("model.layers.7.mlp.up_proj.weight") is None
    assert file.blocks("no.such.module.weight") is None
    assert "dimensions" in file.refused["model.norm.weight"]
    assert "no tensor" in file.refused["model.layers.7.mlp.up_proj.weight"]
    assert set(file.refused) == {
        "model.norm.weight",
        "model.layers.7.mlp.up_proj.weight",
        "no.such.module.weight",
    }
    other = GgufBlocks(write_model(tmp_path / "other.gguf", "gemma", ("Q4_0",)))
    assert other.blocks(EMBEDDING) is None
    assert "gemma" in other.refused[EMBEDDING]


def test_a_type_without_blocks_is_refused(tmp_path: Path) -> None:
    halves = np.ones((4, 32), dtype=np.float16).view(np.uint8)
    file = GgufBlocks(write_tensor(tmp_path / "one.gguf", "F16", halves))
    assert file.blocks(EMBEDDING) is None
    assert "F16" in file.refused[EMBEDDING]
    assert not file.matches(EMBEDDING, torch.ones(4, 32))


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K"])
def test_scales_that_are_not_finite_are_refused(tmp_path: Path, name: str, number: float) -> None:
    data = random_bytes(name, 1000, 256, np.random.default_rng(0))
    at = FLOATS_AT[name][-1]
    data[501, at : at + 2] = np.array([number], dtype="<f2").view(np.uint8)
    file = GgufBlocks(write_tensor(tmp_path / "one.gguf", name, data))
    with np.errstate(invalid="ignore"):
        assert file.blocks(EMBEDDING) is None
    assert "not finite" in file.refused[EMBEDDING]


def test_blocks_are_compared_with_the_gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_bytes("Q8_0", 20, 64, np.random.default_rng(0))
    file = GgufBlocks(write_tensor(tmp_path / "one.gguf", "Q8_0", data))
    original = gguf_blocks.blocks_of

    def wrong(*arguments: Any) -> Blocks | None:
        blocks = original(*arguments)
        assert blocks is not None
        blocks.levels[-1, -1] ^= 1
        return blocks

    monkeypatch.setattr(gguf_blocks, "blocks_of", wrong)
    assert file.blocks(EMBEDDING) is None
    assert "gguf package" in file.refused[EMBEDDING]
    monkeypatch.undo()
    assert file.blocks(EMBEDDING) is not None
    assert file.refused == {}


def test_blocks_do_not_depend_on_the_file_any_more(tmp_path: Path) -> None:
    data = random_bytes("Q8_0", 20, 64, np.random.default_rng(0))
    path = write_tensor(tmp_path / "one.gguf", "Q8_0", data)
    blocks = GgufBlocks(path).blocks(EMBEDDING)
    assert blocks is not None
    with path.open("r+b") as stream:  # what is mapped would change as well
        stream.write(bytes(path.stat().st_size))
    assert torch.equal(blocks.values(), dequantized("Q8_0", data))


def test_heads_that_do_not_divide_the_rows_are_refused(tmp_path: Path) -> None:
    names = GgufBlocks(write_model(tmp_path / "tiny.gguf", "llama", ("Q8_0",)))._names
    with pytest.raises(ModelError, match=r"attn_q.* 250 rows for 4 heads"):
        names.row_order("blk.0.attn_q.weight", 250)


@pytest.mark.demo
def test_demo_blocks_are_the_weights_of_the_loaded_model(demo_model: LoadedModel) -> None:
    file, weights = GgufBlocks(demo_gguf_path()), matrices(demo_model.model)
    chosen = [name for name in weights if "layers" not in name or any(f".{i}." in name for i in (0, 13, 29))]
    assert len(chosen) == 2 + 3 * 7
    for name in chosen:
        blocks = file.blocks(name)
        assert blocks is not None, file.refused
        assert (blocks.bits, blocks.block) == ((4, 32) if "layers" in name else (8, 32))
        assert torch.equal(blocks.values(), weights[name]), name
    assert all(file.matches(name, weight) for name, weight in weights.items())
