"""A wall clock that can be set for the processes of a test alone.

The interpreter imports ``sitecustomize`` before anything else; ours puts other functions in the place of
``time.time`` and ``datetime.now``, which add what a file says. Clocks that only go forward are left alone,
as the kernel leaves them alone when the time is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = "FAULTS_CLOCK_FILE"
_SHIM = f"""
import datetime
import os
import time

_file, _real = os.environ[{_VARIABLE!r}], time.time


def _now():
    try:
        with open(_file) as file:
            mode, number = file.read().split()
    except FileNotFoundError:
        return _real()
    return float(number) if mode == "at" else _real() + float(number)


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(_now(), tz)


time.time, time.time_ns = _now, lambda: int(_now() * 1e9)
datetime.datetime = _Datetime
"""


class Clock:
    """The wall clock of processes that get :attr:`environment`.

    Args:
        folder: for the files of the clock; it is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_SHIM, encoding="utf-8")
        self._file = folder / "setting"
        self.environment: Mapping[str, str] = {"PYTHONPATH": str(folder), _VARIABLE: str(self._file)}

    def step(self, seconds: float) -> None:
        """From now on it is ``seconds`` later than it is; negative: earlier."""
        self._set(f"by {seconds}")

    def stop_at(self, seconds: float) -> None:
        """From now on it is always ``seconds`` after the epoch."""
        self._set(f"at {seconds}")

    def _set(self, text: str) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(text, encoding="ascii")
        os.replace(temporary, self._file)
