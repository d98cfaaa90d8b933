"""What the benchmarks share: the model, a prefix of exactly so many tokens, one measured text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tokenswift_cli.openmp import share_cores

share_cores()

from tokenswift_cli.config import ModelConfig  # noqa: E402
from tokenswift_cli.engine.engine import Engine, Step  # noqa: E402
from tokenswift_cli.engine.planner import Planner  # noqa: E402
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings  # noqa: E402
from tokenswift_cli.metrics import DistinctCounter, RunStatistics  # noqa: E402
from tokenswift_cli.models.heads import DraftHeads  # noqa: E402
from tokenswift_cli.models.heads_directory import load_heads  # noqa: E402
from tokenswift_cli.models.loading import LoadedModel, load_model  # noqa: E402
from tokenswift_cli.models.target import Target  # noqa: E402


def load(name: str, threads: int = 0) -> LoadedModel:
    """The model of ``name``."""
    return load_model(ModelConfig(name=name, threads=threads), lambda message: None)


def heads_for(loaded: LoadedModel, directory: Path) -> DraftHeads:
    """The drafting heads in ``directory``, which belong to this model."""
    hidden_size = loaded.model.config.get_text_config().hidden_size
    return load_heads(directory, loaded.identity, hidden_size, loaded.identity.vocab_size)


def book_tokens(tokenizer: Any, book: Path, count: int) -> list[int]:
    """The first ``count`` tokens of a book."""
    text = book.read_bytes().decode("utf-8-sig")
    ids: list[int] = tokenizer(text[: count * 16])["input_ids"][:count]
    if len(ids) < count:
        raise SystemExit(f"{book.name} holds only {len(ids)} tokens")
    return ids


class Writing:
    """One text being written, with how it goes; ``statistics`` counts decoding only.

    Args:
        loaded: the model.
        prompt: ids to continue.
        count: tokens to write; exactly so many.
        sampling, drafting: settings.
        planner: instead of the method's own.
        target: may have the prompt in its cache from a text before; what follows it there is dropped.
        heads: drafting heads, for the methods that use them.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompt: list[int],
        count: int,
        sampling: SamplingSettings,
        drafting: DraftingSettings,
        planner: Planner | None = None,
        target: Target | None = None,
        heads: DraftHeads | None = None,
    ) -> None:
        if target is None:
            target = Target(loaded.model, len(prompt) + count + drafting.most_nodes + 1, gguf=loaded.gguf)
        target.cache.length = min(target.cache.length, len(prompt) - 1)
        engine = Engine(
            target,
            sampling,
            drafting,
            end_ids=loaded.eos_ids,
            ignore_end=True,
            heads=heads,
            planner=planner,
        )
        for _ in engine.prefill(prompt, len(prompt)):
            pass
        self.tokens: list[int] = []
        self.steps: list[Step] = []
        self.statistics = RunStatistics()
        self.done = False
        self._distinct = DistinctCounter()
        self._engine_steps = engine.steps(count)

    @property
    def distinct(self) -> tuple[float, float, float, float] | None:
        """Distinct-1..4 of the text so far."""
        return self._distinct.values()

    def go_on(self, tokens: int) -> None:
        """Write at least so many more tokens, or to the end."""
        goal = len(self.tokens) + tokens
        while len(self.tokens) < goal and not self.done:
            # The whole time of a step, probes of the planner included.
            started = time.perf_counter()
            step = next(self._engine_steps, None)
            if step is None:
                self.done = True
                return
            self.statistics.record(
                committed=len(step.tokens),
                seconds=time.perf_counter() - started,
                drafted=step.drafted,
                accepted=step.accepted,
                shares=step.shares,
            )
            self.steps.append(step)
            self.tokens.extend(step.tokens)
            self._distinct.push(step.tokens)


def write(
    loaded: LoadedModel,
    prompt: list[int],
    count: int,
    sampling: SamplingSettings,
    drafting: DraftingSettings,
    planner: Planner | None = None,
    target: Target | None = None,
) -> Writing:
    """A whole :class:`Writing`."""
    writing = Writing(loaded, prompt, count, sampling, drafting, planner, target)
    writing.go_on(count + 1)
    return writing


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def number(value: float | None, digits: int = 2) -> str:
    """For a cell."""
    return "-" if value is None else f"{value:.{digits}f}"
