"""Which stretches of a text the journal has files for. Names only: what is in them is checked when read.

A file is called ``<first>-<last>.kv``, ten digits each: it holds the rows of tokens first .. last - 1.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenswift_cli import durable
from tokenswift_cli.errors import ResumeRefusedError

_NAME = re.compile(r"(\d{10})-(\d{10})\.kv")
_TEMPORARY_NAME = re.compile(_NAME.pattern + re.escape(durable.TEMPORARY_SUFFIX))


class Span(NamedTuple):
    """Tokens ``first`` .. ``last`` - 1."""

    first: int
    last: int


def file_of(directory: Path, span: Span) -> Path:
    """Where the rows of a span are."""
    return directory / f"{span.first:010d}-{span.last:010d}.kv"


def spans_in(directory: Path) -> list[Span]:
    """The spans that have files, in order; overlapping ones included. Empty if there is no directory.

    Raises:
        ResumeRefusedError: the directory is a symbolic link or no directory at all.
        OSError: it cannot be read.
    """
    if not os.path.lexists(directory):
        return []
    if directory.is_symlink() or not directory.is_dir():
        raise ResumeRefusedError(
            f"{directory} is not a directory of this run (a symbolic link is not followed). Remove it; "
            "what it would hold is computed again."
        )
    matches = (_NAME.fullmatch(name) for name in os.listdir(directory))
    spans = (Span(int(match[1]), int(match[2])) for match in matches if match)
    return sorted(span for span in spans if span.first < span.last)


def size_of(directory: Path) -> int:
    """Bytes of all files that :func:`spans_in` finds and that may be read; errors and conditions as there."""
    size = 0
    for span in spans_in(directory):
        with contextlib.suppress(PermissionError):  # of no use, but of no harm
            size += durable.file_size(file_of(directory, span))
    return size


def usable(spans: Iterable[Span], limit: int) -> list[Span]:
    """Of ascending ``spans`` those that end by ``limit`` and do not overlap one before them."""
    chosen: list[Span] = []
    end = 0
    for span in spans:
        if end <= span.first and span.last <= limit:
            chosen.append(span)
            end = span.last
    return chosen


def missing(spans: Sequence[Span], limit: int, longest: int) -> list[Span]:
    """What ascending, disjoint ``spans`` leave out of tokens 0 .. ``limit`` - 1, in pieces of ``longest``."""
    gaps: list[Span] = []
    end = 0
    for span in [*spans, Span(limit, limit)]:
        while end < span.first:
            piece = Span(end, min(end + longest, span.first))
            gaps.append(piece)
            end = piece.last
        end = span.last
    return gaps


def keep_only(directory: Path, spans: Iterable[Span]) -> None:
    """Remove all files of the journal but those of ``spans``, and what torn writing left behind."""
    names = {file_of(directory, span).name for span in spans}
    # A file too many is told from a sound one by its content, so one that cannot be removed does no harm.
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            ours = _NAME.fullmatch(name) or _TEMPORARY_NAME.fullmatch(name)
            if ours and name not in names:
                durable.remove_if_present(directory / name)
