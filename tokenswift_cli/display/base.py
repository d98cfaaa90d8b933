"""The interface of all displays, and the line writer that cannot stop a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TextIO, TypeVar

from tokenswift_cli.display.wording import visible
from tokenswift_cli.events import Event

AnyDisplay = TypeVar("AnyDisplay", bound="Display")


class Display(ABC):
    """Takes the events of one run. A context manager: leaving it closes the display."""

    @abstractmethod
    def handle(self, event: Event) -> None:
        """Show an event. Quick, and raises nothing because an output is gone."""

    def close(self) -> None:
        """Leave the terminal in order, on every way out. May be called more than once."""
        return None

    def __enter__(self: AnyDisplay) -> AnyDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class LineWriter:
    """Writes whole lines without control characters to a stream, usually standard error.

    When the stream is gone (closed pipe, lost terminal, full disk) it falls silent: there is
    nobody left to tell, and the run is worth more than its display.
    """

    def __init__(self, stream: TextIO, before_line: Callable[[], None] | None = None) -> None:
        self._stream = stream
        self._before_line = before_line
        self._gone = False

    def line(self, text: str) -> None:
        """Write one line; control characters in ``text`` are made visible."""
        if self._before_line is not None:
            self._before_line()
        self.raw(visible(text) + "\n")

    def raw(self, text: str) -> None:
        """Write ``text`` as it is."""
        if self._gone:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._gone = True
