"""``tokenswift train-heads``: text and a model in, a directory of drafting heads out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tokenswift_cli.errors import UsageError
from tokenswift_cli.training.configuration import resolve_training
from tokenswift_cli.training.flags import training_flag_name

if TYPE_CHECKING:
    from tokenswift_cli.training.request import TrainingRequest

_WORK_SUFFIX: Final = ".training"


@dataclass(frozen=True)
class TrainHeadsOptions:
    """The switches and paths of the command line that are no configuration keys.

    Attributes:
        config: the YAML file of ``--config``.
        output: the heads directory to write.
        work_dir: where data, checkpoints and log are kept; by default beside the output.
        convert: a published checkpoint whose heads are to be converted; nothing is trained.
        self_distill, self_distill_only, resume, restart, replace: see the command's help.
        quiet: no progress, messages and table.
    """

    config: Path | None = None
    output: Path | None = None
    work_dir: Path | None = None
    convert: Path | None = None
    self_distill: bool = False
    self_distill_only: bool = False
    resume: bool = False
    restart: bool = False
    replace: bool = False
    quiet: bool = False


def run_train_heads(cli_values: Mapping[str, object], options: TrainHeadsOptions) -> int:
    """Train heads, write training text, or convert published heads.

    Args:
        cli_values: the flags given that set a configuration key, by key.
        options: the others.

    Returns:
        The exit code.

    Raises:
        TokenSwiftError: usage, configuration, data, model or disk, each with its exit code.
    """
    if options.convert is not None:
        return _convert(cli_values, options, options.convert)
    output, work = _places(options)
    config = resolve_training(cli_values, options.config)

    from tokenswift_cli.training.request import TrainingRequest, check_request

    request = TrainingRequest(
        config=config,
        output=output,
        work=work,
        self_distill=options.self_distill or options.self_distill_only,
        resume=options.resume,
        restart=options.restart,
        overwrite=options.replace,
        quiet=options.quiet,
    )
    # All that can be checked is checked first: importing torch and loading the model take seconds.
    materials = check_request(request)

    from tokenswift_cli.training.pipeline import train_heads

    say = _say if not options.quiet else _say_nothing
    outcome = train_heads(request, materials, say)
    if outcome.exit_code:
        _say(f"Stopped; what was done is kept. Go on with: {_command(cli_values, options)}")
    elif outcome.training is None:
        say(f"The text is in {work / 'self-distill'}: train on it with --data.")
    else:
        _show(request, outcome.training)
    return outcome.exit_code


def _places(options: TrainHeadsOptions) -> tuple[Path | None, Path]:
    """Output (None to write text only) and work directory."""
    output = None if options.self_distill_only else options.output
    if output is None and not options.self_distill_only:
        raise UsageError("Where the heads should go is missing: give --output DIR.")
    if options.work_dir is not None:
        return output, options.work_dir
    if options.output is None:
        raise UsageError("Where the text should go is missing: give --work-dir DIR or --output DIR.")
    return output, options.output.with_name(options.output.name + _WORK_SUFFIX)


def _convert(cli_values: Mapping[str, object], options: TrainHeadsOptions, checkpoint: Path) -> int:
    given = [training_flag_name(path) for path in cli_values]
    given += [
        name
        for name, value in (
            ("--config", options.config),
            ("--work-dir", options.work_dir),
            ("--self-distill", options.self_distill),
            ("--self-distill-only", options.self_distill_only),
            ("--resume", options.resume),
            ("--restart", options.restart),
        )
        if value
    ]
    if given:
        raise UsageError(f"--convert trains nothing, so {', '.join(given)} cannot be given with it.")
    if options.output is None:
        raise UsageError("Where the heads should go is missing: give --output DIR.")

    from tokenswift_cli.models.published_heads import convert_published

    convert_published(checkpoint, options.output, replace=options.replace)
    if not options.quiet:
        _say(f"The heads of {checkpoint} are in {options.output}.")
    return 0


def _show(request: TrainingRequest, training: Mapping[str, Any]) -> None:
    if request.quiet:
        return
    from rich.console import Console

    from tokenswift_cli.training.card import acceptance_table

    console = Console(file=sys.stderr)
    if training["acceptance"]:
        console.print(acceptance_table(training["acceptance"], request.config.heads.count))
    _say(f"The heads are in {request.output}; log and checkpoints are in {request.work}.")


def _command(cli_values: Mapping[str, object], options: TrainHeadsOptions) -> str:
    """The command line that goes on: this one, but for ``--restart``."""
    words = ["tokenswift", "train-heads"]
    for name, path in (
        ("--config", options.config),
        ("--output", options.output),
        ("--work-dir", options.work_dir),
    ):
        words += [] if path is None else [name, str(path)]
    for key, value in cli_values.items():
        words += _words(training_flag_name(key), value)
    for name, given in (
        ("--self-distill", options.self_distill),
        ("--self-distill-only", options.self_distill_only),
        ("--replace", options.replace),
    ):
        words += [name] if given else []
    return shlex.join(words)


def _words(name: str, value: object) -> Sequence[str]:
    if isinstance(value, bool):
        return [name if value else f"--no-{name.removeprefix('--')}"]
    if isinstance(value, list | tuple):
        return [word for item in value for word in (name, str(item))]
    return [name, str(value)]


def _say(message: str) -> None:
    from tokenswift_cli.training.progress import say

    say(message)


def _say_nothing(message: str) -> None:
    pass
