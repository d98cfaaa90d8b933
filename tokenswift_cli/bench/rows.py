"""From trials to the rows of the result: medians, ratios, and whether the methods wrote the same text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tokenswift_cli.bench.contestant import Trial
from tokenswift_cli.bench.schedule import Measurements
from tokenswift_cli.bench.settings import AUTOREGRESSIVE, LLAMA_CPP, TRANSFORMERS

GIB = float(1 << 30)

# llama.cpp takes part twice; the faster one stands for it.
LLAMA_VARIANTS: Mapping[str, bool] = {LLAMA_CPP: False, f"{LLAMA_CPP} (flash attention)": True}


@dataclass(frozen=True)
class Row:
    """One method in one context; medians over the repeats. None where something is not known.

    Attributes:
        context: tokens before the first decoded one.
        method: of our own, or a peer.
        tokens_per_second: decoding only.
        speedup_vs_autoregressive, speedup_vs_transformers, speedup_vs_llama_cpp: ratios of those medians.
        acceptance_rate: accepted over drafted tokens.
        mean_acceptance_length: tokens per verification of drafts.
        host_ms_per_step: milliseconds of a step outside the model's passes.
        gigabytes_per_second: of weights, keys and values, in the passes.
        peak_gib: largest memory of the process, in prefill or decoding.
        prefill_seconds, prefill_tokens_per_second: reading the context.
        tokens: timed per repeat.
        steps: forward passes of those tokens.
        repeats: tokens per second of each repeat, in order.
        text_differs: where an own method's text first differs from the others'; None if it does not.
        flash_attention: llama.cpp's way of attention that was faster.
        failure: why figures are missing.
    """

    context: int
    method: str
    tokens_per_second: float | None = None
    speedup_vs_autoregressive: float | None = None
    speedup_vs_transformers: float | None = None
    speedup_vs_llama_cpp: float | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    host_ms_per_step: float | None = None
    gigabytes_per_second: float | None = None
    peak_gib: float | None = None
    prefill_seconds: float | None = None
    prefill_tokens_per_second: float | None = None
    tokens: float | None = None
    steps: float | None = None
    repeats: tuple[float, ...] = ()
    text_differs: int | None = None
    flash_attention: bool | None = None
    failure: str | None = None

    def to_json(self) -> dict[str, object]:
        """As one JSON object."""
        return asdict(self)


def rows_of(results: Measurements) -> list[Row]:
    """All rows that have figures or a failure, by context and then in the order of the turns."""
    keys = [*results.trials, *(key for key in results.failures if key not in results.trials)]
    contexts = sorted({context for context, _ in keys})
    rows: list[Row] = []
    for context in contexts:
        here = [method for found, method in keys if found == context]
        differences = differing({m: results.trials.get((context, m), []) for m in here})
        found = [_row(results, context, method, differences.get(method)) for method in here]
        rows += _with_ratios(_one_llama(found))
    return rows


def median(values: Iterable[float | None]) -> float | None:
    """Of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(value: float | None, base: float | None) -> float | None:
    """None where one of them is not known."""
    return value / base if value is not None and base else None


def differing(trials: Mapping[str, Sequence[Trial]]) -> dict[str, int]:
    """Methods whose text differs from the reference, each with the place of the first difference.

    The reference is the first text of plain decoding, or of the first method if that was not measured.
    """
    texts = {m: [t.text for t in done if t.text is not None] for m, done in trials.items()}
    reference = next(
        (found[0] for found in (texts.get(AUTOREGRESSIVE, []), *texts.values()) if found),
        (),
    )
    places = {
        method: min((_first_difference(reference, text) for text in found), default=None, key=_last_if_none)
        for method, found in texts.items()
    }
    return {method: place for method, place in places.items() if place is not None}


def _last_if_none(place: int | None) -> float:
    return float("inf") if place is None else place


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _row(results: Measurements, context: int, method: str, text_differs: int | None) -> Row:
    trials = results.trials.get((context, method), [])
    prefill = results.prefills.get((context, method))

    def middle(of: Callable[[Trial], float | None]) -> float | None:
        return median(of(trial) for trial in trials)

    peak = max([prefill.peak_bytes if prefill else 0, *(trial.peak_bytes for trial in trials)])
    seconds = prefill.seconds if prefill else None
    return Row(
        context=context,
        method=method,
        tokens_per_second=middle(lambda trial: trial.tokens_per_second),
        acceptance_rate=middle(lambda trial: trial.acceptance_rate),
        mean_acceptance_length=middle(lambda trial: trial.mean_acceptance_length),
        host_ms_per_step=middle(lambda trial: trial.host_ms_per_step),
        gigabytes_per_second=middle(lambda trial: trial.gigabytes_per_second),
        peak_gib=peak / GIB if peak else None,
        prefill_seconds=seconds,
        prefill_tokens_per_second=ratio(float(context), seconds),
        tokens=middle(lambda trial: trial.tokens),
        steps=middle(lambda trial: trial.steps),
        repeats=tuple(speed for trial in trials if (speed := trial.tokens_per_second) is not None),
        text_differs=text_differs,
        flash_attention=LLAMA_VARIANTS.get(method),
        failure=results.failures.get((context, method)),
    )


def _one_llama(rows: Sequence[Row]) -> list[Row]:
    """The faster of llama.cpp's two rows, under its plain name, in the place of both."""
    variants = [row for row in rows if row.method in LLAMA_VARIANTS]
    if not variants:
        return list(rows)
    best = max(variants, key=lambda row: row.tokens_per_second or 0.0)
    others = [row for row in rows if row.method not in LLAMA_VARIANTS]
    return [*others, replace(best, method=LLAMA_CPP)]


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    """The rows of one context, with their ratios."""
    speeds = {row.method: row.tokens_per_second for row in rows}
    return [
        replace(
            row,
            speedup_vs_autoregressive=ratio(row.tokens_per_second, speeds.get(AUTOREGRESSIVE)),
            speedup_vs_transformers=ratio(row.tokens_per_second, speeds.get(TRANSFORMERS)),
            speedup_vs_llama_cpp=ratio(row.tokens_per_second, speeds.get(LLAMA_CPP)),
        )
        for row in rows
    ]
