"""One writer per run directory, by an advisory lock that dies with its process.

``flock`` is released by the kernel however the process ends, so a lock file left behind by a kill -9
or a power cut means nothing: only its text is stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
from datetime import datetime
from pathlib import Path
from types import TracebackType

from tokenswift_cli.errors import RunDirectoryError

_OWNER = re.compile(r"pid (\d{1,10})\nhost ([^\n]{1,255})\nstarted ([^\n]{1,64})\n")


class RunLock:
    """An exclusive lock held until :meth:`release` (or the end of the process)."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path) -> RunLock:
        """Lock the file ``path`` (created when missing) or fail at once.

        Raises:
            RunDirectoryError: another process holds it (named by pid), or the file system has no locks.
            OSError: the file cannot be opened or written.
        """
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", str(path))
                _lock(descriptor, path)
                if _is_at(descriptor, path):
                    _write_owner(descriptor, path)
                    return cls(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # somebody removed the file we waited on: lock the one that is there now

    @property
    def held(self) -> bool:
        """False after release, or when the lock file was removed or replaced under us."""
        return self._descriptor is not None and _is_at(self._descriptor, self.path)

    def release(self) -> None:
        """Give the lock back; harmless when called twice. The file stays: removing it would race."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunDirectoryError(
            f"{path.parent} is in use by {_owner(descriptor)}. "
            "Wait until that run ends, or stop it, then try again."
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise RunDirectoryError(
            f"The file system of {path.parent} does not support locks, so a second writer could not be kept "
            "out. Use a run directory on a local disk."
        ) from error


def _owner(descriptor: int) -> str:
    text = os.pread(descriptor, 1024, 0).decode("utf-8", errors="replace")
    match = _OWNER.match(text)
    if match is None:
        return "another process"
    pid, host, started = match.groups()
    return f"process {pid} on {host}, started {started}"


def _write_owner(descriptor: int, path: Path) -> None:
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    host = socket.gethostname() or "unknown"
    data = f"pid {os.getpid()}\nhost {host}\nstarted {started}\n".encode()
    try:
        # Overwrite before cutting: on a full disk this needs no new block.
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    except OSError as error:
        error.filename = str(path)
        if os.fstat(descriptor).st_size == 0:
            # A new file on a full disk: take it away again, safely, since we hold its lock.
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
