"""Speed and acceptance of every method on prefixes of real books, all in one process, taking turns.

    python benchmarks/methods.py --books A.txt,B.txt --prefixes 2048,4096,7936 --tokens 256

Decoding only (no prefill), the planner's probes included. All methods must write the same text.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import common

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models.target import Target

METHODS = {
    "autoregressive": DraftingSettings(method="autoregressive"),
    "lookup, n-grams k = 0": DraftingSettings(method="lookup", ngram_candidates=0),
    "lookup, n-grams k = 20": DraftingSettings(method="lookup"),
    "auto, n-grams k = 0": DraftingSettings(ngram_candidates=0, partial_cache=1024),
    "auto": DraftingSettings(partial_cache=1024),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", required=True, help="files, separated by commas")
    parser.add_argument("--prefixes", default="2048,4096,7936")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--model", default=DEMO_MODEL)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model)
    names = arguments.methods.split(";")
    rows = []
    for book in map(Path, arguments.books.split(",")):
        for prefix in map(int, arguments.prefixes.split(",")):
            prompt = common.book_tokens(loaded.tokenizer, book, prefix)
            target = Target(loaded.model, prefix + arguments.tokens + 64)
            texts: dict[str, list[common.Text]] = {name: [] for name in names}
            for _ in range(arguments.repeats):
                for name in names:
                    text = common.write(
                        loaded, prompt, arguments.tokens, SamplingSettings(), METHODS[name], target=target
                    )
                    texts[name].append(text)
            if len({tuple(text.tokens) for found in texts.values() for text in found}) != 1:
                raise SystemExit(f"{book.name} {prefix}: the methods wrote different texts")
            speeds = {
                name: statistics.median(text.statistics.tokens_per_second or 0.0 for text in found)
                for name, found in texts.items()
            }
            for name in names:
                last = texts[name][-1].statistics
                rows.append(
                    [
                        book.stem,
                        str(prefix),
                        name,
                        common.number(speeds[name], 1),
                        common.number(speeds[name] / speeds[names[0]]),
                        common.number(last.acceptance_rate),
                        common.number(last.mean_acceptance_length),
                        common.number(last.tokens_per_forward),
                    ]
                )
                print(rows[-1], flush=True)
    print(f"\n{arguments.tokens} tokens each, medians of {arguments.repeats}\n")
    head = ["book", "prefix", "method", "tokens/s", "/ autoregressive", "acceptance rate"]
    common.table([*head, "mean acceptance length", "tokens per forward"], rows)


if __name__ == "__main__":
    main()
