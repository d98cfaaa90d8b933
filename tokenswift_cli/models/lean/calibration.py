"""Finds out how this machine multiplies best: what is fast, and what rounds each row alike.

The second is decided by bits, the first by time; so a plan for float32 is worth keeping
(:mod:`tokenswift_cli.models.lean.plan_store`), or the same text could be rounded in two ways.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenswift_cli.models.lean.linear import VARIANTS, Linear
from tokenswift_cli.models.lean.plan import LinearPlan, Shape, Ways

# Numbers of rows whose rounding is compared: what decoding uses, finely, and some of prefill.
PROBED_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128)

# Sizes further apart than this would pad too much; and fewer rows at once than this slow prefill down.
_MOST_PADDING = 2.0
_LEAST_LARGEST = 64

# Numbers of rows that are timed, and how much each counts: plain decoding and small trees most.
TIMED_ROWS = (1, 2, 4, 8, 16, 32)
_WEIGHTS = {1: 3.0, 2: 1.0, 4: 2.0, 8: 2.0, 16: 1.0, 32: 0.5}

_FLOAT32_VARIANTS = ("rows", "turned", "columns", "blocked")
_ROUNDS = 3

# Weights are timed from memory, as decoding reads them: copies to this size in all pass in turn.
_TIMED_BYTES = 16 << 20

Times = dict[int, float]


@dataclass(frozen=True)
class _Candidate:
    """One variant with sizes between which it rounds a row alike."""

    variant: str
    sizes: tuple[int, ...]


@torch.no_grad()
def make_plan(shapes: Mapping[Shape, int], packed: bool, tolerance: float) -> LinearPlan | str:
    """Choose for all shapes of a decoder on the CPU, or say why nothing can be chosen.

    Args:
        shapes: with the number of layers of each.
        packed: weights are kept as float16; otherwise float32.
        tolerance: share of decoding time that rows which round alike may cost; ``math.inf`` for any.
    """
    wanted = ("float16",) if packed else _FLOAT32_VARIANTS
    names = tuple(name for name in wanted if _works(name))
    if not names:
        return "this build of torch cannot multiply by weights packed as float16"
    candidates = {shape: _candidates(shape, names) for shape in shapes}
    if packed:
        known = all(candidates.values())
        sizes = _common([options[0].sizes for options in candidates.values()]) if known else ()
        return LinearPlan({shape: ((1, "float16"),) for shape in shapes}, sizes)
    times = {shape: _times(shape, names) for shape in shapes}
    fast = {shape: _fastest(times[shape]) for shape in shapes}
    fast_cost = _cost(_total(shapes, {shape: seconds for shape, (_, seconds) in fast.items()}))
    invariant = _invariant(shapes, candidates, times)
    if invariant is not None and invariant.cost is not None:
        relative = invariant.cost / fast_cost
        if relative <= 1 + tolerance:
            return LinearPlan(invariant.ways, invariant.sizes, relative)
    return LinearPlan({shape: fast[shape][0] for shape in shapes}, (), 1.0)


def row_classes(linear: Linear, inputs: int, sizes: Iterable[int] = PROBED_ROWS) -> dict[int, int]:
    """For each number of rows, which rounding its rows get: equal numbers, equal bits; -1 if they differ.

    Every row of a probe is the same, so that one result tells of every place in it.
    """
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, inputs, generator=generator)
    seen: list[Tensor] = []
    classes: dict[int, int] = {}
    for size in sizes:
        result = linear(row.expand(size, inputs).contiguous())
        first = result[0]
        if not torch.equal(result, first.expand_as(result)):
            classes[size] = -1
            continue
        known = next((index for index, other in enumerate(seen) if torch.equal(first, other)), None)
        if known is None:
            known = len(seen)
            seen.append(first.clone())
        classes[size] = known
    return classes


def usable_sizes(classes: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Sizes of one rounding, close enough together to pad to and reaching far enough; maybe none."""
    found = []
    for wanted in sorted({kind for kind in classes.values() if kind >= 0}):
        sizes: list[int] = []
        for size in sorted(size for size, kind in classes.items() if kind == wanted):
            if sizes and size > _MOST_PADDING * sizes[-1]:
                break
            sizes.append(size)
        if sizes[-1] >= _LEAST_LARGEST:
            found.append(tuple(sizes))
    return found


