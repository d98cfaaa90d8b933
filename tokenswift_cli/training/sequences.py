"""Token sequences and the hidden states that the target has over them, wherever those come from.

Self-written text lies in shards on disk, memory-mapped. Text files are token lists whose hidden states are
computed when they are asked for, or once, into shards of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import TrainingDataError
from tokenswift_cli.training.hidden_states import HiddenStates
from tokenswift_cli.training.shards import Shard, read_shard, shard_paths


@dataclass(frozen=True)
class SequenceFacts:
    """One sequence.

    Attributes:
        length: tokens.
        prompt_length: only the tokens from there on are to be predicted; 0 for text that nobody prompted.
        source: the file, for messages.
        seed: of the noise that chose the tokens, if the target wrote them.
        sampling: how it chose them; its seed is not used.
    """

    length: int
    prompt_length: int
    source: str
    seed: int | None = None
    sampling: SamplingSettings | None = None


class Sequences(Protocol):
    """Numbered token sequences with hidden states."""

    @property
    def facts(self) -> Sequence[SequenceFacts]:
        """One for each sequence."""

    def tokens(self, index: int) -> Tensor:
        """int64 [L]."""

    def hidden(self, index: int, start: int, stop: int) -> Tensor:
        """[stop - start, d]: row t is the state before the final norm after token start + t."""


class TextSequences:
    """Text as token ids; each sequence's hidden states are computed anew when another was asked for between.

    Args:
        sequences: token ids and where they come from.
        states: of the target.
    """

    def __init__(self, sequences: Sequence[tuple[Sequence[int], str]], states: HiddenStates) -> None:
        self._tokens = [torch.tensor(list(ids), dtype=torch.int64) for ids, _ in sequences]
        self.facts = [SequenceFacts(len(ids), 0, source) for ids, source in sequences]
        self._states = states
        self._last: tuple[int, Tensor] | None = None

    def tokens(self, index: int) -> Tensor:
        """See :class:`Sequences`."""
        return self._tokens[index]

    def hidden(self, index: int, start: int, stop: int) -> Tensor:
        """See :class:`Sequences`; in the model's type, on its device."""
        if self._last is None or self._last[0] != index:
            self._last = None  # the memory of the one before is free first
            self._last = (index, self._states.read(self._tokens[index]))
        return self._last[1][start:stop]


class ShardSequences:
    """The sequences of a directory of shards, memory-mapped.

    Args:
        directory: holds shards.
        sampling: how the target wrote them; None for text it did not write.

    Raises:
        TrainingDataError: there are no shards, or one is damaged.
    """

    def __init__(self, directory: Path, sampling: SamplingSettings | None) -> None:
        paths = shard_paths(directory)
        if not paths:
            raise TrainingDataError(
                f"{directory} holds no training text (no batch-*.safetensors). Give a directory that "
                "--self-distill wrote, or text files."
            )
        self.facts: list[SequenceFacts] = []
        self._rows: list[tuple[Shard, int]] = []
        self.widths: set[int] = set()
        for path in paths:
            shard = read_shard(path)
            self.widths.add(shard.hidden.shape[2])
            length = shard.tokens.shape[1]
            for row in range(shard.tokens.shape[0]):
                prompt_length, seed = int(shard.prompt_lengths[row]), int(shard.seeds[row])
                if not 0 <= prompt_length <= length:
                    raise TrainingDataError(
                        f"{path} has a prompt of {prompt_length} tokens in a text of {length}. "
                        "Delete the file; it is written anew."
                    )
                self._rows.append((shard, row))
                self.facts.append(
                    SequenceFacts(
                        length,
                        prompt_length if sampling else 0,
                        str(path),
                        seed if sampling else None,
                        sampling,
                    )
                )

    def tokens(self, index: int) -> Tensor:
        """See :class:`Sequences`."""
        shard, row = self._rows[index]
        return shard.tokens[row].to(torch.int64)

    def hidden(self, index: int, start: int, stop: int) -> Tensor:
        """See :class:`Sequences`; as stored, on the CPU."""
        shard, row = self._rows[index]
        return shard.hidden[row, start:stop]


