"""Ways to damage a file, or a directory, as a failing disk, a clumsy person or a hostile one would."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

# What is done to a path; the folder is outside the run, for what is moved out of it.
Harm = Callable[[Path, Path, random.Random], None]

CUT, FLIPPED, DELETED, LINKED, SWAPPED = "cut short", "bit flipped", "deleted", "link", "other kind"


def cut_short(path: Path, outside: Path, generator: random.Random) -> None:
    """Leave a random part of the file, at most all but one byte."""
    del outside
    os.truncate(path, generator.randrange(path.stat().st_size))


def flip_bit(path: Path, outside: Path, generator: random.Random) -> None:
    """Change one random bit."""
    del outside
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def delete(path: Path, outside: Path, generator: random.Random) -> None:
    """Remove it, with all that is in it."""
    del outside, generator
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def link_out(path: Path, outside: Path, generator: random.Random) -> None:
    """Move it out of the run and leave a symbolic link to it."""
    del generator
    moved = outside / path.name
    os.replace(path, moved)
    path.symlink_to(moved)


def swap_kind(path: Path, outside: Path, generator: random.Random) -> None:
    """A directory where a file was, a file where a directory was."""
    was_directory = path.is_dir()
    delete(path, outside, generator)
    if was_directory:
        path.write_bytes(b"no directory")
    else:
        path.mkdir()
        (path / "inner").write_bytes(b"")


FILE_HARMS: Mapping[str, Harm] = {
    CUT: cut_short,
    FLIPPED: flip_bit,
    DELETED: delete,
    LINKED: link_out,
    SWAPPED: swap_kind,
}
DIRECTORY_HARMS: Mapping[str, Harm] = {name: FILE_HARMS[name] for name in (DELETED, LINKED, SWAPPED)}
