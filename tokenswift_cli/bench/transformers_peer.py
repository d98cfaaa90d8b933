"""``transformers.generate`` as a contestant: the stock model, plain and with prompt lookup."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenswift_cli.bench.contestant import PeakMemory, Prefill, Say, Trial
from tokenswift_cli.bench.pass_timer import wait_for
from tokenswift_cli.bench.run_source import fill_dynamic_cache
from tokenswift_cli.bench.settings import TRANSFORMERS_LOOKUP
from tokenswift_cli.config import Config
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.metrics import RunStatistics

PROMPT_LOOKUP_TOKENS = 10


def generation_keywords(sampling: SamplingSettings, end_ids: Sequence[int]) -> dict[str, Any]:
    """What ``generate`` is asked for, as close to our settings as it has them.

    Its repetition penalty is over the whole text instead of a window, at the same cost; its noise is its own,
    so its text is another one. End-of-text is never chosen, here as there.
    """
    keywords: dict[str, Any] = {"do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        keywords |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p or None,
        }
        if sampling.eta > 0:
            keywords["eta_cutoff"] = sampling.eta
    if sampling.penalty != 1.0:
        keywords["repetition_penalty"] = sampling.penalty
    suppressed = sorted({*end_ids, *sampling.suppress_ids})
    if suppressed:
        keywords["suppress_tokens"] = suppressed
    return keywords


class TransformersPeer:
    """A model as transformers loads it, in its default attention.

    Args:
        config: model and sampling.
        run: a run directory whose journal holds rows of the contexts; None for none.
        say: gets one line per slow step.

    Raises:
        TokenSwiftError: the model cannot be loaded.
    """

    def __init__(self, config: Config, run: Path | None, say: Say) -> None:
        import torch
        from transformers import GenerationConfig

        from tokenswift_cli.models.loading import load_model

        loaded = load_model(config.model, say)
        self._loaded, self._config, self._run, self._say = loaded, config, run, say
        self._model: Any = loaded.model
        # What the model's authors recommend would fill in for all that is not named.
        self._model.generation_config = GenerationConfig()
        self._model.prepare_inputs_for_generation = _going_on(self._model.prepare_inputs_for_generation)
        self._sampling = config.sampling
        self._keywords = generation_keywords(config.sampling, loaded.eos_ids)
        self._ids = torch.empty(1, 0, dtype=torch.long)
        self._cache: Any = None
        self._clock = _Clock(self._model)
        self._memory = PeakMemory()

    def facts(self) -> dict[str, object]:
        """The attention implementation."""
        return {"transformers_attention": self._model.config._attn_implementation}

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        """Read all but the last token in one pass, as ``generate`` does."""
        import torch
        from transformers import DynamicCache

        self._cache = None
        self._memory.restart()
        self._ids = torch.tensor([list(prompt)], device=self._model.device)
        cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))
        started = time.perf_counter()
        restored = self._restore(cache, prompt)
        if restored < len(prompt) - 1:
            self._read(cache, self._ids[:, restored:-1])
        wait_for(self._model.device)
        self._cache = cache
        if restored:  # what was needed for that is not the peer's
            return Prefill(None, 0)
        return Prefill(time.perf_counter() - started, self._memory.bytes())

    def _read(self, cache: Any, ids: Any) -> None:
        import torch

        with torch.no_grad():
            self._model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)

    def _restore(self, cache: Any, prompt: Sequence[int]) -> int:
        """The rows of the context that the run's journal holds; returns how many."""
        if self._run is None:
            return 0
        self._read(cache, self._ids[:, :2])
        return fill_dynamic_cache(cache, self._run, self._loaded, self._config, len(prompt) - 1, self._say)

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        """One turn. The first step, which includes what ``generate`` sets up, is never timed."""
        import torch
        from transformers import StoppingCriteriaList

        keywords = dict(self._keywords)
        if method == TRANSFORMERS_LOOKUP:
            keywords["prompt_lookup_num_tokens"] = PROMPT_LOOKUP_TOKENS
        cache, keep = self._fresh_cache()
        read_by_pass = _weight_bytes_read(self._model) + _cache_bytes(cache)
        self._memory.restart()
        torch.manual_seed(self._sampling.seed)
        self._clock.restart()
        # Another step after the warm-up: the timing begins at its end.
        with self._clock:
            self._model.generate(
                self._ids,
                attention_mask=torch.ones_like(self._ids),
                cache=cache,
                max_new_tokens=max(warm_up, 1) + tokens,
                stopping_criteria=StoppingCriteriaList([self._clock.criterion()]),
                **keywords,
            )
        peak = self._memory.bytes()
        if keep:
            cache.crop(self._ids.shape[1] - 1 - cache.get_seq_length())
        return self._clock.trial(self._ids.shape[1], max(warm_up, 1), read_by_pass, peak)

    def _fresh_cache(self) -> tuple[Any, bool]:
        """The context's cache, and whether it is to be cut back afterwards instead of being a copy."""
        if any(self._cache.is_sliding):
            return copy.deepcopy(self._cache), False  # what left the window cannot be brought back
        return self._cache, True


