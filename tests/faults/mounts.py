"""Small and read-only file systems, for those who may mount them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def reason_not_to_mount() -> str | None:
    """Why no file system can be mounted here; None if one can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root, or `unshare --user --map-root-user --mount` before the command"
    if shutil.which("mount") is None or shutil.which("umount") is None:
        return "needs mount and umount"
    return None


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of ``size`` (as mount takes it, "1m") at ``folder``, which is made."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


def grow(folder: Path, size: str) -> None:
    """Give the small disk at ``folder`` another size."""
    _run("mount", "-o", f"remount,size={size}", str(folder))


def fill(disk: Path) -> None:
    """Take every free block of the file system at ``disk``."""
    with (disk / "filler").open("wb") as file:
        with suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)
        file.seek(0, os.SEEK_END)
        with suppress(OSError):
            while True:
                os.write(file.fileno(), b"\0" * 4096)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let every path through ``folder`` lead over a read-only mount, also for processes that run already.

    A mount on top, not a change of the one below: that would be refused while the run's lock file is open.
    """
    _run("mount", "--bind", str(folder), str(folder))
    try:
        _run("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
