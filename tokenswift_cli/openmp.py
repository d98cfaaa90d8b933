"""How torch's CPU threads wait for each other, set before torch is loaded. Imports nothing heavy."""

from __future__ import annotations

import os

# GNU OpenMP spins for milliseconds before it sleeps. As soon as something else wants a core, threads spin
# while those they wait for cannot run, and two runs on two cores all but stop. This many spins cover the gaps
# between operators, and then the core is yielded.
_SPINS = "20000"


def share_cores() -> None:
    """Set ``GOMP_SPINCOUNT`` unless the user decided otherwise."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = _SPINS
