"""Heads from anybody: refused in one sentence, little memory, nothing unpickled, no hang."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from heads_in_memory import random_heads

from tokenswift_cli.errors import HeadsError
from tokenswift_cli.models.heads import HeadsShape
from tokenswift_cli.models.heads_directory import load_heads, save_heads
from tokenswift_cli.models.identity import ModelIdentity
from tokenswift_cli.models.published_heads import read_published

BASE = ModelIdentity("tiny", "LlamaForCausalLM", {}, "0" * 64, "float32", 50)
MOST_MEMORY = 50 * 2**20


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    directory = tmp_path / "heads"
    save_heads(directory, random_heads(HeadsShape(2, 8)), BASE, card="# Card", training={})
    return directory


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        (directory / name).unlink()
        make(directory / name)

    return spoil


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


def header(length: int, text: bytes = b"{}") -> Callable[[Path], object]:
    return lambda path: path.write_bytes(struct.pack("<Q", length) + text)


def giant_tensor(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}
    text = json.dumps({"heads.0.linear.weight": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def configured(**changes: object) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        for name, value in changes.items():
            section, _, key = name.partition("__")
            if key:
                config[section][key] = value
            else:
                config[section] = value
        path.write_text(json.dumps(config))

    return spoil


def pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "model.bin")
    (directory / "model.bin").write_bytes(pickle.dumps({}))


WEIGHTS, CONFIG = "model.safetensors", "config.json"
SPOILS = {
    "weights-zeros": replaced(WEIGHTS, sparse),
    "weights-endless": replaced(WEIGHTS, lambda path: path.symlink_to("/dev/zero")),
    "weights-pipe": replaced(WEIGHTS, os.mkfifo),
    "weights-elsewhere": replaced(WEIGHTS, lambda path: path.symlink_to("/etc/passwd")),
    "header-beyond": replaced(WEIGHTS, header(2**62)),
    "header-most": replaced(WEIGHTS, header(2**64 - 1)),
    "header-deep": replaced(WEIGHTS, header(20_000, b"[" * 20_000)),
    "tensor-giant": replaced(WEIGHTS, giant_tensor),
    "pickled": pickled,
    "config-zeros": replaced(CONFIG, sparse),
    "config-endless": replaced(CONFIG, lambda path: path.symlink_to("/dev/zero")),
    "config-pipe": replaced(CONFIG, os.mkfifo),
    "config-deep": replaced(CONFIG, lambda path: path.write_text("[" * 100_000)),
    "config-digits": replaced(CONFIG, lambda path: path.write_text("9" * 100_000)),
    "count": configured(shape__count=2**60),
    "count-truth": configured(shape__count=True),
    "width": configured(shape__hidden_size=2**60),
    "vocabulary": configured(draft_vocabulary_size=2**60),
    "vocabulary-negative": configured(draft_vocabulary_size=-1),
    "version": configured(format_version=2**60),
    "base": configured(base_model=[1]),
}


@pytest.mark.parametrize("kind", SPOILS)
def test_hostile_heads_are_refused(heads: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SPOILS[kind](heads)
    for name in ("pickle.load", "pickle.loads", "torch.load"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("something was unpickled"))
    tracemalloc.start()
    try:
        with pytest.raises(HeadsError) as caught:
            load_heads(heads, BASE, 8, 50)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert str(heads) in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_files_of_heads_may_be_links(heads: Path, tmp_path: Path) -> None:
    """As they are in the Hub's cache."""
    for name in (WEIGHTS, CONFIG):
        (heads / name).rename(tmp_path / name)
        (heads / name).symlink_to(tmp_path / name)
    assert load_heads(heads, BASE, 8, 50).shape.count == 2


def test_published_heads_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "medusa_heads": 3,
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 50,
        "hidden_size": 8,
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / CONFIG).write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("something was unpickled"))
    with pytest.raises(HeadsError, match="never taken from a pickle") as caught:
        read_published(tmp_path)
    assert "--trust-pickle" not in str(caught.value)
