"""What can be measured: the interface of all contestants, and the figures of one turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenswift_cli.metrics import peak_process_memory_bytes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prefill:
    """Reading one context.

    Attributes:
        seconds: for the whole context; None if not all of it was computed.
        peak_bytes: largest memory meanwhile.
    """

    seconds: float | None
    peak_bytes: int


@dataclass(frozen=True)
class Trial:
    """One turn of one method: decoding only, after prefill and warm-up.

    Attributes:
        tokens: decoded.
        seconds: for them.
        steps: forward passes that committed tokens.
        acceptance_rate: accepted over drafted tokens; None if nothing was drafted or it is not known.
        mean_acceptance_length: tokens per verification of drafts; None likewise.
        forward_seconds: within the model's forward passes; None if not known.
        bytes_read: weights, keys and values that those passes had to read; None if not known.
        peak_bytes: largest memory of the process during the turn.
        text: all ids of the turn, warm-up included, where they have to equal those of the other methods.
    """

    tokens: int
    seconds: float
    steps: int
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    forward_seconds: float | None = None
    bytes_read: float | None = None
    peak_bytes: int = 0
    text: tuple[int, ...] | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """None if nothing was timed."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None

    @property
    def host_ms_per_step(self) -> float | None:
        """Milliseconds of a step outside the model's forward passes."""
        if self.forward_seconds is None or not self.steps:
            return None
        return max(0.0, self.seconds - self.forward_seconds) / self.steps * 1e3

    @property
    def gigabytes_per_second(self) -> float | None:
        """10^9 bytes of weights, keys and values per second of forward passes."""
        if self.bytes_read is None or not self.forward_seconds:
            return None
        return self.bytes_read / self.forward_seconds / 1e9


class Contestant(Protocol):
    """Runs one or several methods on one model."""

    def facts(self) -> dict[str, object]:
        """What is worth knowing about it: versions, threads, data type."""

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        """Read a context; :meth:`decode` goes on from it."""

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        """Continue the context by ``warm_up`` and then ``tokens`` timed tokens, and forget them again."""


class PeakMemory:
    """Largest resident memory of this process since :meth:`restart`, where the system can start anew."""

    def restart(self) -> None:
        """Forget earlier peaks. Only Linux can; elsewhere the peak is that since the process began."""
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        except OSError:
            return

    def bytes(self) -> int:
        """The peak so far."""
        return peak_process_memory_bytes()
