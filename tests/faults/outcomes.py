"""What came of a fault, and the table of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

SAME_TEXT = "goes on, same text"
# A moment that lasts milliseconds may be missed on a busy machine.
_TRIES = 5
HEADINGS = ("fault", "rounds", "outcome", "tokens written again")


class FaultFailedError(AssertionError):
    """A run did not do after a fault what it must; the text says what it did."""


class MomentMissedError(FaultFailedError):
    """The run had passed the moment that was meant; nothing was learned."""


@dataclass(frozen=True)
class Outcome:
    """One round of one fault.

    Attributes:
        fault: what was done; rounds of equal ``fault`` share a row.
        result: what came of it, in a few words.
        lost_tokens: tokens that the run had shown and had to write again; None where none could be lost.
        state: "passed", "failed" or "skipped".
    """

    fault: str
    result: str
    lost_tokens: int | None = None
    state: str = "passed"


@dataclass(frozen=True)
class Case:
    """A fault to be done: ``work`` does it, checks everything and gives the outcomes of its rounds.

    ``work`` raises :class:`FaultFailedError` when the run did not do what it must.
    """

    fault: str
    work: Callable[[], Sequence[Outcome]]

    def outcomes(self) -> Sequence[Outcome]:
        """What ``work`` gives, or one failed outcome. A moment that was missed is tried again."""
        for _ in range(_TRIES):
            try:
                return self.work()
            except MomentMissedError as error:
                failed: FaultFailedError = error
            except FaultFailedError as error:
                failed = error
                break
        return [Outcome(self.fault, f"**failed**: {failed}", state="failed")]


def require_in_time(hit: bool, otherwise: str) -> None:
    """Raise :class:`MomentMissedError` with the text ``otherwise`` unless the moment was ``hit``."""
    if not hit:
        raise MomentMissedError(otherwise)


def require(holds: bool, otherwise: str) -> None:
    """Raise :class:`FaultFailedError` with the text ``otherwise`` unless ``holds``."""
    if not holds:
        raise FaultFailedError(otherwise)


def table(outcomes: Iterable[Outcome]) -> str:
    """A Markdown table with a row for each fault, as they come."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.fault, []).append(outcome)
    lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
    lines += [_line(_row(fault, found)) for fault, found in rows.items()]
    return "\n".join(lines)


def _row(fault: str, outcomes: Sequence[Outcome]) -> list[str]:
    rounds = sum(outcome.state != "skipped" for outcome in outcomes)
    return [fault, str(rounds), _results(outcomes), _losses(outcomes)]


def _results(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.result for outcome in outcomes)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{result} ({count})" for result, count in counts.most_common())


def _losses(outcomes: Sequence[Outcome]) -> str:
    losses = [outcome.lost_tokens for outcome in outcomes if outcome.lost_tokens is not None]
    if not losses:
        return "-"
    least, most = min(losses), max(losses)
    return str(most) if least == most else f"{least} to {most}"


def _line(cells: Iterable[str]) -> str:
    texts = (cell.replace("|", r"\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(texts)} |"
