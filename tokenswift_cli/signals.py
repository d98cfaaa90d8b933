"""Ctrl-C, SIGTERM and a closed terminal: the first asks for a tidy stop, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Final

# The terminal was closed or the connection lost; Windows has no such signal.
HANG_UP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)

# Exit codes of a process that a signal ended, by convention 128 + number.
EXIT_CODES: Final = {
    number: 128 + int(number) for number in (signal.SIGINT, signal.SIGTERM, HANG_UP) if number is not None
}


class StopRequests:
    """Turns signals into a request that the run polls between steps.

    Before :meth:`defer` a signal raises at once (``KeyboardInterrupt`` or ``SystemExit``): while a
    model loads there is nothing to save. Libraries may catch that exception and raise their own;
    leaving the context turns any error after such a signal back into it. Does nothing outside the
    main thread, where Python delivers no signals.
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
        """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP; 0 when none was received."""
        return 0 if self.received is None else EXIT_CODES[self.received]

    def defer(self) -> None:
        """From now on the first signal only asks."""
        self._tidy = True

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_CODES:
                if number == HANG_UP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup: the run is to outlive the terminal
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self.received is not None and not self._tidy and kind is not None and issubclass(kind, Exception):
            # The error is only what a library made of the interrupt.
            raise _stopped_by(self.received) from None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        if again and self._tidy and number == HANG_UP:
            return  # shell and kernel both send it when a terminal closes: no sign of impatience
        self.received = signal.Signals(number)
        if self._tidy and not again:
            return
        raise _stopped_by(self.received)


def _stopped_by(number: signal.Signals) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(EXIT_CODES[number])
