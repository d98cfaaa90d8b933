"""What drafting is worth by context, rows and hit rate: predicted from the times of passes, and measured.

python benchmarks/worth.py --contexts 2048,7936,32768 --rows 2,4,8 --hit-rates 0.6,0.8

Two models: the demo model, three query heads to a key-value head; and one of the same size with as many
key-value heads as query heads and random weights (speed does not depend on them). The cache is filled with
random keys and values. The drafter knows the text, which was written before by plain decoding, and proposes
a chain whose tokens are right with the set chance each; so only verification costs anything, as with drafts
from heads or look-ups. Prediction: tokens expected of a chain over the time of a pass of so many rows, over
the same of one row. Measured: the engine's own steps, plain and drafted ones taking turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import common
import torch
from attention import numbers
from step import fill
from transformers import LlamaConfig, LlamaForCausalLM

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.engine.tree import Draft
from tokenswift_cli.models.target import Target

SAMPLING = SamplingSettings(seed=7, penalty=1.2, min_p=0.1)


class Oracle:
    """Proposes the text itself, each token wrong with a set chance."""

    name = "oracle"

    def __init__(self, text: Sequence[int], start: int, depth: int, hit_rate: float, vocabulary: int) -> None:
        self._text = text
        self._read = -start
        self._depth = depth
        self._hit_rate = hit_rate
        self._vocabulary = vocabulary
        self._random = random.Random(1)

    def extend(self, tokens: Sequence[int]) -> None:
        self._read += len(tokens)

    def propose(self, path: Sequence[int] = ()) -> list[Draft]:
        coming = self._text[self._read : self._read + self._depth]
        hits = (self._random.random() < self._hit_rate for _ in coming)
        tokens = [
            token if hit else (token + 1) % self._vocabulary for token, hit in zip(coming, hits, strict=False)
        ]
        return [Draft(tuple(tokens), self.name, (0,) * len(tokens))] if tokens else []


def many_heads(like: object) -> LlamaForCausalLM:
    """Random weights, as many key-value heads as query heads."""
    config = LlamaConfig(
        **{
            name: getattr(like, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "max_position_embeddings",
                "tie_word_embeddings",
            )
        }
    )
    torch.manual_seed(0)
    # Short weights, as models come.
    return LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)


def write(
    target: Target, context: int, count: int, drafter: Oracle | None, depth: int
) -> tuple[list[int], float]:
    """(text, seconds) of ``count`` tokens behind the filled context."""
    target.cache.length = context
    method = "autoregressive" if drafter is None else "lookup"
    engine = Engine(
        target,
        SAMPLING,
        replace(DraftingSettings(), method=method),
        drafters=[] if drafter is None else [drafter],
        planner=FixedPlanner(depth),
    )
    for _ in engine.prefill([1] * (context + 1), context + 1):
        pass
    tokens: list[int] = []
    started = time.perf_counter()
    for step in engine.steps(count):
        tokens.extend(step.tokens)
    return tokens, time.perf_counter() - started


def pass_milliseconds(target: Target, context: int, rows: int, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        target.cache.length = context
        started = time.perf_counter()
        target.verify([5] * rows)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--contexts", type=numbers, default=[2048, 7936, 32768])
    parser.add_argument(
        "--rows", type=numbers, default=[2, 4, 8], help="of a verification, the root included"
    )
    parser.add_argument(
        "--hit-rates", type=lambda text: [float(word) for word in text.split(",")], default=[0.6, 0.8]
    )
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model)
    config = loaded.model.config.get_text_config()
    room = max(arguments.contexts) + arguments.tokens + max(arguments.rows) + 2
    table = []
    for name in ("demo", "many heads"):
        if name == "demo":
            target = Target(loaded.model, room, gguf=loaded.gguf)
        else:
            target = Target(many_heads(config), room)
        fill(target.cache, target, 1)
        heads = f"{config.num_attention_heads} / {target.cache.keys(0).shape[0]}"
        print(f"{name}: {heads} query / key-value heads, {target.path}", flush=True)
        for context in arguments.contexts:
            fill(target.cache, target, context)
            plain_text, _ = write(target, context, arguments.tokens, None, 0)
            one = pass_milliseconds(target, context, 1, 5 * arguments.repeats)
            for rows in arguments.rows:
                several = pass_milliseconds(target, context, rows, 5 * arguments.repeats)
                for rate in arguments.hit_rates:
                    expected = sum(rate**depth for depth in range(rows))
                    plain, drafted = [], []
                    for _ in range(arguments.repeats):
                        plain.append(write(target, context, arguments.tokens, None, 0)[1])
                        oracle = Oracle(plain_text, context + 1, rows - 1, rate, target.vocabulary_size)
                        text, seconds = write(target, context, arguments.tokens, oracle, rows - 1)
                        assert text == plain_text, "drafting changed the text"
                        drafted.append(seconds)
                    table.append(
                        [
                            heads,
                            str(context),
                            str(rows),
                            common.number(one, 1),
                            common.number(several, 1),
                            common.number(rate, 1),
                            common.number(expected),
                            common.number(expected * one / several),
                            common.number(statistics.median(plain) / statistics.median(drafted)),
                        ]
                    )
        del target
    print()
    common.table(
        [
            "query / KV heads",
            "context",
            "rows",
            "ms, 1 row",
            "ms, these rows",
            "hit rate",
            "tokens per pass",
            "predicted",
            "measured",
        ],
        table,
    )


if __name__ == "__main__":
    main()
