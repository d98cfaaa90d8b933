"""What a stretch of text cost and what its drafts were worth: one chunk, some chunks, or a whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Rates over fewer drafted positions than this say nothing.
FEWEST_DRAFTED = 10


@dataclass(frozen=True)
class Tried:
    """Drafted positions and how many of them were accepted."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Tried) -> Tried:
        return Tried(self.drafted + other.drafted, self.accepted + other.accepted)

    @property
    def rate(self) -> float | None:
        """In [0, 1]; None while nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Timed:
    """Some tokens, and the seconds they took."""

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Timed) -> Timed:
        return Timed(self.tokens + other.tokens, self.seconds + other.seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """None where no time was recorded."""
        return self.tokens / self.seconds if self.seconds > 0 else None

    @property
    def milliseconds_per_token(self) -> float | None:
        """None where no token was timed."""
        return 1000 * self.seconds / self.tokens if self.tokens else None


@dataclass(frozen=True)
class Stretch:
    """Generated tokens ``first`` .. ``last`` - 1. Sizes in bytes; None where nothing was recorded.

    Attributes:
        chunks: how many.
        decoding: all tokens whose time was recorded.
        drafting, verifying, hosting: the parts of that time, where each was recorded.
        plain: the same tokens at the cost of a plain decoding step, as the engine estimated it there.
        beside_plain: the time of the tokens in ``plain``.
        verifications: steps that had something drafted.
        verified_tokens: what these steps committed.
        drafters: by name.
        depths: of the drafted path, the first drafted token first.
        distinct: Distinct-1..4 of the text up to ``last``.
        novelty: share of new 4-grams in the last 1,024 tokens before ``last``.
        kv_bytes, process_bytes, journal_bytes: at the end.
        peak_process_bytes: the largest.
    """

    first: int
    last: int
    chunks: int = 1
    steps: int | None = None
    decoding: Timed = Timed()
    drafting: Timed = Timed()
    verifying: Timed = Timed()
    hosting: Timed = Timed()
    plain: Timed = Timed()
    beside_plain: Timed = Timed()
    verifications: int = 0
    verified_tokens: float = 0.0
    drafters: Mapping[str, Tried] = field(default_factory=dict)
    depths: tuple[Tried, ...] = ()
    distinct: tuple[float, float, float, float] | None = None
    novelty: float | None = None
    kv_bytes: int | None = None
    process_bytes: int | None = None
    peak_process_bytes: int | None = None
    journal_bytes: int | None = None

    @property
    def middle(self) -> float:
        """Where an average over the stretch belongs."""
        return (self.first + self.last) / 2

    @property
    def acceptance(self) -> Tried:
        """All depths together: the positions of the longest drafted paths."""
        return sum(self.depths, Tried())

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification, the target's own included; None while nothing was drafted."""
        return self.verified_tokens / self.verifications if self.verifications else None

    @property
    def speedup(self) -> float | None:
        """Time of plain decoding / time taken, over the tokens of which both are known."""
        if self.plain.seconds <= 0 or self.beside_plain.seconds <= 0:
            return None
        return self.plain.seconds / self.beside_plain.seconds


def merged(stretches: Sequence[Stretch]) -> Stretch:
    """Consecutive stretches (at least one) as one."""
    drafters: dict[str, Tried] = {}
    for stretch in stretches:
        for name, tried in stretch.drafters.items():
            drafters[name] = drafters.get(name, Tried()) + tried
    deepest = max(len(stretch.depths) for stretch in stretches)
    depths = tuple(
        sum((stretch.depths[depth] for stretch in stretches if depth < len(stretch.depths)), Tried())
        for depth in range(deepest)
    )
    steps = [stretch.steps for stretch in stretches if stretch.steps is not None]
    peaks = [stretch.peak_process_bytes for stretch in stretches if stretch.peak_process_bytes is not None]
    last = stretches[-1]
    return Stretch(
        first=stretches[0].first,
        last=last.last,
        chunks=sum(stretch.chunks for stretch in stretches),
        steps=sum(steps) if steps else None,
        decoding=_total(stretches, lambda one: one.decoding),
        drafting=_total(stretches, lambda one: one.drafting),
        verifying=_total(stretches, lambda one: one.verifying),
        hosting=_total(stretches, lambda one: one.hosting),
        plain=_total(stretches, lambda one: one.plain),
        beside_plain=_total(stretches, lambda one: one.beside_plain),
        verifications=sum(stretch.verifications for stretch in stretches),
        verified_tokens=sum(stretch.verified_tokens for stretch in stretches),
        drafters=drafters,
        depths=depths,
        distinct=last.distinct,
        novelty=last.novelty,
        kv_bytes=last.kv_bytes,
        process_bytes=last.process_bytes,
        peak_process_bytes=max(peaks) if peaks else None,
        journal_bytes=last.journal_bytes,
    )


def thinned(stretches: Sequence[Stretch], most: int) -> list[Stretch]:
    """The same text in at most ``most`` stretches, for figures: equally many chunks joined each time."""
    together = max(1, -(-len(stretches) // most))
    return [merged(stretches[start : start + together]) for start in range(0, len(stretches), together)]


def _total(stretches: Iterable[Stretch], part: Callable[[Stretch], Timed]) -> Timed:
    return sum((part(stretch) for stretch in stretches), Timed())
