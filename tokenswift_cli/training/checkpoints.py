"""Checkpoints of a training: one safetensors file each, whole or absent, the last two kept.

Tensors are the heads' weights and the optimizer's moments; the step, sums and settings are JSON in the
file's own header. No pickle anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tokenswift_cli.disk_errors import telling
from tokenswift_cli.durable import atomic_write, make_directory, remove_if_present
from tokenswift_cli.errors import TrainingDataError

KEPT = 2
_NAME = re.compile(r"step-(\d{9})\.safetensors")
_STATE = "state"
_THEN = "give the same command again to go on"


@dataclass(frozen=True)
class Checkpoint:
    """A training after ``step`` steps.

    Attributes:
        step: optimizer steps done.
        tensors: by name.
        state: JSON-able rest.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints in a directory, which is made when missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with telling(directory, _THEN):
            make_directory(directory)

    def paths(self) -> list[Path]:
        """All checkpoints, the oldest first."""
        return sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.directory / f"step-{step:09d}.safetensors"

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint durably, then forget all but the last two.

        Raises:
            RunDirectoryError: the disk refuses; older checkpoints are as they were.
        """
        metadata = {_STATE: json.dumps({"step": checkpoint.step, **checkpoint.state})}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
        with telling(self.directory, _THEN):
            atomic_write(self.path(checkpoint.step), save(tensors, metadata))
            for old in self.paths()[:-KEPT]:
                remove_if_present(old)

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that can be read, and a message for each newer one that cannot.

        Raises:
            TrainingDataError: there are checkpoints, and none can be read.
        """
        messages: list[str] = []
        paths = self.paths()
        for path in reversed(paths):
            try:
                return _read(path), messages
            except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
                messages.append(f"The checkpoint {path} is damaged ({error}); going back to the one before.")
        if paths:
            raise TrainingDataError(
                f"No checkpoint in {self.directory} can be read. Give --restart to train from the beginning."
            )
        return None, messages

    def clear(self) -> None:
        """Forget all checkpoints."""
        with telling(self.directory, _THEN):
            for path in self.paths():
                remove_if_present(path)


def _read(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        state = json.loads((file.metadata() or {})[_STATE])
        # Copies: the file may be deleted while its weights are in use.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    step = state.pop("step")
    if not isinstance(step, int) or step < 0:
        raise ValueError("it names no step")
    return Checkpoint(step, tensors, state)
