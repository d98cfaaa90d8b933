"""The directory of manifests: written atomically, numbered, the last two kept."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tokenswift_cli import durable
from tokenswift_cli.config import MOST_TOKENS
from tokenswift_cli.manifest import InvalidManifestError, Manifest, decode_manifest, encode_manifest

KEPT_MANIFESTS = 2

_NAME = re.compile(r"(\d{8,18})\.json")
_TEMPORARY_NAME = re.compile(_NAME.pattern + re.escape(durable.TEMPORARY_SUFFIX))
_MAXIMUM_BYTES = 1 << 26
_MOST_PROBLEMS = 3


@dataclass(frozen=True)
class LoadedManifests:
    """The sound manifests, newest first (two at most), and what was wrong with those passed over."""

    sound: tuple[Manifest, ...]
    problems: tuple[str, ...]


class CheckpointStore:
    """Reads and writes the manifests in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._kept: list[int] = []
        self._last_number = -1

    def load(self) -> LoadedManifests:
        """Read back from the newest manifest until two sound ones are found.

        Raises ResumeRefusedError for a manifest of a newer format, OSError if the directory is unreadable.
        """
        numbers = sorted(manifest_numbers(self.directory), reverse=True)
        sound: list[Manifest] = []
        problems: list[str] = []
        for number in numbers:
            try:
                sound.append(self._read(number))
            except InvalidManifestError as error:
                problems.append(f"checkpoint {self._path(number).name} is damaged: {error}")
            except OSError as error:
                problems.append(f"checkpoint {self._path(number).name} cannot be read: {error.strerror}")
            if len(sound) == KEPT_MANIFESTS:
                break
        self._kept = [manifest.sequence for manifest in reversed(sound)]
        self._last_number = max([self._last_number, *numbers])
        if len(problems) > _MOST_PROBLEMS:
            problems[_MOST_PROBLEMS:] = [f"so are {len(problems) - _MOST_PROBLEMS} more"]
        return LoadedManifests(tuple(sound), tuple(problems))

    def next_number(self) -> int:
        """A number greater than that of any manifest seen or tried so far."""
        self._last_number += 1
        return self._last_number

    def write(self, manifest: Manifest) -> None:
        """Make ``manifest`` the newest one, durably. Removes nothing: see :meth:`prune`."""
        durable.atomic_write(self._path(manifest.sequence), encode_manifest(manifest))
        self._kept.append(manifest.sequence)

    def withdraw(self, number: int) -> None:
        """Take back a manifest whose writing was interrupted; fine when it never got its name."""
        durable.remove_if_present(self._path(number))
        durable.sync_directory(self.directory)
        if number in self._kept:
            self._kept.remove(number)

    def prune(self) -> None:
        """Remove all manifests but the last two sound ones. Call it when the newest one is durable."""
        self._kept = self._kept[-KEPT_MANIFESTS:]
        keep = {self._path(number).name for number in self._kept}
        # A manifest too many does no harm, so a failure here must not fail the run.
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                ours = _NAME.fullmatch(name) or _TEMPORARY_NAME.fullmatch(name)
                if ours and name not in keep:
                    durable.remove_if_present(self.directory / name)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.json"

    def _read(self, number: int) -> Manifest:
        path = self._path(number)
        if durable.file_size(path) > _MAXIMUM_BYTES:
            raise InvalidManifestError("it is far too large")
        manifest = decode_manifest(durable.read_file(path), str(path))
        if manifest.token_count > MOST_TOKENS:
            raise InvalidManifestError(f"it counts more than {MOST_TOKENS} tokens")
        if manifest.sequence != number:
            raise InvalidManifestError(f"it is checkpoint {manifest.sequence} under another name")
        return manifest


def manifest_numbers(directory: Path) -> set[int]:
    """The numbers of the files in ``directory`` that are named like manifests."""
    matches = (_NAME.fullmatch(name) for name in os.listdir(directory))
    return {int(match.group(1)) for match in matches if match}