def _going_on(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """``prepare_inputs_for_generation`` that never hands over what the cache holds already.

    With prompt lookup, the first step would read the whole context a second time, behind the cached one.
    """

    @functools.wraps(prepare)
    def prepared(
        input_ids: Any, next_sequence_length: int | None = None, cache: Any = None, **keywords: Any
    ) -> Any:
        if next_sequence_length is None and cache is not None:
            next_sequence_length = input_ids.shape[1] - cache.get_seq_length()
        return prepare(input_ids, next_sequence_length=next_sequence_length, cache=cache, **keywords)

    return prepared


class _Clock:
    """Notes when each pass begins and ends, and when each step is through."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._handles: list[Any] = []
        self.restart()

    def restart(self) -> None:
        self._steps: list[tuple[float, int]] = []  # when, and the length of the text then
        self._passes: list[tuple[float, float, int]] = []  # begin, end, rows
        self._begun = 0.0

    def __enter__(self) -> _Clock:
        self._handles = [
            self._model.register_forward_pre_hook(self._begin),
            self._model.register_forward_hook(self._end, with_kwargs=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: object) -> None:
        self._begun = time.perf_counter()

    def _end(self, model: Any, arguments: object, keywords: dict[str, Any], result: object) -> None:
        wait_for(model.device)
        self._passes.append((self._begun, time.perf_counter(), keywords["input_ids"].shape[1]))

    def criterion(self) -> Any:
        """Looks on at each step and never stops it."""
        import torch
        from transformers import StoppingCriteria

        steps = self._steps

        class Watch(StoppingCriteria):
            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                steps.append((time.perf_counter(), input_ids.shape[1]))
                return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

        return Watch()

    def trial(self, context: int, warm_up: int, read_by_pass: float, peak_bytes: int) -> Trial:
        """The figures of what came after the first ``warm_up`` tokens."""
        statistics = RunStatistics()
        forward_seconds = 0.0
        timed = 0
        for index in range(1, len(self._steps)):
            (before, old_length), (now, length) = self._steps[index - 1 : index + 1]
            if old_length - context < warm_up:
                continue
            begun, ended, rows = self._passes[index]
            forward_seconds += ended - begun
            timed += 1
            committed = length - old_length
            statistics.record(
                committed=committed, seconds=now - before, drafted=rows - 1, accepted=committed - 1
            )
        return Trial(
            tokens=statistics.session_tokens,
            seconds=statistics.decode_seconds,
            steps=timed,
            acceptance_rate=statistics.acceptance_rate,
            mean_acceptance_length=statistics.mean_acceptance_length,
            forward_seconds=forward_seconds,
            bytes_read=read_by_pass * timed,
            peak_bytes=peak_bytes,
        )


def _cache_bytes(cache: Any) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def _weight_bytes_read(model: Any) -> int:
    """Of one pass: all but an embedding table that is not the output layer too."""
    table, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    return total - (0 if table.data_ptr() == output.data_ptr() else table.numel() * table.element_size())
