"""Two processes that want the same run directory."""

from __future__ import annotations

import random
import shutil
import signal
from functools import partial
from pathlib import Path

from . import clock_shim
from .durable_state import require_durable
from .instants import DECODE, Instants
from .outcomes import SAME_TEXT, Case, Outcome, require, require_in_time
from .process import Ended, RunProcess
from .subject import Reference, Subject

SECOND_RESUME = "second writer: resume of a live run"
SECOND_GENERATE = "second writer: generate into a live run"
SECOND_OF_RESUMED = "second writer: resume of a run that is being resumed"
BOTH_RESUME = "two resumes at the same moment"
SAME_SECOND = "two runs begun in the same second"


def cases(subject: Subject, reference: Reference, rounds: int, generator: random.Random) -> list[Case]:
    """Each pair of commands, ``rounds`` times."""
    found = []
    for _ in range(rounds):
        instants = Instants(subject, reference, random.Random(generator.random()))
        for fault, work in (
            (SECOND_RESUME, _second_resume),
            (SECOND_GENERATE, _second_generate),
            (SECOND_OF_RESUMED, _second_of_resumed),
            (BOTH_RESUME, _both_resume),
            (SAME_SECOND, _same_second),
        ):
            found.append(Case(fault, partial(work, subject, instants)))
    return found


def _second_resume(subject: Subject, instants: Instants) -> list[Outcome]:
    return _refused(SECOND_RESUME, subject, instants, resumed=False, second="resume")


def _second_generate(subject: Subject, instants: Instants) -> list[Outcome]:
    return _refused(SECOND_GENERATE, subject, instants, resumed=False, second="generate")


def _second_of_resumed(subject: Subject, instants: Instants) -> list[Outcome]:
    return _refused(SECOND_OF_RESUMED, subject, instants, resumed=True, second="resume")


def _refused(
    fault: str, subject: Subject, instants: Instants, *, resumed: bool, second: str
) -> list[Outcome]:
    """The second process is told so and the first one writes on."""
    run_dir = subject.new_folder() / "run"
    tokens = _killed_run(subject, instants, run_dir) if resumed else None
    first = subject.resume(run_dir) if resumed else subject.generate(run_dir)
    with first as process:
        require_in_time(instants.wait_for(DECODE, process, run_dir, tokens), "the first run was over")
        # Held still, so that it is not over before the second has been refused.
        process.send(signal.SIGSTOP)
        with subject.resume(run_dir) if second == "resume" else subject.generate(run_dir) as other:
            ended = other.end()
        if second == "resume":
            ended.require_refusal([1], f"process {process.pid}")
        else:
            ended.require_refusal([2], "holds a run already")
        process.send(signal.SIGCONT)
        require(process.end().code == 0, "the first run failed")
    subject.require_same_text(run_dir, instants.reference)
    shutil.rmtree(run_dir.parent)
    return [Outcome(fault, f"refused, exit {ended.code}; the first {SAME_TEXT}", 0)]


def _killed_run(subject: Subject, instants: Instants, run_dir: Path) -> int:
    """Leave a run that was killed; returns the tokens that are on the disk."""
    with subject.generate(run_dir) as process:
        require_in_time(instants.wait_for(DECODE, process, run_dir), "the run was over")
        process.send(signal.SIGKILL)
        ended = process.end()
    return require_durable(run_dir, instants.reference, ended.durable_tokens) or 0


def _both_resume(subject: Subject, instants: Instants) -> list[Outcome]:
    run_dir = subject.new_folder() / "run"
    _killed_run(subject, instants, run_dir)
    with subject.resume(run_dir) as one, subject.resume(run_dir) as other:
        ends = [one.end(), other.end()]
    ends.sort(key=lambda ended: ended.code)
    winner, loser = ends
    require(winner.code == 0, f"nobody wrote: {' '.join(winner.messages)}")
    if loser.code:
        loser.require_refusal([1], "is in use by process")
        result = f"one refused, exit 1; the other {SAME_TEXT}"
    else:  # it came when the first was through
        require(loser.resumed_tokens == -1, "both wrote")
        result = f"one after the other, {SAME_TEXT}"
    subject.require_same_text(run_dir, instants.reference)
    shutil.rmtree(run_dir.parent)
    return [Outcome(BOTH_RESUME, result, 0)]


def _same_second(subject: Subject, instants: Instants) -> list[Outcome]:
    """Nobody named a directory, and for both it is the same moment."""
    folder = subject.new_folder()
    clock = clock_shim.Clock(folder / "clock")
    clock.stop_at(1_900_000_000)
    with _nameless(subject, folder, clock) as one, _nameless(subject, folder, clock) as other:
        ends = [one.end(), other.end()]
    for ended in ends:
        require(ended.code == 0, f"exit {ended.code}: {' '.join(ended.messages)}")
    places = {_place(folder, ended) for ended in ends}
    require(len(places) == 2, f"one directory for both: {places}")
    stamp = min(place.name for place in places)
    require(all(place.name.startswith(stamp) for place in places), f"not the same second: {places}")
    for place in places:
        subject.require_same_text(place, instants.reference)
    shutil.rmtree(folder)
    return [Outcome(SAME_SECOND, "two directories, each with the same text", 0)]


def _nameless(subject: Subject, folder: Path, clock: clock_shim.Clock) -> RunProcess:
    return subject.generate(None, cwd=folder, environment=clock.environment)


def _place(folder: Path, ended: Ended) -> Path:
    return folder / str(ended.named("run_started")[0].fields["run_dir"])
