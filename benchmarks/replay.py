"""What the tables (suffix automaton, n-grams) are worth on a text that is there already, without its model.

    python benchmarks/replay.py runs/100k --row-costs 0.05,0.1,0.2

Every step drafts, plans and learns as in a run, the text itself tells what was right, and a row costs what is
asked for instead of what a machine takes. So the planner's promises can be held against what came of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import common
import numpy as np

from tokenswift_cli.engine.drafters.ngram import NgramDrafter
from tokenswift_cli.engine.drafters.suffix import SuffixDrafter
from tokenswift_cli.engine.planner import SpeedPlanner
from tokenswift_cli.engine.settings import DraftingSettings

_TIMED_ROWS = (1, 2, 4, 8, 16)


class Outcome(NamedTuple):
    """Of one replay; the counts are of steps with a draft.

    Attributes:
        gain: tokens per plain step's time.
        steps: of all.
        drafted: steps with a draft.
        nodes: verified drafted tokens.
        promised: accepted tokens, as the planner estimated them.
        accepted: accepted tokens.
    """

    gain: float
    steps: int
    drafted: int
    nodes: int
    promised: float
    accepted: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--first", type=int, default=0, help="tokens of the run to leave out")
    parser.add_argument("--tokens", type=int, default=5000, help="tokens to replay")
    parser.add_argument("--row-costs", default="0.05,0.1,0.2", help="of one more row, in plain steps")
    arguments = parser.parse_args()
    text: list[int] = np.fromfile(arguments.run / "tokens.bin", dtype="<u4").tolist()
    text = text[arguments.first : arguments.first + arguments.tokens]
    head = ["row costs", "tokens per plain step", "steps drafted %", "nodes", "promised", "accepted"]
    rows = []
    for row_cost in map(float, arguments.row_costs.split(",")):
        done = replay(text, row_cost)
        drafted = max(done.drafted, 1)
        rows.append(
            [
                f"{row_cost:g}",
                f"{done.gain:.2f}",
                f"{100 * done.drafted / done.steps:.0f}",
                *(f"{total / drafted:.2f}" for total in (done.nodes, done.promised, done.accepted)),
            ]
        )
    common.table(head, rows)


def replay(text: list[int], row_cost: float) -> Outcome:
    """Write ``text`` again, a row more costing ``row_cost`` plain steps."""
    settings = DraftingSettings()
    planner = SpeedPlanner(settings.max_nodes, may_skip=True)
    for rows in _TIMED_ROWS:
        planner.costs.observe(rows, 1 + row_cost * (rows - 1))
    drafters = (
        SuffixDrafter(settings.suffix_max_draft),
        NgramDrafter(settings.ngram_size, settings.ngram_candidates),
    )
    for drafter in drafters:
        drafter.extend(text[:1])
    place, seconds, steps, drafted, nodes, promised, accepted = 1, 0.0, 0, 0, 0, 0.0, 0
    while place < len(text):
        drafts = [draft for drafter in drafters for draft in drafter.propose()]
        tree = planner.plan(text[place - 1], drafts, 0)
        committed: list[int] = []
        node: int | None = 0
        while node is not None and place + len(committed) < len(text):
            committed.append(text[place + len(committed)])
            node = tree.children[node].get(committed[-1])
        cost = 1 + row_cost * (len(tree) - 1)
        planner.learn(drafts, committed)
        planner.record(tree, 0, len(committed), cost)
        for drafter in drafters:
            drafter.extend(committed)
        place += len(committed)
        seconds += cost
        steps += 1
        if len(tree) > 1:
            drafted += 1
            nodes += len(tree) - 1
            promised += sum(tree.reach[1:])
            accepted += len(committed) - 1
    return Outcome((len(text) - 1) / seconds, steps, drafted, nodes, promised, accepted)


if __name__ == "__main__":
    main()
