"""``train-heads`` from start to end: text, training, measuring, heads on disk. Every phase can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from tokenswift_cli.disk_errors import telling
from tokenswift_cli.durable import make_directory
from tokenswift_cli.errors import ResumeRefusedError, TrainingDataError
from tokenswift_cli.lock import RunLock
from tokenswift_cli.models.heads import DraftHeads, HeadsOutput, new_heads
from tokenswift_cli.models.loading import load_model
from tokenswift_cli.signals import StopRequests
from tokenswift_cli.training.checkpoints import Checkpoints
from tokenswift_cli.training.examples import Examples
from tokenswift_cli.training.hidden_states import HiddenStates
from tokenswift_cli.training.log import TrainingLog
from tokenswift_cli.training.materials import frequent_tokens, gather
from tokenswift_cli.training.measuring import measure_acceptance
from tokenswift_cli.training.progress import Progress
from tokenswift_cli.training.record import finished_training, save_finished, training_record
from tokenswift_cli.training.request import CHECKPOINTS, WORK_AGAIN, Materials, TrainingRequest, check_output
from tokenswift_cli.training.rules import TRAINING_TABLE
from tokenswift_cli.training.sequences import Sequences, Split, sequences_digest, split_sequences
from tokenswift_cli.training.session import Interrupted, Session
from tokenswift_cli.training.trainer import HeldOut, Trainer, state_scale
from tokenswift_cli.training.written_text import write_training_text

_DECIDING: Final = ("heads.", "training.", "data.hold_out", "data.cache_hidden")
# Windows whose hidden states tell their size.
_SCALE_WINDOWS: Final = 8
# They change what is shown and kept on the way, or stand in the facts in another form.
_NOT_DECIDING: Final = (
    "heads.dtype",
    "training.log_every",
    "training.checkpoint_every",
    "training.steps",
    "training.epochs",
)


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Attributes:
        training: the record of the finished heads, see ``record.py``; None if there are none.
        exit_code: of the process; not 0 after a stop.
    """

    training: Mapping[str, Any] | None
    exit_code: int = 0


def train_heads(request: TrainingRequest, materials: Materials, say: Callable[[str], None]) -> Outcome:
    """Carry out a request that :func:`check_request` has passed.

    Args:
        request: what to do.
        materials: what it names.
        say: gets one line per message.

    Raises:
        TokenSwiftError: see the subclasses in errors.py; what was written and checkpointed is kept.
    """
    with StopRequests() as stops:
        with telling(request.work, WORK_AGAIN):
            make_directory(request.work)
            lock = RunLock.acquire(request.work / ".lock")
        with lock:
            loaded = load_model(request.config.model, say)
            stops.defer()
            try:
                return Outcome(_run(Session(request, materials, loaded, stops, say)))
            except Interrupted:
                return Outcome(None, stops.exit_code)


def _run(session: Session) -> Mapping[str, Any] | None:
    """Do what is left to do; the record of the finished heads, None if none were asked for."""
    if session.request.self_distill:
        write_training_text(session)
    if session.request.output is None:
        return None
    session.go_on()
    states = HiddenStates(session.loaded.model)
    sequences = gather(session, states)
    section = session.config.training
    lengths = [facts.length for facts in sequences.facts]
    split = split_sequences(lengths, session.config.data.hold_out, section.seed)
    examples = _examples(session, sequences, split.train)
    if not examples.windows:
        raise TrainingDataError(
            "Nothing is left to learn from: all sequences that are long enough are held out. Give more text, "
            "or data.hold_out: 0."
        )
    steps = section.steps or examples.steps_of(section.epochs)
    facts = _deciding_facts(session, sequences, steps)
    record = finished_training(session, facts)
    if record is not None:
        session.say(f"{session.request.output} holds these heads already.")
        return record
    check_output(session.request, new_heads=True)
    heads = _fresh_heads(session, sequences, split)
    output = HeadsOutput(session.loaded.model, heads)
    held_out = _held_out(session, sequences, split)
    checkpoints = Checkpoints(session.request.work / CHECKPOINTS)
    if session.request.restart:
        checkpoints.clear()
    scale = state_scale(_first_states(examples))
    trainer = Trainer(heads, output, states, examples, section, steps, checkpoints, facts, held_out, scale)
    _train(session, trainer, sequences, split, steps)
    heads.rescale(scale)
    acceptance = measure_acceptance(session, heads, output, sequences, split.held_out)
    training = training_record(session, trainer, heads, sequences, split, acceptance)
    save_finished(session, heads, training, facts)
    return training


def _examples(session: Session, sequences: Sequences, chosen: Sequence[int]) -> Examples:
    section = session.config.training
    return Examples(
        sequences,
        chosen,
        session.config.heads.count,
        window_tokens=section.window_tokens,
        batch_windows=section.batch_windows,
        gradient_accumulation=section.gradient_accumulation,
        seed=section.seed,
    )


def _first_states(examples: Examples) -> Tensor:
    """Hidden states [M, d] of the first batch of windows."""
    return examples.hidden(next(iter(examples.batches(examples.windows[:_SCALE_WINDOWS]))))


def _held_out(session: Session, sequences: Sequences, split: Split) -> HeldOut:
    """Some held-out windows, evenly spread."""
    examples = _examples(session, sequences, split.held_out)
    count = len(examples.windows)
    wanted = min(session.config.evaluation.windows, count)
    return HeldOut(examples, [examples.windows[at * count // wanted] for at in range(wanted)])


def _deciding_facts(session: Session, sequences: Sequences, steps: int) -> dict[str, object]:
    """All that decides the weights, by name."""
    facts: dict[str, object] = {
        path: value
        for path, value in TRAINING_TABLE.flatten(session.config).items()
        if path.startswith(_DECIDING) and path not in _NOT_DECIDING
    }
    facts["training.steps"] = steps
    facts["the training text"] = sequences_digest(sequences)[:12]
    files = json.dumps(sorted(session.loaded.identity.files.items()))
    facts["the model"] = hashlib.sha256(files.encode()).hexdigest()[:12]
    facts["model.dtype"] = session.loaded.identity.dtype
    return facts


def _fresh_heads(session: Session, sequences: Sequences, split: Split) -> DraftHeads:
    section, model = session.config.heads, session.loaded.model
    vocabulary = frequent_tokens(sequences, split.train, section.draft_vocabulary, session.vocabulary_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(session.config.training.seed)
        heads = new_heads(model, section.count, section.variant, vocabulary)
    return heads.to(model.device)


def _train(session: Session, trainer: Trainer, sequences: Sequences, split: Split, steps: int) -> None:
    """Go on from the newest checkpoint to the end.

    Raises:
        Interrupted: a stop came; a checkpoint holds what was learned.
    """
    for message in trainer.restore():
        session.say(message)
    if session.request.resume and not trainer.step:
        raise ResumeRefusedError("There is no checkpoint to go on from. Leave --resume out to begin.")
    if trainer.finished:
        return
    heads, work = session.config.heads, session.request.work
    tokens = sum(sequences.facts[index].length for index in split.train)
    begin = f"Going on from step {trainer.step} of {steps}" if trainer.step else f"Training for {steps} steps"
    session.say(
        f"{begin}: {heads.count} heads ({heads.variant}), {tokens} tokens in {len(split.train)} sequences, "
        f"{len(split.held_out)} held out."
    )
    log = TrainingLog(work, heads.count, trainer.step)
    try:
        with Progress("training", steps, "steps", done=trainer.step, quiet=session.quiet) as progress:
            trainer.run(log, progress, session.stops)
    finally:
        log.close()
    if not trainer.finished:
        raise Interrupted
