"""Moments in the life of a run, hit from outside: by its events, by what its files look like, by chance."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from .durable_state import tokens_file_size
from .process import RunProcess
from .subject import Reference, Subject

LOAD, CREATION, PREFILL, DECODE, CHECKPOINT = "load", "creation", "prefill", "decode", "checkpoint"

# A checkpoint takes some milliseconds from its first write to the removal of the oldest manifest.
_CHECKPOINT_SECONDS = 0.008
_CREATION_SECONDS = 0.02
_PIECE_SECONDS = 0.003


@dataclass(frozen=True)
class Instants:
    """Waits for moments of a run that takes about as long as the undisturbed one."""

    subject: Subject
    reference: Reference
    generator: random.Random

    def wait_for(
        self,
        phase: str,
        process: RunProcess,
        run_dir: Path,
        tokens: int | None = None,
        *,
        handled: bool = False,
    ) -> bool:
        """Return at a random instant of ``phase``; False if the process ended before.

        Args:
            phase: LOAD, CREATION (the run directory is being made), PREFILL, DECODE or CHECKPOINT.
            process: of the run.
            run_dir: its directory.
            tokens: that it was resumed with; None for a new run.
            handled: not in the first moments of LOAD, before the program could take a signal.
        """
        if phase == LOAD:
            if handled and not process.wait_for("loading"):
                return False
            self._pause(0.9 * self.reference.load_seconds - process.age)
            return True
        if phase == CREATION:
            seen = process.watch(run_dir.exists)
            self._pause(_CREATION_SECONDS)
            return seen
        if phase == PREFILL:
            # From a journal it takes a moment; else it tells of every piece that it has read.
            pieces = max(1, self._up_to(self.reference.prefill_pieces)) if tokens is None else 1
            seen = process.wait_for("prefill_progress", pieces)
            self._pause(_PIECE_SECONDS)
            return seen
        # By its own chunks, not by the clock: another run may be faster than the undisturbed one was.
        saved = self._up_to((self.subject.max_tokens - (tokens or 0)) // self.subject.chunk_tokens)
        seen = process.wait_for("checkpoint_saved", saved) if saved else process.wait_for("text_appended")
        self._pause(self.reference.decode_seconds * self.subject.chunk_tokens / self.subject.max_tokens)
        if phase == CHECKPOINT:
            before = tokens_file_size(run_dir)
            seen = process.watch(lambda: tokens_file_size(run_dir) != before)
            self._pause(_CHECKPOINT_SECONDS)
        return seen

    def _up_to(self, count: int) -> int:
        """A random number of the first two thirds of ``count``."""
        return self.generator.randint(0, count * 2 // 3)

    def _pause(self, longest: float) -> None:
        time.sleep(self.generator.uniform(0, max(longest, 0)))
