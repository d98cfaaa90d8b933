"""Ctrl-C and SIGTERM: the first asks for a tidy stop, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

# Exit codes of a process that a signal ended, by convention 128 + number.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopRequests:
    """Turns signals into a request that the run polls between steps.

    Before :meth:`defer` a signal raises at once (``KeyboardInterrupt`` or ``SystemExit``): while a
    model loads there is nothing to save. Does nothing outside the main thread, where Python
    delivers no signals.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._tidy = False
        self._before: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """Whether the run should stop after this step."""
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM; 0 when none was received."""
        return 0 if self.received is None else EXIT_CODES[self.received]

    def defer(self) -> None:
        """From now on the first signal only asks."""
        self._tidy = True

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_CODES:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = signal.Signals(number)
        if self._tidy and not again:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_CODES[self.received])
