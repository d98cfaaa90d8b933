"""Our own methods as contestants: one model, one cache, read once per context."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenswift_cli.bench.contestant import PeakMemory, Prefill, Say, Trial
from tokenswift_cli.bench.pass_timer import timed_passes
from tokenswift_cli.bench.run_source import stored_rows, tell_problems
from tokenswift_cli.bench.settings import AUTOREGRESSIVE, BenchSettings
from tokenswift_cli.config import Config
from tokenswift_cli.errors import PreflightError
from tokenswift_cli.metrics import RunStatistics
from tokenswift_cli.run_layout import TOKENS
from tokenswift_cli.run_model import require_known_ids
from tokenswift_cli.transcript import Transcript

if TYPE_CHECKING:
    from tokenswift_cli.engine.engine import Engine
    from tokenswift_cli.kv_journal.reader import JournalRows
    from tokenswift_cli.models.heads import DraftHeads
    from tokenswift_cli.models.loading import LoadedModel

_GIB = float(1 << 30)


class OwnMethods:
    """Runs every method of the engine over one key-value cache.

    Args:
        config: model, sampling and drafting; the method is replaced.
        settings: what is measured.
        say: gets one line per slow step.

    Raises:
        TokenSwiftError: model or heads cannot be loaded or do not fit.
    """

    def __init__(self, config: Config, settings: BenchSettings, say: Say) -> None:
        import torch

        from tokenswift_cli.models.device import stored_type
        from tokenswift_cli.models.loading import load_model
        from tokenswift_cli.models.target import Target
        from tokenswift_cli.native.attention import COMPILING, will_compile

        self._config = config
        self._say = say
        self._drafting = {method: replace(config.drafting, method=method) for method in settings.methods}
        self._loaded: LoadedModel = load_model(config.model, say)
        if self._loaded.model.device.type == "cpu" and will_compile():
            say(COMPILING)
        scratch = max([settings_.most_nodes for settings_ in self._drafting.values()], default=0) + 1
        self._target = Target(
            self._loaded.model,
            settings.capacity + scratch,
            gguf=self._loaded.gguf,
            keep_model=False,
            kv_dtype=stored_type(config.model.kv_dtype),
        )
        self._threads = torch.get_num_threads()
        self._target.take_threads()
        self._require_memory(settings.capacity)
        self._heads = self._load_heads()
        self._prompt: tuple[int, ...] = ()
        self._run = settings.run
        self._prefill_seconds: float | None = 0.0
        self._memory = PeakMemory()

    def facts(self) -> dict[str, object]:
        """Model, device, types, threads, versions; ``position_limit`` may be None."""
        import torch
        import transformers

        target, loaded = self._target, self._loaded
        facts: dict[str, object] = {
            "model": loaded.name,
            "device": str(target.device),
            "dtype": loaded.identity.dtype,
            "kv_dtype": self._config.model.kv_dtype,
            "decoder_path": target.path,
            "row_invariant": target.row_invariant,
            "threads": self._threads,
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "weight_bytes_per_pass": target.pass_bytes,
            "kv_bytes_per_token": target.kv_bytes_per_token,
            "position_limit": loaded.position_limit,
        }
        if target.device.type == "cuda":
            facts["accelerator"] = torch.cuda.get_device_name(target.device)
        return facts

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Raises: UsageError if there are none."""
        from tokenswift_cli.runner import encode_prompt

        return encode_prompt(self._loaded.tokenizer, text, False, None)

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        """Read a context; what the last one had in common with it at the beginning is not read again."""
        if self._run is not None:
            require_known_ids(self._loaded, self._run, {TOKENS: prompt})
        old, new = self._prompt, tuple(prompt)
        if not old or new[: len(old)] != old:
            old, self._prefill_seconds = (), 0.0
        self._memory.restart()
        self._target.cache.length = max(0, len(old) - 1)
        engine = self._engine(AUTOREGRESSIVE)
        started = time.perf_counter()
        restored = 0
        with self._stored_rows() as rows:
            for filled in engine.prefill(new, len(new), rows):
                restored += filled.restored
                self._say(f"read {filled.length} of {len(new)} tokens")
            if rows is not None:
                tell_problems(rows, self._say)
        if restored or self._prefill_seconds is None:
            self._prefill_seconds = None
        else:
            self._prefill_seconds += time.perf_counter() - started
        self._prompt = new
        return Prefill(self._prefill_seconds, self._memory.bytes())

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        """One turn. The time of a step is all that a run spends on it but for the display."""
        target = self._target
        self._memory.restart()
        target.cache.length = len(self._prompt) - 1
        engine = self._engine(method)
        for _ in engine.prefill(self._prompt, len(self._prompt)):
            pass
        transcript = Transcript(self._loaded.tokenizer, (), "ignore")
        statistics = RunStatistics()
        text: list[int] = []
        timed_steps = 0
        with timed_passes(target) as passes:
            steps = engine.steps(warm_up + tokens)
            while True:
                started = time.perf_counter()
                step = next(steps, None)
                if step is None:
                    break
                transcript.push(step.tokens)
                warm = len(text) >= warm_up
                text.extend(step.tokens)
                if not warm:
                    passes.reset()
                    continue
                timed_steps += 1
                statistics.record(
                    committed=len(step.tokens),
                    seconds=time.perf_counter() - started,
                    drafted=step.drafted,
                    accepted=step.accepted,
                    shares=step.shares,
                )
        return Trial(
            tokens=statistics.session_tokens,
            seconds=statistics.decode_seconds,
            steps=timed_steps,
            acceptance_rate=statistics.acceptance_rate,
            mean_acceptance_length=statistics.mean_acceptance_length,
            forward_seconds=passes.seconds,
            bytes_read=passes.bytes_read,
            peak_bytes=self._memory.bytes(),
            text=tuple(text),
        )

    def _stored_rows(self) -> AbstractContextManager[JournalRows | None]:
        if self._run is None:
            return nullcontext()
        return stored_rows(self._run, self._loaded, self._config, self._target.kv_layout)

    def _engine(self, method: str) -> Engine:
        from tokenswift_cli.engine.engine import Engine

        drafting = self._drafting.get(method) or replace(self._config.drafting, method=method)
        return Engine(
            self._target,
            self._config.sampling,
            drafting,
            end_ids=self._loaded.eos_ids,
            ignore_end=True,
            heads=self._heads if drafting.uses_heads else None,
        )

    def _load_heads(self) -> DraftHeads | None:
        users = [drafting for drafting in self._drafting.values() if drafting.uses_heads]
        if not users:
            return None
        from tokenswift_cli.engine.drafting import require_fitting_heads
        from tokenswift_cli.models.heads_directory import load_heads

        identity = self._loaded.identity
        hidden_size = self._loaded.model.config.get_text_config().hidden_size
        heads = load_heads(Path(str(users[0].heads)), identity, hidden_size, identity.vocab_size)
        for drafting in users:
            require_fitting_heads(drafting, heads)
        self._target.keep_states()
        return heads

    def _require_memory(self, capacity: int) -> None:
        needed, free = self._target.kv_bytes_per_token * capacity, self._target.free_bytes()
        if free is not None and needed > free:
            raise PreflightError(
                f"The key-value cache for {capacity} tokens needs {needed / _GIB:.2f} GiB, but only "
                f"{free / _GIB:.2f} GiB are free. Free memory, or use shorter --prefix-tokens."
            )
