"""One process's stretch of writing: prefill, decode in chunks, make each chunk durable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenswift_cli.chunk_record import ChunkRecorder, record_step
from tokenswift_cli.config import Config
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.engine.engine import Engine, Step
from tokenswift_cli.events import (
    CheckpointSaved,
    Event,
    LoopDetected,
    Notice,
    PrefillProgress,
    RunFinished,
    RunStarted,
    TextAppended,
)
from tokenswift_cli.metrics import RunStatistics, peak_process_memory_bytes, process_memory_bytes
from tokenswift_cli.models.target import Target
from tokenswift_cli.signals import StopRequests
from tokenswift_cli.transcript import Transcript

if TYPE_CHECKING:
    from tokenswift_cli.kv_journal.journal import Journal
    from tokenswift_cli.models.heads import DraftHeads
    from tokenswift_cli.models.loading import LoadedModel
    from tokenswift_cli.run_dir import Recovery, RunDirectory

# Seconds between snapshots; displays draw no faster.
_PROGRESS_INTERVAL = 0.1


class WritingSession:
    """Owns everything that lives as long as one process writes on one run.

    Args:
        directory: locked; recovered if it is resumed.
        config: of the run.
        loaded: the model, which is the run's own.
        target: ``loaded.model`` with an empty cache.
        heads: drafting heads of the model; None for none.
        journal: of the key-value cache.
        recovery: what the run holds already; None for a new run.
        stops: signals received.
        publish: gets every event.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        loaded: LoadedModel,
        target: Target,
        heads: DraftHeads | None,
        journal: Journal,
        recovery: Recovery | None,
        stops: StopRequests,
        publish: Callable[[Event], None],
    ) -> None:
        self._journal = journal
        self._directory = directory
        self._config = config
        self._loaded = loaded
        self._target = target
        self._stops = stops
        self._publish = publish
        self._written = list(recovery.tokens) if recovery else []
        self._resumed_tokens = len(self._written)
        self._chunk = recovery.chunk if recovery else 0
        generation = config.generation
        self._transcript = Transcript(loaded.tokenizer, generation.stop, generation.on_loop)
        # Characters at the start of the coming text that an earlier session showed already.
        self._shown_ahead = 0
        if recovery:
            text = self._transcript.replay(recovery.tokens)
            # A finished run released text that may yet become part of a stop string.
            if recovery.text_damaged or text != recovery.text:
                directory.rewrite_text(text)
            if recovery.text.startswith(text):
                self._shown_ahead = len(recovery.text) - len(text)
        self._engine = Engine(
            target,
            config.sampling,
            config.drafting,
            end_ids=loaded.eos_ids,
            ignore_end=generation.ignore_eos,
            min_tokens=generation.min_tokens,
            heads=heads,
        )
        self._statistics = RunStatistics()
        self._session_facts: dict[str, object] = {}
        self._plain_seconds = 0.0
        self._next_progress = 0.0
        self._start_chunk()

    def run(self) -> str:
        """Write until the text ends or a signal asks to stop; returns the finish reason."""
        self._announce()
        try:
            return self._write()
        finally:
            self._journal.close()

    def _write(self) -> str:
        if self._config.generation.on_loop == "stop" and self._transcript.looping:
            return self._finish("loop")
        if not self._prefill():
            return self._finish("interrupted")
        generation = self._config.generation
        for step in self._engine.steps(generation.max_tokens - len(self._written)):
            reason = self._take(step)
            if reason is not None:
                return self._finish(reason)
            if len(self._chunk_tokens) >= self._config.run.chunk_tokens:
                self._save_chunk(None)
            if self._stops.requested:
                return self._finish("interrupted")
        raise RuntimeError("the engine ended without a reason")

    @property
    def tokens(self) -> int:
        """Tokens generated so far, earlier sessions included."""
        return len(self._written)

    def finished_event(self, reason: str, command: str | None) -> RunFinished:
        """The last event of the run."""
        statistics = self._statistics
        return RunFinished(
            finish_reason=reason,
            run_dir=str(self._directory.path),
            tokens=len(self._written),
            session_tokens=statistics.session_tokens,
            decode_seconds=statistics.decode_seconds,
            tokens_per_second=statistics.tokens_per_second,
            acceptance_rate=statistics.acceptance_rate,
            mean_acceptance_length=statistics.mean_acceptance_length,
            distinct=self._transcript.distinct.values(),
            peak_process_bytes=peak_process_memory_bytes(),
            resume_command=command,
        )

    def _announce(self) -> None:
        config = self._config
        self._publish(
            RunStarted(
                run_dir=str(self._directory.path),
                model=self._loaded.name,
                device=str(self._target.device),
                dtype=self._loaded.identity.dtype,
                method=config.drafting.method,
                prompt_tokens=len(self._directory.prompt_ids),
                max_tokens=config.generation.max_tokens,
                resumed_tokens=self._resumed_tokens,
                seed=config.sampling.seed,
            )
        )
        if self._resumed_tokens:
            self._publish(
                Notice(
                    f"Restored {self._resumed_tokens} tokens from {self._chunk} chunks; rebuilding the "
                    "n-gram index, the penalty window and what the journal lacks of the key-value cache."
                )
            )

    def _prefill(self) -> bool:
        """Read prompt and text, or take their rows from the journal; False if a signal asked to stop."""
        token_ids = self._directory.prompt_ids + self._written
        started = time.perf_counter()
        self._publish(PrefillProgress(0, len(token_ids), 0.0))
        with self._journal.open_rows(token_ids[:-1], self._target.kv_layout) as rows:
            for filled in self._engine.prefill(token_ids, len(self._directory.prompt_ids), rows):
                self._publish(PrefillProgress(filled.length, len(token_ids), time.perf_counter() - started))
                if self._stops.requested:
                    break
            for problem in rows.problems:
                self._publish(Notice(f"{problem}; what it held was computed again.", "warning"))
            if self._stops.requested:
                # What was computed until here need not be computed again.
                self._journal.begin(token_ids, [*rows.sound, *rows.unread], self._target.cache)
                return False
            self._publish(PrefillProgress(len(token_ids), len(token_ids), time.perf_counter() - started))
            self._journal.begin(token_ids, rows.sound, self._target.cache)
            self._note_start(rows.restored, rows.seconds, time.perf_counter() - started)
        return True

    def _note_start(self, restored: int, restore_seconds: float, seconds: float) -> None:
        """Say, and have the first chunk record, how the cache came about."""
        computed = self._target.cache.length - restored
        self._session_facts = {
            "session": {
                "resumed_tokens": self._resumed_tokens,
                "restored_rows": restored,
                "restore_seconds": restore_seconds,
                "computed_rows": computed,
                "start_seconds": seconds,
            }
        }
        if self._resumed_tokens:
            self._publish(
                Notice(
                    f"Key-value cache: {restored} rows read from the journal in {restore_seconds:.1f} s, "
                    f"{computed} computed again; ready after {seconds:.1f} s."
                )
            )

    def _take(self, step: Step) -> str | None:
        """Add a step's tokens to the text; the finish reason if that ended it."""
        started = time.perf_counter()
        addition = self._transcript.push(step.tokens)
        tokens = step.tokens[: addition.tokens]
        self._written.extend(tokens)
        self._chunk_tokens.extend(tokens)
        if addition.text:
            self._chunk_text.append(addition.text)
            self._publish_text(addition.text)
        for count, report in addition.loops:
            self._publish(LoopDetected(count, report.period, report.message))
        host_seconds = time.perf_counter() - started
        self._chunk_recorder.add(step, len(tokens), host_seconds)
        record_step(self._statistics, step, len(tokens), host_seconds)
        if step.plain_seconds is not None:
            self._plain_seconds += step.plain_seconds * len(tokens)
        if started >= self._next_progress:
            self._publish_progress()
            self._next_progress = started + _PROGRESS_INTERVAL
        if addition.finish_reason is not None:
            return addition.finish_reason
        generation = self._config.generation
        if not generation.ignore_eos and tokens[-1] in self._loaded.eos_ids:
            return "eos"
        return "length" if len(self._written) >= generation.max_tokens else None

    def _finish(self, reason: str) -> str:
        if reason != "interrupted":
            rest = self._transcript.finish()
            if rest.text:
                self._chunk_text.append(rest.text)
                self._publish_text(rest.text)
            if reason == "eos" and rest.finish_reason:
                # Only a text at its end is final; a longer run may read the last bytes differently.
                reason = rest.finish_reason
        self._save_chunk(reason)
        self._publish_progress()
        return reason

    def _publish_text(self, text: str) -> None:
        new = text[self._shown_ahead :]
        self._shown_ahead -= len(text) - len(new)
        if new:
            self._publish(TextAppended(new))

    def _start_chunk(self) -> None:
        self._chunk_tokens: list[int] = []
        self._chunk_text: list[str] = []
        self._chunk_recorder = ChunkRecorder()

    def _save_chunk(self, reason: str | None) -> None:
        if reason == "interrupted" and not self._chunk_tokens:
            self._extend_journal(last=True)
            return
        started = time.perf_counter()
        metrics = self._chunk_recorder.record(
            tokens=len(self._written),
            transcript=self._transcript,
            kv_bytes=self._target.cache.used_bytes,
            facts={"journal_bytes": self._journal.written_bytes, **self._session_facts},
        )
        manifest = self._directory.append_chunk(
            self._chunk_tokens, "".join(self._chunk_text), metrics, finish_reason=reason
        )
        self._chunk = manifest.chunk
        self._session_facts = {}
        self._extend_journal(last=reason is not None)
        self._start_chunk()
        self._publish(CheckpointSaved(len(self._written), self._chunk, time.perf_counter() - started))

    def _extend_journal(self, *, last: bool) -> None:
        self._journal.save(self._chunk_tokens, last=last)
        failure = self._journal.take_failure()
        if failure is None:
            return
        if self._journal.required:
            with self._directory.telling():
                raise failure
        why = os_error_text(failure) if isinstance(failure, OSError) else repr(failure)
        self._publish(
            Notice(
                f"The key-value journal ends here ({why}). The text is safe; a resume computes again what is "
                "missing.",
                "warning",
            )
        )

    def _publish_progress(self) -> None:
        statistics = self._statistics
        speedup = None
        if self._plain_seconds and statistics.decode_seconds:
            speedup = self._plain_seconds / statistics.decode_seconds
        self._publish(
            statistics.progress(
                tokens=len(self._written),
                max_tokens=self._config.generation.max_tokens,
                distinct=self._transcript.distinct.values(),
                speedup=speedup,
                kv_bytes=self._target.cache.used_bytes,
                process_bytes=process_memory_bytes(),
            )
        )
