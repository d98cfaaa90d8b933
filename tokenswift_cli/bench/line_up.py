"""Who takes part: our methods, and the peers that can run here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from tokenswift_cli.bench.contestant import Contestant, Say
from tokenswift_cli.bench.llama_peer import LlamaPeer, why_no_llama
from tokenswift_cli.bench.own_methods import OwnMethods
from tokenswift_cli.bench.rows import LLAMA_VARIANTS
from tokenswift_cli.bench.schedule import Entry
from tokenswift_cli.bench.settings import LLAMA_CPP, BenchSettings
from tokenswift_cli.bench.transformers_peer import TransformersPeer
from tokenswift_cli.bench.worker import Build
from tokenswift_cli.config import Config
from tokenswift_cli.errors import TokenSwiftError, UsageError

# Peers plan nothing: a few tokens are enough to be warm.
_PEER_WARM_UP = 8


class Running(Contestant, Protocol):
    """A contestant behind a launcher; a context."""

    def call(self, method: str, *arguments: object) -> Any:
        """Call any method of the contestant."""

    def close(self) -> None:
        """End it."""


class Launch(Protocol):
    """Starts a contestant; :class:`~tokenswift_cli.bench.worker.Worker` does it in a process of its own."""

    def __call__(self, name: str, build: Build, arguments: Sequence[object], say: Say) -> Running:
        """See :class:`~tokenswift_cli.bench.worker.Worker`."""


@dataclass
class LineUp:
    """The contestants, and those that did not start.

    Attributes:
        entries: in the order of their turns.
        facts: about the machine and the versions.
        failed: methods of peers that should have started, with the reason.
    """

    entries: list[Entry] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def usable_peers(config: Config, settings: BenchSettings) -> tuple[tuple[str, ...], list[str]]:
    """The peers that can run, and sentences about the others. Starts nothing.

    Raises:
        UsageError: a peer that was asked for by name cannot run.
    """
    why = why_no_llama(config.model) if LLAMA_CPP in settings.peers else None
    if why is None:
        return settings.peers, []
    if settings.peers_required:
        raise UsageError(f"--peers {','.join(settings.peers)}: {why}")
    return tuple(peer for peer in settings.peers if peer != LLAMA_CPP), [why]


def start_own(config: Config, settings: BenchSettings, launch: Launch, stack: ExitStack, say: Say) -> Running:
    """Our own methods' contestant, closed by ``stack``."""
    say("Starting tokenswift")
    own = launch("tokenswift", OwnMethods, (config, settings), say)
    stack.callback(own.close)
    return own


def line_up(
    own: Running,
    peers: Sequence[str],
    config: Config,
    settings: BenchSettings,
    launch: Launch,
    stack: ExitStack,
    say: Say,
) -> LineUp:
    """Start the peers.

    Raises:
        TokenSwiftError: a peer that was asked for by name does not start.
    """
    facts = own.facts()
    result = LineUp(facts=dict(facts))
    result.entries.append(Entry(own, settings.methods, settings.warm_up, settings.tokens))
    starts: list[tuple[str, tuple[str, ...], Build, tuple[object, ...]]] = []
    plain = tuple(peer for peer in peers if peer != LLAMA_CPP)
    if plain:
        starts.append((plain[0], plain, TransformersPeer, (config, settings.run)))
    if LLAMA_CPP in peers:
        starts += [
            (name, (name,), LlamaPeer, (config, settings.capacity, facts["threads"], flash_attention))
            for name, flash_attention in LLAMA_VARIANTS.items()
        ]
    warm_up, tokens = min(settings.warm_up, _PEER_WARM_UP), min(settings.tokens, settings.peer_tokens)
    for name, methods, build, arguments in starts:
        say(f"Starting {name}")
        try:
            peer = launch(name, build, arguments, say)
        except TokenSwiftError as error:
            if settings.peers_required:
                raise
            result.failed |= dict.fromkeys(methods, str(error))
            continue
        stack.callback(peer.close)
        result.facts |= peer.facts()
        result.entries.append(Entry(peer, methods, warm_up, tokens, optional=True))
    return result
