"""What is recorded about finished heads: in their directory, and in the work directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from tokenswift_cli.disk_errors import telling
from tokenswift_cli.durable import atomic_write
from tokenswift_cli.models.heads import DraftHeads
from tokenswift_cli.models.heads_directory import save_heads
from tokenswift_cli.training.card import heads_card
from tokenswift_cli.training.evaluate import Acceptance
from tokenswift_cli.training.measures import Measures
from tokenswift_cli.training.request import FINISHED, WORK_AGAIN, read_finished
from tokenswift_cli.training.rules import TRAINING_TABLE
from tokenswift_cli.training.sequences import Sequences, Split
from tokenswift_cli.training.session import Session
from tokenswift_cli.training.trainer import Trainer

_SETTINGS = ("heads.", "training.", "sampling.")


def training_record(
    session: Session,
    trainer: Trainer,
    heads: DraftHeads,
    sequences: Sequences,
    split: Split,
    acceptance: Acceptance,
) -> dict[str, Any]:
    """Data, settings, losses and acceptance, for ``config.json`` and the card."""
    facts = [sequences.facts[index] for index in split.train]
    written = sum(each.seed is not None for each in facts)
    source = "from text files and written by the model itself"
    if written in (0, len(facts)):
        source = "written by the model itself" if written else "from text files"
    vocabulary = heads.draft_vocabulary
    return {
        "model": session.loaded.name,
        "architecture": session.loaded.identity.architecture,
        "data": {
            "tokens": sum(each.length for each in facts),
            "sequences": len(split.train),
            "held_out_sequences": len(split.held_out),
            "source": source,
        },
        "settings": {
            path: value
            for path, value in TRAINING_TABLE.flatten(session.config).items()
            if path.startswith(_SETTINGS)
        },
        "draft_vocabulary_size": None if vocabulary is None else len(vocabulary),
        "steps": trainer.step,
        "epochs": round(trainer.epochs, 3),
        "seconds": round(trainer.seconds, 1),
        "loss": _measured(trainer.trained),
        "held_out_loss": _measured(trainer.measured),
        "acceptance": acceptance.to_json(),
    }


def save_finished(
    session: Session, heads: DraftHeads, training: Mapping[str, Any], facts: Mapping[str, object]
) -> None:
    """Write the heads directory, then the note that these heads are done.

    Raises:
        HeadsError, RunDirectoryError: the disk refuses.
    """
    output, work = session.request.output, session.request.work
    assert output is not None
    count = session.config.heads.count
    save_heads(
        output,
        heads,
        session.loaded.identity,
        card=heads_card(training, count),
        training=training,
        dtype=getattr(torch, session.config.heads.dtype),
        replace=session.request.overwrite,
    )
    record = {"output": str(output.absolute()), "facts": dict(facts), "training": training}
    with telling(work, WORK_AGAIN):
        atomic_write(work / FINISHED, json.dumps(record, indent=2).encode())


def finished_training(session: Session, facts: Mapping[str, object]) -> Mapping[str, Any] | None:
    """The record of these very heads, if they are done and in their place."""
    output, record = session.request.output, read_finished(session.request.work)
    if session.request.restart or record is None or output is None or not output.is_dir():
        return None
    # By way of JSON, as the record came.
    wanted = json.loads(json.dumps(dict(facts)))
    if record.get("output") != str(output.absolute()) or record.get("facts") != wanted:
        return None
    training = record.get("training")
    return training if isinstance(training, dict) else None


def _measured(measures: Measures | None) -> dict[str, list[float]] | None:
    if measures is None:
        return None
    return {
        "losses": [round(loss, 4) for loss in measures.losses],
        "top1": [round(share, 4) for share in measures.top1_shares],
        "top3": [round(share, 4) for share in measures.top3_shares],
    }
