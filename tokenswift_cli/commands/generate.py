"""``tokenswift generate``: configuration and prompt in, a run out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tokenswift_cli.commands.session import run_displayed, with_display_switches
from tokenswift_cli.config import PromptConfig
from tokenswift_cli.errors import UsageError
from tokenswift_cli.options import resolve
from tokenswift_cli.prompt_input import STANDARD_INPUT, read_prompt


def run_generate(
    cli_values: Mapping[str, object],
    config_path: Path | None,
    *,
    dry_run: bool = False,
    verbosity: int = 0,
    json_summary: bool = False,
) -> int:
    """Start a new run.

    Args:
        cli_values: the flags given, by configuration key.
        config_path: the YAML file of ``--config``, if any.
        dry_run: check everything and stop before the run directory is made.
        verbosity: -1 quiet, 0 normal, 1 verbose.
        json_summary: the result as one JSON object on standard output instead of the text.

    Returns:
        The exit code.

    Raises:
        TokenSwiftError: usage, configuration, model or run directory, each with its exit code.
    """
    values = with_display_switches(cli_values, verbosity=verbosity, json_summary=json_summary)
    resolved = resolve(values, config_path)
    if dry_run and resolved.config.display.progress == "none":
        raise UsageError(
            "--dry-run says what it finds as progress messages, which -q (--progress none) leaves out; "
            "drop one of them."
        )
    _invite(resolved.config.prompt)
    prompt = read_prompt(resolved.config.prompt)

    # The prompt is checked first: importing the runner takes seconds.
    from tokenswift_cli.runner import generate

    return run_displayed(
        lambda publish: generate(resolved.config, prompt, publish=publish, dry_run=dry_run),
        resolved.config.display,
        verbosity=verbosity,
        json_summary=json_summary,
        notices=resolved.notices,
    )


def _invite(prompt: PromptConfig) -> None:
    # Waiting in silence for a prompt to be typed looks like a hang.
    if prompt.file == STANDARD_INPUT and sys.stdin is not None and sys.stdin.isatty():
        print("Type the prompt; end it with Ctrl-D on a line of its own.", file=sys.stderr)