class JoinedSequences:
    """Several sources as one, in the order given."""

    def __init__(self, parts: Sequence[Sequences]) -> None:
        self._where = [(part, index) for part in parts for index in range(len(part.facts))]
        self.facts = [part.facts[index] for part, index in self._where]

    def tokens(self, index: int) -> Tensor:
        """See :class:`Sequences`."""
        part, inner = self._where[index]
        return part.tokens(inner)

    def hidden(self, index: int, start: int, stop: int) -> Tensor:
        """See :class:`Sequences`."""
        part, inner = self._where[index]
        return part.hidden(inner, start, stop)


def check_sequences(sequences: Sequences, vocabulary_size: int, heads: int) -> None:
    """Refuse what no heads can be trained on.

    Raises:
        TrainingDataError: no sequence is long enough for the heads, or ids lie beyond the vocabulary.
    """
    needed = heads + 2
    if not any(_teachable(facts, heads) for facts in sequences.facts):
        longest = max((facts.length for facts in sequences.facts), default=0)
        raise TrainingDataError(
            f"The training text is too short: {heads} heads need sequences of at least {needed} tokens with "
            f"text behind the prompt, and the longest here has {longest}. Give more text or fewer heads."
        )
    for index, facts in enumerate(sequences.facts):
        tokens = sequences.tokens(index)
        if facts.length and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
            bad = tokens[(tokens < 0) | (tokens >= vocabulary_size)][0]
            raise TrainingDataError(
                f"{facts.source} holds the token id {int(bad)}, which is beyond the model's vocabulary of "
                f"{vocabulary_size} tokens. Use text, and a tokenizer, that belong to this model."
            )


def _teachable(facts: SequenceFacts, heads: int) -> bool:
    return facts.length >= heads + 2 and facts.length > max(facts.prompt_length, 2)


@dataclass(frozen=True)
class Split:
    """Indices of the sequences to learn from and of those kept for measuring, each ascending."""

    train: tuple[int, ...]
    held_out: tuple[int, ...]


def split_sequences(lengths: Sequence[int], hold_out: float, seed: int) -> Split:
    """Hold out whole sequences, chosen by ``seed``.

    Args:
        lengths: of the sequences, in tokens.
        hold_out: share of them; at least one if it is not 0. Long and short ones are held out alike, so that
            late positions are measured too: at least one of each class of length that has several.
        seed: decides which.

    Raises:
        TrainingDataError: nothing would be left to learn from.
    """
    count = len(lengths)
    wanted = 0 if hold_out == 0 else max(1, round(count * hold_out))
    if wanted >= count:
        raise TrainingDataError(
            f"The training text has {count} sequence{'s' if count != 1 else ''}, so none can be held out for "
            "measuring. Give more text, shorter sequences (data.sequence_tokens), or data.hold_out: 0."
        )
    if not wanted:
        return Split(tuple(range(count)), ())
    classes: dict[int, list[int]] = {}
    for index in torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist():
        classes.setdefault((lengths[index] - 1).bit_length(), []).append(index)
    held_out: list[int] = []
    for members in classes.values():
        if len(members) > 1 or len(classes) == 1:
            held_out += members[: max(1, round(len(members) * hold_out))]
    train = sorted(set(range(count)).difference(held_out))
    return Split(tuple(train), tuple(sorted(held_out)))


def sequences_digest(sequences: Sequences) -> str:
    """SHA-256 of all tokens, in order, with the borders of sequences and prompts."""
    digest = hashlib.sha256()
    for index, facts in enumerate(sequences.facts):
        digest.update(f"{facts.length} {facts.prompt_length} ".encode())
        digest.update(sequences.tokens(index).to(torch.int32).numpy().tobytes())
    return digest.hexdigest()
