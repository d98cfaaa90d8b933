"""Which positions are learned in which step: a pure function of the seed and the step number.

So the whole state of the order is a number, and a training that goes on from a checkpoint sees exactly the
examples that an undisturbed one would have seen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from tokenswift_cli.training.sequences import SequenceFacts, Sequences


@dataclass(frozen=True)
class Window:
    """A piece of a sequence: the positions start .. stop - 1, from which heads predict."""

    sequence: int
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """Windows laid end to end as one stream of M rows, each followed by rows that heads look ahead to.

    Attributes:
        windows: what it is made of.
        following: int64 [H + 1, M]; entry [j, i] is the token 1 + j after the one that row i stands at (0
            where the sequence has ended).
        valid: bool [H, M]; head j, counted from 0, learns ``following[j + 1]`` at row i.
    """

    windows: tuple[Window, ...]
    following: Tensor
    valid: Tensor


def windows_of(index: int, facts: SequenceFacts, heads: int, window_tokens: int) -> list[Window]:
    """Cut one sequence into windows.

    Positions from which no head can learn are left out: those whose predicted tokens all lie in the prompt
    or behind the end.

    Args:
        index: number of the sequence.
        facts: its lengths.
        heads: number of heads H.
        window_tokens: most positions per window; 0 for no limit.
    """
    if facts.prompt_length >= facts.length:
        return []
    first = max(0, facts.prompt_length - 1 - heads)
    end = facts.length - 2
    step = window_tokens or max(1, end - first)
    return [Window(index, start, min(start + step, end)) for start in range(first, end, step)]


class Examples:
    """The windows of some sequences, in an order that the seed decides.

    Args:
        sequences: where tokens and hidden states come from.
        chosen: indices of the sequences to use.
        heads: number of heads.
        window_tokens, batch_windows, gradient_accumulation, seed: see :class:`TrainingSection`.
    """

    def __init__(
        self,
        sequences: Sequences,
        chosen: Iterable[int],
        heads: int,
        *,
        window_tokens: int,
        batch_windows: int,
        gradient_accumulation: int,
        seed: int,
    ) -> None:
        self._sequences = sequences
        self._heads = heads
        self._batch_windows = batch_windows
        self.windows_per_step = batch_windows * gradient_accumulation
        self._seed = seed
        self.windows = [
            window
            for index in chosen
            for window in windows_of(index, sequences.facts[index], heads, window_tokens)
        ]

    @property
    def positions(self) -> int:
        """Positions in all windows."""
        return sum(window.stop - window.start for window in self.windows)

    def steps_of(self, epochs: float) -> int:
        """Optimizer steps that show each window ``epochs`` times; at least one."""
        return max(1, math.ceil(epochs * len(self.windows) / self.windows_per_step))

    def step(self, number: int) -> list[Batch]:
        """The batches of one optimizer step, counted from 0."""
        windows = list(islice(self._endless(number * self.windows_per_step), self.windows_per_step))
        return self.batches(windows)

    def batches(self, windows: Sequence[Window]) -> list[Batch]:
        """``windows`` in batches, in order."""
        size = self._batch_windows
        return [self._batch(tuple(windows[at : at + size])) for at in range(0, len(windows), size)]

    def hidden(self, batch: Batch) -> Tensor:
        """States [M, d] before the target's final norm at the rows of ``batch``, wherever they are kept."""
        parts = [
            self._sequences.hidden(window.sequence, window.start, self._end(window))
            for window in batch.windows
        ]
        # Stored states are on the CPU, computed ones where the model is.
        home = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
        return torch.cat([part.to(home) for part in parts])

    def damaged(self, batch: Batch) -> str | None:
        """Where the first hidden states of ``batch`` come from that are not finite; None if all are."""
        for window in batch.windows:
            hidden = self._sequences.hidden(window.sequence, window.start, self._end(window))
            if not bool(torch.isfinite(hidden).all()):
                return self._sequences.facts[window.sequence].source
        return None

    def _endless(self, start: int) -> Iterator[Window]:
        """Epoch after epoch, each in its own order, from the window number ``start``."""
        epoch, at = divmod(start, len(self.windows))
        while True:
            order = shuffled(len(self.windows), self._seed, epoch)
            yield from (self.windows[index] for index in order[at:])
            epoch, at = epoch + 1, 0

    def _end(self, window: Window) -> int:
        return min(window.stop + self._heads, self._sequences.facts[window.sequence].length)

    def _batch(self, windows: tuple[Window, ...]) -> Batch:
        following, valid = zip(*map(self._rows, windows), strict=True)
        return Batch(windows, torch.cat(following, dim=1), torch.cat(valid, dim=1))

    def _rows(self, window: Window) -> tuple[Tensor, Tensor]:
        facts = self._sequences.facts[window.sequence]
        tokens = self._sequences.tokens(window.sequence)
        rows = torch.arange(window.start, self._end(window))
        places = rows + torch.arange(1, self._heads + 2)[:, None]
        following = tokens[places.clamp(max=facts.length - 1)]
        following[places >= facts.length] = 0
        predicted = places[1:]
        valid = (predicted < facts.length) & (predicted >= facts.prompt_length) & (rows < window.stop)
        return following, valid


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """0 .. count - 1 in the order of one epoch."""
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order
