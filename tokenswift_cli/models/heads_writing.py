"""Writing a heads directory so that it is whole or absent, also after a power cut."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from tokenswift_cli.errors import HeadsError
from tokenswift_cli.models.checkpoint import CONFIG_NAME, WEIGHTS_NAME

FORMAT = "tokenswift-heads"
FORMAT_VERSION = 1
CARD_NAME = "README.md"


def write_heads_directory(
    directory: Path,
    facts: Mapping[str, object],
    tensors: dict[str, Tensor],
    card: str,
    replace: bool,
) -> None:
    """Write the three files next to ``directory`` and rename them into place.

    Args:
        directory: where they go; parents are made.
        facts: the rest of ``config.json``.
        tensors: contiguous, on the CPU.
        card: text of the README.
        replace: whether heads that are there already give way.

    Raises:
        HeadsError: ``directory`` is taken, or cannot be written.
        ValueError: ``facts`` is not JSON.
    """
    weights = save(tensors, metadata={"format": "pt"})
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created_with": _created_with(),
        **facts,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    try:
        text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except TypeError as error:
        raise ValueError(f"what is recorded about the heads is not JSON: {error}") from error
    with _telling(directory):
        place = Path(os.path.realpath(directory))
        _require_free(directory, place, replace)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
        try:
            fresh.mkdir()
            for name, data in (
                (WEIGHTS_NAME, weights),
                (CARD_NAME, card.encode()),
                (CONFIG_NAME, text.encode()),
            ):
                _write(fresh / name, data)
            _sync_directory(fresh)
            _swap(fresh, place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _require_free(directory: Path, place: Path, replace: bool) -> None:
    """Refuse to write over anything but an empty directory or, if asked, older heads and nothing else."""
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise HeadsError(f"{directory} is a file. Choose another name for the heads.")
    names = sorted(entry.name for entry in place.iterdir())
    if not names:
        return
    if not replace:
        raise HeadsError(f"{directory} exists and is not empty. Choose another name, or remove it first.")
    foreign = [name for name in names if name not in (CONFIG_NAME, WEIGHTS_NAME, CARD_NAME)]
    if foreign or not _holds_heads(place):
        what = f"also holds {foreign[0]}" if foreign else "holds something else than heads"
        raise HeadsError(
            f"{directory} {what}, which would be lost. Choose another name, or move it away first."
        )


def _holds_heads(place: Path) -> bool:
    try:
        config = json.loads((place / CONFIG_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def _swap(fresh: Path, place: Path) -> None:
    """Put ``fresh`` at ``place``; what is there goes away afterwards, and comes back if that fails."""
    if not place.is_dir() or not any(place.iterdir()):
        os.rename(fresh, place)
        _sync_directory(place.parent)
        return
    old = place.with_name(f".{place.name}.{uuid.uuid4().hex}.old")
    os.rename(place, old)
    try:
        os.rename(fresh, place)
    except BaseException:
        os.rename(old, place)
        raise
    _sync_directory(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems cannot flush a directory; the files in it are flushed all the same.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _created_with() -> str:
    try:
        return f"tokenswift {version('tokenswift')}"
    except PackageNotFoundError:  # run from a source tree without being installed
        return "tokenswift (not installed)"


@contextlib.contextmanager
def _telling(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HeadsError(
            f"Cannot write the heads to {directory}: {error.strerror or error}. "
            "Free space there or choose another directory, then save again."
        ) from error
