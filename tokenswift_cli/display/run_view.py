"""What the dashboard knows of a run: the events so far, folded into their latest state."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenswift_cli.display.remaining import RemainingTime
from tokenswift_cli.display.sparkline import SpeedHistory
from tokenswift_cli.display.text_tail import TextTail
from tokenswift_cli.events import (
    CheckpointSaved,
    Event,
    Loading,
    LoopDetected,
    PrefillProgress,
    Progress,
    RunFinished,
    RunStarted,
    TextAppended,
)


@dataclass
class RunView:
    """Latest state of each kind of event; times are those of the display's clock, in seconds."""

    opened_at: float
    loading: str = "Starting"
    started: RunStarted | None = None
    started_at: float = 0.0
    prefill: PrefillProgress | None = None
    progress: Progress | None = None
    seconds_left: float | None = None
    checkpoint: CheckpointSaved | None = None
    checkpoint_at: float = 0.0
    loop: LoopDetected | None = None
    finished: RunFinished | None = None
    tail: TextTail = field(default_factory=TextTail)
    speeds: SpeedHistory = field(default_factory=SpeedHistory)
    remaining: RemainingTime = field(default_factory=RemainingTime)

    def apply(self, event: Event, now: float) -> None:
        """Fold one event in."""
        if isinstance(event, TextAppended):
            self.tail.append(event.text)
        elif isinstance(event, Progress):
            self._advance(event)
        elif isinstance(event, Loading):
            self.loading = event.message
        elif isinstance(event, RunStarted):
            self.started, self.started_at = event, now
        elif isinstance(event, PrefillProgress):
            self.prefill = event
        elif isinstance(event, CheckpointSaved):
            self.checkpoint, self.checkpoint_at = event, now
        elif isinstance(event, LoopDetected):
            self.loop = event
        elif isinstance(event, RunFinished):
            self.finished = event

    def _advance(self, progress: Progress) -> None:
        before = self.progress
        tokens = progress.session_tokens - (before.session_tokens if before is not None else 0)
        seconds = progress.decode_seconds - (before.decode_seconds if before is not None else 0.0)
        prompt_tokens = self.started.prompt_tokens if self.started is not None else 0
        self.speeds.add(tokens, seconds)
        self.remaining.add(prompt_tokens + progress.tokens, tokens, seconds)
        self.seconds_left = self.remaining.seconds_left(progress.max_tokens - progress.tokens)
        self.progress = progress

    @property
    def phase(self) -> str:
        """loading, reading (the prompt) or writing."""
        if self.progress is not None:
            return "writing"
        if self.prefill is not None:
            return "reading"
        return "loading"

    def elapsed(self, now: float) -> float:
        """Seconds since the run started, or since the display opened while there is no run yet."""
        return now - (self.started_at if self.started is not None else self.opened_at)
