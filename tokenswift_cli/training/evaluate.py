"""How far the heads' guesses would have been accepted, replayed over text that the target wrote itself.

Each token of such a text is what the target chooses with the noise of its position, so a chain of guesses
is accepted exactly as far as it equals the text. No forward pass of the target is needed: its hidden states
lie beside the text. As a chain ends at its first wrong token, the token drafted before a head that still
counts is the text's own.
"""

from __future__ import annotations

import hashlib
import math
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.models.heads import DraftHeads, HeadsOutput
from tokenswift_cli.training.examples import shuffled
from tokenswift_cli.training.sequences import Sequences

BANDS = (0, 1024, 2048, 4096, 8192)
"""First position of each band; the last one is open."""

MODES = ("shared", "independent")
"""Noise of the guesses: the target's own at each position, or other noise."""

# Positions drafted from at once.
_BLOCK = 32


@dataclass
class Chains:
    """Chains of guesses of one band and mode.

    Attributes:
        reached: how often each head's guess counted: all before it were accepted.
        accepted: how often it was accepted then.
        squares: sum of the squared acceptance lengths.
    """

    reached: list[int]
    accepted: list[int]
    squares: int = 0

    @property
    def chains(self) -> int:
        """Positions drafted from."""
        return self.reached[0]

    @property
    def length(self) -> float:
        """Mean acceptance length: the target's own token, and the guesses accepted in a row."""
        return 1 + sum(self.accepted) / self.chains if self.chains else math.nan

    @property
    def error(self) -> float:
        """Standard error of :attr:`length`."""
        if not self.chains:
            return math.nan
        variance = self.squares / self.chains - self.length**2
        return math.sqrt(max(0.0, variance) / self.chains)

    @property
    def rates(self) -> list[float]:
        """Acceptance rate of each head, given that those before it were accepted."""
        return [
            hits / count if count else math.nan
            for hits, count in zip(self.accepted, self.reached, strict=True)
        ]

    def record(self, accepted: int) -> None:
        """Add a chain of which the first ``accepted`` guesses were accepted."""
        for head in range(len(self.reached)):
            self.reached[head] += accepted >= head
            self.accepted[head] += accepted > head
        self.squares += (1 + accepted) ** 2

    def add(self, other: Chains) -> None:
        """Add the chains of another band."""
        self.reached = [a + b for a, b in zip(self.reached, other.reached, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]
        self.squares += other.squares


@dataclass
class Acceptance:
    """What the replay found.

    Attributes:
        heads: number of heads.
        bands: by first position of the band, then by mode.
    """

    heads: int
    bands: dict[int, dict[str, Chains]] = field(default_factory=dict)

    def band(self, position: int) -> dict[str, Chains]:
        """The band of a position, made when missing."""
        return self.bands.setdefault(band_of(position), self._empty())

    @property
    def whole(self) -> dict[str, Chains]:
        """All bands together."""
        total = self._empty()
        for chains in self.bands.values():
            for mode in MODES:
                total[mode].add(chains[mode])
        return total

    def to_json(self) -> list[dict[str, object]]:
        """One object per band and mode, and for all bands together, rounded for reading."""
        rows: list[dict[str, object]] = []
        for name, chains in self.named():
            rows.extend(
                {
                    "positions": name,
                    "noise": mode,
                    "chains": chains[mode].chains,
                    "acceptance_length": round(chains[mode].length, 4),
                    "standard_error": round(chains[mode].error, 4),
                    "rates": [None if math.isnan(rate) else round(rate, 4) for rate in chains[mode].rates],
                }
                for mode in MODES
            )
        return rows

    def named(self) -> list[tuple[str, Mapping[str, Chains]]]:
        """The bands that hold something, in order and by name; the whole last if there are several."""
        named: list[tuple[str, Mapping[str, Chains]]] = [
            (band_name(start), self.bands[start]) for start in sorted(self.bands)
        ]
        return [*named, ("all", self.whole)] if len(named) > 1 else named

    def _empty(self) -> dict[str, Chains]:
        return {mode: Chains([0] * self.heads, [0] * self.heads) for mode in MODES}


@dataclass(frozen=True)
class Place:
    """A position to draft from: the target has read token ``at`` of a sequence."""

    sequence: int
    at: int


def band_of(position: int) -> int:
    """First position of the band that ``position`` lies in."""
    return max(start for start in BANDS if start <= position)


def band_name(start: int) -> str:
    """ "1K-2K" and the like."""
    place = BANDS.index(start)
    first = f"{start // 1024}K" if start else "0"
    return f"{first}-{BANDS[place + 1] // 1024}K" if place + 1 < len(BANDS) else f"{first}+"


def choose_places(
    sequences: Sequences, chosen: Sequence[int], heads: int, count: int, seed: int
) -> list[Place]:
    """Up to ``count`` places in each band, spread over the self-written sequences among ``chosen``.

    All heads can draft from a place and be compared with text that the target chose.
    """
    places: list[Place] = []
    for start, end in zip(BANDS, (*BANDS[1:], sys.maxsize), strict=True):
        # The token after the place, which the target itself predicts, decides the band.
        stretches = [
            (index, range(max(facts.prompt_length, start, 1) - 1, min(facts.length - heads, end) - 1))
            for index in chosen
            if (facts := sequences.facts[index]).seed is not None
        ]
        ends = list(accumulate(len(stretch) for _, stretch in stretches))
        for number in sorted(shuffled(ends[-1] if ends else 0, seed, start)[:count]):
            which = bisect_right(ends, number)
            index, stretch = stretches[which]
            places.append(Place(index, stretch[number - ends[which] + len(stretch)]))
    return places


@torch.no_grad()
def replay(
    heads: DraftHeads,
    output: HeadsOutput,
    sequences: Sequences,
    places: Sequence[Place],
    vocabulary_size: int,
    end_ids: Sequence[int],
    acceptance: Acceptance,
) -> Iterator[int]:
    """Draft a chain from each place, and record how much of it the text confirms.

    Args:
        heads, output: on one device.
        sequences: self-written, see :func:`choose_places`.
        places: where to draft from.
        vocabulary_size: of the target.
        end_ids: never chosen in self-written text.
        acceptance: gets the results.

    Yields:
        places done.
    """
    device = output.weight.device
    samplers: dict[SamplingSettings, Sampler] = {}
    for done in range(0, len(places), _BLOCK):
        block = places[done : done + _BLOCK]
        tokens = [sequences.tokens(place.sequence).to(device) for place in block]
        alive = {mode: set(range(len(block))) for mode in MODES}
        accepted = {mode: [0] * len(block) for mode in MODES}
        state = torch.stack(
            [sequences.hidden(place.sequence, place.at, place.at + 1)[0] for place in block]
        ).to(device)
        for head in range(heads.shape.count):
            before = torch.stack(
                [text[place.at + 1 + head] for text, place in zip(tokens, block, strict=True)]
            )
            embedding = output.embed(before) if heads.shape.variant == "conditioned" else None
            state, normed = heads.step(head, state, embedding)
            logits = output.logits(normed)
            for row in sorted(alive["shared"] | alive["independent"]):
                place, text = block[row], tokens[row]
                facts = sequences.facts[place.sequence]
                assert facts.sampling is not None and facts.seed is not None
                sampler = samplers.get(facts.sampling)
                if sampler is None:
                    sampler = samplers[facts.sampling] = Sampler(
                        facts.sampling, vocabulary_size, device, held_ids=end_ids, held_until=sys.maxsize
                    )
                position = place.at + 2 + head
                window = text[max(0, position - facts.sampling.penalty_window) : position]
                full = _whole(logits[row], output.token_ids, vocabulary_size)
                for mode, noise in (("shared", facts.seed), ("independent", other_seed(facts.seed))):
                    if row not in alive[mode]:
                        continue
                    ((guess, _),) = sampler.ranked(full, window, position, 1, noise)
                    if guess == int(text[position]):
                        accepted[mode][row] += 1
                    else:
                        alive[mode].discard(row)
        for row, place in enumerate(block):
            for mode in MODES:
                acceptance.band(place.at + 1)[mode].record(accepted[mode][row])
        yield min(done + _BLOCK, len(places))


def other_seed(seed: int) -> int:
    """A seed whose noise has nothing to do with that of ``seed``; 0 .. 2**63 - 1."""
    digest = hashlib.sha256(f"independent {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _whole(logits: Tensor, token_ids: Tensor | None, vocabulary_size: int) -> Tensor:
    """Logits of the whole vocabulary; what the heads cannot propose is impossible."""
    if token_ids is None:
        return logits
    full = logits.new_full((vocabulary_size,), -math.inf)
    full[token_ids] = logits
    return full
