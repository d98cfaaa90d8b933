"""The header of .gguf files, against the gguf package's own reader."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFEndian, GGUFReader, GGUFWriter
from quantized_gguf import write_model
from tiny_gguf import save_tiny_gguf

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.demo import demo_gguf_path
from tokenswift_cli.models.gguf_file import open_gguf


def assert_read_alike(path: Path) -> None:
    found, reader = open_gguf(path), GGUFReader(path)
    assert list(found.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        mine = found.tensors[tensor.name]
        assert mine.tensor_type == tensor.tensor_type
        assert mine.shape == tuple(tensor.shape.tolist())
        assert np.array_equal(mine.data.reshape(-1), tensor.data.reshape(-1).view(np.uint8))
        if tensor.data.dtype == np.uint8:
            assert mine.data.shape == tensor.data.shape
    for key, value in found.values.items():
        assert reader.fields[key].contents() == value
    skipped = {key for key in reader.fields if key not in found.values and not key.startswith("GGUF.")}
    assert all(isinstance(reader.fields[key].contents(), list) for key in skipped)


def test_files_are_read_as_the_gguf_package_reads_them(tmp_path: Path) -> None:
    assert_read_alike(save_tiny_gguf(tmp_path / "tiny.gguf"))
    assert_read_alike(write_model(tmp_path / "model.gguf", "qwen2", ("Q4_K", "Q6_K", "Q8_0"), tied=False))


def test_all_types_of_values_and_another_alignment(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "values.gguf", "llama")
    writer.add_custom_alignment(256)
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"an.unsigned{bits}", 2**bits - 1)
        getattr(writer, f"add_int{bits}")(f"a.signed{bits}", -(2 ** (bits - 1)))
    writer.add_float32("a.float", 0.5)
    writer.add_float64("a.double", 1 / 3)
    writer.add_bool("a.truth", True)
    writer.add_string("a.text", "\u6f22\u5b57")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("texts", ["", "one", "\U0001f600"])
    writer.add_string("after.the.arrays", "here")
    writer.add_tensor("odd.weight", np.arange(21, dtype=np.float32).reshape(3, 7))
    writer.add_tensor("next.weight", np.arange(64, dtype=np.float16).reshape(2, 32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_read_alike(tmp_path / "values.gguf")
    values = open_gguf(tmp_path / "values.gguf").values
    assert values["after.the.arrays"] == "here" and values["an.unsigned64"] == 2**64 - 1
    assert "numbers" not in values


def test_the_file_is_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    tensor = open_gguf(save_tiny_gguf(tmp_path / "tiny.gguf")).tensors["token_embd.weight"]
    assert not tensor.data.flags.owndata and not tensor.data.flags.writeable


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    content = save_tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    torn = tmp_path / "torn.gguf"
    random.seed(2)
    for size in (0, 3, 4, 23, *(random.randrange(len(content) - 32) for _ in range(40))):
        torn.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"torn\.gguf"):
            open_gguf(torn)


def test_damage_never_ends_in_another_error(tmp_path: Path) -> None:
    """Bytes of the header changed at random: either it still reads, or a ModelError says so."""
    content = save_tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    damaged, refused = tmp_path / "damaged.gguf", 0
    random.seed(3)
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(3):
            changed[random.randrange(8000)] = random.choice((0, 1, 8, 9, 127, 128, 255))
        damaged.write_bytes(changed)
        try:
            open_gguf(damaged)
        except ModelError:
            refused += 1
    assert refused > 100


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        open_gguf(tmp_path / "absent.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ModelError, match="does not begin with GGUF"):
        open_gguf(tmp_path / "text.gguf")
    writer = GGUFWriter(tmp_path / "big.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="version"):
        open_gguf(tmp_path / "big.gguf")


@pytest.mark.demo
@pytest.mark.slow
def test_the_demo_file_is_read_as_the_gguf_package_reads_it() -> None:
    assert_read_alike(demo_gguf_path())
