"""Kills, full disks and interrupts at every instant: the run directory stays resumable."""

from __future__ import annotations

import errno
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import run_dir_samples as samples

from tokenswift_cli.disk_errors import resume_command
from tokenswift_cli.errors import ResumeRefusedError, RunDirectoryError, UsageError
from tokenswift_cli.run_dir import RunDirectory

CHANGING_CALLS = ("write", "fsync", "replace", "unlink", "ftruncate", "mkdir")
NEW_YAML = "generation:\n  max_tokens: 200\n"


@contextmanager
def calls_replaced(before: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``before(name, arguments)`` ahead of every system call that changes the disk."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING_CALLS:
            real = getattr(os, name)

            def call(*arguments: Any, _name: str = name, _real: Callable[..., Any] = real) -> Any:
                before(_name, arguments)
                return _real(*arguments)

            patch.setattr(os, name, call)
        yield


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
        run.update_run_yaml(NEW_YAML)
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
            with calls_replaced(die):
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
            assert run.run_yaml in (samples.RUN_YAML, NEW_YAML)
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
        with calls_replaced(record):
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


class Failure:
    """Fails the ``instant``-th change of the disk, and all later ones when ``lasting``."""

    def __init__(self, instant: int, error: BaseException, *, lasting: bool) -> None:
        self.instant = instant
        self.error = error
        self.lasting = lasting
        self.count = 0
        self.failed = False

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.count += 1
        due = self.count > self.instant if self.lasting else self.count == self.instant + 1
        if due:
            self.failed = True
            if name == "write":  # a full disk takes what still fits
                os.pwrite(arguments[0], b"\xff", os.fstat(arguments[0]).st_size)
            raise self.error


ERRORS = [
    (errno.ENOSPC, "the disk is full. Free some space"),
    (errno.EDQUOT, "your disk quota is used up"),
    (errno.EROFS, "the file system is read-only. Mount it writable"),
    (errno.EACCES, "permission denied. Make the file"),
    (errno.EIO, "input/output error"),
]


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(("code", "words"), ERRORS)
def test_a_failing_append_is_told_and_the_same_object_can_go_on(
    tmp_path: Path, code: int, words: str, lasting: bool
) -> None:
    """Case 34: at every step of an append; the message names cause, remedy and the resume command."""
    path = tmp_path / "run"
    samples.make_run(path, 2)
    for instant in itertools.count():
        with RunDirectory.open(path) as run:
            start = run.recover().chunk
            failure = Failure(instant, OSError(code, os.strerror(code)), lasting=lasting)
            with calls_replaced(failure):
                try:
                    samples.append_next(run)
                except RunDirectoryError as error:
                    assert words in str(error)
                    assert f"`{resume_command(path)}`" in str(error)
                    assert f"first {samples.count_after(start)} tokens are safe" in str(error)
                    assert run.manifest.chunk == start
                else:
                    # Only removals of things that may as well stay are allowed to fail unnoticed.
                    assert run.manifest.chunk == start + 1
            if not failure.failed:
                break
            samples.append_next(run)
            chunk = run.manifest.chunk
        samples.assert_whole(path, chunk)
    assert instant >= 10


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failing_append_can_be_resumed_by_another_process(tmp_path: Path, lasting: bool) -> None:
    """Case 34: the same, but the process ends after the error."""
    path = tmp_path / "run"
    samples.make_run(path, 2)
    for instant in itertools.count():
        with RunDirectory.open(path) as run:
            start = run.recover().chunk
            failure = Failure(instant, OSError(errno.ENOSPC, "full"), lasting=lasting)
            with calls_replaced(failure):
                try:
                    samples.append_next(run)
                except RunDirectoryError:
                    pass
        if not failure.failed:
            break
        assert start <= samples.recovered(path).chunk <= start + 1
        samples.assert_continues(path)


def test_an_interrupt_at_every_step_of_an_append(tmp_path: Path) -> None:
    """Case 27: a second Ctrl-C in the middle of a checkpoint loses nothing that was checkpointed."""
    path = tmp_path / "run"
    samples.make_run(path, 2)
    for instant in itertools.count():
        with RunDirectory.open(path) as run:
            start = run.recover().chunk
            failure = Failure(instant, KeyboardInterrupt(), lasting=False)
            try:
                with calls_replaced(failure):
                    samples.append_next(run)
            except KeyboardInterrupt:
                pass
        if not failure.failed:
            break
        assert start <= samples.recovered(path).chunk <= start + 1
        samples.assert_continues(path)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failing_creation_leaves_nothing_behind(tmp_path: Path, lasting: bool) -> None:
    """Case 34: after space is freed the same command works."""
    for instant in itertools.count():
        path = tmp_path / str(instant) / "run"
        failure = Failure(instant, OSError(errno.ENOSPC, "full"), lasting=lasting)
        try:
            with calls_replaced(failure):
                samples.create(path).close()
        except RunDirectoryError as error:
            assert "the disk is full. Free some space on it, then start the run again" in str(error)
            if not lasting:  # when even removing fails, the next command says what is there
                samples.create(path).close()
        if not failure.failed:
            break
    assert instant > 15


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failing_recovery_or_update_can_be_repeated(tmp_path: Path, lasting: bool) -> None:
    """Case 34: a full disk while the files are taken back, the text rebuilt, or run.yaml replaced."""
    for instant in itertools.count():
        path = tmp_path / str(instant)
        samples.make_run(path, 4)
        samples.flip_bit(path / "tokens.bin", 4 * samples.count_after(2) + 1)
        failure = Failure(instant, OSError(errno.ENOSPC, "full"), lasting=lasting)
        try:
            with calls_replaced(failure), RunDirectory.open(path) as run:
                recovery = run.recover()
                run.rewrite_text(samples.text_of(recovery.tokens))
                run.update_run_yaml(NEW_YAML)
        except RunDirectoryError as error:
            assert resume_command(path) in str(error)
        if not failure.failed:
            break
        with RunDirectory.open(path) as run:
            assert run.run_yaml in (samples.RUN_YAML, NEW_YAML)
            assert run.recover().chunk == 2
        samples.assert_continues(path)


def test_a_failed_update_can_be_tried_again_with_another_text(tmp_path: Path) -> None:
    path = tmp_path / "run"
    samples.make_run(path, 1)
    for first, second in itertools.product(range(0, 16), range(0, 16, 3)):
        with RunDirectory.open(path) as run:
            run.recover()
            for attempt, instant in enumerate((first, second)):
                failure = Failure(instant, OSError(errno.ENOSPC, "full"), lasting=True)
                try:
                    with calls_replaced(failure):
                        run.update_run_yaml(f"{first} {second} {attempt}")
                except RunDirectoryError:
                    pass
        samples.assert_whole(path, 1)


LIMITED = """
import resource, sys
from pathlib import Path
import run_dir_samples as samples
from tokenswift_cli.errors import RunDirectoryError
from tokenswift_cli.run_dir import RunDirectory
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
with RunDirectory.open(Path(sys.argv[1])) as run:
    run.recover()
    while True:
        try:
            samples.append_next(run)
        except RunDirectoryError as error:
            print(run.manifest.chunk, error)
            break
"""


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    """Case 34: the kernel itself refuses a write half-way; the run is cut back and goes on later."""
    path = tmp_path / "run"
    samples.make_run(path, 1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    chunk, message = result.stdout.split(" ", 1)
    assert "would exceed the size limit. Raise the limit" in message
    assert int(chunk) > 10
    assert samples.assert_whole(path, int(chunk)).messages == ()
    samples.assert_continues(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 160 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk(small_disk: Path) -> None:
    """Case 34: fill the disk, meet the error, free space, go on; then the same with a read-only disk."""
    path = small_disk / "run"
    ballast = small_disk / "ballast"
    samples.make_run(path, 3)
    with RunDirectory.open(path) as run:
        run.recover()
        with open(ballast, "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(RunDirectoryError, match="the disk is full"):
            for _ in range(2000):
                samples.append_next(run)
        chunk = run.manifest.chunk
        with pytest.raises(RunDirectoryError, match="the disk is full"):
            for _ in range(2000):
                samples.append_next(run)
    with pytest.raises(RunDirectoryError, match="the disk is full. Free some space on it, then start"):
        samples.create(small_disk / "second")
    assert not (small_disk / "second").exists()
    assert samples.recovered(path).chunk >= chunk
    ballast.unlink()
    samples.assert_continues(path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunDirectoryError, match="read-only"):
        RunDirectory.open(path)
    with pytest.raises(RunDirectoryError, match="read-only"):
        samples.create(small_disk / "third")
