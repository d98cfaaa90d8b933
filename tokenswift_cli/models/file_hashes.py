"""SHA-256 of large files, remembered in the cache directory as long as the file is unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenswift_cli.cache_dir import cache_directory
from tokenswift_cli.errors import ModelError

BLOCK_BYTES = 4 * 2**20
NOTIFY_BYTES = 512 * 2**20
# A file written this recently could change again within one tick of its clock: do not remember it.
SETTLED_NANOSECONDS = 2 * 10**9

INDEX_NAME = "hashes.json"


def file_sha256(path: Path, notify: Callable[[str], None] | None = None) -> str:
    """Hexadecimal SHA-256 of the content of ``path``, symbolic links followed.

    Known results are looked up by (real path, size in bytes, modification time in nanoseconds).
    ``notify`` gets one line before a file of more than 512 MiB is read.

    Raises:
        ModelError: the file cannot be read, or it changed while it was read.
    """
    real = Path(os.path.realpath(path))
    before = _stat(real)
    known = _read_index().get(str(real))
    if isinstance(known, dict) and (known.get("size"), known.get("mtime_ns")) == before:
        return str(known["sha256"])
    if notify is not None and before[0] > NOTIFY_BYTES:
        notify(f"Hashing {path.name} ({before[0] / 2**30:.1f} GiB); this is needed once per file")
    digest = _hash_content(real)
    if _stat(real) != before:
        raise ModelError(f"{path} changed while it was read. Wait until it is complete, then start again.")
    if time.time_ns() - before[1] > SETTLED_NANOSECONDS:
        _remember(real, before, digest)
    return digest


def _stat(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    return status.st_size, status.st_mtime_ns


def _hash_content(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK_BYTES))
    try:
        with path.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    return digest.hexdigest()


def _index_path() -> Path:
    return cache_directory() / INDEX_NAME


def _read_index() -> dict[str, Any]:
    """The remembered hashes; an index that is missing or damaged holds nothing and costs time only."""
    try:
        index = json.loads(_index_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(index, dict):
        return {}
    return {path: entry for path, entry in index.items() if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("sha256"), str)
        and len(entry["sha256"]) == 64
        and isinstance(entry.get("size"), int)
        and isinstance(entry.get("mtime_ns"), int)
    )


def _remember(real: Path, status: tuple[int, int], digest: str) -> None:
    """Add one entry. Of two processes that write at once one entry may be lost, which costs time only."""
    index = {path: entry for path, entry in _read_index().items() if os.path.exists(path)}
    index[str(real)] = {"size": status[0], "mtime_ns": status[1], "sha256": digest}
    temporary = _index_path().with_name(f"{INDEX_NAME}.{os.getpid()}.tmp")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(index, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(temporary, _index_path())
    except OSError:
        # A cache that cannot be written is no reason to stop: the hash is right, it is only not remembered.
        with contextlib.suppress(OSError):
            temporary.unlink()
