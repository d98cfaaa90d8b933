"""Speed and acceptance of every method on prefixes of real books, taking turns every few tokens.

    python benchmarks/methods.py --books A.txt,B.txt --prefixes 2048,4096,7936 --tokens 256

Decoding only (no prefill), the planner's probes included. Each method has a cache of its own and writes eight
tokens before it is the next one's turn, so that whatever else the machine does slows all of them alike. All
methods must write the same text.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models.heads import DraftHeads
from tokenswift_cli.models.loading import LoadedModel
from tokenswift_cli.models.target import Target

METHODS = {
    "autoregressive": DraftingSettings(method="autoregressive"),
    "lookup, n-grams k = 0": DraftingSettings(method="lookup", ngram_candidates=0),
    "lookup, n-grams k = 20": DraftingSettings(method="lookup"),
    "auto, n-grams k = 0": DraftingSettings(ngram_candidates=0, partial_cache=1024),
    "auto, no heads": DraftingSettings(partial_cache=1024),
    "heads": DraftingSettings(method="heads", heads="given"),
    "tokenswift": DraftingSettings(method="tokenswift", heads="given"),
    "auto": DraftingSettings(partial_cache=1024, heads="given"),
}

TURN_TOKENS = 8


def take_turns(
    loaded: LoadedModel, heads: DraftHeads | None, prompt: list[int], count: int, names: list[str]
) -> dict[str, common.Writing]:
    """Continue ``prompt`` with each method; returns how it went."""
    target = Target(loaded.model, len(prompt) + count + 64, gguf=loaded.gguf)
    before_root = len(prompt) - 1
    for first in range(0, before_root, 512):
        target.read(prompt[first : min(first + 512, before_root)])
    writings = {}
    for name in names:
        own = Target(loaded.model, len(prompt) + count + 64, gguf=loaded.gguf)
        for layer in range(target.cache.layers):
            rows = slice(0, before_root)
            own.cache.write(layer, target.cache.keys(layer)[:, rows], target.cache.values(layer)[:, rows])
        own.cache.length = before_root
        settings = METHODS[name]
        writings[name] = common.Writing(
            loaded,
            prompt,
            count,
            SamplingSettings(),
            settings,
            target=own,
            heads=heads if settings.uses_heads else None,
        )
    while not all(writing.done for writing in writings.values()):
        for writing in writings.values():
            writing.go_on(TURN_TOKENS)
    return writings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", required=True, help="files, separated by commas")
    parser.add_argument("--prefixes", default="2048,4096,7936")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--heads", type=Path, default=Path("heads/smollm2-135m"))
    arguments = parser.parse_args()
    loaded = common.load(arguments.model)
    names = arguments.methods.split(";")
    with_heads = any(METHODS[name].uses_heads for name in names)
    heads = common.heads_for(loaded, arguments.heads) if with_heads else None
    rows = []
    for book in map(Path, arguments.books.split(",")):
        for prefix in map(int, arguments.prefixes.split(",")):
            prompt = common.book_tokens(loaded.tokenizer, book, prefix)
            texts = take_turns(loaded, heads, prompt, arguments.tokens, names)
            if len({tuple(text.tokens) for text in texts.values()}) != 1:
                raise SystemExit(f"{book.name} {prefix}: the methods wrote different texts")
            plain = texts[names[0]].statistics.tokens_per_second or 0.0
            for name, text in texts.items():
                speed = text.statistics.tokens_per_second or 0.0
                rows.append(
                    [
                        book.stem,
                        str(prefix),
                        name,
                        common.number(speed, 1),
                        common.number(speed / plain),
                        common.number(text.statistics.acceptance_rate),
                        common.number(text.statistics.mean_acceptance_length),
                        common.number(text.statistics.tokens_per_forward),
                    ]
                )
                print(rows[-1], flush=True)
    print(f"\n{arguments.tokens} tokens each\n")
    head = ["book", "prefix", "method", "tokens/s", "/ autoregressive", "acceptance rate"]
    common.table([*head, "mean acceptance length", "tokens per forward"], rows)


if __name__ == "__main__":
    main()
