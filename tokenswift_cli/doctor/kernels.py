"""The compiled kernels, and which way the passes of a model go on this machine."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels.

    Attributes:
        active: whether they are used on the CPU.
        description: what is active, or why nothing is.
        instructions: name of the instruction set in use.
        openmp: file name of the runtime whose threads they use; None for one thread only.
        compiler: the command that compiles them; None if there is none.
        compiler_problem: why there is none.
        switch: what TOKENSWIFT_NATIVE is set to; None if it is not.
    """

    active: bool
    description: str
    instructions: str | None
    openmp: str | None
    compiler: str | None
    compiler_problem: str | None
    switch: str | None


@dataclass(frozen=True)
class ForwardPaths:
    """Which way passes are computed, as far as that is known without the model.

    Attributes:
        wanted: what TOKENSWIFT_PATH is set to; None if it is not.
        llama_family: the way for Llama, Qwen2, Qwen3, Mistral and their like; None: a run is refused.
        others: the way for all other models; None: a run is refused.
        reasons: why nothing faster, by name of the way.
        problem: what is wrong with ``wanted``, as sentences; else None.
    """

    wanted: str | None
    llama_family: str | None
    others: str | None
    reasons: dict[str, str]
    problem: str | None = None


def find_kernels() -> Kernels:
    """Load the kernels as a run would: compiled now if they are not yet, which takes about half a minute."""
    from tokenswift_cli.native.attention import SWITCH, load
    from tokenswift_cli.native.build import BuildError, find_compiler

    compiler: str | None = None
    compiler_problem: str | None = None
    try:
        compiler = shlex.join(find_compiler())
    except BuildError as error:
        compiler_problem = str(error)
    loaded = load()
    kernel = loaded.kernel
    return Kernels(
        active=kernel is not None,
        description=loaded.description,
        instructions=None if kernel is None else kernel.instructions,
        openmp=None if kernel is None or kernel.team is None else kernel.team.library,
        compiler=compiler,
        compiler_problem=compiler_problem,
        switch=os.environ.get(SWITCH),
    )


def forward_paths(kernels: Kernels, device_type: str, threads: int, wanted: str | None) -> ForwardPaths:
    """The rules of :func:`tokenswift_cli.models.decoder.choose_decoder` before a model is known.

    Args:
        kernels: the compiled kernels.
        device_type: ``cpu``, ``cuda`` or ``mps``.
        threads: CPU threads.
        wanted: text of TOKENSWIFT_PATH.
    """
    from tokenswift_cli.models.decoder import PATHS, SWITCH

    asked = (wanted or "").strip()
    if asked and asked not in PATHS:
        problem = f"{SWITCH} is {asked!r}. Use one of {', '.join(PATHS)}, or unset it."
        return ForwardPaths(wanted, None, None, {}, problem)
    reasons = {}
    if device_type != "cpu":
        reasons = {"native": f"not on {device_type}", "lean": f"not measured on {device_type}"}
    elif not kernels.active:
        reasons["native"] = kernels.description
    elif kernels.openmp is None and threads > 1:
        reasons["native"] = "one thread only: the OpenMP of this build of torch is not known"
    if not asked:
        best = next(path for path in PATHS if path not in reasons)
        return ForwardPaths(wanted, best, "generic", reasons)
    if asked in reasons:
        problem = f"{SWITCH}={asked} cannot be had: {reasons[asked]}. Unset it."
        return ForwardPaths(wanted, None, None, reasons, problem)
    return ForwardPaths(wanted, asked, asked if asked == "generic" else None, {})
