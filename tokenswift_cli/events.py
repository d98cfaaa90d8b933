"""What a run tells the world, as immutable records.

The runner publishes these; displays, logs and reports read them and never touch the engine.
All times are seconds, all sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Loading:
    """Something slow begins (model load, conversion, hashing); ``message`` is one short line."""

    message: str


@dataclass(frozen=True)
class RunStarted:
    """Once, before prefill. ``resumed_tokens`` is 0 for a new run."""

    run_dir: str
    model: str
    device: str
    dtype: str
    method: str
    prompt_tokens: int
    max_tokens: int
    resumed_tokens: int
    seed: int


@dataclass(frozen=True)
class PrefillProgress:
    """Prompt (or, on resume, prompt + text) tokens already read into the KV cache."""

    done_tokens: int
    total_tokens: int
    seconds: float


@dataclass(frozen=True)
class TextAppended:
    """New, final, valid text. Model output: may hold markup or control characters."""

    text: str


@dataclass(frozen=True)
class DrafterShare:
    """One drafter's part: positions it drafted on the longest path, and those accepted."""

    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Progress:
    """A snapshot of the run, published after engine steps (displays throttle themselves).

    ``tokens`` counts all generated tokens including resumed ones; ``session_tokens`` those of
    this process, over ``decode_seconds`` of decoding. Rates are None until they mean something.
    ``distinct`` holds Distinct-1..4 of the whole generated text.
    """

    tokens: int
    max_tokens: int
    session_tokens: int
    decode_seconds: float
    tokens_per_second: float | None
    recent_tokens_per_second: float | None
    speedup: float | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    distinct: tuple[float, float, float, float] | None
    drafters: Mapping[str, DrafterShare] = field(default_factory=dict)
    kv_bytes: int = 0
    process_bytes: int = 0
    eta_seconds: float | None = None


@dataclass(frozen=True)
class CheckpointSaved:
    """A chunk is durable on disk: nothing up to ``tokens`` can be lost any more."""

    tokens: int
    chunk: int
    seconds: float


@dataclass(frozen=True)
class LoopDetected:
    """The text repeats itself: an exact cycle of ``period`` tokens, or (period 0) low novelty."""

    tokens: int
    period: int
    message: str


@dataclass(frozen=True)
class Notice:
    """Something the user should know; ``level`` is "info" or "warning"."""

    message: str
    level: str = "info"


@dataclass(frozen=True)
class RunFinished:
    """The last event. ``finish_reason``: length | eos | stop | loop | interrupted."""

    finish_reason: str
    run_dir: str
    tokens: int
    session_tokens: int
    decode_seconds: float
    tokens_per_second: float | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    distinct: tuple[float, float, float, float] | None
    peak_process_bytes: int
    resume_command: str | None


Event = (
    Loading
    | RunStarted
    | PrefillProgress
    | TextAppended
    | Progress
    | CheckpointSaved
    | LoopDetected
    | Notice
    | RunFinished
)
