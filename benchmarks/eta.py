"""How good and how calm estimates of the time left are, on recorded runs.

python benchmarks/eta.py runs/100k/metrics.jsonl

Plays the records of each session (a run between a start and its end or interruption) back second by second
and asks each estimator for the time to the session's last token. Error: estimate against the time that it
truly took, mean of all seconds with at least 30 s left. Jump: how far an estimate moves from one second to
the next, the second that passed taken off, in parts of the estimate; from 10 s on. Within a chunk the steps
vary at random (fixed seed) around the chunk's recorded speed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tokenswift_cli.display.remaining import RemainingTime

LEAST_CHUNKS = 3
SPREAD = 0.25  # of the logarithm of a step's time


class Estimator(Protocol):
    """What is compared."""

    def add(self, position: int, tokens: int, seconds: float) -> None:
        """Take in a step."""

    def seconds_left(self, tokens: int) -> float | None:
        """Time for so many more tokens."""


class Rate:
    """The plain rate of the past: all of it, or with a half-life in seconds."""

    def __init__(self, half_life: float | None) -> None:
        self._half_life = half_life
        self._tokens = self._seconds = 0.0

    def add(self, position: int, tokens: int, seconds: float) -> None:
        keep = 1.0 if self._half_life is None else 2.0 ** (-seconds / self._half_life)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    def seconds_left(self, tokens: int) -> float | None:
        return tokens * self._seconds / self._tokens if self._tokens else None


class Mean:
    """The mean of a recent rate's estimate and the overall one's."""

    def __init__(self, half_life: float) -> None:
        self._rates = (Rate(half_life), Rate(None))

    def add(self, position: int, tokens: int, seconds: float) -> None:
        for rate in self._rates:
            rate.add(position, tokens, seconds)

    def seconds_left(self, tokens: int) -> float | None:
        estimates = [rate.seconds_left(tokens) for rate in self._rates]
        return None if None in estimates else statistics.fmean(filter(None, estimates))


class WithoutDelay(RemainingTime):
    """The dashboard's, before it is smoothed."""

    def seconds_left(self, tokens: int) -> float | None:
        return self.estimate(tokens)


ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "rate, half-life 30 s": lambda: Rate(30.0),
    "rate, half-life 120 s": lambda: Rate(120.0),
    "overall rate": lambda: Rate(None),
    "mean of 120 s and overall": lambda: Mean(120.0),
    "growing cost, no delay": WithoutDelay,
    "growing cost (dashboard)": RemainingTime,
}


def sessions(metrics: Path, prompt_tokens: int) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Position at which each session starts, and (tokens, seconds) of its chunks."""
    chunks: list[tuple[int, float]] = []
    start = prompt_tokens
    for line in metrics.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "session" in record:
            if len(chunks) >= LEAST_CHUNKS:
                yield start, chunks
            start, chunks = prompt_tokens + record["session"]["resumed_tokens"], []
        chunks.append((record["chunk_tokens"], record["decode_seconds"]))
    if len(chunks) >= LEAST_CHUNKS:
        yield start, chunks


def steps(chunks: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """(tokens, seconds) of steps that add up to the chunks."""
    rng = random.Random(1)
    for tokens, seconds in chunks:
        drawn = []
        while tokens > 0:
            drawn.append((min(tokens, rng.choice((1, 1, 1, 2, 2, 3))), rng.lognormvariate(0.0, SPREAD)))
            tokens -= drawn[-1][0]
        scale = seconds / sum(weight for _, weight in drawn)
        yield from ((committed, weight * scale) for committed, weight in drawn)


def judge(
    estimator: Estimator, start: int, chunks: Sequence[tuple[int, float]]
) -> tuple[list[float], list[float]]:
    """Relative errors and relative jumps, one of each a second."""
    total_tokens = sum(tokens for tokens, _ in chunks)
    total_seconds = sum(seconds for _, seconds in chunks)
    tokens, seconds, asked = 0, 0.0, 0.0
    before: float | None = None
    errors, jumps = [], []
    for committed, taken in steps(chunks):
        tokens += committed
        seconds += taken
        estimator.add(start + tokens, committed, taken)
        truth = total_seconds - seconds
        if seconds - asked < 1.0 or truth < 30.0:
            continue
        estimate = estimator.seconds_left(total_tokens - tokens)
        assert estimate is not None
        errors.append((estimate - truth) / truth)
        if before is not None and seconds > 10.0:
            jumps.append(abs(estimate - (before - (seconds - asked))) / estimate)
        before, asked = estimate, seconds
    return errors, jumps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("metrics", type=Path, nargs="+", help="metrics.jsonl of runs")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="of these runs")
    arguments = parser.parse_args()
    print("| session | estimator | mean error | bias | largest jump | median jump |")
    print("|---|---|---|---|---|---|")
    for path in arguments.metrics:
        for start, chunks in sessions(path, arguments.prompt_tokens):
            tokens = sum(tokens for tokens, _ in chunks)
            name = f"{path.parent.name} from {start:,}: {tokens:,} tokens, {sum(s for _, s in chunks):.0f} s"
            for label, make in ESTIMATORS.items():
                errors, jumps = judge(make(), start, chunks)
                if jumps:
                    error, bias = statistics.fmean(map(abs, errors)), statistics.fmean(errors)
                    cells = f"{error:.1%} | {bias:+.1%} | {max(jumps):.2%} | {statistics.median(jumps):.2%}"
                    print(f"| {name} | {label} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
