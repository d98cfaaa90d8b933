"""The cache of converted .gguf files: found by content, published whole, checked before use.

    <cache>/converted/<name>-<sha256 of the file>-<dtype>-transformers<version>-v<format>/
        config.json, model.safetensors, tokenizer.json, ...
        tokenswift.json     manifest: source, and size and SHA-256 of each file above

An entry is written under a temporary name and renamed, so it is whole or absent. One that was damaged
later is noticed and made again. Entries can be deleted at any time.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswift_cli.cache_dir import cache_directory
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.file_hashes import file_sha256

FORMAT = 1
MANIFEST_NAME = "tokenswift.json"
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class ConvertedModel:
    """A directory that transformers loads, and the SHA-256 of the .gguf file it was made from."""

    directory: Path
    source_sha256: str


def converted_model(source: Path, dtype: str, notify: Callable[[str], None]) -> ConvertedModel:
    """The converted form of a .gguf file, from the cache or made now. ``dtype``: e.g. ``float32``.

    Raises:
        ModelError: the file cannot be read or converted, or the cache cannot be written.
    """
    _require_gguf(source)
    digest = file_sha256(source, notify)
    entry = _entry_directory(source, digest, dtype)
    if not entry.is_dir() or entry_fault(entry, digest) is not None:
        try:
            _make_entry(source, digest, dtype, entry, notify)
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
            raise ModelError(
                f"Cannot store the converted model in {entry.parent}: {reason}. "
                "Set TOKENSWIFT_CACHE to a directory that can be written and has room."
            ) from error
    return ConvertedModel(directory=entry, source_sha256=digest)


def entry_fault(entry: Path, source_sha256: str) -> str | None:
    """Why a cache entry cannot be used, or None if every file is as the manifest says."""
    try:
        manifest = json.loads((entry / MANIFEST_NAME).read_text(encoding="utf-8"))
    except OSError:
        return "its manifest is missing"
    except ValueError:
        return "its manifest is damaged"
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return "its manifest is damaged"
    if manifest.get("format") != FORMAT or manifest.get("source_sha256") != source_sha256:
        return "its manifest belongs to another file"
    for name, facts in manifest["files"].items():
        path = entry / name
        if not path.is_file():
            return f"{name} is missing"
        if not isinstance(facts, dict) or path.stat().st_size != facts.get("bytes"):
            return f"{name} has the wrong size"
        if file_sha256(path) != facts.get("sha256"):
            return f"the content of {name} is wrong"
    return None


def _require_gguf(source: Path) -> None:
    try:
        with source.open("rb") as stream:
            magic = stream.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelError(f"Cannot read the model file {source}: {error.strerror}.") from error
    if magic != GGUF_MAGIC:
        raise ModelError(f"{source} is not a GGUF file (it does not begin with GGUF). Download it again.")


def _entry_directory(source: Path, digest: str, dtype: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", source.stem)[:60]
    version = importlib.metadata.version("transformers")
    name = f"{stem}-{digest[:16]}-{dtype}-transformers{version}-v{FORMAT}"
    return cache_directory() / "converted" / name


def _make_entry(source: Path, digest: str, dtype: str, entry: Path, notify: Callable[[str], None]) -> None:
    # Imported here: finding an existing entry must not wait for torch.
    from tokenswift_cli.models.gguf_conversion import convert_gguf

    entry.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(entry, notify):
        _remove_leftovers(entry)
        if entry.is_dir():
            fault = entry_fault(entry, digest)
            if fault is None:  # another process made it while this one waited
                return
            notify(f"The converted copy of {source.name} is damaged ({fault}); it is made again")
        temporary = _fresh_directory(entry)
        try:
            convert_gguf(source, temporary, dtype, notify)
            _write_manifest(temporary, source, digest, dtype)
            _share_alike(temporary)
            _sync(temporary)
            if entry.exists():
                entry.rename(_fresh_directory(entry) / "damaged")
            temporary.rename(entry)
            _sync_directory(entry.parent)
        finally:
            _remove_leftovers(entry)


def _fresh_directory(entry: Path) -> Path:
    # Not tempfile.mkdtemp: the result is to be readable by whoever may read the cache.
    directory = entry.parent / f".{entry.name}.{secrets.token_hex(4)}"
    directory.mkdir()
    return directory


def _write_manifest(directory: Path, source: Path, digest: str, dtype: str) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(directory.iterdir())
    }
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "source": source.name,
        "source_sha256": digest,
        "dtype": dtype,
        "transformers": importlib.metadata.version("transformers"),
        "files": files,
    }
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _share_alike(directory: Path) -> None:
    """Give all files the mode that the umask gave the manifest: safetensors writes for the owner alone."""
    mode = stat.S_IMODE((directory / MANIFEST_NAME).stat().st_mode)
    for path in directory.iterdir():
        path.chmod(mode)


def _remove_leftovers(entry: Path) -> None:
    """Delete temporary directories of this entry; the caller holds its lock, so nobody works in them."""
    for path in entry.parent.glob(f".{entry.name}.*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _exclusive(entry: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold this entry's lock file, so that two processes do not convert the same model at once."""
    with (entry.parent / f"{entry.name}.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify("Another process is converting this model; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
