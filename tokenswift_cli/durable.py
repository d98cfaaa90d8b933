"""Writing that survives a power cut: every function returns only when the bytes are on the disk.

Knows files and directories, nothing of runs. No function follows a symbolic link in the last part of
a path, or blocks on a pipe: a run directory that someone prepared cannot make us write elsewhere.
All functions raise ``OSError`` with ``filename`` set.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# macOS: fsync leaves the bytes in the drive's cache; this command does not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def create_file(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and flush it. The directory entry is the caller's to flush."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        write_all(descriptor, data)
        _sync(descriptor)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash the file is the old one or the new one, whole."""
    with replacing(path) as descriptor:
        write_all(descriptor, data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[int]:
    """A descriptor to write a new ``path`` to, which takes the old one's place at the end of the block.

    After a crash the file is the old one or the new one, whole; after an error it is the old one.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with _naming(path, always=True):  # not the temporary file, of which nobody knows
            remove_if_present(temporary)
            with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
                yield descriptor
                _sync(descriptor)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_if_present(temporary)
        raise
    sync_directory(path.parent)


def append_at(path: Path, size: int, data: bytes) -> None:
    """Make the file ``size`` bytes of what it holds already, followed by ``data``, and flush it.

    Raises ``OSError`` as :func:`require_size` does.
    """
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        if _require(descriptor, size) > size:
            os.ftruncate(descriptor, size)
        write_all(descriptor, data)
        _sync(descriptor)


def require_size(path: Path, size: int) -> None:
    """Raises ``OSError`` (ESTALE) when the file is shorter than ``size`` bytes."""
    with opened(path, os.O_RDONLY) as descriptor:
        _require(descriptor, size)


def cut(path: Path, size: int) -> int:
    """Cut the file to ``size`` bytes and flush; returns the number of bytes cut (0: file untouched)."""
    surplus = file_size(path) - size
    if surplus <= 0:
        return 0
    with opened(path, os.O_WRONLY) as descriptor:
        os.ftruncate(descriptor, size)
        _sync(descriptor)
    return surplus


def read_file(path: Path, limit: int | None = None) -> bytes:
    """The first ``limit`` bytes (default: all) of a regular file."""
    with opened(path, os.O_RDONLY) as descriptor:
        size = os.fstat(descriptor).st_size
        wanted = size if limit is None else min(size, limit)
        blocks: list[bytes] = []
        while wanted > 0 and (block := os.read(descriptor, min(wanted, 1 << 24))):
            blocks.append(block)
            wanted -= len(block)
    return b"".join(blocks)


def read_whole(path: Path, most: int) -> bytes:
    """A regular file of at most ``most`` bytes. Raises ``OSError`` (EOVERFLOW) for a larger one."""
    with opened(path, os.O_RDONLY) as descriptor:
        if os.fstat(descriptor).st_size > most:
            raise OSError(errno.EOVERFLOW, f"it is larger than the {most} bytes it can have")
    return read_file(path, most)


def file_size(path: Path) -> int:
    """Size in bytes of a regular file."""
    with opened(path, os.O_RDONLY) as descriptor:
        return os.fstat(descriptor).st_size


def make_directory(path: Path) -> tuple[Path, ...]:
    """Create ``path`` and its missing parents durably; returns those created, the deepest first."""
    missing: list[Path] = []
    current = path
    while not os.path.lexists(current):
        missing.append(current)
        current = current.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # somebody else was faster: just as good
            os.mkdir(directory)
        sync_directory(directory.parent)
    return tuple(missing)


def remove_if_present(path: Path) -> None:
    """Unlink a file (or a symbolic link itself); a missing one is fine."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory, so that names created in it or removed from it stay so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(path):
            _sync(descriptor)
    except OSError as error:
        # Some network and user-space file systems cannot flush a directory; they say EINVAL.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a regular file; errors raised inside carry the file's name."""
    descriptor = os.open(path, flags | _SAFE, 0o666)
    try:
        with _naming(path):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            yield descriptor
    finally:
        os.close(descriptor)


def _require(descriptor: int, size: int) -> int:
    present = os.fstat(descriptor).st_size
    if present < size:
        raise OSError(errno.ESTALE, f"{size} bytes expected, {present} found")
    return present


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """A single ``os.write`` may take only a part (full disk, signal, 2 GiB limit)."""
    rest = memoryview(data)
    while len(rest):
        written = os.write(descriptor, rest)
        if written <= 0:
            raise OSError(errno.EIO, "nothing written")
        rest = rest[written:]


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError:  # not every file system offers it
            pass
    os.fsync(descriptor)


@contextlib.contextmanager
def _naming(path: Path, *, always: bool = False) -> Iterator[None]:
    """Errors of the block carry the name of ``path``: those without a name, or all of them."""
    try:
        yield
    except OSError as error:
        if always or error.filename is None:
            error.filename = str(path)
        raise
