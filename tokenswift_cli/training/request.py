"""What ``tokenswift train-heads`` was asked to do, and all that can be checked before a model is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenswift_cli.errors import ConfigError, UsageError
from tokenswift_cli.training.settings import TrainingConfig
from tokenswift_cli.training.text_data import FoundData, find_data, read_prompts

CHECKPOINTS: Final = "checkpoints"
WRITTEN_TEXT: Final = "self-distill"
FINISHED: Final = "finished.json"

WORK_AGAIN: Final = "give the same command again to go on"
"""What to do once the cause of an error of the disk is gone."""


@dataclass(frozen=True)
class TrainingRequest:
    """One invocation.

    Attributes:
        config: validated.
        output: where the heads go; None only writes training text.
        work: where data, checkpoints and log are kept.
        self_distill: let the target write training text first.
        resume: refuse to begin anew.
        restart: forget checkpoints; data is kept.
        overwrite: heads that are in ``output`` already give way to the new ones.
        quiet: no progress and messages.
    """

    config: TrainingConfig
    output: Path | None
    work: Path
    self_distill: bool = False
    resume: bool = False
    restart: bool = False
    overwrite: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Materials:
    """What the request names, read and checked: text, directories of shards, and prompts."""

    found: FoundData
    prompts: tuple[str, ...]


def check_request(request: TrainingRequest) -> Materials:
    """Check and read everything that needs no model.

    Raises:
        UsageError: the request makes no sense, the output is taken, or data is missing or damaged.
    """
    config = request.config
    if not config.data.paths and not request.self_distill:
        raise UsageError(
            "There is nothing to learn from: give text files with --data, or let the model write its own "
            "text with --self-distill."
        )
    if request.self_distill and config.self_distill.prompts is None:
        raise UsageError(
            "--self-distill needs prompts to start the texts from: give --prompts FILE, one prompt a line."
        )
    if request.resume and request.restart:
        raise UsageError("--resume goes on and --restart begins anew: give one of them.")
    check_output(request, new_heads=request.restart)
    if request.resume and not any((request.work / CHECKPOINTS).glob("step-*.safetensors")):
        raise UsageError(
            f"There is nothing to resume in {request.work}: it holds no checkpoint. Leave --resume out."
        )
    found = find_data(config.data.paths, config.data.text_key, config.heads.count)
    if found.documents and config.training.window_tokens and not config.data.cache_hidden:
        raise ConfigError(
            [
                "training.window_tokens must be 0 (whole sequences) for text files, as the hidden states of "
                "a piece need all text before it, or set data.cache_hidden: true"
            ]
        )
    prompts: tuple[str, ...] = ()
    if request.self_distill and config.self_distill.prompts is not None:
        prompts = tuple(read_prompts(Path(config.self_distill.prompts)))
    return Materials(found, prompts)


def read_finished(work: Path) -> dict[str, Any] | None:
    """What a finished training recorded in its work directory; None if there is no such record."""
    try:
        record = json.loads((work / FINISHED).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def check_output(request: TrainingRequest, *, new_heads: bool) -> None:
    """Refuse an output that is taken.

    Args:
        request: what to do.
        new_heads: heads will be written; else those that are there may be the ones asked for.

    Raises:
        UsageError: something lies there that may not be replaced.
    """
    output = request.output
    if output is None or not output.exists() or request.overwrite:
        return
    if not output.is_dir():
        raise UsageError(f"{output} is a file. Choose another --output.")
    if not any(output.iterdir()):
        return
    record = read_finished(request.work)
    made_here = record is not None and record.get("output") == str(output.absolute())
    if made_here and not new_heads:
        return
    raise UsageError(
        f"{output} is not empty. Choose another --output, or put the new heads in its place with --replace."
    )
