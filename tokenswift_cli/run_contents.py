"""The files of a run that never change after its creation: what they hold, and that they still do.

(run.yaml changes once in a while, when a run is extended; the manifest knows both versions then.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tokenswift_cli import durable, run_layout
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.errors import ResumeRefusedError, UsageError
from tokenswift_cli.growing_file import decode_ids, encode_ids
from tokenswift_cli.manifest import TOKEN_BYTES, TRACKED_FILES, Manifest, plain_json

# No run has larger ones: more is refused before it is read, as a run directory may come from anybody.
MOST_BYTES = {
    run_layout.RUN_YAML: 4 * 2**20,
    run_layout.META: 4 * 2**20,
    run_layout.PROMPT_TEXT: 256 * 2**20,
    run_layout.PROMPT_IDS: 64 * 2**20,
}

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class RunContents:
    """Decoded contents of run.yaml, meta.json, prompt.txt and prompt.ids, and notes about them."""

    run_yaml: str
    meta: dict[str, object]
    prompt_text: bytes
    prompt_ids: list[int]
    notes: tuple[str, ...] = ()

    def encoded(self) -> dict[str, bytes]:
        """The bytes of each file, by name. Raises ValueError or TypeError for what cannot be stored."""
        return {
            run_layout.RUN_YAML: self.run_yaml.encode("utf-8"),
            run_layout.META: (json.dumps(plain_json(self.meta), indent=2) + "\n").encode("ascii"),
            run_layout.PROMPT_TEXT: self.prompt_text,
            run_layout.PROMPT_IDS: encode_ids(self.prompt_ids),
        }


def new_contents(
    run_yaml: str, meta: Mapping[str, object], prompt_text: bytes, prompt_ids: Sequence[int]
) -> RunContents:
    """Contents for a new run.

    Raises:
        ValueError, TypeError: ``meta`` or an id cannot be stored.
        UsageError: something is so large that it would not be read again.
    """
    ids = decode_ids(encode_ids(prompt_ids))
    contents = RunContents(run_yaml, plain_json(meta), bytes(prompt_text), ids)
    for name, data in contents.encoded().items():
        if len(data) > MOST_BYTES[name]:
            raise UsageError(
                f"{name} of this run would have {len(data)} bytes, more than the {MOST_BYTES[name]} it can "
                "have. Use a shorter prompt, and --prompt FILE for a long one."
            )
    return contents


def file_hashes(files: Mapping[str, bytes]) -> dict[str, tuple[str, ...]]:
    """What a first manifest records of the files."""
    return {name: (sha256(files[name]),) for name in TRACKED_FILES}


def read_contents(path: Path, manifest: Manifest) -> RunContents:
    """Read the files of the run in ``path`` and hold them against ``manifest``.

    Raises ResumeRefusedError naming the file that changed or cannot be read. prompt.txt alone is only noted:
    the text depends on prompt.ids.
    """
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for name in TRACKED_FILES:
        try:
            files[name] = durable.read_whole(path / name, MOST_BYTES[name])
            problem = "" if sha256(files[name]) in manifest.file_hashes[name] else "it was changed or damaged"
        except OSError as error:
            files[name] = b""
            problem = os_error_text(error)
        if problem and name == run_layout.PROMPT_TEXT:
            notes.append(f"prompt.txt is not what it was at the start ({problem}); prompt.ids decides")
        elif problem:
            raise ResumeRefusedError(
                f"{path / name} is not the file this run was made with: {problem}. "
                "Put the original back, or start a new run in another directory."
            )
    return RunContents(
        run_yaml=_parsed(path, run_layout.RUN_YAML, files, lambda data: data.decode("utf-8")),
        meta=_parsed(path, run_layout.META, files, _json_object),
        prompt_text=files[run_layout.PROMPT_TEXT],
        prompt_ids=_parsed(path, run_layout.PROMPT_IDS, files, _ids),
        notes=tuple(notes),
    )


def _parsed(path: Path, name: str, files: Mapping[str, bytes], parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """The right hash says that a file is the run's own, not that tokenswift wrote it."""
    try:
        return parse(files[name])
    except (ValueError, RecursionError) as error:
        raise ResumeRefusedError(
            f"{path / name} does not hold what tokenswift writes there ({type(error).__name__}). "
            "Start a new run in another directory."
        ) from error


def _json_object(data: bytes) -> dict[str, object]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _ids(data: bytes) -> list[int]:
    if not data or len(data) % TOKEN_BYTES:
        raise ValueError("no whole ids")
    return decode_ids(data)


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()
