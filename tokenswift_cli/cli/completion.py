"""What the shell is told when somebody presses Tab after an option or for a run directory.

Each function gets the word so far and returns whole words that begin with it. With none the shell completes
file names, as it does for every option that has no function here. No model and no library is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tokenswift_cli.shipped import configuration_names

Completion = Callable[[str], list[str]]

# More would take longer than a person waits for Tab.
_MOST_ENTRIES: Final = 2000


def one_of(values: Sequence[str]) -> Completion:
    """Completion of a word that is one of ``values``."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def several_of(values: Sequence[str]) -> Completion:
    """Completion of a list with commas between its words, each at most once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        chosen = before.split(",")
        return [
            f"{before}{comma}{value}" for value in values if value.startswith(last) and value not in chosen
        ]

    return complete


def configurations(incomplete: str) -> list[str]:
    """The names of shipped configurations, once something is typed that no file here begins with."""
    if not incomplete or any(entry.startswith(incomplete) for entry in _entries(Path())):
        return []
    return [name for name in configuration_names() if name.startswith(incomplete)]


def run_directories(incomplete: str) -> list[str]:
    """Runs whose path begins with ``incomplete``, and those in directories that do: ru finds runs/novel."""
    parent, _, start = incomplete.rpartition("/")
    place = f"{parent}/" if incomplete.startswith("/") or parent else ""
    found: list[str] = []
    for name in _entries(Path(place or ".").expanduser()):
        if not name.startswith(start) or (name.startswith(".") and not start):
            continue
        path = f"{place}{name}"
        found += _runs([path]) or _runs(
            f"{path}/{inner}" for inner in _entries(Path(path).expanduser()) if not inner.startswith(".")
        )
    return found


def _runs(paths: Iterable[str]) -> list[str]:
    from tokenswift_cli.run_layout import RUN_YAML

    # The shells' scripts take a blank for the end of a word; such names are left to the shell itself.
    return [path for path in paths if not any(map(str.isspace, path)) and _is_file(f"{path}/{RUN_YAML}")]


def _is_file(path: str) -> bool:
    return os.path.isfile(os.path.expanduser(path))


def _entries(directory: Path) -> Iterator[str]:
    try:
        yield from sorted(os.listdir(directory))[:_MOST_ENTRIES]
    except OSError:
        return
