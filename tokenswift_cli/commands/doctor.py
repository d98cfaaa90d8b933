"""``tokenswift doctor``: nothing or a model in, what this machine has and a run would need out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Final

from tokenswift_cli.commands.doctor_text import plain, rich_view, sections, verdict
from tokenswift_cli.display.choose import dashboard_obstacle
from tokenswift_cli.display.wording import visible
from tokenswift_cli.errors import UsageError
from tokenswift_cli.flags import flag_name
from tokenswift_cli.options import DEFAULT_ORIGIN, resolve

MODEL: Final = "model.name"
LENGTH: Final = "generation.max_tokens"
DEFAULT_LENGTH: Final = "100k"

# What says nothing without a model.
_NEED_MODEL: Final = (LENGTH, "model.dtype", "model.kv_dtype")


def run_doctor(cli_values: Mapping[str, object], *, json_result: bool = False, quiet: bool = False) -> int:
    """Examine this machine, and show the findings on standard output.

    Args:
        cli_values: the flags given, by configuration key.
        json_result: one JSON object instead of sections.
        quiet: no progress on standard error.

    Returns:
        The exit code: 1 if a run could not start.

    Raises:
        UsageError: flags or environment are wrong.
    """
    model_given = MODEL in cli_values
    idle = [flag_name(path) for path in _NEED_MODEL if path in cli_values]
    if idle and not model_given:
        raise UsageError(f"{', '.join(idle)} can be judged for a model only: name it with -m MODEL.")
    resolved = resolve({LENGTH: DEFAULT_LENGTH, **cli_values})
    defaults = resolve({})
    origin = defaults.origins[MODEL]
    default_model = defaults.config.model.name + ("" if origin == DEFAULT_ORIGIN else f" ({origin})")

    # The flags are checked first: importing torch takes seconds.
    from tokenswift_cli.doctor.examination import examine

    def notify(message: str) -> None:
        if not quiet:
            print(visible(message), file=sys.stderr, flush=True)

    for notice in resolved.notices:
        notify(f"warning: {notice}")
    findings = examine(
        resolved.config,
        default_model,
        model_given=model_given,
        length_given=LENGTH in cli_values,
        notify=notify,
    )
    if json_result:
        # Escaped, as the name of a file may be no Unicode.
        print(json.dumps(findings.to_json()), flush=True)
    elif dashboard_obstacle(sys.stdout, os.environ, text_to_terminal=False) is None:
        from rich.console import Console

        Console(file=sys.stdout).print(rich_view(sections(findings), verdict(findings), ready=findings.ready))
    else:
        _print_safely(plain(sections(findings), verdict(findings)))
    return 0 if findings.ready else 1


def _print_safely(text: str) -> None:
    """With escapes for what standard output's encoding does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
