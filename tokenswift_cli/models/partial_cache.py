"""The partial key-value cache that drafts attend to (TokenSwift, section 3.3).

Sinks, the entries that matter most to the text now, and recent tokens, within a fixed budget, chosen for
each layer and key-value head by itself. Only drafts read it; verification reads the full cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenswift_cli.models.kv_cache import KeyValueCache

# Of the budget: this share stays free at a refresh for the tokens written until the next one, and this
# share holds the most recent tokens; sinks and important entries get the rest.
_GROWTH_SHARE = 4
_RECENT_SHARE = 2

# Elements of keys that are converted at once to score them.
_MAX_CONVERTED = 1 << 20


class PartialCache(KeyValueCache):
    """A small cache whose rows were chosen from a full one.

    Rows keep the rotary embedding of their own positions, so a position is not a row's index here.

    Args:
        budget: most rows; large enough to hold the sinks four times.
        sinks: first tokens of the text, always kept (attention sinks).
        dtype: of the full cache's rows, so that they are taken over as they are; None likewise.

    Attributes:
        budget: see above.
        covered: tokens of the full cache that it stands for; 0 before the first refresh.
    """

    def __init__(self, budget: int, sinks: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(budget, dtype)
        self.budget = budget
        self.covered = 0
        self._sinks = sinks

    @torch.inference_mode()
    def refresh(self, full: KeyValueCache, queries: Mapping[int, Tensor], row: int) -> None:
        """Choose anew from ``full``.

        The importance of an entry is the dot product of its key with the query of the last committed
        token, summed over the query heads that share the key-value head.

        Args:
            full: the committed tokens, more than ``budget``.
            queries: by layer, [KV heads, query heads per KV head, T, key size] of the last verification.
            row: which of its T rows was the last committed one.
        """
        length = full.length
        recent = self.budget // _RECENT_SHARE
        important = self.budget - self.budget // _GROWTH_SHARE - recent - self._sinks
        middle = slice(self._sinks, length - recent)
        kept = self._sinks + important + recent
        self.length = 0
        for layer, query in queries.items():
            keys, values = full.keys(layer), full.values(layer)
            score = _importance(keys[:, middle], query[:, :, row].float().sum(dim=1))
            chosen = score.topk(important, dim=1).indices.sort(dim=1).values + self._sinks
            parts = []
            for rows in (keys, values):
                index = chosen.unsqueeze(-1).expand(-1, -1, rows.shape[2])
                parts.append(
                    torch.cat(
                        [
                            rows[:, : self._sinks],
                            rows.gather(1, index),
                            rows[:, length - recent : length],
                        ],
                        dim=1,
                    )
                )
            self.write(layer, *parts)
        self.length = kept
        self.covered = length

    @torch.inference_mode()
    def follow(self, full: KeyValueCache) -> None:
        """Take over the rows that were committed since; call before drafting."""
        count = full.length - self.covered
        if count:
            copy = self._copy_from(full) if self.length + count <= self.budget else None
            if copy is not None:
                copy.stretch(self.covered, count, self.length)
            else:
                new = slice(self.covered, full.length)
                for layer in range(full.layers):
                    self.write(layer, full.keys(layer)[:, new], full.values(layer)[:, new])
            self.length += count
            self.covered = full.length

    def has_room(self, full: KeyValueCache, rows: int) -> bool:
        """Whether the tokens committed since and ``rows`` drafted ones fit into the budget."""
        return self.length + full.length - self.covered + rows <= self.budget


def _importance(keys: Tensor, query: Tensor) -> Tensor:
    """Dot products in float32, whatever the keys are stored in.

    Args:
        keys: [KV heads, N, key size].
        query: float32 [KV heads, key size].

    Returns:
        float32 [KV heads, N].
    """
    heads, count, size = keys.shape
    rows = count if keys.dtype == torch.float32 else max(1, _MAX_CONVERTED // (heads * size))
    pieces = (keys[:, first : first + rows].float() for first in range(0, count, rows))
    return torch.cat([torch.matmul(piece, query.unsqueeze(-1)).squeeze(-1) for piece in pieces], dim=1)
