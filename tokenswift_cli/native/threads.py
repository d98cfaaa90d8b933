"""The OpenMP runtime that torch already loaded, so that its threads do our work too.

A second runtime in the process would bring a second set of threads that wait by spinning. The kernel is
therefore linked with none; it is handed ``GOMP_parallel``, which GNU's, LLVM's and Intel's runtimes on Linux
all have.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

_RUNTIME = re.compile(r"lib(gomp|omp|iomp5)\b.*\.so")


@dataclass(frozen=True)
class Team:
    """How to run work on torch's threads.

    Attributes:
        library: the runtime's file name.
        parallel: address of its ``GOMP_parallel``.
        thread_number, thread_count: addresses of ``omp_get_thread_num`` and ``omp_get_num_threads``: it may
            give fewer threads than it is asked for.
    """

    library: str
    parallel: int
    thread_number: int
    thread_count: int


def find_team() -> Team | None:
    """Torch's team; None if its OpenMP runtime is not known here. Import torch first."""
    for path in _loaded_runtimes():
        try:
            # Of a library that is loaded already, this is only another reference.
            runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            functions = (runtime.GOMP_parallel, runtime.omp_get_thread_num, runtime.omp_get_num_threads)
        except (OSError, AttributeError):
            continue
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        parallel, thread_number, thread_count = addresses
        if parallel and thread_number and thread_count:
            return Team(Path(path).name, parallel, thread_number, thread_count)
    return None


def _loaded_runtimes() -> list[str]:
    """Files of the OpenMP runtimes in this process, those that came with torch first."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")}
    found = [path for path in paths if path.startswith("/") and _RUNTIME.match(Path(path).name)]
    return sorted(found, key=lambda path: ("/torch" not in path, path))
