"""Ctrl-C and SIGTERM in every part of a run: a tidy end, its exit status, and the same text afterwards."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .durable_state import lost_tokens, require_durable
from .instants import CHECKPOINT, DECODE, LOAD, PREFILL, Instants
from .outcomes import SAME_TEXT, Case, Outcome, require, require_in_time
from .process import Ended
from .subject import Reference, Subject

_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
_PLACES = {
    LOAD: "while the model loads",
    PREFILL: "in prefill",
    DECODE: "in decoding",
    CHECKPOINT: "in a checkpoint",
}


def cases(subject: Subject, reference: Reference, rounds: int, generator: random.Random) -> list[Case]:
    """Each signal in each phase, and then one upon the other, ``rounds`` times each."""
    found = []
    for _ in range(rounds):
        for phase, place in _PLACES.items():
            for number in _EXIT_CODES:
                instants = Instants(subject, reference, random.Random(generator.random()))
                fault = f"{number.name} {place}"
                found.append(Case(fault, partial(_ask, fault, subject, instants, phase, number)))
        for phase in (DECODE, CHECKPOINT):
            instants = Instants(subject, reference, random.Random(generator.random()))
            fault = f"SIGINT and at once SIGTERM {_PLACES[phase]}"
            found.append(Case(fault, partial(_insist, fault, subject, instants, phase)))
    return found


def _ask(
    fault: str, subject: Subject, instants: Instants, phase: str, number: signal.Signals
) -> list[Outcome]:
    """One signal: the run ends tidily, and nothing is lost."""
    run_dir = subject.new_folder() / "run"
    ended = _signalled(subject, instants, phase, run_dir, [number])
    code = _EXIT_CODES[number]
    require(ended.code == code, f"exit {ended.code} instead of {code}: {' '.join(ended.messages)}")
    if not ended.named("run_started"):
        require(not run_dir.exists(), "a run that had not begun left a directory")
        result = f"exit {code}, nothing made"
    else:
        kept = require_durable(run_dir, instants.reference, ended.durable_tokens) or 0
        _require_tidy(ended, kept)
        lost = lost_tokens(ended, instants.reference, 0, kept)
        require(lost == 0, f"{lost} tokens lost after a tidy end")
        subject.finish(run_dir, instants.reference, kept)
        result = f"exit {code}; {SAME_TEXT}"
    shutil.rmtree(run_dir.parent)
    return [Outcome(fault, result, 0)]


def _insist(fault: str, subject: Subject, instants: Instants, phase: str) -> list[Outcome]:
    """A second signal on the heels of the first: the run ends at once, unless it was tidy by then.

    Another signal than the first: two of the same may reach the process as one.
    """
    run_dir = subject.new_folder() / "run"
    ended = _signalled(subject, instants, phase, run_dir, [signal.SIGINT, signal.SIGTERM])
    require(ended.code in _EXIT_CODES.values(), f"exit {ended.code}: {' '.join(ended.messages)}")
    kept = require_durable(run_dir, instants.reference, ended.durable_tokens) or 0
    lost = lost_tokens(ended, instants.reference, 0, kept)
    subject.require_bounded(lost)
    subject.finish(run_dir, instants.reference, kept)
    shutil.rmtree(run_dir.parent)
    return [Outcome(fault, f"exit {ended.code}; {SAME_TEXT}", lost)]


def _signalled(
    subject: Subject, instants: Instants, phase: str, run_dir: Path, numbers: Sequence[signal.Signals]
) -> Ended:
    with subject.generate(run_dir) as process:
        hit = instants.wait_for(phase, process, run_dir, handled=True)
        for number in numbers:
            process.send(number)
        ended = process.end()
    require_in_time(hit, "the run was over before the signal")
    ended.require_no_traceback()
    return ended


def _require_tidy(ended: Ended, kept: int) -> None:
    """The last event says that it was interrupted, what is saved and how to go on."""
    last = ended.events[-1]
    require(last.name == "run_finished", f"the last event is {last.name}")
    fields = last.fields
    require(fields["finish_reason"] == "interrupted", f"finish reason {fields['finish_reason']}")
    require(fields["tokens"] == kept, f"{fields['tokens']} tokens reported, {kept} saved")
    require(str(fields["resume_command"]).startswith("tokenswift resume "), "no resume command")
