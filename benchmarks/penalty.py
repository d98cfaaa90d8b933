"""The paper's ablation of the contextual penalty: on and off, under three truncations, with Distinct-1..4.

python benchmarks/penalty.py --prompt prompts/novel-opening.txt --tokens 4096
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.loops import LoopDetector

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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model, arguments.threads)
    prompt = loaded.tokenizer(arguments.prompt.read_text(encoding="utf-8"))["input_ids"]
    rows = []
    for name in arguments.truncations.split(","):
        truncation = TRUNCATIONS[name]
        for penalty in (1.0, 1.2):
            sampling = SamplingSettings(seed=arguments.seed, penalty=penalty, **truncation)
            text = common.write(loaded, prompt, arguments.tokens, sampling, DraftingSettings())
            detector = LoopDetector()
            alarms = sum(detector.push(token) is not None for token in text.tokens)
            assert text.distinct is not None
            mean = sum(text.distinct) / 4
            rows.append(
                [name, "off" if penalty == 1.0 else f"{penalty} over {sampling.penalty_window}"]
                + [common.number(value) for value in (*text.distinct, mean)]
                + [str(alarms)]
            )
            print(rows[-1], flush=True)
    print(f"\n{arguments.prompt.name}, {arguments.tokens} tokens, seed {arguments.seed}\n")
    head = ["truncation", "penalty", "Distinct-1", "Distinct-2", "Distinct-3", "Distinct-4", "mean"]
    common.table([*head, "loop alarms"], rows)


if __name__ == "__main__":
    main()
