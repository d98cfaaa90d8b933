"""Nothing is asked of any network once the model is loaded, or at all where its files are on this machine.

Each case is a process of its own with an audit hook that turns every socket into an error and a line of a
log, so that an error which a library swallows is seen as well.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import hub_server
from tiny_model_directory import save_tiny_model

ROOT = Path(__file__).resolve().parent.parent
MODEL_ID = "organisation/tiny"
NOWHERE = "http://127.0.0.1:9"

# Arguments: the log, and a JSON list of (what is forbidden when, command line, exit code).
SCRIPT = """
import json, sys
log, commands = sys.argv[1], json.loads(sys.argv[2])
sockets = {"socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
loaded, always = [], False

def watch(event, arguments):
    if event in sockets and (always or loaded):
        with open(log, "a") as file:
            print(event, arguments, file=file)
        raise PermissionError("there is no network here")

sys.addaudithook(watch)
from tokenswift_cli.models import loading
load = loading.load_model

def load_model(*arguments):
    model = load(*arguments)
    loaded.append(model)
    return model

loading.load_model = load_model
from tokenswift_cli import cli
for when, words, expected in commands:
    loaded.clear()
    always = when == "always"
    code = cli.run(words)
    assert code == expected, (words, code)
    assert bool(loaded) == (code == 0)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def old_mistral(model: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer transformers would look up on the Hub, to see whether it needs a correction."""
    directory = Path(shutil.copytree(model, tmp_path / "mistral"))
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    (directory / "config.json").write_text(json.dumps(config | {"transformers_version": "4.40.0"}))
    return directory


def tried(folder: Path, commands: list[tuple[str, list[str], int]], environment: dict[str, str]) -> str:
    """Run the commands in one process; what they tried although it was forbidden."""
    log = folder / "sockets"
    log.touch()
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    private = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(log), json.dumps(commands)],
        cwd=ROOT,
        env=inherited | private | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return log.read_text()


def generate(model: str, run_dir: Path, *more: str) -> list[str]:
    length = ["-n", "40", "--chunk-tokens", "16", "--ignore-eos", "--threads", "1"]
    return ["generate", "-m", model, "--prompt-text", "Once", "-o", str(run_dir), *length, *more]


def test_a_local_model_needs_no_network_at_all(old_mistral: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    commands = [
        ("always", generate(str(old_mistral), run_dir), 0),
        ("always", ["resume", str(run_dir), "-n", "60"], 0),
    ]
    assert tried(tmp_path, commands, {"HF_ENDPOINT": NOWHERE}) == ""
    assert (run_dir / "tokens.bin").stat().st_size == 60 * 4


def test_a_hub_model_needs_none_once_it_is_loaded_and_none_at_all_offline(
    model: Path, tmp_path: Path
) -> None:
    with hub_server(MODEL_ID, model) as (address, requested):
        commands = [
            ("loaded", generate(MODEL_ID, tmp_path / "online"), 0),
            ("always", generate(MODEL_ID, tmp_path / "offline", "--offline"), 0),
        ]
        assert tried(tmp_path, commands, {"HF_ENDPOINT": address}) == ""
        assert requested.count("model.safetensors") == 1
        requested.clear()
        commands = [("always", generate(MODEL_ID, tmp_path / "by-variable"), 0)]
        assert tried(tmp_path, commands, {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "1"}) == ""
        assert requested == []


@pytest.fixture
def one_request() -> Iterator[tuple[str, list[bytes]]]:
    """An address that answers 404, and what it was sent."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(65536))
                    connection.sendall(
                        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", received
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_the_hub_is_told_nothing_about_this_machine(
    one_request: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    """And the watch sees what is forbidden: a Hub id has to be looked for."""
    address, received = one_request
    words = generate(MODEL_ID, tmp_path / "run")
    variables = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK")
    commands = [("always", words, 1), ("loaded", words, 1)]
    log = tried(tmp_path, commands, dict.fromkeys(variables, "") | {"HF_ENDPOINT": address})
    assert "socket." in log
    assert received
    for request in received:
        head = request.decode("latin-1").lower()
        assert "user-agent:" in head
        assert not any(word in head for word in ("torch", "session_id", "is_ci", "tokenswift"))
