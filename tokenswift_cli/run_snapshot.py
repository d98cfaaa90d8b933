"""What a run directory holds at one moment, read without its lock and without changing anything.

The run may be written while it is read. Its files only grow, so what its newest sound manifest vouches for
stands still; the few files that are replaced whole are read again until manifest and files belong together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tokenswift_cli import durable, run_layout
from tokenswift_cli.checkpoints import CheckpointStore, manifest_numbers
from tokenswift_cli.disk_errors import os_error_text, telling
from tokenswift_cli.errors import ResumeRefusedError
from tokenswift_cli.growing_file import decode_ids
from tokenswift_cli.manifest import TOKEN_BYTES, Manifest
from tokenswift_cli.run_contents import RunContents, read_contents
from tokenswift_cli.run_files import FileProblem, check_files

# A replaced file is followed by its manifest within milliseconds.
_TRIES = 5
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class RunSnapshot:
    """One moment of a run.

    Attributes:
        path: the run directory.
        manifest: the newest sound one.
        contents: the files that decide the run; those of the manifest.
        tokens: ids in tokens.bin, at most those that the manifest counts.
        text: bytes of output.txt, at most those that the manifest counts; None where it cannot be read.
        problems: what is not as the manifest says.
    """

    path: Path
    manifest: Manifest
    contents: RunContents
    tokens: list[int]
    text: bytes | None
    problems: tuple[FileProblem, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.contents.prompt_ids)


def read_snapshot(path: Path) -> RunSnapshot:
    """Read the run in ``path`` and hold its files against its newest sound manifest.

    Raises:
        UsageError: ``path`` is missing or no run directory.
        ResumeRefusedError: no sound checkpoint, or run.yaml, meta.json or prompt.ids is not the run's own.
        RunDirectoryError: the disk refuses.
    """
    with telling(path, "try again"):
        if refusal := run_layout.refusal_to_open(path, run_layout.kind_of(path)):
            raise refusal
        checkpoints = path / run_layout.CHECKPOINTS
        refused: ResumeRefusedError | None = None
        for _ in range(_TRIES):
            before, refused = manifest_numbers(checkpoints), None
            try:
                snapshot = _read(path)
                if not snapshot.problems:
                    return snapshot
            except ResumeRefusedError as error:
                refused = error
            time.sleep(_PAUSE_SECONDS)
            if manifest_numbers(checkpoints) == before:
                break  # nobody writes: what is wrong stays wrong
        if refused is not None:
            raise refused
        return snapshot


def _read(path: Path) -> RunSnapshot:
    loaded = CheckpointStore(path / run_layout.CHECKPOINTS).load()
    problems = [FileProblem(run_layout.CHECKPOINTS, problem) for problem in loaded.problems]
    if not loaded.sound:
        raise ResumeRefusedError(
            f"No checkpoint in {path / run_layout.CHECKPOINTS} can be used, so nothing vouches for the text: "
            f"{'; '.join(loaded.problems)}. Put that directory back from a copy."
        )
    manifest = loaded.sound[0]
    contents = read_contents(path, manifest)
    problems += [FileProblem(run_layout.PROMPT_TEXT, note) for note in contents.notes]
    sizes = {
        run_layout.TOKENS: manifest.token_count * TOKEN_BYTES,
        run_layout.TEXT: min(manifest.text_bytes, manifest.most_text_bytes),
        run_layout.METRICS: min(manifest.metrics_bytes, manifest.most_metrics_bytes),
    }
    files: dict[str, bytes] = {}
    for name, size in sizes.items():
        try:
            files[name] = durable.read_file(path / name, size)
        except OSError as error:
            problems.append(FileProblem(name, f"{name} cannot be read: {os_error_text(error)}"))
    problems += check_files(manifest, files)
    token_data = files.get(run_layout.TOKENS, b"")
    return RunSnapshot(
        path=path,
        manifest=manifest,
        contents=contents,
        tokens=decode_ids(token_data[: len(token_data) // TOKEN_BYTES * TOKEN_BYTES]),
        text=files.get(run_layout.TEXT),
        problems=tuple(problems),
    )
