"""The functions of one part of the compiled library, if it is this version's."""

from __future__ import annotations

import ctypes
from typing import Any

from tokenswift_cli.native.build import BuildError


def functions_of(library: ctypes.CDLL, part: str, interface: int, *names: str) -> tuple[Any, ...]:
    """The functions ``tokenswift_<name>`` of the library.

    Args:
        library: loaded.
        part: whose ``tokenswift_<part>_interface`` tells its version.
        interface: the version that the caller was written for.
        names: of the functions.

    Raises:
        BuildError: the part has another version, or a function is missing.
    """
    try:
        if getattr(library, f"tokenswift_{part}_interface")() != interface:
            raise BuildError(f"the compiled {part} has another interface than this version of tokenswift")
        return tuple(getattr(library, f"tokenswift_{name}") for name in names)
    except AttributeError as error:
        raise BuildError(f"the compiled library lacks a function ({error})") from error
