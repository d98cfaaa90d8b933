"""Progress of one phase on standard error: a tqdm bar on a terminal, else a plain line every ten seconds."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Final, Never, TextIO

from tqdm import tqdm

PLAIN_INTERVAL: Final = 10.0


class Progress:
    """One phase from 0 to ``total``; a context.

    Args:
        title: one word or two, without "=".
        total: how far it goes.
        unit: what is counted.
        done: how far it is already.
        quiet: show nothing.
        stream: standard error by default.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._title, self._total, self._unit = title, total, unit
        self._quiet = quiet
        self._clock = clock
        self._done = self._first = done
        self._started = self._said = clock()
        self._bar: tqdm[Never] | None = None
        if not quiet and _animated(self._stream):
            self._bar = tqdm(
                total=total, initial=done, unit=f" {unit}", desc=title, file=self._stream, dynamic_ncols=True
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def to(self, done: int, detail: str = "") -> None:
        """Now at ``done``; ``detail`` is ``key=value`` words."""
        if self._bar is not None:
            self._bar.set_postfix_str(detail, refresh=False)
            self._bar.update(done - self._done)
        self._done = done
        if self._bar is None and not self._quiet and self._clock() - self._said >= PLAIN_INTERVAL:
            self._said = self._clock()
            self._line(detail)

    def _line(self, detail: str) -> None:
        elapsed = self._said - self._started
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        words = [f"{self._title}:", f"{self._unit}={self._done}/{self._total}", f"rate={rate:.1f}/s"]
        if detail:
            words.append(detail)
        if rate > 0:
            words.append(f"eta={_duration((self._total - self._done) / rate)}")
        say(" ".join(words), self._stream)


def say(message: str, stream: TextIO | None = None) -> None:
    """One line on standard error. If nobody can read it (full disk, closed terminal) the work goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(message, file=sys.stderr if stream is None else stream, flush=True)


def _animated(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # closed
        return False


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
