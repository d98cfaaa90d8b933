"""Damage to every kind of file in the directory of an interrupted run, and what resume makes of it."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .durable_state import durable_state
from .expected_damage import EXPECTED, GOES_ON, UNWARNED
from .harm import DIRECTORY_HARMS, FILE_HARMS
from .outcomes import SAME_TEXT, Case, Outcome, require
from .process import Ended
from .run_files import file_kinds, fingerprint
from .subject import Reference, Subject


@dataclass(frozen=True)
class _Interrupted:
    """The run that is copied for each case, and the tokens that it holds."""

    run_dir: Path
    tokens: int


def cases(subject: Subject, reference: Reference, rounds: int, generator: random.Random) -> list[Case]:
    """Every harm to every kind of file, ``rounds`` times each."""
    damaging = _Damaging(subject, reference, _interrupt(subject))
    found = []
    for kind, paths in file_kinds(damaging.interrupted.run_dir).items():
        for harm in DIRECTORY_HARMS if paths[0].is_dir() else FILE_HARMS:
            work = partial(damaging.damage, kind, harm)
            fault = _fault(kind, harm)
            found += [Case(fault, partial(work, random.Random(generator.random()))) for _ in range(rounds)]
    return found


def _interrupt(subject: Subject) -> _Interrupted:
    """A run that was stopped with SIGTERM behind the middle of its text."""
    run_dir = subject.new_folder() / "run"
    with subject.generate(run_dir) as process:
        process.wait_for("checkpoint_saved", subject.max_tokens // subject.chunk_tokens // 2)
        process.send(signal.SIGTERM)
        require(process.end().code == 143, "the run to be damaged was not interrupted")
    state = durable_state(run_dir)
    assert state is not None
    return _Interrupted(run_dir, state.tokens)


def _fault(kind: str, harm: str) -> str:
    """The row that ``harm`` belongs to: all harms to the same files that must have the same outcome."""
    expected = EXPECTED.get(kind, {})
    alike = [name for name, codes in expected.items() if codes == expected.get(harm)]
    return f"`{kind}`: {', '.join(alike or [harm])}"


@dataclass(frozen=True)
class _Damaging:
    """Damage to copies of one interrupted run."""

    subject: Subject
    reference: Reference
    interrupted: _Interrupted

    def damage(self, kind: str, harm: str, generator: random.Random) -> list[Outcome]:
        """Do ``harm`` to the files of ``kind`` in a copy, resume it and check what comes of it."""
        folder = self.subject.new_folder()
        run_dir, outside = folder / "run", folder / "outside"
        shutil.copytree(self.interrupted.run_dir, run_dir)
        outside.mkdir()
        for path in file_kinds(run_dir)[kind]:
            FILE_HARMS[harm](path, outside, generator)
        moved, damaged = fingerprint(outside), fingerprint(run_dir)
        with self.subject.resume(run_dir) as process:
            ended = process.end()
        ended.require_no_traceback()
        require(fingerprint(outside) == moved, f"{harm}: resume wrote outside of the run directory")
        codes = EXPECTED.get(kind, {}).get(harm, ())
        require(ended.code in codes, f"{harm}: expected exit {codes or 'unknown'}, got {_seen(ended)}")
        if codes == GOES_ON:
            self.subject.require_same_text(run_dir, self.reference)
            warned = bool(ended.warnings) or (kind, harm) in UNWARNED
            require(warned, f"{harm}: there was no warning")
            outcome = Outcome(_fault(kind, harm), SAME_TEXT, self.interrupted.tokens - ended.resumed_tokens)
        else:
            told = ended.require_refusal(codes, str(run_dir))
            require(".tmp" not in told, f"{harm}: a temporary file is named: {told}")
            require(fingerprint(run_dir) == damaged, f"{harm}: a refused resume changed files; {told}")
            outcome = Outcome(_fault(kind, harm), f"refused, exit {ended.code}")
        shutil.rmtree(folder)
        return [outcome]


def _seen(ended: Ended) -> str:
    told = "; ".join(ended.messages) or "; ".join(ended.warnings)
    return f"exit {ended.code}, {ended.resumed_tokens} tokens restored: {told}"
