"""What an audit found, ready for people and machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tokenswift_cli.audit.mismatch import Mismatch
from tokenswift_cli.audit.positions import DEFAULT_SEED
from tokenswift_cli.run_files import FileProblem

EXIT_MATCH, EXIT_MISMATCH = 0, 1


@dataclass(frozen=True)
class AuditedToken:
    """A mismatch with the texts of both tokens."""

    mismatch: Mismatch
    token_text: str | None
    chosen_text: str

    def to_json(self) -> dict[str, object]:
        """One flat object."""
        return {**asdict(self.mismatch), "token_text": self.token_text, "chosen_text": self.chosen_text}


@dataclass(frozen=True)
class Choices:
    """The recomputed choices.

    Attributes:
        first, end: half-open range of positions that was asked for.
        drawn: number of positions drawn from it, None where it was audited whole.
        seed: decided which.
        requested: positions to audit.
        checked: positions audited.
        mismatches: those of them whose token is not what the model chooses.
        measured: the first few of these.
        unreadable: why less was audited than was asked for, where the tokens are to blame.
        restored: rows of the cache that were taken from the run's journal instead of being computed.
        read_seconds: reading what stands before the first position.
        check_seconds: all passes after that.
    """

    first: int = 0
    end: int = 0
    drawn: int | None = None
    seed: int = DEFAULT_SEED
    requested: int = 0
    checked: int = 0
    mismatches: int = 0
    measured: tuple[AuditedToken, ...] = ()
    unreadable: str | None = None
    restored: int = 0
    read_seconds: float = 0.0
    check_seconds: float = 0.0

    @property
    def matches(self) -> int:
        """Positions whose token is what the model chooses."""
        return self.checked - self.mismatches

    @property
    def tokens_per_second(self) -> float | None:
        """Positions audited per second; None before there is a rate."""
        return self.checked / self.check_seconds if self.checked and self.check_seconds > 0 else None

    @property
    def complete(self) -> bool:
        """Whether everything asked for was audited."""
        return self.checked == self.requested

    def to_json(self) -> dict[str, object]:
        """One object, ready for JSON."""
        measured = [one.to_json() for one in self.measured]
        return {
            "range": [self.first, self.end],
            "sample": self.drawn,
            "sample_seed": None if self.drawn is None else self.seed,
            "requested": self.requested,
            "checked": self.checked,
            "matches": self.matches,
            "mismatches": self.mismatches,
            "first_mismatch": measured[0] if measured else None,
            "first_mismatches": measured,
            "unreadable": self.unreadable,
            "rows_from_journal": self.restored,
            "read_seconds": self.read_seconds,
            "check_seconds": self.check_seconds,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True)
class AuditReport:
    """The outcome.

    Attributes:
        run_dir: the run directory.
        tokens: generated tokens that the run's checkpoint vouches for.
        prompt_tokens: before them.
        finish_reason: of the run; None while it is written.
        model, device: what recomputed.
        path: which way its passes went.
        row_invariant: whether a token's logits do not depend, to the bit, on what is computed with them.
        written_on: device and versions of the run's first session, in words.
        problems: of the files.
        choices: of the model.
        interrupted_code: exit code of the signal that ended the audit early; 0 for none.
    """

    run_dir: str
    tokens: int
    prompt_tokens: int
    finish_reason: str | None
    model: str
    device: str
    path: str
    row_invariant: bool
    written_on: str
    problems: tuple[FileProblem, ...]
    choices: Choices
    interrupted_code: int = 0

    @property
    def sound(self) -> bool:
        """Whether the files are as the checkpoint says."""
        return not self.problems

    @property
    def exit_code(self) -> int:
        """0 all match, 1 a mismatch or damage; after a signal 128 + its number."""
        if self.interrupted_code:
            return self.interrupted_code
        exact = self.choices.complete and not self.choices.mismatches
        return EXIT_MATCH if exact and self.sound else EXIT_MISMATCH

    def to_json(self) -> dict[str, object]:
        """One object, ready for JSON."""
        return {
            "run_dir": self.run_dir,
            "verified": self.exit_code == EXIT_MATCH,
            "interrupted": bool(self.interrupted_code),
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "device": self.device,
            "path": self.path,
            "row_invariant": self.row_invariant,
            "written_on": self.written_on,
            "files": {"sound": self.sound, "problems": [asdict(problem) for problem in self.problems]},
            "choices": self.choices.to_json(),
        }
