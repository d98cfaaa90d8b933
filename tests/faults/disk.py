"""A disk that is full or read-only, before a run and in the middle of it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from . import mounts
from .durable_state import lost_tokens, require_durable
from .instants import DECODE, Instants
from .outcomes import SAME_TEXT, Case, Outcome, require, require_in_time
from .process import Ended, RunProcess
from .subject import Reference, Subject

FULL_BEFORE = "disk full before the start"
FULL_AMID = "disk full in the middle"
READ_ONLY_BEFORE = "directory read-only before the start"
READ_ONLY_AMID = "directory read-only in the middle"

_FULL = "the disk is full"
_READ_ONLY = "the file system is read-only"
_DISK = "96m"
_LARGER_DISK = "192m"


def cases(subject: Subject, reference: Reference, rounds: int, generator: random.Random) -> list[Case]:
    """Both faults at both times; those in the middle ``rounds`` times."""
    reason = mounts.reason_not_to_mount()
    if reason is not None:
        faults = (FULL_BEFORE, FULL_AMID, READ_ONLY_BEFORE, READ_ONLY_AMID)
        return [Case(fault, partial(_skip, fault, reason)) for fault in faults]
    found = [
        Case(FULL_BEFORE, partial(_full_before, subject, reference)),
        Case(READ_ONLY_BEFORE, partial(_read_only_before, subject, reference)),
    ]
    for _ in range(rounds):
        for fault, work in ((FULL_AMID, _full_amid), (READ_ONLY_AMID, _read_only_amid)):
            instants = Instants(subject, reference, random.Random(generator.random()))
            found.append(Case(fault, partial(work, subject, instants)))
    return found


def _skip(fault: str, reason: str) -> list[Outcome]:
    return [Outcome(fault, f"skipped: {reason}", state="skipped")]


def _full_before(subject: Subject, reference: Reference) -> list[Outcome]:
    with mounts.small_disk(subject.new_folder() / "disk", "64k") as disk:
        run_dir = disk / "run"
        _require_not_begun(subject.generate(run_dir), run_dir, "of disk")
        mounts.grow(disk, _DISK)
        _write_whole(subject, reference, run_dir)
    return [Outcome(FULL_BEFORE, "exit 1 with the figures, nothing made; same text when there is room")]


def _read_only_before(subject: Subject, reference: Reference) -> list[Outcome]:
    folder = subject.new_folder()
    run_dir = folder / "run"
    with mounts.read_only(folder):
        _require_not_begun(subject.generate(run_dir), run_dir, _READ_ONLY)
    _write_whole(subject, reference, run_dir)
    return [Outcome(READ_ONLY_BEFORE, "exit 1 with the cause, nothing made; same text when it is writable")]


def _require_not_begun(started: RunProcess, run_dir: Path, words: str) -> None:
    with started as process:
        process.end().require_refusal([1], words)
    require(not run_dir.exists(), "a run that could not begin left a directory")


def _write_whole(subject: Subject, reference: Reference, run_dir: Path) -> None:
    with subject.generate(run_dir) as process:
        ended = process.end()
    require(ended.code == 0, f"exit {ended.code} once the cause was gone: {' '.join(ended.messages)}")
    subject.require_same_text(run_dir, reference)


def _full_amid(subject: Subject, instants: Instants) -> list[Outcome]:
    with mounts.small_disk(subject.new_folder() / "disk", _DISK) as disk:
        run_dir = disk / "run"
        ended = _strike(subject, instants, run_dir, lambda: mounts.fill(disk))
        kept, lost = _kept_and_lost(ended, run_dir, instants.reference, _FULL)
        with subject.resume(run_dir) as process:  # still full: told again, nothing damaged
            process.end().require_refusal([1], "disk")
        mounts.grow(disk, _LARGER_DISK)
        subject.finish(run_dir, instants.reference, kept)
    return [Outcome(FULL_AMID, f"exit 1 with the cause; {SAME_TEXT} when there is room", lost)]


def _read_only_amid(subject: Subject, instants: Instants) -> list[Outcome]:
    folder = subject.new_folder()
    run_dir = folder / "run"
    with ExitStack() as stack:
        ended = _strike(subject, instants, run_dir, lambda: stack.enter_context(mounts.read_only(folder)))
        kept, lost = _kept_and_lost(ended, run_dir, instants.reference, _READ_ONLY)
        with subject.resume(run_dir) as process:
            process.end().require_refusal([1], _READ_ONLY)
    subject.finish(run_dir, instants.reference, kept)
    return [Outcome(READ_ONLY_AMID, f"exit 1 with the cause; {SAME_TEXT} when it is writable", lost)]


def _strike(subject: Subject, instants: Instants, run_dir: Path, strike: Callable[[], object]) -> Ended:
    """Run, let ``strike`` happen while it decodes, and wait for the end.

    The process is held still meanwhile, so that a slow ``strike`` does not come after the end of the text.
    """
    with subject.generate(run_dir) as process:
        require_in_time(instants.wait_for(DECODE, process, run_dir), "the run was over before the fault")
        process.send(signal.SIGSTOP)
        strike()
        process.send(signal.SIGCONT)
        return process.end()


def _kept_and_lost(ended: Ended, run_dir: Path, reference: Reference, cause: str) -> tuple[int, int]:
    """Tokens saved, and tokens shown and not saved; what was told must agree with what is on the disk."""
    told = ended.require_refusal([1], cause)
    require(f"tokenswift resume {run_dir}" in told, f"no resume command in {told!r}")
    kept = require_durable(run_dir, reference, ended.durable_tokens) or 0
    require(f"the first {kept} tokens are safe" in told, f"{kept} tokens are saved, told was {told!r}")
    return kept, lost_tokens(ended, reference, 0, kept)
