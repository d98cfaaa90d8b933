"""Every choice once more: teacher-forced passes over the text as it stands, one choice for each position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokenswift_cli.audit.mismatch import Mismatch, measure_mismatch
from tokenswift_cli.audit.positions import Stretch, stretches
from tokenswift_cli.engine.filling import StoredRows, fill
from tokenswift_cli.engine.history import TokenHistory
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.errors import NonFiniteLogitsError
from tokenswift_cli.models.target import Target

if TYPE_CHECKING:
    from torch import Tensor

# Rows of a pass with logits.
STRETCH_TOKENS = 128

# Mismatches whose margin is measured; the others are counted.
MEASURED_MISMATCHES = 10


class Piece(NamedTuple):
    """What a pass did.

    Attributes:
        rows: tokens that the cache holds now.
        checked: positions that were audited.
        mismatches: how many of them differ.
        measured: the first of these, as far as they are measured.
    """

    rows: int
    checked: int = 0
    mismatches: int = 0
    measured: tuple[Mismatch, ...] = ()


class Recomputation:
    """One text, its model and its sampler.

    Args:
        target: the model, with an empty cache.
        sampler: of the text.
        token_ids: prompt and text; all but the last one in the model's vocabulary.
        prompt_tokens: how many of them are prompt.
        prefill_chunk: most tokens of a pass without logits.
        stored: rows of the cache that need not be computed.
    """

    def __init__(
        self,
        target: Target,
        sampler: Sampler,
        token_ids: Sequence[int],
        prompt_tokens: int,
        *,
        prefill_chunk: int,
        stored: StoredRows | None = None,
    ) -> None:
        self._target = target
        self._sampler = sampler
        self._token_ids = token_ids
        self._prompt_tokens = prompt_tokens
        self._prefill_chunk = prefill_chunk
        self._stored = stored
        self._history = TokenHistory(token_ids[:prompt_tokens], target.device)
        self._to_measure = MEASURED_MISMATCHES

    def rows_before(self, position: int) -> int:
        """Tokens that are read before the pass that audits ``position`` first."""
        # The logits that decide a token come with the row of the token before it.
        return self._prompt_tokens + position - 1

    def check(self, positions: Sequence[int]) -> Iterator[Piece]:
        """Audit ascending ``positions``; what is between them is only read.

        Yields:
            after each pass.

        Raises:
            NonFiniteLogitsError: the model produced NaN or Inf.
            ModelError: the cache's type cannot hold the model's keys and values.
        """
        for stretch in stretches(positions, STRETCH_TOKENS):
            before = self._token_ids[: self.rows_before(stretch.first)]
            for filled in fill(self._target, before, self._prefill_chunk, self._stored):
                yield Piece(filled.length)
            yield self._check_stretch(stretch)

    def _check_stretch(self, stretch: Stretch) -> Piece:
        import torch

        first, cache = self.rows_before(stretch.first), self._target.cache
        rows = self._token_ids[first : self.rows_before(stretch.end)]
        with torch.inference_mode():
            logits = self._target.verify(rows)
            try:
                mismatches, measured = self._compare(stretch, logits)
            except NonFiniteLogitsError:
                # A store that cannot hold the model's keys and values is a better explanation.
                cache.require_in_range(cache.length + len(rows))
                raise
        self._target.commit(range(len(rows)))
        return Piece(cache.length, len(stretch.audited), mismatches, measured)

    def _compare(self, stretch: Stretch, logits: Tensor) -> tuple[int, tuple[Mismatch, ...]]:
        """How many audited tokens of a stretch differ from the choices, and the first of these, measured."""
        mismatches = 0
        measured: list[Mismatch] = []
        for position in stretch.audited:
            absolute = self._prompt_tokens + position
            row, token = logits[position - stretch.first], self._token_ids[absolute]
            window = self._window(absolute)
            chosen = self._sampler.choose(row, window, absolute)
            if chosen == token:
                continue
            mismatches += 1
            if self._to_measure:
                self._to_measure -= 1
                measured.append(
                    measure_mismatch(
                        self._sampler, row, window, absolute, position=position, token=token, chosen=chosen
                    )
                )
        return mismatches, tuple(measured)

    def _window(self, absolute: int) -> Tensor:
        """The penalty window before a position (prompt included), of the tokens as they stand."""
        for token_id in self._token_ids[self._history.length : absolute]:
            self._history.append(token_id)
        return self._history.window(self._sampler.settings.penalty_window)
