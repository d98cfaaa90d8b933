"""The clock of the machine is set back, or forward, while a run goes on."""

from __future__ import annotations

import json
import random
import shutil
import signal
from datetime import datetime
from functools import partial

from .clock_shim import Clock
from .instants import DECODE, Instants
from .outcomes import SAME_TEXT, Case, Outcome, require, require_in_time
from .subject import Reference, Subject

_DAY = 86400.0
_STEPS = {"clock set back by a day in decoding": -_DAY, "clock set forward by a year in decoding": 365 * _DAY}


def cases(subject: Subject, reference: Reference, rounds: int, generator: random.Random) -> list[Case]:
    """Each step of the clock, ``rounds`` times."""
    found = []
    for fault, seconds in _STEPS.items():
        for _ in range(rounds):
            instants = Instants(subject, reference, random.Random(generator.random()))
            found.append(Case(fault, partial(_step, fault, seconds, subject, instants)))
    return found


def _step(fault: str, seconds: float, subject: Subject, instants: Instants) -> list[Outcome]:
    """The clock steps twice: while the run writes, and back between its interruption and the resume."""
    folder = subject.new_folder()
    run_dir, clock = folder / "run", Clock(folder / "clock")
    with subject.generate(run_dir, environment=clock.environment) as process:
        require_in_time(process.wait_for("checkpoint_saved"), "the run was over before the clock was set")
        clock.step(seconds)
        # Two more: of a checkpoint that was under way, the time may have been taken before.
        process.wait_for("checkpoint_saved", 4)
        require_in_time(
            instants.wait_for(DECODE, process, run_dir), "the run was over before it was interrupted"
        )
        process.send(signal.SIGTERM)
        ended = process.end()
    require(ended.code == 143, f"exit {ended.code}: {' '.join(ended.messages)}")
    times = [_time(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="ascii").splitlines()]
    moved = (times[-1] - times[0]).total_seconds()
    require(abs(moved - seconds) < _DAY / 2, f"the clock was not set: {times[0]} to {times[-1]}")
    subject.finish(run_dir, instants.reference, ended.durable_tokens)
    shutil.rmtree(folder)
    return [Outcome(fault, SAME_TEXT, 0)]


def _time(line: str) -> datetime:
    return datetime.fromisoformat(json.loads(line)["time"])
