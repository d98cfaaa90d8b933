"""Running sums of losses and hits, and the averages that are shown and logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenswift_cli.training.loss import HeadLoss


@dataclass
class Measures:
    """Sums over positions, for each head.

    Attributes:
        sums: cross-entropies in nats.
        counts: positions.
        top1, top3: positions whose token was the head's best, among its best three.
    """

    sums: list[float]
    counts: list[int]
    top1: list[int]
    top3: list[int]

    @classmethod
    def empty(cls, heads: int) -> Measures:
        """Nothing measured yet."""
        return cls([0.0] * heads, [0] * heads, [0] * heads, [0] * heads)

    @classmethod
    def from_json(cls, data: Mapping[str, list[float]]) -> Measures:
        """What :meth:`to_json` wrote."""
        return cls(
            [float(value) for value in data["sums"]],
            *([int(value) for value in data[name]] for name in ("counts", "top1", "top3")),
        )

    def to_json(self) -> dict[str, list[float]]:
        """For ``json.dumps``; floats survive exactly."""
        return {
            "sums": list(self.sums),
            "counts": list(self.counts),
            "top1": list(self.top1),
            "top3": list(self.top3),
        }

    def add(self, loss: HeadLoss) -> None:
        """Add one batch."""
        for mine, theirs in (
            (self.sums, loss.sums),
            (self.counts, loss.counts),
            (self.top1, loss.top1),
            (self.top3, loss.top3),
        ):
            for head, value in enumerate(theirs.tolist()):
                mine[head] += value

    @property
    def loss(self) -> float:
        """The sum over heads of their mean cross-entropies."""
        return sum(self.losses)

    @property
    def losses(self) -> list[float]:
        """Mean cross-entropy of each head; 0 for one that was never measured."""
        return [_ratio(total, count) for total, count in zip(self.sums, self.counts, strict=True)]

    @property
    def top1_shares(self) -> list[float]:
        """How often each head's best token was the right one."""
        return [_ratio(hits, count) for hits, count in zip(self.top1, self.counts, strict=True)]

    @property
    def top3_shares(self) -> list[float]:
        """How often the right token was among each head's best three."""
        return [_ratio(hits, count) for hits, count in zip(self.top3, self.counts, strict=True)]


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
