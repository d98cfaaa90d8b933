"""The paper's ablation of the contextual penalty: on and off, under three truncations, with Distinct-1..4.

python benchmarks/penalty.py --prompt prompts/novel-opening.txt --tokens 4096
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import statistics
import sys
from pathlib import Path

import common
from tqdm import tqdm

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.loops import LoopDetector
from tokenswift_cli.metrics import DistinctCounter
from tokenswift_cli.training.batch_model import BatchModel
from tokenswift_cli.training.lane_writer import write_lanes

TRUNCATIONS = {
    "top-p 0.9": {"top_p": 0.9, "min_p": 0.0},
    "eta 2e-4": {"eta": 2e-4, "min_p": 0.0},
    "min-p 0.1": {"min_p": 0.1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=Path, default=Path("prompts/novel-opening.txt"))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--truncations", default=",".join(TRUNCATIONS))
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=2, help="texts per setting")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model, arguments.threads)
    prompt = loaded.tokenizer(arguments.prompt.read_text(encoding="utf-8"))["input_ids"]
    rows = []
    settings = [
        (name, SamplingSettings(penalty=penalty, **TRUNCATIONS[name]))
        for name in arguments.truncations.split(",")
        for penalty in (1.0, 1.2)
    ]
    samplers = [
        Sampler(
            dataclasses.replace(sampling, seed=arguments.seed + seed),
            loaded.identity.vocab_size,
            held_ids=loaded.eos_ids,
            held_until=sys.maxsize,
        )
        for _, sampling in settings
        for seed in range(arguments.seeds)
    ]
    length = len(prompt) + arguments.tokens
    passes = write_lanes(BatchModel(loaded.model), [prompt] * len(samplers), samplers, length)
    last = collections.deque(tqdm(passes, total=length, disable=not sys.stderr.isatty()), maxlen=1)
    texts = iter(last[0][0][:, len(prompt) :].tolist())
    for name, sampling in settings:
        distinct, alarms = [], 0
        for tokens in itertools.islice(texts, arguments.seeds):
            counter, detector = DistinctCounter(), LoopDetector()
            counter.push(tokens)
            alarms += sum(detector.push(token) is not None for token in tokens)
            distinct.append(counter.values() or ())
        means = [statistics.mean(values) for values in zip(*distinct, strict=True)]
        rows.append(
            [name, "off" if sampling.penalty == 1.0 else f"{sampling.penalty} over {sampling.penalty_window}"]
            + [common.number(value) for value in (*means, statistics.mean(means))]
            + [str(alarms)]
        )
    print(f"{arguments.prompt.name}, {arguments.tokens} tokens, mean of {arguments.seeds} seeds\n")
    head = ["truncation", "penalty", "Distinct-1", "Distinct-2", "Distinct-3", "Distinct-4", "mean"]
    common.table([*head, "loop alarms"], rows)


if __name__ == "__main__":
    main()
