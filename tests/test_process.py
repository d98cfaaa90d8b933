"""Real processes: kill -9 and resume, streams, signals, two writers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime

import numpy as np
import pytest
from tiny_model_directory import save_tiny_model

from tokenswift_cli import cli

TOKENS = 2200
COMMAND = [sys.executable, "-m", "tokenswift_cli"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def generate(model, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"Call me Ishmael.\r\n")

    def command(run_dir, *more):
        options = ["-m", str(model), "-p", str(prompt), "-o", str(run_dir), "-n", str(TOKENS), "--ignore-eos"]
        return [*COMMAND, "generate", *options, "--threads", "1", *more]

    return command


def start(command, **options):
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options
    )


def wait_for_writing(process):
    """Read JSON events until tokens come; True if the run still goes on."""
    for line in process.stderr:
        event = json.loads(line)
        if event["event"] == "run_finished":
            return False
        if event["event"] == "text_appended":
            return True
    return False


def tokens_of(run_dir):
    return np.fromfile(run_dir / "tokens.bin", dtype="<u4").tolist()


@pytest.mark.slow
def test_kill_at_random_moments_and_resume(generate, tmp_path):
    """Cases 6, 19 and 20: kill -9 while writing, until the text is done; equal to the plain text."""
    plain = tmp_path / "plain"
    assert cli.run(generate(plain, "--method", "autoregressive", "-q")[len(COMMAND) :]) == 0
    generator = random.Random(3)
    run_dir = tmp_path / "killed"
    command = generate(run_dir, "--method", "lookup", "--chunk-tokens", "37", "--progress", "json")
    kills, tokens = 0, 0
    while True:
        process = start(command)
        if not wait_for_writing(process):
            assert process.wait() == 0
            break
        if kills < 4:
            time.sleep(generator.uniform(0, 0.6))
            process.kill()
            kills += 1
        process.stdout.close()
        process.stderr.close()
        if process.wait() == 0:
            break
        assert len(tokens_of(run_dir)) >= tokens
        tokens = len(tokens_of(run_dir))
        command = [*COMMAND, "resume", str(run_dir), "--progress", "json", "--threads", "1"]
    assert kills >= 2
    assert tokens_of(run_dir) == tokens_of(plain)
    assert (run_dir / "output.txt").read_bytes() == (plain / "output.txt").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_checkpoint_and_say_how_to_go_on(generate, tmp_path, number, code):
    """Case 27."""
    run_dir = tmp_path / "run"
    process = start(generate(run_dir, "--progress", "json", "--max-tokens", "16000"))
    assert wait_for_writing(process)
    process.send_signal(number)
    rest = process.stderr.read().decode()
    assert process.wait() == code
    finished = json.loads(rest.splitlines()[-1])
    assert finished["finish_reason"] == "interrupted"
    assert str(run_dir) in finished["resume_command"]
    assert len(tokens_of(run_dir)) == finished["tokens"] > 0


def test_load_is_interrupted_at_once(generate, tmp_path):
    process = start(generate(tmp_path / "run", "--progress", "json"))
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert b"Traceback" not in process.stderr.read()
    assert not (tmp_path / "run").exists()


def test_piped_output_is_the_text_alone(generate, tmp_path):
    """Case 24: even with a forced colour terminal, no control character reaches a file."""
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    run_dir = tmp_path / "run"
    done = subprocess.run(generate(run_dir, "--max-tokens", "60"), capture_output=True, env=environment)
    assert done.returncode == 0
    assert done.stdout == (run_dir / "output.txt").read_bytes()
    assert b"\x1b" not in done.stderr and b"\r" not in done.stderr
    assert b"tokens" in done.stderr


def test_two_writers(generate, tmp_path):
    """Case 33."""
    run_dir = tmp_path / "run"
    process = start(generate(run_dir, "--progress", "json", "--max-tokens", "16000"))
    assert wait_for_writing(process)
    second = subprocess.run([*COMMAND, "resume", str(run_dir)], capture_output=True)
    assert second.returncode == 1 and str(process.pid).encode() in second.stderr
    process.kill()
    process.wait()


def test_json_result_is_one_object(generate, tmp_path, capfd):
    command = generate(tmp_path / "run", "--max-tokens", "30", "--json")
    assert cli.run(command[len(COMMAND) :]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["tokens"] == 30 and result["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["generate", "-p", "no-such-file.txt"], 2, "no-such-file.txt"),
        (["generate", "--prompt-text", "x", "-n", "0"], 2, "max-tokens"),
        (["generate", "--prompt-text", "x", "-n", "-5"], 2, "max-tokens"),
        (["generate", "--prompt-text", ""], 2, "prompt"),
        (["resume", "no-such-run"], 2, "no-such-run"),
    ],
)
def test_bad_input_is_one_clear_sentence(arguments, code, words, tmp_path):
    """Cases 8, 22 and 28."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, cwd=tmp_path, text=True)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr and not done.stdout
    assert not list(tmp_path.iterdir())


def test_two_runs_begun_in_the_same_second_get_two_directories(generate, tmp_path, monkeypatch):
    """While our model loads, another run takes the name that was free when we looked."""
    from tokenswift_cli import runner

    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 31, 14, 22, 33, tzinfo=tz)

    command = generate(tmp_path / "unused", "--max-tokens", "30", "-q")[len(COMMAND) :]
    at = command.index("-o")
    nameless = command[:at] + command[at + 2 :]
    own_creation = runner._create

    def faster_other(*arguments):
        monkeypatch.setattr(runner, "_create", own_creation)
        assert cli.run(nameless) == 0
        return own_creation(*arguments)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "datetime", Stopped)
    monkeypatch.setattr(runner, "_create", faster_other)
    assert cli.run(nameless) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "2026-01-31-142233",
        "2026-01-31-142233-2",
    ]
    one, other = (tokens_of(path) for path in (tmp_path / "runs").iterdir())
    assert one == other
