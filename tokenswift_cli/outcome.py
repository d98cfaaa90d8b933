"""How a run ended, for the process's exit code and for machines that read the summary."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RunOutcome:
    """The result of ``generate`` or ``resume``.

    Attributes:
        finish_reason: length | eos | stop | loop | interrupted | dry-run.
        run_dir: None for a dry run.
        tokens: generated tokens in the run directory.
        exit_code: of the process.
    """

    finish_reason: str
    run_dir: str | None
    tokens: int
    max_tokens: int
    prompt_tokens: int
    session_tokens: int = 0
    decode_seconds: float = 0.0
    tokens_per_second: float | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    distinct: tuple[float, float, float, float] | None = None
    peak_process_bytes: int = 0
    exit_code: int = 0

    def summary(self) -> dict[str, object]:
        """Everything but the exit code, ready for JSON."""
        values = asdict(self)
        del values["exit_code"]
        return values
