"""The learning rate over a training: a linear rise, then half a cosine down to zero."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, highest: float, warmup: float) -> float:
    """The rate of one optimizer step.

    Args:
        step: counted from 0, less than ``steps``.
        steps: of the whole training.
        highest: reached at the end of the warm-up.
        warmup: share of the steps in which the rate rises; 0 starts at the highest.
    """
    rising = round(warmup * steps)
    if step < rising:
        return highest * ((step + 1) / rising)
    done = (step - rising) / max(1, steps - rising)
    return highest * (0.5 * (1 + math.cos(math.pi * done)))
