"""The generated text on standard output, and nothing else there."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from tokenswift_cli.display.wording import visible


class TextSink:
    """Writes generated text to a stream as it arrives and flushes it.

    To a file or pipe go the exact characters as UTF-8. On a terminal, control characters other
    than line ends are made visible, so that the text cannot change the terminal's state.
    """

    def __init__(self, stream: TextIO, *, terminal: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        self._gone = False
        self._mid_line = False

    def write(self, text: str) -> str | None:
        """Write text. Returns a sentence, once, when the stream can no longer be written."""
        if self._gone or not text:
            return None
        try:
            self._write(text)
        except BrokenPipeError:
            self._give_up()
            return "The reader of standard output is gone; the run goes on, its text is in the run directory."
        except (OSError, ValueError) as error:
            self._give_up()
            return f"Standard output cannot be written ({error}); the text is in the run directory."
        self._mid_line = not text.endswith("\n")
        return None

    def end_line(self) -> None:
        """On a terminal, move to a new line if the text stopped within one."""
        if self._terminal and self._mid_line and not self._gone:
            self.write("\n")

    def _write(self, text: str) -> None:
        if self._terminal:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            shown = visible(text, line_end="\n")
            self._stream.write(shown.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
            return
        binary = getattr(self._stream, "buffer", None)
        if binary is None:
            self._stream.write(text)
            self._stream.flush()
        else:
            self._stream.flush()
            binary.write(text.encode("utf-8", "replace"))
            binary.flush()

    def _give_up(self) -> None:
        self._gone = True
        # What is left in the buffer would fail again, noisily, when the interpreter exits.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
