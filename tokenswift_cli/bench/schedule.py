"""Whose turn it is: contexts from short to long, and in each the methods take turns, repeat by repeat.

What else the machine does then slows all of them alike, and none has the machine to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tokenswift_cli.bench.contestant import Contestant, Prefill, Trial
from tokenswift_cli.errors import TokenSwiftError


@dataclass(frozen=True)
class Entry:
    """A contestant, what it runs, and for how long.

    Attributes:
        contestant: runs the methods.
        methods: their names, each of one entry only.
        warm_up, tokens: decoded per turn.
        optional: if it fails, the others are measured all the same.
    """

    contestant: Contestant
    methods: tuple[str, ...]
    warm_up: int
    tokens: int
    optional: bool = False


@dataclass
class Measurements:
    """What was measured so far, by context and method, in the order of the turns."""

    prefills: dict[tuple[int, str], Prefill] = field(default_factory=dict)
    trials: dict[tuple[int, str], list[Trial]] = field(default_factory=dict)
    failures: dict[tuple[int, str], str] = field(default_factory=dict)


class Watcher(Protocol):
    """Hears how it goes."""

    def phase(self, what: str) -> None:
        """This begins now."""

    def turn_done(self) -> None:
        """One of :func:`turns` is over."""


def turns(entries: Sequence[Entry], contexts: int, repeats: int) -> int:
    """Number of turns in all."""
    return contexts * repeats * sum(len(entry.methods) for entry in entries)


def measure(
    entries: Sequence[Entry],
    contexts: Mapping[int, Sequence[int]],
    repeats: int,
    results: Measurements,
    watcher: Watcher,
) -> None:
    """Fill ``results``; what it holds is right at any moment, so that an interrupt loses nothing.

    Args:
        entries: in the order of their turns.
        contexts: token ids by length, ascending.
        repeats: turns of each method in each context.
        results: gets the figures.
        watcher: hears how it goes.

    Raises:
        TokenSwiftError: of an entry that is not optional.
    """
    out: set[int] = set()
    for context, prompt in contexts.items():
        for place, entry in enumerate(entries):
            if place in out:
                _fail(results, context, entry, "failed at a shorter context")
                continue
            watcher.phase(f"{context} tokens: reading them for {', '.join(entry.methods)}")
            try:
                prefill = entry.contestant.prepare(prompt)
            except TokenSwiftError as error:
                if not entry.optional:
                    raise
                out.add(place)
                _fail(results, context, entry, str(error))
                continue
            for method in entry.methods:
                results.prefills[context, method] = prefill
        for repeat in range(repeats):
            for place, entry in enumerate(entries):
                for method in entry.methods:
                    if place not in out:
                        watcher.phase(f"{context} tokens: {method}, repeat {repeat + 1} of {repeats}")
                        _take_turn(results, context, method, entry, place, out)
                    watcher.turn_done()


def _take_turn(
    results: Measurements, context: int, method: str, entry: Entry, place: int, out: set[int]
) -> None:
    try:
        trial = entry.contestant.decode(method, entry.warm_up, entry.tokens)
    except TokenSwiftError as error:
        if not entry.optional:
            raise
        out.add(place)
        _fail(results, context, entry, str(error))
        return
    results.trials.setdefault((context, method), []).append(trial)


def _fail(results: Measurements, context: int, entry: Entry, why: str) -> None:
    for method in entry.methods:
        results.failures[context, method] = why
