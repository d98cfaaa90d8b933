"""``kill -9`` at random instants: the run is taken up again, killed again, and ends with the same text."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .durable_state import lost_tokens, require_durable
from .instants import CHECKPOINT, CREATION, DECODE, LOAD, PREFILL, Instants
from .outcomes import SAME_TEXT, Case, Outcome, require, require_in_time
from .process import Ended
from .subject import Reference, Subject

KILLS_PER_TEXT = 5
_FAULTS = {
    LOAD: "kill -9 while the model loads",
    CREATION: "kill -9 while the run directory is made",
    PREFILL: "kill -9 in prefill",
    DECODE: "kill -9 in decoding",
    CHECKPOINT: "kill -9 in a checkpoint",
}
# Of ten kills: most where there is most to lose.
_MIXTURE = (DECODE, CHECKPOINT, LOAD, DECODE, CHECKPOINT, PREFILL, CREATION, CHECKPOINT, DECODE, PREFILL)


def cases(subject: Subject, reference: Reference, rounds: int, generator: random.Random) -> list[Case]:
    """``rounds`` kills, a few to each text."""
    phases = [_MIXTURE[number % len(_MIXTURE)] for number in range(rounds)]
    generator.shuffle(phases)
    # Creation can only be hit before anything else was: it is dealt out first, one to a text.
    phases.sort(key=lambda phase: phase != CREATION)
    texts = -(-rounds // KILLS_PER_TEXT)
    found = []
    for number in range(texts):
        killing = _Killing(subject, reference, random.Random(generator.random()))
        found.append(Case("kill -9", partial(killing.write, phases[number::texts])))
    return found


class _Killing:
    """Kills over the writing of texts."""

    def __init__(self, subject: Subject, reference: Reference, generator: random.Random) -> None:
        self._subject = subject
        self._reference = reference
        self._instants = Instants(subject, reference, generator)

    def write(self, phases: Sequence[str]) -> list[Outcome]:
        """Kill in each of ``phases``, then let the run end. A text that ends before is begun anew."""
        outcomes: list[Outcome] = []
        left = list(phases)
        while left or not outcomes:
            run_dir = self._subject.new_folder() / "run"
            done, kept = self._kill_in_turn(run_dir, left)
            require_in_time(bool(done), "the run was over before it was killed")
            outcomes += done
            left = left[len(done) :]
            if not run_dir.exists():
                with self._subject.generate(run_dir) as process:
                    require(process.end().code == 0, "a run begun anew failed")
                self._subject.require_same_text(run_dir, self._reference)
            else:
                self._subject.finish(run_dir, self._reference, kept)
            shutil.rmtree(run_dir.parent)
        return outcomes

    def _kill_in_turn(self, run_dir: Path, phases: Sequence[str]) -> tuple[list[Outcome], int]:
        """Outcomes of the kills that came before the end of the text, and the tokens on the disk then."""
        outcomes: list[Outcome] = []
        kept = 0
        for phase in phases:
            began = run_dir.exists()
            start = self._subject.resume if began else self._subject.generate
            with start(run_dir) as process:
                self._instants.wait_for(phase, process, run_dir, kept if began else None)
                process.send(signal.SIGKILL)
                ended = process.end()
            if ended.code == 0:
                return outcomes, self._subject.max_tokens
            require(ended.code == -signal.SIGKILL, f"exit {ended.code}: {' '.join(ended.messages)}")
            restored = ended.resumed_tokens
            require(restored in (-1, kept), f"{kept} tokens were saved, {restored} restored")
            durable = require_durable(run_dir, self._reference, max(kept, ended.durable_tokens))
            outcomes.append(self._outcome(phase, run_dir, ended, kept, durable))
            kept = durable or 0
        return outcomes, kept

    def _outcome(self, phase: str, run_dir: Path, ended: Ended, began_with: int, kept: int | None) -> Outcome:
        """Of one kill, by the tokens on the disk before and after the session; None before it was a run."""
        if kept is None:
            if run_dir.exists():
                self._require_told(run_dir)
                shutil.rmtree(run_dir)
            return Outcome(_FAULTS[phase], "nothing made yet, begun anew, same text", 0)
        lost = lost_tokens(ended, self._reference, began_with, kept)
        self._subject.require_bounded(lost)
        return Outcome(_FAULTS[phase], SAME_TEXT, lost)

    def _require_told(self, run_dir: Path) -> None:
        """A directory that was not finished is no run, and resume says so."""
        with self._subject.resume(run_dir) as process:
            process.end().require_refusal((2, 3), str(run_dir))
