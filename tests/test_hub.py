"""Models from the Hub, against a hub served on this machine; each call runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, hub_server
from tiny_model_directory import save_tiny_model

ROOT = Path(__file__).resolve().parent.parent
MODEL_ID = "organisation/tiny"
NOWHERE = "http://127.0.0.1:9"

# huggingface_hub reads its environment once, when it is imported.
SCRIPT = """
import json, sys
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.hub import hub_snapshot
said = []
try:
    result = {"directory": str(hub_snapshot(sys.argv[1], sys.argv[2] == "offline", False, said.append))}
except ModelError as error:
    result = {"error": str(error)}
print(json.dumps(result | {"said": said}))
"""


def snapshot(cache: Path, address: str, model_id: str = MODEL_ID, how: str = "online") -> dict[str, str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": address,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-c", SCRIPT, model_id, how]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bars, no warnings
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_tiny_model(tmp_path_factory.mktemp("published") / "tiny")
    for name in ("README.md", "pytorch_model.bin", "model.fp16.safetensors"):
        (directory / name).write_text("not needed")
    return directory


def test_only_what_is_loaded_is_downloaded_once(tmp_path: Path, published: Path) -> None:
    with hub_server(MODEL_ID, published) as (address, requested):
        first = snapshot(tmp_path, address)
        downloads = list(requested)
        second = snapshot(tmp_path, address)
    offline = snapshot(tmp_path, NOWHERE, how="offline")
    unreachable = snapshot(tmp_path, NOWHERE)
    directory = Path(first["directory"])
    assert directory.name == COMMIT
    assert {first["directory"]} == {result["directory"] for result in (second, offline, unreachable)}
    assert set(downloads) == {path.name for path in directory.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(downloads)
    assert not {"README.md", "pytorch_model.bin", "model.fp16.safetensors"} & set(downloads)
    assert requested == downloads
    for name in downloads:
        assert (directory / name).read_bytes() == (published / name).read_bytes()
    assert any("Downloading the weights" in line for line in first["said"])
    assert not any("Downloading" in line for line in second["said"])


def test_sharded_weights_are_downloaded_by_the_index(tmp_path: Path, published: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    directory = tmp_path / "sharded"
    directory.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_bytes((published / name).read_bytes())
    for name in [*shards, "consolidated.safetensors"]:
        (directory / name).write_bytes(name.encode())
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with hub_server(MODEL_ID, directory) as (address, requested):
        found = Path(snapshot(tmp_path / "hub", address)["directory"])
    assert {path.name for path in found.iterdir()} >= set(shards)
    assert "consolidated.safetensors" not in requested


def test_pickled_weights_are_refused(tmp_path: Path, published: Path) -> None:
    directory = tmp_path / "pickled"
    directory.mkdir()
    (directory / "config.json").write_bytes((published / "config.json").read_bytes())
    (directory / "pytorch_model.bin").write_text("a pickle")
    with hub_server(MODEL_ID, directory) as (address, requested):
        error = snapshot(tmp_path / "hub", address)["error"]
    assert "pickle" in error
    assert MODEL_ID in error
    assert "pytorch_model.bin" not in requested


def test_what_cannot_be_had_is_said(tmp_path: Path, published: Path) -> None:
    """Errors name the model and what to do next."""
    with hub_server(MODEL_ID, published, gated=True) as (address, _):
        gated = snapshot(tmp_path / "gated", address)["error"]
        missing = snapshot(tmp_path / "missing", address, "organisation/other")["error"]
    offline = snapshot(tmp_path / "empty", NOWHERE, how="offline")["error"]
    unreachable = snapshot(tmp_path / "empty", NOWHERE)["error"]
    assert "gated" in gated and "hf auth login" in gated and MODEL_ID in gated
    assert "no model named organisation/other" in missing
    assert "offline" in offline and MODEL_ID in offline
    assert "cannot be reached" in unreachable and MODEL_ID in unreachable
    for message in (gated, missing, offline, unreachable):
        assert "\n" not in message


def test_an_interrupted_download_is_not_taken_for_a_model(tmp_path: Path, published: Path) -> None:
    with hub_server(MODEL_ID, published) as (address, _):
        directory = Path(snapshot(tmp_path, address)["directory"])
        (directory / "model.safetensors").unlink()
        assert "model.safetensors" not in {path.name for path in directory.iterdir()}
        offline = snapshot(tmp_path, address, how="offline")["error"]
        again = snapshot(tmp_path, address)
    assert "not completely" in offline
    assert (Path(again["directory"]) / "model.safetensors").is_file()
