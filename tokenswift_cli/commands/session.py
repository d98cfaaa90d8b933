"""What generate and resume share: the display's switches, and one run under a display."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tokenswift_cli.config import DisplayConfig
from tokenswift_cli.errors import UsageError
from tokenswift_cli.events import Event, Notice


class Outcome(Protocol):
    """What a command needs of the runner's result."""

    @property
    def exit_code(self) -> int:
        """The exit status of the process."""

    def summary(self) -> Mapping[str, object]:
        """The result as one JSON object."""


def with_display_switches(
    cli_values: Mapping[str, object], *, verbosity: int, json_summary: bool
) -> dict[str, object]:
    """``cli_values`` with what ``-q`` and ``--json`` say about the progress display.

    Raises:
        UsageError: the switches contradict ``--progress`` or ``--stream``.
    """
    values = dict(cli_values)
    progress = values.get("display.progress")
    if verbosity < 0:
        if progress not in (None, "none"):
            raise UsageError(
                f"-q means --progress none, but --progress {progress} was given; drop one of them."
            )
        values["display.progress"] = "none"
    elif json_summary and progress is None:
        values["display.progress"] = "json"
    if json_summary:
        if values.get("display.stream"):
            raise UsageError(
                "--json leaves the text out of standard output, --stream writes it there; drop one."
            )
        values["display.stream"] = False
    return values


def run_displayed(
    start: Callable[[Callable[[Event], None]], Outcome],
    display_config: DisplayConfig,
    *,
    verbosity: int,
    json_summary: bool,
    notices: Iterable[str] = (),
) -> int:
    """Run ``start(publish)`` under the display that the configuration asks for.

    Standard output gets the generated text alone, or with ``json_summary`` one JSON object at
    the end and nothing else.

    Returns:
        The exit code of the outcome.
    """
    from tokenswift_cli.display.choose import open_display

    with open_display(
        display_config.progress,
        stream=display_config.stream,
        verbosity=verbosity,
        write_text=not json_summary,
    ) as display:
        for notice in notices:
            display.handle(Notice(notice, level="warning"))
        outcome = start(display.handle)
    if json_summary:
        print(json.dumps(outcome.summary(), ensure_ascii=False), flush=True)
    return outcome.exit_code
