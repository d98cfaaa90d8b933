"""The model identity and the remembered file hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model_directory import save_tiny_model
from transformers import AutoTokenizer

from tokenswift_cli.cache_dir import cache_directory
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models import file_hashes
from tokenswift_cli.models.file_hashes import file_sha256
from tokenswift_cli.models.identity import ModelIdentity, tokenizer_fingerprint

SHA256 = st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)
IDENTITIES = st.builds(
    ModelIdentity,
    name=st.text(),
    architecture=st.text(),
    files=st.dictionaries(st.text(min_size=1), SHA256),
    tokenizer_sha256=SHA256,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    vocab_size=st.integers(1, 10**6),
)
ONE = ModelIdentity("one", "LlamaForCausalLM", {"config.json": "a" * 64}, "b" * 64, "float32", 100)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_old(path: Path) -> Path:
    """Give a file a time of modification that hashing trusts."""
    past = time.time_ns() - 10 * 10**9
    os.utime(path, ns=(past, past))
    return path


@settings(deadline=None, max_examples=50)
@given(IDENTITIES)
def test_json_round_trip(identity: ModelIdentity) -> None:
    again = ModelIdentity.from_json(json.loads(json.dumps(identity.to_json())))
    assert again == identity
    assert identity.differences(again) == []


@settings(deadline=None, max_examples=50)
@given(IDENTITIES, IDENTITIES)
def test_differences_are_found_in_both_directions(one: ModelIdentity, two: ModelIdentity) -> None:
    same = dataclasses.replace(two, name=one.name) == one
    assert (one.differences(two) == []) == same
    assert len(one.differences(two)) == len(two.differences(one))


def test_a_resume_with_another_model_is_told_what_differs() -> None:
    """Case 22: resume with another model names the difference; another name alone is none."""
    assert ONE.differences(dataclasses.replace(ONE, name="two")) == []
    for change, word in (
        ({"architecture": "Qwen2ForCausalLM"}, "Qwen2ForCausalLM"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"vocab_size": 101}, "101"),
        ({"tokenizer_sha256": "c" * 64}, "tokenizer"),
        ({"files": {"config.json": "d" * 64}}, "config.json changed"),
        ({"files": {}}, "config.json is missing now"),
        ({"files": {**ONE.files, "extra.py": "d" * 64}}, "extra.py was not part"),
    ):
        (difference,) = ONE.differences(dataclasses.replace(ONE, **change))
        assert word in difference


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"architecture": None},
        {"vocab_size": "100"},
        {"vocab_size": True},
        {"vocab_size": 0},
        {"files": ["config.json"]},
        {"files": {"config.json": "short"}},
        {"tokenizer_sha256": "B" * 64},
        {"dtype": 32},
    ],
)
def test_damaged_records_are_refused(change: dict[str, object]) -> None:
    """Case 21: a damaged state file gives a clear error."""
    with pytest.raises(ModelError, match="damaged"):
        ModelIdentity.from_json({**ONE.to_json(), **change})
    missing = {key: value for key, value in ONE.to_json().items() if key not in change}
    with pytest.raises(ModelError, match="damaged"):
        ModelIdentity.from_json(missing)


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_records_that_are_no_object_are_refused(data: object) -> None:
    with pytest.raises(ModelError, match="damaged"):
        ModelIdentity.from_json(data)


def test_tokenizer_fingerprint_is_of_behaviour(tmp_path: Path) -> None:
    first = AutoTokenizer.from_pretrained(save_tiny_model(tmp_path / "first"))
    first.save_pretrained(tmp_path / "second")
    second = AutoTokenizer.from_pretrained(tmp_path / "second")
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(second)
    second.add_tokens(["<new>"])
    assert tokenizer_fingerprint(first) != tokenizer_fingerprint(second)


def test_hash_is_right_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(file_hashes.BLOCK_BYTES + 12345)
    path = tmp_path / "weights"
    path.write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert file_sha256(make_old(path)) == expected
    monkeypatch.setattr(file_hashes, "_hash_content", lambda path: pytest.fail("hashed again"))
    assert file_sha256(path) == expected
    (tmp_path / "link").symlink_to(path)
    assert file_sha256(tmp_path / "link") == expected


def test_a_changed_file_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"first")
    first = file_sha256(make_old(path))
    path.write_bytes(b"other")
    assert file_sha256(path) == hashlib.sha256(b"other").hexdigest() != first


def test_a_fresh_file_is_not_remembered(tmp_path: Path, own_cache: Path) -> None:
    """Two writes within one tick of the file system's clock look the same from outside."""
    path = tmp_path / "weights"
    path.write_bytes(b"first")
    file_sha256(path)
    assert not (own_cache / file_hashes.INDEX_NAME).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 3}', '{"x": {"sha256": "no"}}'])
def test_a_damaged_index_costs_time_only(tmp_path: Path, own_cache: Path, content: str) -> None:
    """Case 21."""
    own_cache.mkdir()
    (own_cache / file_hashes.INDEX_NAME).write_text(content)
    path = tmp_path / "weights"
    path.write_bytes(b"content")
    assert file_sha256(make_old(path)) == hashlib.sha256(b"content").hexdigest()
    assert str(path) in json.loads((own_cache / file_hashes.INDEX_NAME).read_text())


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the directory should be")
    path = tmp_path / "weights"
    path.write_bytes(b"content")
    assert file_sha256(make_old(path)) == hashlib.sha256(b"content").hexdigest()


def test_large_files_are_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "NOTIFY_BYTES", 3)
    path = tmp_path / "weights"
    path.write_bytes(b"content")
    said: list[str] = []
    file_sha256(make_old(path), said.append)
    file_sha256(path, said.append)
    assert len(said) == 1
    assert "weights" in said[0]


def test_missing_and_growing_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="nothing"):
        file_sha256(tmp_path / "nothing")
    path = tmp_path / "weights"
    path.write_bytes(b"content")
    hash_content = file_hashes._hash_content

    def append_and_hash(real: Path) -> str:
        with real.open("ab") as stream:
            stream.write(b"more")
        return hash_content(real)

    monkeypatch.setattr(file_hashes, "_hash_content", append_and_hash)
    with pytest.raises(ModelError, match="changed while"):
        file_sha256(path)


def test_cache_directory_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TOKENSWIFT_CACHE", "~/mine")
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.setenv("TOKENSWIFT_CACHE", "")
    assert cache_directory() == tmp_path / "xdg" / "tokenswift"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_directory() == tmp_path / ".cache" / "tokenswift"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "tokenswift"
