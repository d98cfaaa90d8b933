"""All facts of one examination, and what is wrong with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tokenswift_cli.cache_dir import cache_directory
from tokenswift_cli.config import Config
from tokenswift_cli.doctor.devices import Devices, find_devices
from tokenswift_cli.doctor.kernels import ForwardPaths, Kernels, find_kernels, forward_paths
from tokenswift_cli.doctor.model import ModelFacts, RunNeed, examine_model
from tokenswift_cli.doctor.packages import Packages, installed_packages
from tokenswift_cli.doctor.storage import (
    CacheEntry,
    DemoModel,
    HubCache,
    Place,
    ShippedFiles,
    cache_entries,
    demo_model,
    hub_cache,
    place,
    shipped_files,
)
from tokenswift_cli.errors import TokenSwiftError
from tokenswift_cli.machine import Machine, this_machine, usable_cores
from tokenswift_cli.preflight import disk_need
from tokenswift_cli.run_layout import kind_of, refusal_to_create

DEFAULT_RUNS: Final = Path("runs")


@dataclass(frozen=True)
class Findings:
    """What was found. Facts that could not be had, or were not asked for, are None.

    Attributes:
        machine, usable_cores, free_memory_bytes: the computer.
        packages: Python packages.
        devices, kernels, paths: what computes; None if torch or transformers cannot be imported.
        run_place, cache_place: where is written to.
        cache, hub, demo: models and what was made of them.
        shipped: what came with tokenswift.
        default_model: what a run without ``--model`` uses.
        model, run: the model asked about, and a run with it.
        problems: what keeps a run from starting, each with what to do; empty if one could start.
        notes: what is worth knowing, as sentences.
    """

    machine: Machine
    usable_cores: int | None
    free_memory_bytes: int
    packages: Packages
    devices: Devices | None
    kernels: Kernels | None
    paths: ForwardPaths | None
    run_place: Place
    cache_place: Place
    cache: tuple[CacheEntry, ...]
    hub: HubCache | None
    demo: DemoModel
    shipped: ShippedFiles
    default_model: str
    model: ModelFacts | None
    run: RunNeed | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether a run could start."""
        return not self.problems

    def to_json(self) -> dict[str, object]:
        """One JSON object: all fields under their names, and ``ready``."""
        return {"ready": self.ready, **asdict(self)}


def examine(
    config: Config,
    default_model: str,
    *,
    model_given: bool,
    length_given: bool,
    notify: Callable[[str], None],
) -> Findings:
    """Look at everything; nothing is downloaded, and what is wrong is a finding and no error.

    Args:
        config: model, device and threads, length and directory of the run in question.
        default_model: what a run without ``--model`` uses.
        model_given: load the model that ``config`` names and look at it too.
        length_given: whether the length was asked for, so that a run which cannot have it is a problem and
            not only worth knowing.
        notify: gets one line per slow step.
    """
    from tokenswift_cli.models.memory import free_memory
    from tokenswift_cli.native.attention import COMPILING, will_compile

    problems: list[str] = []
    notes: list[str] = []
    run_directory = Path(config.run.directory or DEFAULT_RUNS)
    packages = installed_packages()
    problems += packages.problems
    free = free_memory("cpu") or 0

    devices: Devices | None = None
    kernels: Kernels | None = None
    paths: ForwardPaths | None = None
    hub: HubCache | None = None
    notify("Starting torch and transformers")
    broken = _why_not_importable()
    if broken is not None:
        problems.append(broken)
    else:
        devices = find_devices(config.model)
        if will_compile():
            notify(COMPILING)
        kernels = find_kernels()
        paths = _paths(kernels, devices)
        hub = hub_cache()
        problems += [problem for problem in (devices.problem, paths.problem) if problem is not None]
        notes += devices.warnings
        notes += _kernel_notes(kernels)

    run_place, cache_place = place(run_directory), place(cache_directory())
    demo = demo_model()
    problems += run_place_problems(run_place, run_directory, asked_for=config.run.directory is not None)
    if not cache_place.writable:
        notes.append(
            f"The cache {cache_place.path} cannot be written, so kernels and converted models cannot be "
            "kept. Set TOKENSWIFT_CACHE to a directory that can be."
        )

    model: ModelFacts | None = None
    run: RunNeed | None = None
    if model_given and broken is None:
        try:
            model, run = examine_model(config, run_directory, notify)
        except TokenSwiftError as error:
            problems.append(str(error))
        else:
            if run.refusal is not None and (length_given or run.smallest_refused):
                problems.append(f"A run of {run.needs.max_tokens} tokens would be refused: {run.refusal}")
            if not model.end_of_text:
                notes.append(f"{model.name} names no end-of-text token: its runs end by length only.")

    return Findings(
        machine=this_machine(),
        usable_cores=usable_cores(),
        free_memory_bytes=free,
        packages=packages,
        devices=devices,
        kernels=kernels,
        paths=paths,
        run_place=run_place,
        cache_place=cache_place,
        cache=cache_entries(),
        hub=hub,
        demo=demo,
        shipped=shipped_files(),
        default_model=default_model,
        model=model,
        run=run,
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(dict.fromkeys(notes)),
    )


def run_place_problems(where: Place, directory: Path, *, asked_for: bool) -> list[str]:
    """Why no run could be kept there, as sentences.

    Args:
        where: what is known of ``directory``.
        directory: of one run if it was ``asked_for``, else where runs get directories of their own.
    """
    another = "Choose another place with -o/--run-dir."
    try:
        refusal = refusal_to_create(directory, kind_of(directory)) if asked_for else None
    except OSError as error:
        return [f"{where.path} cannot be looked at: {error.strerror or error}. {another}"]
    if refusal is not None:
        return [str(refusal)]
    if not where.writable:
        return [f"No run can be kept in {where.path}, which cannot be written. {another}"]
    if where.free_bytes is not None and where.free_bytes < disk_need(1):
        return [
            f"The disk of {where.path} is full. Free some space, or choose another place with -o/--run-dir."
        ]
    return []


def _paths(kernels: Kernels, devices: Devices) -> ForwardPaths:
    from tokenswift_cli.models.decoder import SWITCH

    return forward_paths(kernels, devices.chosen_type, devices.threads, os.environ.get(SWITCH))


def _kernel_notes(kernels: Kernels) -> list[str]:
    if kernels.active or (kernels.switch or "").strip() == "0":
        return []
    remedy = " Install g++ or clang++, or set CXX to a C++ compiler." if kernels.compiler is None else ""
    return [f"There are no compiled kernels, so models are slower on the CPU: {kernels.description}.{remedy}"]


def _why_not_importable() -> str | None:
    """What everything stands on is imported once here, so that its faults are found by name."""
    for name in ("torch", "transformers", "huggingface_hub"):
        try:
            __import__(name)
        except Exception as error:  # broken installations fail in many ways
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            again = f"`{sys.executable} -m pip install --force-reinstall {name}`"
            return f"{name} cannot be imported ({reason}). Install it again: {again}."
    try:
        import tokenswift_cli.models.decoder  # noqa: F401
    except Exception as error:  # likewise, transformers loads its parts at the first use
        return (
            f"transformers cannot be used ({error}). Install it again: "
            f"`{sys.executable} -m pip install --upgrade transformers`."
        )
    return None
