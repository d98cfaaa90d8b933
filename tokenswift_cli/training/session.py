"""What the phases of one ``train-heads`` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tokenswift_cli.models.loading import LoadedModel
from tokenswift_cli.training.request import Materials, TrainingRequest
from tokenswift_cli.training.settings import TrainingConfig


class Stops(Protocol):
    """Whether somebody asked to stop, see :class:`tokenswift_cli.signals.StopRequests`."""

    @property
    def requested(self) -> bool:
        """Stop after this step."""


class Interrupted(Exception):
    """A phase was left because of a stop; what it had done is kept."""


@dataclass(frozen=True)
class Session:
    """One invocation with its loaded model and locked work directory.

    Attributes:
        request, materials: what to do, and with what.
        loaded: the target.
        stops: asked between steps.
        say: gets one line per message.
    """

    request: TrainingRequest
    materials: Materials
    loaded: LoadedModel
    stops: Stops
    say: Callable[[str], None]

    @property
    def config(self) -> TrainingConfig:
        """Of the request."""
        return self.request.config

    @property
    def quiet(self) -> bool:
        """Show no progress."""
        return self.request.quiet

    @property
    def vocabulary_size(self) -> int:
        """Of the target."""
        return self.loaded.identity.vocab_size

    def go_on(self) -> None:
        """Raises: Interrupted: somebody asked to stop."""
        if self.stops.requested:
            raise Interrupted
