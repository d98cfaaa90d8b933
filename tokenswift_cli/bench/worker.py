"""A contestant in a process of its own, so that its memory, threads and libraries are its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from tokenswift_cli.bench.contestant import Contestant, Prefill, Say, Trial
from tokenswift_cli.errors import TokenSwiftError

Build = Callable[..., Contestant]

# Messages from the process.
_SAY, _DONE, _REFUSED, _FAILED = "say", "done", "refused", "failed"

_SECONDS_TO_END = 5.0


class ContestantFailedError(TokenSwiftError):
    """The process of a contestant failed or died."""


class Worker:
    """Builds a contestant in a new process and passes calls on to it. A context; leaving it ends the process.

    Args:
        name: for messages.
        build: makes the contestant from ``arguments`` and a function that takes lines for people; found
            again by its name in the process.
        arguments: that can be pickled.
        say: gets those lines here.

    Raises:
        TokenSwiftError: as ``build``.
        ContestantFailedError: anything else went wrong.
    """

    def __init__(self, name: str, build: Build, arguments: Sequence[object], say: Say) -> None:
        self._name = name
        self._say = say
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, build, tuple(arguments)), name=f"bench {name}", daemon=True
        )
        with _interrupts_ignored():
            self._process.start()
        theirs.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._connection.close()
        self._process.kill()
        self._process.join(_SECONDS_TO_END)

    def facts(self) -> dict[str, object]:
        """See :class:`Contestant`."""
        facts: dict[str, object] = self.call("facts")
        return facts

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        """See :class:`Contestant`."""
        prefill: Prefill = self.call("prepare", prompt)
        return prefill

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        """See :class:`Contestant`."""
        trial: Trial = self.call("decode", method, warm_up, tokens)
        return trial

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the contestant.

        Raises:
            TokenSwiftError: as the method.
            ContestantFailedError: anything else went wrong, or the process is gone.
        """
        try:
            self._connection.send((method, arguments))
        except OSError:
            raise self._died() from None
        return self._answer()

    def _answer(self) -> Any:
        while True:
            try:
                kind, *values = self._connection.recv()
            except (EOFError, OSError):
                raise self._died() from None
            if kind == _SAY:
                self._say(values[0])
            elif kind == _DONE:
                return values[0]
            elif kind == _REFUSED:
                error_type, message = values
                raise error_type(message)
            else:
                raise ContestantFailedError(f"{self._name} failed: {values[0]}")

    def _died(self) -> ContestantFailedError:
        self._process.join(_SECONDS_TO_END)
        code = self._process.exitcode
        what = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        hint = "; it may have run out of memory" if code == -9 else ""
        return ContestantFailedError(f"{self._name} failed: its process ended with {what}{hint}.")


def _serve(connection: Connection, build: Build, arguments: Sequence[object]) -> None:
    """The other process."""
    # Ctrl-C reaches all processes of a terminal; the first one decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is for the result; libraries that print must not add to it.
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(sys.stderr.fileno(), 1)

    def say(message: str) -> None:
        connection.send((_SAY, message))

    contestant: Any = None

    def answer(do: Callable[[], Any]) -> None:
        try:
            result = do()
        except TokenSwiftError as error:
            connection.send((_REFUSED, type(error), str(error)))
        except Exception as error:
            if os.environ.get("TOKENSWIFT_DEBUG"):
                traceback.print_exc()
            connection.send((_FAILED, f"{type(error).__name__}: {error}"))
        else:
            connection.send((_DONE, result))

    def begin() -> None:
        nonlocal contestant
        contestant = build(*arguments, say)

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        answer(begin)
        while contestant is not None:
            method, values = connection.recv()
            answer(lambda: getattr(contestant, method)(*values))  # noqa: B023


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process started inside ignores Ctrl-C from its first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
