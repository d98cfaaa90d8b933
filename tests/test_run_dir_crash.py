"""Kills at every instant: what was acknowledged is there, and nothing old goes too early."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_dir_samples as samples

from tokenswift_cli.errors import ResumeRefusedError, UsageError
from tokenswift_cli.run_dir import RunDirectory


def whole_life(path: Path, acknowledge: Callable[[int], None]) -> None:
    """Creation, chunks, a reopening after a torn tail, an extension, a rebuilt text, more chunks."""
    with samples.create(path) as run:
        acknowledge(0)
        for _ in range(3):
            acknowledge(samples.append_next(run))
    with open(path / "tokens.bin", "ab") as file:
        file.write(b"torn!")
    with open(path / "output.txt", "r+b") as file:
        file.write(b"X")
    with RunDirectory.open(path) as run:
        tokens = run.recover().tokens
        run.rewrite_text(samples.text_of(tokens))
        run.update_run_yaml(samples.NEW_YAML)
        for _ in range(2):
            acknowledge(samples.append_next(run))


def killed_at(path: Path, instant: int, *, torn: bool) -> tuple[bool, int]:
    """Run ``whole_life`` in a process that dies at its ``instant``-th change of the disk.

    With ``torn`` a dying write has written a half. Returns (died, last chunk acknowledged, -1 for none).
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: the child only calls os
        child = os.fork()
    if child == 0:
        real_write = os.write
        counter = itertools.count()

        def die(name: str, arguments: tuple[Any, ...]) -> None:
            if next(counter) == instant:
                if torn and name == "write":
                    real_write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os._exit(9)

        status = 1
        try:
            with samples.calls_replaced(die):
                whole_life(path, lambda chunk: (real_write(writer, bytes([chunk])), None)[1])
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        acknowledged = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9, acknowledged[-1] if acknowledged else -1


@pytest.mark.parametrize("torn", [False, True])
def test_death_at_every_single_change_of_the_disk(tmp_path: Path, torn: bool) -> None:
    """Cases 20, 21: whatever the instant, every acknowledged chunk is there and the run goes on."""
    for instant in itertools.count():
        path = tmp_path / str(instant)
        died, acknowledged = killed_at(path, instant, torn=torn)
        if not died:
            assert samples.assert_whole(path, 5).messages == ()
            break
        if acknowledged < 0:
            try:
                recovery = samples.recovered(path)
            except (ResumeRefusedError, UsageError) as error:
                assert re.search("being created|does not exist|no checkpoints", str(error))
                continue
            assert recovery.tokens == []
        with RunDirectory.open(path) as run:
            assert run.run_yaml in (samples.RUN_YAML, samples.NEW_YAML)
            assert acknowledged <= run.recover().chunk <= acknowledged + 1
        samples.assert_continues(path)
    assert instant > 80


APPENDER = """
import sys
from pathlib import Path
import run_dir_samples as samples
from tokenswift_cli.run_dir import RunDirectory
with RunDirectory.open(Path(sys.argv[1])) as run:
    recovery = run.recover()
    assert recovery.text == samples.text_of(recovery.tokens), recovery
    print(recovery.chunk, flush=True)
    while True:
        print(samples.append_next(run), flush=True)
"""


def test_kill_9_at_random_instants_in_a_loop(tmp_path: Path) -> None:
    """Case 20: fifteen real kills of a process that appends as fast as it can, each followed by a resume."""
    path = tmp_path / "run"
    samples.make_run(path, 0)
    generator = random.Random(20)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    previous = 0
    for _ in range(15):
        process = subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.06))
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0]
        assert process.returncode == -signal.SIGKILL
        acknowledged = int((first + rest).split("\n")[-2])
        recovery = samples.recovered(path)
        assert acknowledged <= recovery.chunk <= acknowledged + 1
        assert previous <= recovery.chunk
        samples.assert_whole(path, recovery.chunk)
        previous = recovery.chunk
    assert previous > 15
    samples.assert_continues(path)


def test_nothing_old_goes_before_the_new_is_durable(tmp_path: Path) -> None:
    """Case 20: data, then the manifest, then its directory entry are flushed; only then the oldest goes."""
    path = tmp_path / "run"
    samples.make_run(path, 3)
    calls: list[tuple[str, str]] = []

    def record(name: str, arguments: tuple[Any, ...]) -> None:
        target = arguments[0]
        if isinstance(target, int):
            target = os.readlink(f"/proc/self/fd/{target}")
        calls.append((name, os.path.relpath(target, path)))

    if not Path("/proc/self/fd").exists():
        pytest.skip("names of descriptors need /proc")
    with RunDirectory.open(path) as run:
        run.recover()
        with samples.calls_replaced(record):
            samples.append_next(run)
    manifest = "checkpoints/00000004.json.tmp"
    attempts = [call for call in calls if call != ("unlink", manifest)]  # there was no left-over to remove
    assert attempts == [
        *(
            (name, file)
            for file in ("tokens.bin", "output.txt", "metrics.jsonl")
            for name in ("write", "fsync")
        ),
        ("write", manifest),
        ("fsync", manifest),
        ("replace", manifest),
        ("fsync", "checkpoints"),
        ("unlink", "checkpoints/00000002.json"),
    ]
