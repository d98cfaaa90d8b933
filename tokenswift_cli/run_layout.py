"""Names in a run directory, and telling a run from what merely looks like one."""

from __future__ import annotations

import enum
import os
from datetime import datetime
from pathlib import Path

from tokenswift_cli import durable
from tokenswift_cli.checkpoints import manifest_numbers
from tokenswift_cli.disk_errors import resume_command
from tokenswift_cli.errors import ResumeRefusedError, TokenSwiftError, UsageError

RUN_YAML = "run.yaml"
META = "meta.json"
PROMPT_TEXT = "prompt.txt"
PROMPT_IDS = "prompt.ids"
TOKENS = "tokens.bin"
TEXT = "output.txt"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
KV_JOURNAL = "kv"
LOCK = ".lock"

FILES = (RUN_YAML, META, PROMPT_TEXT, PROMPT_IDS, TOKENS, TEXT, METRICS)
# Files that are replaced whole; a crash may leave the temporary of one of them behind.
REPLACED = (RUN_YAML, TEXT, METRICS)


class Kind(enum.Enum):
    """What a path is, as far as a run is concerned."""

    MISSING = enum.auto()
    NOT_A_DIRECTORY = enum.auto()
    EMPTY = enum.auto()
    FOREIGN = enum.auto()
    TORN_CREATION = enum.auto()
    WITHOUT_CHECKPOINTS = enum.auto()
    RUN = enum.auto()


def kind_of(path: Path) -> Kind:
    """Look at ``path`` without changing or locking it. Raises OSError when it cannot be looked at."""
    if not os.path.lexists(path):
        return Kind.MISSING
    if not path.is_dir():
        return Kind.NOT_A_DIRECTORY
    names = set(os.listdir(path))
    if names <= {LOCK}:
        return Kind.EMPTY
    checkpoints = path / CHECKPOINTS
    listed = _is_real_directory(checkpoints)
    if listed and manifest_numbers(checkpoints):
        return Kind.RUN
    if {RUN_YAML, TOKENS} <= names and _has_content(path / TOKENS):
        return Kind.WITHOUT_CHECKPOINTS
    # `create` makes the lock file first and a manifest last; nothing else belongs to a torn creation.
    if LOCK in names and names <= {LOCK, CHECKPOINTS, *FILES}:
        return Kind.TORN_CREATION
    return Kind.FOREIGN


def refusal_to_create(path: Path, kind: Kind) -> TokenSwiftError | None:
    """Why no run can be created in ``path``; None if one can."""
    if kind in (Kind.MISSING, Kind.EMPTY):
        return None
    another = "choose another run directory (-o/--run-dir)"
    if kind is Kind.NOT_A_DIRECTORY:
        return UsageError(f"{path} is not a directory: {another}.")
    if kind is Kind.RUN:
        return UsageError(
            f"{path} holds a run already: continue it with `{resume_command(path)}`, or {another}."
        )
    if kind is Kind.TORN_CREATION:
        return UsageError(
            f"{path} holds a run whose creation was interrupted before any text was generated: "
            f"delete that directory, or {another}."
        )
    return UsageError(f"{path} is not empty and is not a run that can be continued: {another}.")


def refusal_to_open(path: Path, kind: Kind) -> TokenSwiftError | None:
    """Why the run in ``path`` cannot be continued; None if it can as far as one sees from outside."""
    if kind is Kind.RUN:
        return None
    if kind is Kind.TORN_CREATION:
        return ResumeRefusedError(
            f"The run in {path} was interrupted while its directory was being created, before any text was "
            "generated. Delete the directory and start the run again."
        )
    if kind is Kind.WITHOUT_CHECKPOINTS:
        return ResumeRefusedError(
            f"{path} has tokens but no checkpoint in {path / CHECKPOINTS}, so nothing vouches for them. "
            "Put that directory back from a copy, or start a new run in another directory."
        )
    found = {Kind.MISSING: "does not exist", Kind.NOT_A_DIRECTORY: "is not a directory"}.get(
        kind, "is not a run directory (it has no checkpoints)"
    )
    return UsageError(
        f"{path} {found}. Name the directory that `tokenswift generate` printed, "
        "such as runs/2026-01-31-142233."
    )


def default_run_path(base: Path, now: datetime) -> Path:
    """A free directory name under ``base`` made from the time, such as ``runs/2026-01-31-142233``."""
    stamp = now.strftime("%Y-%m-%d-%H%M%S")
    path = base / stamp
    attempt = 1
    while os.path.lexists(path):
        attempt += 1
        path = base / f"{stamp}-{attempt}"
    return path


def _is_real_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _has_content(path: Path) -> bool:
    try:
        return durable.file_size(path) > 0
    except OSError:
        return False
