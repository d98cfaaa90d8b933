"""What drafters that rank by the target's own score share: how sure a proposal is, and another noise."""

from __future__ import annotations

import math

# Added to the seed when noise is not shared, so that draft and target draw independently.
OWN_NOISE = 0x5EED

# The lead of the best score over the next, in classes of this width, tells how sure a drafted token is.
_GAP_CLASS = 0.5
GAP_CLASSES = 8

NO_RUNNER_UP = math.inf


def gap_class(gap: float) -> int:
    """Class 0..7 of a lead over the runner-up; larger is surer."""
    return int(min(gap / _GAP_CLASS, GAP_CLASSES - 1))
