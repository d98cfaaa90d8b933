"""Which way each linear layer of a decoder multiplies, and to how many rows a pass is padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenswift_cli.models.lean.linear import VARIANTS, BySizeLinear, Linear


class Shape(NamedTuple):
    """Shape of a linear layer."""

    outputs: int
    inputs: int
    bias: bool


# Names of variants by ascending limits of rows; the last one holds for more rows, too.
Ways = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class LinearPlan:
    """The choice for all linear layers of one decoder.

    Attributes:
        ways: by shape; several variants for one shape are ``rows`` and ``turned``, which share storage.
        sizes: numbers of rows, ascending, between which the rounding of a row does not change; a pass is
            padded to one of them, and the largest is the most rows multiplied at once. Empty: no padding,
            and rounding may change with the number of rows.
        cost: estimated time of a decoding pass over that of the fastest plan found, both without
            attention; None if nothing was timed.
    """

    ways: dict[Shape, Ways]
    sizes: tuple[int, ...]
    cost: float | None = None

    @property
    def row_invariant(self) -> bool:
        """Whether a row comes out the same to the bit whatever it is computed with."""
        return bool(self.sizes)

    def padded(self, rows: int) -> int:
        """The number of rows, at least ``rows``, to compute a pass with."""
        if not self.sizes:
            return rows
        whole, rest = divmod(rows, self.sizes[-1])
        total = whole * self.sizes[-1]
        return total + next(size for size in self.sizes if size >= rest) if rest else total

    def build(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """The layer for ``weight`` [outputs, inputs] and ``bias`` [outputs]."""
        ways = self.ways[Shape(weight.shape[0], weight.shape[1], bias is not None)]
        if len({name for _, name in ways}) > 1:
            linear: Linear = BySizeLinear(
                weight, bias, tuple((limit, name == "turned") for limit, name in ways)
            )
        else:
            linear = VARIANTS[ways[0][1]](weight, bias)
        return linear if not self.sizes else _InPieces(linear, self.sizes[-1])

    def to_json(self) -> dict[str, Any]:
        """A dictionary that ``json.dumps`` takes; :meth:`from_json` reads it back."""
        ways = [[*shape, [list(way) for way in chosen]] for shape, chosen in self.ways.items()]
        return {"ways": ways, "sizes": list(self.sizes), "cost": self.cost}

    @classmethod
    def from_json(cls, data: Any) -> LinearPlan:
        """Raises ``ValueError`` or ``TypeError`` or ``KeyError`` if ``data`` is no plan."""
        ways: dict[Shape, Ways] = {}
        for outputs, inputs, bias, chosen in data["ways"]:
            shape = Shape(int(outputs), int(inputs), bool(bias))
            ways[shape] = tuple((int(limit), str(name)) for limit, name in chosen)
            names = {name for _, name in ways[shape]}
            if not names or not names <= VARIANTS.keys() or (len(names) > 1 and names != {"rows", "turned"}):
                raise ValueError(f"no such way to multiply: {sorted(names)}")
        sizes = tuple(int(size) for size in data["sizes"])
        if any(size < 1 for size in sizes) or list(sizes) != sorted(sizes):
            raise ValueError("sizes must be positive and ascend")
        return cls(ways, sizes, None if data["cost"] is None else float(data["cost"]))


def plain_plan(shapes: set[Shape]) -> LinearPlan:
    """``F.linear`` for everything, without padding: what other devices than the CPU get."""
    return LinearPlan({shape: ((1, "rows"),) for shape in shapes}, ())


class _InPieces:
    """A linear layer that multiplies at most so many rows at once, so that no size is outside the plan."""

    def __init__(self, linear: Linear, most: int) -> None:
        self._linear = linear
        self._most = most
        self.matrix = linear.matrix
        self.weight_bytes = linear.weight_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] <= self._most:
            return self._linear(rows)
        return torch.cat([self._linear(piece) for piece in rows.split(self._most)])