def time_linears(linears: Mapping[str, list[Linear]], inputs: int, rounds: int = _ROUNDS) -> dict[str, Times]:
    """Seconds for one layer by variant and number of rows: the least of interleaved rounds."""
    best = {name: dict.fromkeys(TIMED_ROWS, math.inf) for name in linears}
    for _ in range(rounds):
        for rows in TIMED_ROWS:
            given = torch.randn(rows, inputs)
            for name, layers in linears.items():
                start = time.perf_counter()
                for layer in layers:
                    layer(given)
                elapsed = (time.perf_counter() - start) / len(layers)
                best[name][rows] = min(best[name][rows], elapsed)
    return best


def _works(name: str) -> bool:
    try:
        VARIANTS[name](torch.eye(8), None)(torch.ones(1, 8))
    except RuntimeError:  # what torch raises for operators that a build lacks
        return False
    return True


def _candidates(shape: Shape, names: tuple[str, ...]) -> list[_Candidate]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape.outputs, shape.inputs, generator=generator) / math.sqrt(shape.inputs)
    bias = torch.randn(shape.outputs, generator=generator) if shape.bias else None
    found = []
    for name in names:
        classes = row_classes(VARIANTS[name](weight, bias), shape.inputs)
        found += [_Candidate(name, sizes) for sizes in usable_sizes(classes)]
    return found


def _times(shape: Shape, names: tuple[str, ...]) -> dict[str, Times]:
    """As :func:`time_linears`; of a large layer a part is timed and the rest taken in proportion."""
    outputs = max(1, min(shape.outputs, _TIMED_BYTES // (4 * shape.inputs)))
    copies = max(1, min(32, _TIMED_BYTES // (4 * outputs * shape.inputs)))
    bias = torch.zeros(outputs) if shape.bias else None
    weight = torch.randn(outputs, shape.inputs)
    linears = {name: [VARIANTS[name](weight.clone(), bias) for _ in range(copies)] for name in names}
    share = shape.outputs / outputs
    return {
        name: {rows: share * seconds for rows, seconds in times.items()}
        for name, times in time_linears(linears, shape.inputs).items()
    }


def _fastest(times: dict[str, Times]) -> tuple[Ways, Times]:
    """The storage that is fastest over all numbers of rows, and its variants for each of them."""
    options: list[tuple[Ways, Times]] = [
        (((1, name),), times[name]) for name in times if name not in ("rows", "turned")
    ]
    by_size = tuple(
        (rows, "turned" if times["turned"][rows] < times["rows"][rows] else "rows") for rows in TIMED_ROWS
    )
    options.append((by_size, {rows: times[name][rows] for rows, name in by_size}))
    return min(options, key=lambda option: _cost(option[1]))


def _invariant(
    shapes: Mapping[Shape, int],
    candidates: Mapping[Shape, list[_Candidate]],
    times: Mapping[Shape, dict[str, Times]],
) -> LinearPlan | None:
    """The fastest plan in which rows round alike, with its cost in seconds; None if there is none."""
    chosen: dict[Shape, _Candidate] = {}
    for shape, options in candidates.items():
        if not options:
            return None
        chosen[shape] = min(
            options, key=lambda option: _cost(_padded_times(times[shape][option.variant], option.sizes))
        )
    sizes = _common([candidate.sizes for candidate in chosen.values()])
    if not sizes:
        return None
    total = _total(
        shapes, {shape: _padded_times(times[shape][chosen[shape].variant], sizes) for shape in shapes}
    )
    ways: dict[Shape, Ways] = {shape: ((1, candidate.variant),) for shape, candidate in chosen.items()}
    return LinearPlan(ways, sizes, _cost(total))


def _padded_times(times: Times, sizes: tuple[int, ...]) -> Times:
    """Time by number of rows before padding; between the timed numbers the next larger one counts."""
    result = {}
    for rows in TIMED_ROWS:
        size = next(size for size in sizes if size >= rows)
        timed = next((known for known in TIMED_ROWS if known >= size), None)
        result[rows] = times[TIMED_ROWS[-1]] * size / TIMED_ROWS[-1] if timed is None else times[timed]
    return result


def _total(shapes: Mapping[Shape, int], times: Mapping[Shape, Times]) -> Times:
    """Time of all layers."""
    return {rows: sum(count * times[shape][rows] for shape, count in shapes.items()) for rows in TIMED_ROWS}


def _common(options: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Sizes that all have, if they still reach far enough without wide gaps."""
    shared = set(options[0]).intersection(*options[1:]) if options else set()
    usable = usable_sizes(dict.fromkeys(shared, 0)) if shared else []
    return usable[0] if usable else ()


def _cost(times: Times) -> float:
    """Weighted geometric mean, so that each number of rows counts by its ratio."""
    logs = sum(_WEIGHTS[rows] * math.log(times[rows]) for rows in TIMED_ROWS)
    return math.exp(logs / sum(_WEIGHTS.values()))
