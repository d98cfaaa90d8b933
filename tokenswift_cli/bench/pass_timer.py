"""Times the forward passes of a target from outside, so that the product carries no timers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tokenswift_cli.models.target import Target


class PassTimer:
    """Sums up passes.

    Attributes:
        seconds: within passes of the model and its heads.
        bytes_read: weights, keys and values that the passes of the model had to read.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self.bytes_read = 0.0
        self._device = device

    def reset(self) -> None:
        """Begin anew."""
        self.seconds = self.bytes_read = 0.0

    def wrapped(self, function: Callable[..., Any], size: Callable[..., float]) -> Callable[..., Any]:
        """``function`` with its time added up; ``size`` gives the bytes it reads, from its arguments."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            self.bytes_read += size(*arguments)
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                wait_for(self._device)
                self.seconds += time.perf_counter() - started

        return timed


def wait_for(device: torch.device) -> None:
    """Return when the accelerator has done what was asked of it."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def timed_passes(target: Target) -> Iterator[PassTimer]:
    """Time all passes of ``target`` and of drafting heads inside the block."""
    from tokenswift_cli.models.quick_heads import HeadRunner

    timer = PassTimer(target.device)
    weights = target.pass_bytes

    def over_full_cache(*_: object) -> float:
        return weights + target.cache.used_bytes

    def over_given_cache(cache: Any, *_: object) -> float:
        return weights + cache.used_bytes

    def not_counted(*_: object) -> float:
        return 0.0

    # On the instance only: other targets stay as they are. The drafter makes its own runner of heads, so of
    # that it is the class.
    for name, size in (("verify", over_full_cache), ("draft", over_given_cache)):
        setattr(target, name, timer.wrapped(getattr(target, name), size))
    run = HeadRunner.run
    setattr(HeadRunner, "run", timer.wrapped(run, not_counted))  # noqa: B010
    try:
        yield timer
    finally:
        setattr(HeadRunner, "run", run)  # noqa: B010
        del target.verify, target.draft
