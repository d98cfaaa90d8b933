"""What the benchmarks share: the model, a prefix of exactly so many tokens, one measured text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswift_cli.openmp import share_cores

share_cores()

from tokenswift_cli.config import ModelConfig  # noqa: E402
from tokenswift_cli.engine.engine import Engine, Step  # noqa: E402
from tokenswift_cli.engine.planner import Planner  # noqa: E402
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings  # noqa: E402
from tokenswift_cli.metrics import DistinctCounter, RunStatistics  # noqa: E402
from tokenswift_cli.models.loading import LoadedModel, load_model  # noqa: E402
from tokenswift_cli.models.target import Target  # noqa: E402


def load(name: str, threads: int = 0) -> LoadedModel:
    """The model of ``name``."""
    return load_model(ModelConfig(name=name, threads=threads), lambda message: None)


def book_tokens(tokenizer: Any, book: Path, count: int) -> list[int]:
    """The first ``count`` tokens of a book."""
    text = book.read_bytes().decode("utf-8-sig")
    ids: list[int] = tokenizer(text[: count * 16])["input_ids"][:count]
    if len(ids) < count:
        raise SystemExit(f"{book.name} holds only {len(ids)} tokens")
    return ids


@dataclass
class Text:
    """One text that was written and how it went; ``statistics`` counts decoding only."""

    tokens: list[int]
    steps: list[Step]
    statistics: RunStatistics
    distinct: tuple[float, float, float, float] | None


def write(
    loaded: LoadedModel,
    prompt: list[int],
    count: int,
    sampling: SamplingSettings,
    drafting: DraftingSettings,
    planner: Planner | None = None,
    target: Target | None = None,
) -> Text:
    """Continue ``prompt`` by exactly ``count`` tokens.

    ``target`` may have the prompt in its cache from a text before; whatever follows it there is dropped.
    """
    if target is None:
        target = Target(loaded.model, len(prompt) + count + drafting.max_nodes + 1)
    target.cache.length = min(target.cache.length, len(prompt) - 1)
    engine = Engine(target, sampling, drafting, end_ids=loaded.eos_ids, ignore_end=True, planner=planner)
    for _ in engine.prefill(prompt, len(prompt)):
        pass
    statistics, distinct = RunStatistics(), DistinctCounter()
    tokens: list[int] = []
    steps: list[Step] = []
    before = time.perf_counter()
    for step in engine.steps(count):
        # The whole time of a step, probes of the planner included.
        now = time.perf_counter()
        statistics.record(
            committed=len(step.tokens),
            seconds=now - before,
            drafted=step.drafted,
            accepted=step.accepted,
            shares=step.shares,
        )
        before = now
        steps.append(step)
        tokens.extend(step.tokens)
        distinct.push(step.tokens)
    return Text(tokens, steps, statistics, distinct.values())


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def number(value: float | None, digits: int = 2) -> str:
    """For a cell."""
    return "-" if value is None else f"{value:.{digits}f}"
