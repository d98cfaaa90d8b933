"""The Python packages around us, by what is installed: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tokenswift_cli.bench.llama_peer import DISTRIBUTION as LLAMA_CPP
from tokenswift_cli.bench.llama_peer import MODULE as LLAMA_CPP_MODULE

DISTRIBUTION: Final = "tokenswift"
ALWAYS_SHOWN: Final = ("torch", "transformers")


@dataclass(frozen=True)
class OptionalPackage:
    """A package that adds something where it is installed.

    Attributes:
        name: for pip.
        purpose: what it adds.
        version: None if it is not installed.
    """

    name: str
    purpose: str
    version: str | None


@dataclass(frozen=True)
class Packages:
    """What is installed.

    Attributes:
        required: version of each package that tokenswift needs, by name; None if it is missing.
        optional: the others.
        problems: what is missing or of a version that does not do, as sentences.
    """

    required: dict[str, str | None]
    optional: tuple[OptionalPackage, ...]
    problems: tuple[str, ...]


def installed_packages() -> Packages:
    """Compare what is installed with what our own package asks for."""
    requirements = _own_requirements()
    names = dict.fromkeys([*ALWAYS_SHOWN, *(_parsed_name(text) for text in requirements)])
    required = {name: installed_version(name) for name in names}
    return Packages(
        required=required,
        optional=(
            OptionalPackage(
                LLAMA_CPP, "a peer of `tokenswift bench`", _optional_version(LLAMA_CPP, LLAMA_CPP_MODULE)
            ),
            OptionalPackage(
                "tensorboard",
                "curves of `tokenswift train-heads`",
                _optional_version("tensorboard", "tensorboard"),
            ),
        ),
        problems=unmet(requirements or list(ALWAYS_SHOWN), installed_version),
    )


def installed_version(name: str) -> str | None:
    """Version of an installed distribution; None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def unmet(requirements: Iterable[str], version_of: Callable[[str], str | None]) -> tuple[str, ...]:
    """One sentence for each requirement ("torch>=2.6") that the installed versions do not meet.

    Requirements whose marker excludes this Python or that belong to an extra are left out.
    """
    from packaging.requirements import Requirement

    found = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = version_of(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        state = "is not installed" if version is None else f"is {version}, but {wanted} is needed"
        found.append(
            f'The package {requirement.name} {state}. Run `{sys.executable} -m pip install "{wanted}"`.'
        )
    return tuple(found)


def _own_requirements() -> list[str]:
    """Without extras; empty where tokenswift runs without being installed."""
    from packaging.requirements import Requirement

    try:
        listed = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parsed = [(text, Requirement(text).marker) for text in listed]
    return [text for text, marker in parsed if marker is None or marker.evaluate({"extra": ""})]


def _parsed_name(requirement: str) -> str:
    from packaging.requirements import Requirement

    return Requirement(requirement).name


def _optional_version(name: str, module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    return installed_version(name) or "of unknown version"
