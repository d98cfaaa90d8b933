"""A run in a process of its own, watched through the JSON events on its standard error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import tokenswift_cli

from .outcomes import FaultFailedError, require

# What is waited for comes in seconds, or the run hangs. Looked at once a second and not by the clock, so that
# time in which everything was suspended does not count.
PATIENCE_SECONDS = 300
# How often a state of the disk is looked at while a moment is waited for.
GLANCE_SECONDS = 0.0002


@dataclass(frozen=True)
class Event:
    """One line of ``--progress json`` and when it came, in seconds after the start of the process."""

    name: str
    fields: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class Ended:
    """A process that is over: exit status (negative: the signal that killed it), events, other lines."""

    code: int
    events: Sequence[Event]
    messages: Sequence[str]

    def named(self, name: str) -> list[Event]:
        """The events of that name, in order."""
        return [event for event in self.events if event.name == name]

    @property
    def resumed_tokens(self) -> int:
        """Tokens that the session began with; -1 if it did not get so far."""
        started = self.named("run_started")
        return int(started[0].fields["resumed_tokens"]) if started else -1

    @property
    def durable_tokens(self) -> int:
        """Tokens of the last checkpoint it reported, or those it began with."""
        saved = self.named("checkpoint_saved")
        return int(saved[-1].fields["tokens"]) if saved else max(self.resumed_tokens, 0)

    @property
    def shown_characters(self) -> int:
        """Length of the text that this session published."""
        return sum(len(event.fields["text"]) for event in self.named("text_appended"))

    @property
    def warnings(self) -> list[str]:
        """What it told the user to know."""
        notices = self.named("notice")
        return [str(event.fields["message"]) for event in notices if event.fields["level"] == "warning"]

    def require_refusal(self, codes: Sequence[int], words: str = "") -> str:
        """The one sentence it was refused with.

        Raises FaultFailedError when it ended otherwise, with a traceback, or without ``words`` in it.
        """
        told = "\n".join(self.messages)
        require(
            self.code in codes, f"exit {self.code}, expected one of {list(codes)}: {told or 'no message'}"
        )
        self.require_no_traceback()
        require(told.startswith("Error: "), f"no clear error: {told!r}")
        require("unexpected error" not in told, told)
        require(words in told, f"{words!r} is not in {told!r}")
        return told.removeprefix("Error: ")

    def require_no_traceback(self) -> None:
        """Raises FaultFailedError when the user was shown one."""
        told = "\n".join(self.messages)
        require("Traceback" not in told, f"a traceback: {told}")


class RunProcess:
    """``python -m tokenswift_cli`` with some arguments; killed when the block is left."""

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._events: list[Event] = []
        self._messages: list[str] = []
        self._news = threading.Condition()
        self._over = False
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tokenswift_cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=_environment(environment or {}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def wait_for(self, name: str, count: int = 1) -> bool:
        """Wait until ``count`` events of that name have come; False if the process ended before."""

        def come() -> bool:
            return sum(event.name == name for event in self._events) >= count

        with self._news:
            for _ in range(PATIENCE_SECONDS):
                if self._news.wait_for(lambda: self._over or come(), 1):
                    return come()
        raise FaultFailedError(f"no event {name} within {PATIENCE_SECONDS} s")

    def watch(self, happened: Callable[[], bool]) -> bool:
        """Look until ``happened()``; False if the process ended before."""
        for _ in range(round(PATIENCE_SECONDS / GLANCE_SECONDS)):
            if self._process.poll() is not None:
                return False
            if happened():
                return True
            time.sleep(GLANCE_SECONDS)
        raise FaultFailedError(f"nothing happened within {PATIENCE_SECONDS} s")

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that is over does not mind."""
        self._process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the end."""
        for _ in range(PATIENCE_SECONDS):
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(1)
                self._reader.join()
                return Ended(code, tuple(self._events), tuple(self._messages))
        raise FaultFailedError(f"still running after {PATIENCE_SECONDS} s")

    def __enter__(self) -> RunProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode("utf-8", errors="replace").rstrip("\n")
                event = _event(text, self.age)
                with self._news:
                    if event is None:
                        self._messages.append(text)
                    else:
                        self._events.append(event)
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


def _event(line: str, seconds: float) -> Event | None:
    """The event in ``line``; None for other words, and for a line that a kill has cut."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "event" not in fields:
        return None
    return Event(fields.pop("event"), fields, seconds)


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Of this process, without the Hub; PYTHONPATH of ``changes`` comes before the package's own place."""
    package_home = str(Path(tokenswift_cli.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [changes.get("PYTHONPATH", ""), package_home, inherited]
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        **changes,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
