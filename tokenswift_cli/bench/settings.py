"""What ``tokenswift bench`` measures, read from its own flags. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tokenswift_cli.coerce import CoercionError, coerce
from tokenswift_cli.engine.settings import METHODS
from tokenswift_cli.errors import ConfigError

TRANSFORMERS: Final = "transformers"
TRANSFORMERS_LOOKUP: Final = "transformers-lookup"
LLAMA_CPP: Final = "llama.cpp"
PEERS: Final = (TRANSFORMERS, TRANSFORMERS_LOOKUP, LLAMA_CPP)

ALL: Final = "all"
NONE: Final = "none"

AUTOREGRESSIVE: Final = "autoregressive"
_NEED_HEADS: Final = ("heads", "tokenswift")

# The last token of a context is the first that decoding reads, so one more must stand before it.
_SHORTEST_CONTEXT: Final = 2


@dataclass(frozen=True)
class BenchSettings:
    """What is measured.

    Attributes:
        prefix_tokens: the contexts, ascending.
        tokens: decoded and timed per repeat.
        methods: of our own.
        peers: of :data:`PEERS`.
        peers_required: a peer that cannot run is an error; else it is left out with a notice.
        repeats: rounds in which every method takes its turn; figures are medians over them.
        warm_up: tokens decoded before the timed ones.
        peer_tokens: most tokens that a peer decodes and times per repeat.
        run: a run directory whose text is continued, from the rows of its journal; None for a text file.
    """

    prefix_tokens: tuple[int, ...] = (2048,)
    tokens: int = 128
    methods: tuple[str, ...] = ("auto", "lookup", AUTOREGRESSIVE)
    peers: tuple[str, ...] = PEERS
    peers_required: bool = False
    repeats: int = 3
    warm_up: int = 32
    peer_tokens: int = 32
    run: Path | None = None

    @property
    def capacity(self) -> int:
        """Positions of the longest text that is read or written."""
        return max(self.prefix_tokens) + self.warm_up + self.tokens


DEFAULTS: Final = BenchSettings()

FLAG_NAMES: Final[Mapping[str, str]] = {
    "prefix_tokens": "--prefix-tokens",
    "tokens": "--tokens",
    "methods": "--methods",
    "peers": "--peers",
    "repeats": "--repeats",
    "warm_up": "--warm-up",
    "peer_tokens": "--peer-tokens",
}


def read_bench_settings(
    given: Mapping[str, str | None], *, with_heads: bool, run: Path | None = None
) -> BenchSettings:
    """The settings that the flags describe.

    Args:
        given: text of the flags by field name; None or missing means not given.
        with_heads: drafting heads are given, so that the methods that need them can run.
        run: the run whose text is continued.

    Raises:
        ConfigError: something is wrong; all of it is listed.
    """
    problems: list[str] = []
    values: dict[str, object] = {"run": run}
    if with_heads:
        values["methods"] = METHODS
    readers: Mapping[str, Callable[[str], object]] = {
        "prefix_tokens": _read_contexts,
        "tokens": lambda text: _read_count(text, least=1),
        "methods": lambda text: _read_methods(text, with_heads=with_heads),
        "peers": _read_peers,
        "repeats": lambda text: _read_count(text, least=1),
        "warm_up": lambda text: _read_count(text, least=0),
        "peer_tokens": lambda text: _read_count(text, least=1),
    }
    for name, read in readers.items():
        text = given.get(name)
        if text is None:
            continue
        try:
            values[name] = read(text)
        except CoercionError as error:
            problems.append(f"{FLAG_NAMES[name]} {error}")
    if problems:
        raise ConfigError(problems)
    peers = given.get("peers")
    values["peers_required"] = peers is not None and peers.strip().lower() not in (ALL, NONE)
    return BenchSettings(**values)  # type: ignore[arg-type]


def _read_count(text: str, *, least: int) -> int:
    count = coerce(text, "count")
    assert isinstance(count, int)
    if count < least:
        raise CoercionError(f"must be at least {least}, got {count}")
    return count


def _read_contexts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_read_count(word, least=_SHORTEST_CONTEXT) for word in _words(text)}))


def _read_methods(text: str, *, with_heads: bool) -> tuple[str, ...]:
    words = _words(text)
    if words == (ALL,):
        words = METHODS
    _require_known(words, METHODS)
    lacking = [word for word in words if word in _NEED_HEADS and not with_heads]
    if lacking:
        raise CoercionError(f"names {lacking[0]}, which needs drafting heads: give --heads DIR")
    return words


def _read_peers(text: str) -> tuple[str, ...]:
    word = text.strip().lower()
    if word in (ALL, NONE):
        return PEERS if word == ALL else ()
    words = _words(text)
    _require_known(words, PEERS, f", or {ALL}, or {NONE}")
    return words


def _words(text: str) -> tuple[str, ...]:
    """The parts between commas, each once."""
    words = dict.fromkeys(word.strip() for word in text.split(","))
    if "" in words:
        raise CoercionError("must be a list such as A,B without empty parts")
    return tuple(words)


def _require_known(words: Sequence[str], known: Sequence[str], more: str = "") -> None:
    for word in words:
        if word not in known:
            near = get_close_matches(word, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise CoercionError(f"must be of {', '.join(known)}{more}, got {word!r}{hint}")
