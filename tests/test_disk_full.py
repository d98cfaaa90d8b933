"""Full and failing disks and interrupts at every step: a clear error, and a run that goes on."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import run_dir_samples as samples

from tokenswift_cli.disk_errors import resume_command
from tokenswift_cli.errors import RunDirectoryError
from tokenswift_cli.run_dir import RunDirectory


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
            with samples.calls_replaced(failure):
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
            with samples.calls_replaced(failure), suppress(RunDirectoryError):
                samples.append_next(run)
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
                with samples.calls_replaced(failure):
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
            with samples.calls_replaced(failure):
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
            with samples.calls_replaced(failure), RunDirectory.open(path) as run:
                recovery = run.recover()
                run.rewrite_text(samples.text_of(recovery.tokens))
                run.update_run_yaml(samples.NEW_YAML)
        except RunDirectoryError as error:
            assert resume_command(path) in str(error)
        if not failure.failed:
            break
        with RunDirectory.open(path) as run:
            assert run.run_yaml in (samples.RUN_YAML, samples.NEW_YAML)
            assert run.recover().chunk == 2
        samples.assert_continues(path)


def test_an_update_cut_short_stands_the_loss_of_its_newest_manifest(tmp_path: Path) -> None:
    """Cases 20, 21: at every step of replacing run.yaml either kept manifest alone accepts what is there."""
    for instant in itertools.count():
        path = tmp_path / str(instant)
        samples.make_run(path, 2)
        with RunDirectory.open(path) as run:
            run.recover()
            failure = Failure(instant, OSError(errno.EIO, "gone"), lasting=True)
            with samples.calls_replaced(failure), suppress(RunDirectoryError):
                run.update_run_yaml(samples.NEW_YAML)
        samples.newest_manifest(path).write_bytes(b"")
        with RunDirectory.open(path) as run:
            assert run.run_yaml in (samples.RUN_YAML, samples.NEW_YAML)
            assert run.recover().chunk in (1, 2)
        samples.assert_continues(path)
        if not failure.failed:
            break


def test_a_failed_update_can_be_tried_again_with_another_text(tmp_path: Path) -> None:
    path = tmp_path / "run"
    samples.make_run(path, 1)
    for first, second in itertools.product(range(0, 16), range(0, 16, 3)):
        with RunDirectory.open(path) as run:
            run.recover()
            for attempt, instant in enumerate((first, second)):
                failure = Failure(instant, OSError(errno.ENOSPC, "full"), lasting=True)
                try:
                    with samples.calls_replaced(failure):
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
    with pytest.raises(RunDirectoryError, match=r"the disk is full\. Free some space on it, then start"):
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
