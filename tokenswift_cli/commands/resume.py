"""``tokenswift resume``: a run directory in, the same run continued."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenswift_cli.commands.session import run_displayed, with_display_switches
from tokenswift_cli.config import Config
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.durable import read_whole
from tokenswift_cli.errors import UsageError
from tokenswift_cli.options import resolve_resume
from tokenswift_cli.run_contents import MOST_BYTES
from tokenswift_cli.yaml_config import load_run_yaml

_CONFIG_NAME: Final = "run.yaml"


def run_resume(
    cli_values: Mapping[str, object], run_dir: Path, *, verbosity: int = 0, json_summary: bool = False
) -> int:
    """Continue the run in ``run_dir``.

    Args:
        cli_values: the flags given, by configuration key; they change the stored configuration.
        run_dir: the directory that ``tokenswift generate`` made.
        verbosity: -1 quiet, 0 normal, 1 verbose.
        json_summary: the result as one JSON object on standard output instead of the text.

    Returns:
        The exit code.

    Raises:
        UsageError: ``run_dir`` is no run directory, or the flags are wrong.
        TokenSwiftError: what the runner refuses, each with its exit code.
    """
    values = with_display_switches(cli_values, verbosity=verbosity, json_summary=json_summary)
    stored = read_stored_config(run_dir)
    resolved = resolve_resume(values, stored)

    from tokenswift_cli.runner import resume

    return run_displayed(
        lambda publish: resume(run_dir, stored, resolved.config, publish=publish),
        resolved.config.display,
        verbosity=verbosity,
        json_summary=json_summary,
        notices=resolved.notices,
    )


def read_stored_config(run_dir: Path) -> Config:
    """The configuration that the run in ``run_dir`` was started with.

    Raises:
        UsageError: there is no such directory, or no readable ``run.yaml`` in it.
        ConfigError: ``run.yaml`` is damaged.
    """
    shown = shlex.quote(str(run_dir))
    path = run_dir / _CONFIG_NAME
    if not run_dir.exists():
        raise UsageError(f"The run directory {shown} does not exist; give the directory of an earlier run.")
    if not run_dir.is_dir():
        raise UsageError(f"{shown} is no directory; give the directory of an earlier run.")
    try:
        text = read_whole(path, MOST_BYTES[_CONFIG_NAME]).decode("utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"{shown} holds no {_CONFIG_NAME}, so it is no run; give the directory of an earlier run."
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is damaged: not UTF-8 text at byte {error.start}.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {os_error_text(error)}.") from None
    return load_run_yaml(text, str(path))
