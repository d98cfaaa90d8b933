"""Events as JSON lines, for programs that watch a run."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

from tokenswift_cli.display.base import Display, LineWriter
from tokenswift_cli.display.wording import unfinished
from tokenswift_cli.events import Event, Notice, Progress, RunFinished, RunStarted

SECONDS_BETWEEN_PROGRESS = 1.0


class JsonDisplay(Display):
    """One JSON object per event and line; key ``event`` holds its name, such as ``run_started``.

    A run that ends without ``run_finished`` ends with a notice that says how to resume it.
    Progress comes at most once a second, and the last one always before ``run_finished``. Lines
    are ASCII, numbers that are not finite become null.
    """

    def __init__(self, writer: LineWriter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._last_progress: float | None = None
        self._withheld: Progress | None = None
        self._unfinished: RunStarted | None = None

    def handle(self, event: Event) -> None:
        if isinstance(event, Progress):
            now = self._clock()
            if self._last_progress is not None and now - self._last_progress < SECONDS_BETWEEN_PROGRESS:
                self._withheld = event
                return
            self._last_progress, self._withheld = now, None
        elif isinstance(event, RunStarted):
            self._unfinished = event
        elif isinstance(event, RunFinished):
            self._unfinished = None
            self.close()
        self._writer.line(event_line(event))

    def close(self) -> None:
        if self._withheld is not None:
            self._writer.line(event_line(self._withheld))
            self._withheld = None
        if self._unfinished is not None:
            rows = ", ".join(f"{label}: {value}" for label, value in unfinished(self._unfinished))
            self._writer.line(event_line(Notice(f"The run ended without a result; {rows}")))
            self._unfinished = None


def event_line(event: Event) -> str:
    """The event as one line of JSON."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return json.dumps({"event": name, **_fields(event)}, allow_nan=False)


def _fields(record: object) -> dict[str, object]:
    assert is_dataclass(record)
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: object) -> object:
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
