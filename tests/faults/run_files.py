"""Every kind of file in a run directory, found by looking, so that a new kind cannot be forgotten."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

LOCK = ".lock"
_CHECKPOINTS = "checkpoints"


def file_kinds(run_dir: Path) -> Mapping[str, Sequence[Path]]:
    """What can be damaged together in a run directory, by its name.

    Files by their names; of each directory, ``dir/ (one)``, ``dir/ (all)`` and itself, ``dir/``; of the
    checkpoints, which are numbered, the newest and the older one.
    """
    kinds: dict[str, Sequence[Path]] = {}
    for path in sorted(run_dir.iterdir()):
        if path.is_file():
            kinds[path.name] = [path]
            continue
        files = sorted(inner for inner in path.rglob("*") if inner.is_file())
        if path.name == _CHECKPOINTS:
            kinds[f"{path.name}/ (newest)"] = files[-1:]
            kinds[f"{path.name}/ (older)"] = files[-2:-1]
        else:
            kinds[f"{path.name}/ (one)"] = [files[len(files) // 2]]
        kinds[f"{path.name}/ (all)"] = files
        kinds[f"{path.name}/"] = [path]
    return kinds


def fingerprint(folder: Path) -> str:
    """Of all names, kinds and contents in ``folder`` but the lock file; links are not followed."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name == LOCK:
            continue
        digest.update(f"{path.relative_to(folder)}\0{os.lstat(path).st_mode}\0".encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()
