"""What lies on disk: room for a run, our cache, the Hub's cache, the demo model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenswift_cli.cache_dir import cache_directory
from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.errors import ModelError
from tokenswift_cli.preflight import free_disk
from tokenswift_cli.shipped import HEADS, PROMPTS, configuration_names, shipped_directory

CONVERTED: Final = "converted model"
KERNELS: Final = "compiled kernels"
PLAN: Final = "linear plan"
OTHER: Final = "other"

# Folder in the cache -> what each entry in it is.
FOLDERS: Final = {"converted": CONVERTED, "native": KERNELS, "linear-plans": PLAN}


@dataclass(frozen=True)
class Place:
    """A directory that is or will be written to.

    Attributes:
        path: absolute; need not exist.
        free_bytes: of its file system; None if that cannot be told.
        writable: whether it, or the nearest directory above that exists, can be written to.
    """

    path: str
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True)
class CacheEntry:
    """One thing in our cache: its kind (see FOLDERS; else "other"), name, and bytes with all files in it."""

    kind: str
    name: str
    bytes: int


@dataclass(frozen=True)
class HubModel:
    """A model in the Hub's cache.

    Attributes:
        name: its id, for ``--model``.
        bytes: of all revisions.
        loadable: whether some revision holds a configuration and safetensors weights.
    """

    name: str
    bytes: int
    loadable: bool


@dataclass(frozen=True)
class HubCache:
    """Models in the Hub's cache, by name; ``problem`` says why it could not be read, if so."""

    directory: str
    models: tuple[HubModel, ...]
    problem: str | None = None


@dataclass(frozen=True)
class DemoModel:
    """The demo model's file, or what to do to have it: one of the two is None."""

    name: str
    path: str | None
    remedy: str | None


@dataclass(frozen=True)
class ShippedFiles:
    """What came with tokenswift.

    Attributes:
        configurations: their names, for ``--config``.
        prompts: the directory of prompts; None if this installation lacks it.
        heads: directories of drafting heads, for ``--heads``.
    """

    configurations: tuple[str, ...]
    prompts: str | None
    heads: tuple[str, ...]


def place(path: Path) -> Place:
    """Look at where ``path`` is or will be."""
    path = path.expanduser().absolute()
    try:
        free = free_disk(path)
        nearest = path
        while not nearest.exists():
            nearest = nearest.parent
    except OSError:  # a directory on the way may not be looked into
        return Place(str(path), None, False)
    return Place(str(path), free, nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK))


def cache_entries(directory: Path | None = None) -> tuple[CacheEntry, ...]:
    """What our cache (or ``directory``) holds, by kind and name; what cannot be read counts nothing."""
    found = []
    for path in _listed(directory or cache_directory()):
        if path.name in FOLDERS and path.is_dir():
            for inner in _listed(path):
                if inner.suffix != ".lock":
                    whole = inner.suffix != ".tmp" and not inner.name.startswith(".")
                    kind = FOLDERS[path.name] if whole else OTHER  # else cut short
                    found.append(CacheEntry(kind, inner.name, _bytes_in(inner)))
        else:
            found.append(CacheEntry(OTHER, path.name, _bytes_in(path)))
    order = [*FOLDERS.values(), OTHER]
    return tuple(sorted(found, key=lambda entry: (order.index(entry.kind), entry.name)))


def hub_cache() -> HubCache:
    """What is in the Hub's cache; the Hub itself is not asked, and a damaged cache is no error."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    directory = str(constants.HF_HUB_CACHE)
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return HubCache(directory, ())
    except Exception as error:  # a foreign directory layout may fail in any way
        return HubCache(directory, (), f"cannot be read ({type(error).__name__}: {error})")
    models = [
        HubModel(
            name=repository.repo_id,
            bytes=int(repository.size_on_disk),
            loadable=any(
                _is_loadable({file.file_name for file in revision.files}) for revision in repository.revisions
            ),
        )
        for repository in repositories
        if repository.repo_type == "model"
    ]
    return HubCache(directory, tuple(sorted(models, key=lambda model: model.name)))


def demo_model() -> DemoModel:
    """Whether the demo model is installed."""
    from tokenswift_cli.models.demo import demo_gguf_path

    try:
        return DemoModel(DEMO_MODEL, str(demo_gguf_path()), None)
    except ModelError as error:
        return DemoModel(DEMO_MODEL, None, str(error))


def shipped_files() -> ShippedFiles:
    """Look at what came with tokenswift."""
    prompts, heads = shipped_directory(PROMPTS), shipped_directory(HEADS)
    found = [] if heads is None else [path for path in _listed(heads) if (path / "config.json").is_file()]
    return ShippedFiles(
        configurations=configuration_names(),
        prompts=None if prompts is None else str(prompts),
        heads=tuple(map(str, found)),
    )


def _is_loadable(names: set[str]) -> bool:
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _bytes_in(path: Path) -> int:
    return sum(_size(file) for file in _files_in(path))


def _files_in(path: Path) -> Iterator[Path]:
    if not path.is_dir() or path.is_symlink():
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # deleted meanwhile
        return 0
