"""Making a run directory: whole, or recognisably not begun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from tokenswift_cli import durable, run_layout
from tokenswift_cli.checkpoints import CheckpointStore
from tokenswift_cli.errors import RunDirectoryError
from tokenswift_cli.lock import RunLock
from tokenswift_cli.manifest import Manifest
from tokenswift_cli.run_contents import RunContents, file_hashes


def create_run(path: Path, contents: RunContents) -> tuple[RunLock, CheckpointStore, Manifest]:
    """Create and lock the directory, write all its files and a manifest of zero tokens.

    The lock file comes first and the manifest last, so that a creation cut short can be told from a run.
    After an error nothing that was made here is left.

    Raises:
        UsageError: the path is occupied.
        RunDirectoryError: another process holds the lock.
        OSError: the disk refuses.
    """
    files = contents.encoded()
    if refusal := run_layout.refusal_to_create(path, run_layout.kind_of(path)):
        raise refusal
    made = durable.make_directory(path)
    try:
        lock = RunLock.acquire(path / run_layout.LOCK)
    except BaseException:
        _remove_empty(made)
        raise
    if set(os.listdir(path)) != {run_layout.LOCK}:  # somebody was faster, and is done already
        lock.release()
        refusal = run_layout.refusal_to_create(path, run_layout.kind_of(path))
        raise refusal or RunDirectoryError(f"{path} is being changed by another process. Try again.")
    try:
        store = CheckpointStore(path / run_layout.CHECKPOINTS)
        os.mkdir(store.directory)
        for name in run_layout.FILES:
            durable.create_file(path / name, files.get(name, b""))
        durable.sync_directory(path)
        manifest = Manifest(sequence=store.next_number(), file_hashes=file_hashes(files))
        store.write(manifest)
    except BaseException:
        _remove(path, made)
        lock.release()
        raise
    return lock, store, manifest


def _remove(path: Path, made: Sequence[Path]) -> None:
    """Best effort: what stays is reported as a creation cut short by the next command."""
    with contextlib.suppress(OSError):
        checkpoints = path / run_layout.CHECKPOINTS
        if checkpoints.is_dir():
            for name in os.listdir(checkpoints):
                os.unlink(checkpoints / name)
            os.rmdir(checkpoints)
        for name in (*run_layout.FILES, run_layout.LOCK):
            durable.remove_if_present(path / name)
    _remove_empty(made)


def _remove_empty(directories: Sequence[Path]) -> None:
    """Remove directories, the deepest first, up to the first that holds something."""
    with contextlib.suppress(OSError):
        for directory in directories:
            os.rmdir(directory)
