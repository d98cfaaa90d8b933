"""Acceptance of the self-draft by size of the partial cache, with shared and with independent noise.

    python benchmarks/acceptance.py --book FILE --prefix-tokens 3072 --tokens 256

One token is drafted per step, so every figure is P(a drafted token is accepted).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models.target import Target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--book", type=Path, required=True)
    parser.add_argument("--prefix-tokens", type=int, default=3072)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--sizes", default="64,128,256,512,1024,2048,4096")
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model, arguments.threads)
    prompt = common.book_tokens(loaded.tokenizer, arguments.book, arguments.prefix_tokens)
    target = Target(loaded.model, len(prompt) + arguments.tokens + 16, gguf=loaded.gguf)
    rows, texts = [], set()
    for size in map(int, arguments.sizes.split(",")):
        row = [str(size)]
        for shared_noise in (True, False):
            drafting = DraftingSettings(
                drafters=("self",), partial_cache=size, partial_sinks=16, shared_noise=shared_noise
            )
            text = common.write(
                loaded, prompt, arguments.tokens, SamplingSettings(), drafting, FixedPlanner(1, 1), target
            )
            texts.add(tuple(text.tokens))
            drafted = [step for step in text.steps if step.drafted]
            row.append(common.number(sum(s.accepted for s in drafted) / len(drafted)))
        rows.append(row)
        print(row, flush=True)
    if len(texts) != 1:
        raise SystemExit("the settings wrote different texts")
    print(
        f"\n{arguments.book.name}, prefix {arguments.prefix_tokens}, {arguments.tokens} tokens, "
        "temperature 1, min-p 0.1, penalty 1.2 over 1024\n"
    )
    common.table(["partial cache", "shared noise", "independent noise"], rows)


if __name__ == "__main__":
    main()
