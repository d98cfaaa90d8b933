"""Acceptance length of drafting heads by position band, replayed over text that the model wrote itself.

    python benchmarks/heads.py --heads heads/smollm2-135m,other-heads --data long/self-distill

The text must be none of the heads' training text. ``tokenswift train-heads --self-distill-only`` writes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import common
from tqdm import tqdm

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.models.heads import HeadsOutput
from tokenswift_cli.training.evaluate import Acceptance, choose_places, replay
from tokenswift_cli.training.sequences import JoinedSequences
from tokenswift_cli.training.written_text import open_written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", required=True, help="directories, separated by commas")
    parser.add_argument("--data", required=True, help="directories of self-written text, separated by commas")
    parser.add_argument("--positions", type=int, default=1000, help="positions drafted from in each band")
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    loaded = common.load(arguments.model, arguments.threads)
    texts = JoinedSequences([open_written(Path(each), loaded.identity) for each in arguments.data.split(",")])
    rows, count = [], 0
    for directory in map(Path, arguments.heads.split(",")):
        heads = common.heads_for(loaded, directory)
        count = heads.shape.count
        places = choose_places(texts, range(len(texts.facts)), count, arguments.positions, 0)
        acceptance = Acceptance(count)
        done = replay(
            heads,
            HeadsOutput(loaded.model, heads),
            texts,
            places,
            loaded.identity.vocab_size,
            loaded.eos_ids,
            acceptance,
        )
        for _ in tqdm(done, total=len(places), disable=not sys.stderr.isatty()):
            pass
        for name, chains in acceptance.named():
            for mode, chain in chains.items():
                rows.append(
                    [directory.name, heads.shape.variant, name, mode, str(chain.chains)]
                    + [f"{chain.length:.2f} ± {chain.error:.2f}"]
                    + [common.number(rate) for rate in chain.rates]
                )
    head = ["heads", "variant", "positions", "noise", "drafts", "acceptance length"]
    common.table([*head, *(f"head {number}" for number in range(1, count + 1))], rows)


if __name__ == "__main__":
    main()
