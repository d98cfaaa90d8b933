"""The files of a run that never change after its creation: what they hold, and that they still do.

(run.yaml changes once in a while, when a run is extended; the manifest knows both versions then.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenswift_cli import durable, run_layout
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.errors import ResumeRefusedError
from tokenswift_cli.growing_file import decode_ids, encode_ids
from tokenswift_cli.manifest import TRACKED_FILES, Manifest, plain_json


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
    """Contents for a new run; raises ValueError or TypeError when ``meta`` or an id cannot be stored."""
    ids = decode_ids(encode_ids(prompt_ids))
    return RunContents(run_yaml, plain_json(meta), bytes(prompt_text), ids)


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
            files[name] = durable.read_file(path / name)
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
        run_yaml=files[run_layout.RUN_YAML].decode("utf-8"),
        meta=json.loads(files[run_layout.META]),
        prompt_text=files[run_layout.PROMPT_TEXT],
        prompt_ids=decode_ids(files[run_layout.PROMPT_IDS]),
        notes=tuple(notes),
    )


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()
