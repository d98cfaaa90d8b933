"""The files that come with tokenswift: configurations, prompts, and the demo model's heads.

In the repository they lie at its top, in an installed package below ``shipped_files``. Their places to each
other are the same, so that a configuration finds its prompt and its heads.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Final

CONFIGS: Final = "configs"
PROMPTS: Final = "prompts"
HEADS: Final = "heads"

_SUFFIX: Final = ".yaml"
_PACKAGE: Final = Path(__file__).resolve().parent


def shipped_directory(folder: str) -> Path | None:
    """Where the files of ``folder`` (CONFIGS, PROMPTS or HEADS) are; None if this installation lacks them."""
    places = [_PACKAGE / "shipped_files" / folder]
    # Beside an installed package are those of others.
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        places.append(_PACKAGE.parent / folder)
    return next((place for place in places if place.is_dir()), None)


def configuration_names() -> tuple[str, ...]:
    """The names that :func:`configuration_file` knows, in the order of the alphabet."""
    directory = shipped_directory(CONFIGS)
    return () if directory is None else tuple(sorted(path.stem for path in directory.glob(f"*{_SUFFIX}")))


def configuration_file(given: Path) -> Path:
    """The configuration that somebody means: a file of theirs, else the shipped one of that name.

    Args:
        given: a path, or a bare name such as ``demo`` or ``demo.yaml``.

    Returns:
        A path that need not exist: ``given`` itself where no shipped configuration has that name.
    """
    directory = shipped_directory(CONFIGS)
    if directory is None or len(given.parts) != 1 or (given.exists() and not given.is_dir()):
        return given
    name = given.name.removesuffix(_SUFFIX)
    return directory / f"{name}{_SUFFIX}" if name in configuration_names() else given


def namesake(folder: str, missing: Path) -> str:
    """For the message that ``missing`` does not exist: where a shipped file of the same name is.

    Returns:
        A sentence with a space before it; empty if ``folder`` has nothing of that name.
    """
    directory = shipped_directory(folder)
    if directory is None or not missing.name:
        return ""
    for found in sorted(directory.rglob(glob.escape(missing.name))):
        return f" One of that name comes with tokenswift: {found}."
    return ""
