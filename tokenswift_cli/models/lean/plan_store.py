"""Keeps plans on disk, so that a machine measures once and rounds alike from then on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from tokenswift_cli.cache_dir import cache_directory
from tokenswift_cli.models.lean.calibration import make_plan
from tokenswift_cli.models.lean.plan import LinearPlan, Shape

# Goes up when plans made before are no longer right.
_VERSION = 1


def plan_for(
    shapes: Mapping[Shape, int], packed: bool, tolerance: float, directory: Path | None = None
) -> LinearPlan | str:
    """The plan made before for these shapes on this machine, or a new one, which is kept.

    Args:
        shapes, packed, tolerance: as for :func:`make_plan`.
        directory: where plans are kept; a part of the cache directory by default.

    Returns:
        The plan, or why there is none.
    """
    facts = json.dumps(
        {
            "version": _VERSION,
            "torch": torch.__version__,
            "processor": _processor(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "packed": packed,
            "tolerance": tolerance,
            "shapes": sorted([*shape, count] for shape, count in shapes.items()),
        },
        sort_keys=True,
    )
    name = hashlib.sha256(facts.encode()).hexdigest()[:16] + ".json"
    path = (directory or cache_directory() / "linear-plans") / name
    # A file that cannot be read or is damaged is made again: it only saves time.
    with suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads(path.read_bytes())
        if data["facts"] == facts:
            plan = LinearPlan.from_json(data["plan"])
            if plan.ways.keys() == shapes.keys():
                return plan
    made = make_plan(shapes, packed, tolerance)
    if isinstance(made, LinearPlan):
        with suppress(OSError):  # likewise: without a cache directory it is measured each time
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of two processes that write at once one wins, and the file is whole either way.
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps({"facts": facts, "plan": made.to_json()}), encoding="utf-8")
            os.replace(temporary, path)
    return made


def _processor() -> str:
    """The processor's name, as exactly as the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
