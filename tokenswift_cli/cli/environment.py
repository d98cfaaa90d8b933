"""The environment variables that ``tokenswift`` reads, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenswift_cli.options import ENVIRONMENT

MEANINGS: Final[Mapping[str, str]] = {
    "TOKENSWIFT_CACHE": "Directory of converted models and compiled kernels (default `tokenswift` in "
    "`XDG_CACHE_HOME` or `~/.cache`).",
    "TOKENSWIFT_DEBUG": "`1`: tracebacks with errors.",
    "TOKENSWIFT_NATIVE": "`0`: no compiled code, to compare.",
    "TOKENSWIFT_PATH": "`native`, `lean` or `generic`: the one way to compute passes, to compare.",
    "HF_HUB_OFFLINE": "`1`: never ask the Hub, as `--offline`.",
    "HF_HOME": "Where models of the Hub are cached.",
    "CXX": "The C++ compiler for the kernels.",
    "NO_COLOR": "Set: no colours.",
}
"""Those that no flag stands for."""


def variable_of(path: str) -> str | None:
    """The variable that sets the configuration key ``path``; None if none does."""
    return next((name for name, key in ENVIRONMENT.items() if key == path), None)
