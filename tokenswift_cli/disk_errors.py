"""Operating-system errors told to a person: what happened, where, what to free or change."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from tokenswift_cli.errors import ForeignFileError, RunDirectoryError

_CAUSES: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", "Free some space on it"),
    errno.EDQUOT: ("your disk quota is used up", "Delete some files or have the quota raised"),
    errno.EROFS: (
        "the file system is read-only",
        "Mount it writable or copy the run directory to another disk",
    ),
    errno.EACCES: ("permission denied", "Make the file and its directory writable for you"),
    errno.EPERM: ("the operation is not permitted", "Make the file and its directory writable for you"),
    errno.EFBIG: (
        "the file would exceed the size limit",
        "Raise the limit (`ulimit -f`) or use another disk",
    ),
    errno.EIO: (
        "the disk reported an input/output error",
        "Check the disk or copy the run directory to another",
    ),
    errno.ELOOP: ("it is a symbolic link, which is not followed here", "Put the file itself in its place"),
    errno.EISDIR: ("it is a directory", "Put the file back in its place"),
    errno.ENOENT: ("it is missing", "Put it back"),
    errno.ENOTDIR: ("a part of the path is not a directory", "Correct the path"),
    errno.ESTALE: ("another program shortened it", "Keep other programs from writing there"),
    errno.EMFILE: ("too many open files", "Raise the limit (`ulimit -n`)"),
    errno.ENAMETOOLONG: ("the name is too long", "Choose a shorter one"),
}


# What opening something else than a plain file ends in; see durable.py.
_FOREIGN = (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENXIO)


def resume_command(path: Path) -> str:
    """The command that continues the run in ``path``, quoted for a shell."""
    return f"tokenswift resume {shlex.quote(str(path))}"


def os_error_text(error: OSError) -> str:
    """The cause in a few plain words."""
    return _cause_and_remedy(error)[0]


def run_directory_error(error: OSError, path: Path, then: str) -> RunDirectoryError:
    """The error to show for ``error`` met in ``path``.

    ``then`` completes "<remedy>, then ...": what the user does once the cause is gone.
    """
    where = os.fsdecode(error.filename) if error.filename is not None else str(path)
    cause, remedy = _cause_and_remedy(error)
    kind = ForeignFileError if error.errno in _FOREIGN else RunDirectoryError
    return kind(f"Cannot use {where}: {cause}. {remedy}, then {then}.")


@contextlib.contextmanager
def telling(path: Path, then: str) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a :class:`RunDirectoryError` about the run in ``path``."""
    try:
        yield
    except OSError as error:
        raise run_directory_error(error, path, then) from error


def _cause_and_remedy(error: OSError) -> tuple[str, str]:
    default = (error.strerror or type(error).__name__, "Repair this")
    return _CAUSES.get(error.errno or 0, default)
