"""What computer this is: processor, memory, system and our own version. Imports nothing heavy."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass

from tokenswift_cli import __version__


@dataclass(frozen=True)
class Machine:
    """The computer.

    Attributes:
        cpu: the processor's name.
        cores: real ones; None if the system does not tell.
        logical_cores: with those that simultaneous multithreading adds.
        memory_bytes: all of it, free or not.
        system: name, release and architecture.
        python, tokenswift: versions.
    """

    cpu: str
    cores: int | None
    logical_cores: int | None
    memory_bytes: int
    system: str
    python: str
    tokenswift: str


def this_machine() -> Machine:
    """The computer this process runs on."""
    import psutil

    return Machine(
        cpu=cpu_name(),
        cores=psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count(),
        memory_bytes=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        tokenswift=__version__,
    )


def machine_facts() -> dict[str, object]:
    """The same as a JSON object."""
    return asdict(this_machine())


def usable_cores() -> int | None:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def cpu_name() -> str:
    """The processor's name as its maker gives it, else its architecture."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
