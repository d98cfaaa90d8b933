"""Everything that heads learn from, as numbered sequences with hidden states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tokenswift_cli.disk_errors import telling
from tokenswift_cli.training.hidden_states import HiddenStates
from tokenswift_cli.training.progress import Progress
from tokenswift_cli.training.request import WORK_AGAIN, WRITTEN_TEXT
from tokenswift_cli.training.sequences import (
    JoinedSequences,
    Sequences,
    ShardSequences,
    TextSequences,
    check_sequences,
    sequences_digest,
)
from tokenswift_cli.training.session import Session
from tokenswift_cli.training.shards import Shard, shard_path, write_shard
from tokenswift_cli.training.text_data import cut_documents
from tokenswift_cli.training.written_text import open_written, require_positions


def gather(session: Session, states: HiddenStates) -> Sequences:
    """All sequences of the request: directories, self-written text, text files, in this order.

    Raises:
        TrainingDataError: something does not fit the model or the heads.
        Interrupted: a stop came while hidden states were being stored.
    """
    loaded, data, heads = session.loaded, session.config.data, session.config.heads.count
    directories = list(session.materials.found.directories)
    if session.request.self_distill:
        directories.append(session.request.work / WRITTEN_TEXT)
    parts: list[Sequences] = [open_written(directory, loaded.identity) for directory in directories]
    documents = session.materials.found.documents
    if documents:
        pieces, notices = cut_documents(documents, loaded.tokenizer, data.sequence_tokens, heads)
        for notice in notices:
            session.say(notice)
        require_positions(loaded, max(len(ids) for ids, _ in pieces), "a sequence of the text")
        text = TextSequences(pieces, states)
        check_sequences(text, session.vocabulary_size, heads)
        parts.append(_stored(session, text) if data.cache_hidden else text)
    sequences = parts[0] if len(parts) == 1 else JoinedSequences(parts)
    check_sequences(sequences, session.vocabulary_size, heads)
    return sequences


def frequent_tokens(
    sequences: Sequences, chosen: Sequence[int], size: int, vocabulary_size: int
) -> Tensor | None:
    """The ``size`` most frequent ids behind the prompts of the chosen sequences, ascending; None for all ids.

    Equally frequent ids come in their own order.
    """
    if not 0 < size < vocabulary_size:
        return None
    counts = torch.zeros(vocabulary_size, dtype=torch.int64)
    for index in chosen:
        tokens = sequences.tokens(index)[sequences.facts[index].prompt_length :]
        counts += torch.bincount(tokens, minlength=vocabulary_size)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def _stored(session: Session, text: TextSequences) -> ShardSequences:
    """``text`` with its hidden states on disk, computed where they are missing."""
    # Named by what it holds, so that other text or another model never meets it.
    content = sequences_digest(text) + json.dumps(session.loaded.identity.to_json(), sort_keys=True)
    name = f"hidden-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    directory: Path = session.request.work / name
    count = len(text.facts)
    missing = [index for index in range(count) if not shard_path(directory, index).exists()]
    with (
        Progress(
            "reading text", count, "sequences", done=count - len(missing), quiet=session.quiet
        ) as progress,
        telling(directory, WORK_AGAIN),
    ):
        directory.mkdir(parents=True, exist_ok=True)
        for done, index in enumerate(missing, start=count - len(missing) + 1):
            tokens = text.tokens(index)
            shard = Shard(
                tokens=tokens[None],
                hidden=_short(text.hidden(index, 0, len(tokens)))[None],
                prompt_lengths=torch.zeros(1, dtype=torch.int32),
                seeds=torch.full((1,), -1),
            )
            write_shard(shard_path(directory, index), shard)
            progress.to(done)
            session.go_on()
    return ShardSequences(directory, None)


def _short(hidden: Tensor) -> Tensor:
    """float16 where the values fit, for half the space; as they are otherwise."""
    half = hidden.to(torch.float16)
    return (half if bool(torch.isfinite(half).all()) else hidden.float()).cpu()
