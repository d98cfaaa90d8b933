"""``python -m tests.faults``: do all faults, print the table; exit status 1 when any failed."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The tests share their helpers as top-level modules, as pytest has it.
sys.path.insert(0, str(Path(__file__).parent.parent))

from . import clock, damage, disk, killing, signals, writers
from .outcomes import Case, Outcome, table
from .subject import TINY, Reference, Subject, make_subject, measure_reference

KINDS: Mapping[str, Callable[[Subject, Reference, int, random.Random], list[Case]]] = {
    "kill": killing.cases,
    "signals": signals.cases,
    "disk": disk.cases,
    "damage": damage.cases,
    "writers": writers.cases,
    "clock": clock.cases,
}
# Every fault but the kills is done once for so many kills.
_KILLS_PER_ROUND = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments``, do the faults, print the table on standard output; returns the exit status."""
    options = _parser().parse_args(arguments)
    # A shell makes what it starts in the background ignore Ctrl-C, and our runs would inherit that.
    # After either signal the rounds under way come to their end: no process, mount or folder stays behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tokenswift-faults-") as folder:
        subject = make_subject(Path(folder), options.model, options.seed)
        reference = measure_reference(subject)
        found = _cases(subject, reference, options.only or list(KINDS), options.rounds, options.seed)
        outcomes = _do(found, options.jobs)
    print(table(outcomes))
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"{len(outcomes)} rounds, {failed} failed, {minutes} min {seconds} s", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=_positive, default=50, help="kills; of each other fault a fiftieth")
    parser.add_argument("--seed", type=int, default=0, help="of the instants and of the text")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="may be given more than once")
    parser.add_argument("--model", default=TINY, help="as of generate --model; a tiny random one by default")
    parser.add_argument("--jobs", type=_positive, default=_cores(), help="faults done at the same time")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cases(
    subject: Subject, reference: Reference, kinds: Sequence[str], rounds: int, seed: int
) -> list[Case]:
    found: list[Case] = []
    for kind in kinds:
        own_rounds = rounds if kind == "kill" else max(1, rounds // _KILLS_PER_ROUND)
        # A generator for each kind: --only gives the instants that it has among all.
        found += KINDS[kind](subject, reference, own_rounds, random.Random(f"{kind} {seed}"))
    return found


def _do(found: Sequence[Case], jobs: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(jobs) as pool:
        for number, done in enumerate(pool.map(Case.outcomes, found), 1):
            for outcome in done:
                progress = f"[{number}/{len(found)}]"
                print(f"{progress} {outcome.fault}: {outcome.result}", file=sys.stderr, flush=True)
            outcomes += done
    return outcomes


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
