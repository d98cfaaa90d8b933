"""Which positions of a text are audited, and in which passes. Positions count the generated tokens from 0."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenswift_cli.coerce import CoercionError, coerce
from tokenswift_cli.errors import UsageError

DEFAULT_SEED = 0


@dataclass(frozen=True)
class Selection:
    """What was asked for.

    Attributes:
        first, end: half-open range of positions; None for the text's own ends.
        sample: so many positions drawn from the range, all if it has fewer; None for the whole range.
        seed: decides which.
    """

    first: int | None = None
    end: int | None = None
    sample: int | None = None
    seed: int = DEFAULT_SEED


def read_selection(span: str | None, sample: str | None, seed: str | None) -> Selection:
    """The selection that the texts of ``--range``, ``--sample`` and ``--sample-seed`` name.

    Raises:
        UsageError: one of them is wrong.
    """
    first = end = count = None
    if span is not None:
        before, colon, after = span.partition(":")
        if not colon:
            raise UsageError(
                f"--range {span} must be two positions such as 20000:30000, 20k: or :500, the second one "
                "just behind the last."
            )
        first = _number("--range", before, least=0) if before.strip() else None
        end = _number("--range", after, least=0) if after.strip() else None
        if end is not None and end <= (first or 0):
            raise UsageError(f"--range {span} holds no position; the second number must be the larger one.")
    if sample is not None:
        count = _number("--sample", sample, least=1)
    if seed is not None and sample is None:
        raise UsageError("--sample-seed says which positions --sample draws; give --sample N too.")
    return Selection(
        first, end, count, DEFAULT_SEED if seed is None else _number("--sample-seed", seed, least=0)
    )


def selected_positions(selection: Selection, count: int) -> Sequence[int]:
    """The positions to audit in a text of ``count`` tokens, ascending.

    Raises:
        UsageError: the range reaches beyond the text.
    """
    first = selection.first or 0
    end = count if selection.end is None else selection.end
    if end > count or (selection.first is not None and first >= count):
        last = f"the last position is {count - 1:,}" if count else "there is nothing to audit yet"
        raise UsageError(f"--range reaches beyond the text: the run holds {count:,} tokens, {last}.")
    span = range(first, end)
    if selection.sample is None or selection.sample >= len(span):
        return span
    return sorted(random.Random(selection.seed).sample(span, selection.sample))


class Stretch(NamedTuple):
    """Positions ``first`` .. ``end`` - 1, computed in one pass, and those of them that are audited."""

    first: int
    end: int
    audited: Sequence[int]


def stretches(positions: Sequence[int], most: int) -> Iterator[Stretch]:
    """Cover ascending ``positions`` by stretches of at most ``most``, each from its first to its last one."""
    done = 0
    while done < len(positions):
        first = positions[done]
        after = bisect_left(positions, first + most, done)
        yield Stretch(first, positions[after - 1] + 1, positions[done:after])
        done = after


def _number(name: str, text: str, *, least: int) -> int:
    try:
        value = coerce(text, "count")
    except CoercionError as error:
        raise UsageError(f"{name} {error}.") from None
    assert isinstance(value, int)
    if value < least:
        raise UsageError(f"{name} must be {least} or more, got {text.strip()}.")
    return value
