"""Time and memory of a refresh of the partial cache, against a plain decoding step at the same length.

python benchmarks/refresh.py --book FILE --prefixes 2048,4096,7936 --sizes 512,1024,4096
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import common
import torch

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.models.partial_cache import PartialCache
from tokenswift_cli.models.target import Target

MIB = 1 << 20


def median_milliseconds(action, repeats: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--book", type=Path, required=True)
    parser.add_argument("--prefixes", default="2048,4096,7936")
    parser.add_argument("--sizes", default="512,1024,4096")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--model", default=DEMO_MODEL)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model)
    rows = []
    for prefix in map(int, arguments.prefixes.split(",")):
        prompt = common.book_tokens(loaded.tokenizer, arguments.book, prefix + 1)
        target = Target(loaded.model, prefix + 8, gguf=loaded.gguf)
        for first in range(0, prefix, 512):
            target.read(prompt[first : min(first + 512, prefix)])
        queries: dict[int, torch.Tensor] = {}
        step = median_milliseconds(lambda t=target, p=prompt: t.verify([p[-1]]), arguments.repeats)
        target.verify([prompt[-1]], queries=queries)
        for size in map(int, arguments.sizes.split(",")):
            if size >= prefix:
                continue
            partial = PartialCache(size, 16)
            refresh = median_milliseconds(
                lambda p=partial, t=target, q=queries: p.refresh(t.cache, q, 0), arguments.repeats
            )
            draft = median_milliseconds(
                lambda p=partial, t=target, i=prompt[-1], n=prefix: (
                    t.draft(p, i, n),
                    setattr(p, "length", p.length - 1),
                ),
                arguments.repeats,
            )
            rows.append(
                [
                    str(prefix),
                    str(size),
                    common.number(step, 1),
                    common.number(draft, 1),
                    common.number(refresh, 1),
                    common.number(refresh / (size // 4), 2),
                    common.number(partial.bytes_per_token * size / MIB, 1),
                    common.number(target.cache.bytes_per_token * prefix / MIB, 1),
                ]
            )
            print(rows[-1], flush=True)
    print(f"\nmedians of {arguments.repeats}; a refresh comes at most every size / 4 tokens\n")
    head = [
        "context",
        "partial cache",
        "plain step ms",
        "draft pass ms",
        "refresh ms",
        "refresh ms per token",
    ]
    common.table([*head, "partial MiB", "full MiB"], rows)


if __name__ == "__main__":
    main()
