"""llama.cpp as a contestant, through the optional package ``llama-cpp-python``, on the same .gguf file."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenswift_cli.bench.contestant import PeakMemory, Prefill, Say, Trial
from tokenswift_cli.config import Config, ModelConfig
from tokenswift_cli.engine.settings import SamplingSettings

MODULE = "llama_cpp"
DISTRIBUTION = "llama-cpp-python"


def why_no_llama(config: ModelConfig) -> str | None:
    """Why llama.cpp cannot be measured and what to do about it, as a sentence; None if it can."""
    if gguf_file(config) is None:
        return f"llama.cpp is not measured: it reads .gguf files, and {config.name} is none."
    if importlib.util.find_spec(MODULE) is None:
        return (
            f"llama.cpp is not measured: {DISTRIBUTION} is not installed. "
            f"Install it with `pip install {DISTRIBUTION}`."
        )
    return None


def gguf_file(config: ModelConfig) -> Path | None:
    """The .gguf file of a model; None if it has none.

    Raises:
        ModelError: it is the demo model, which is not installed.
    """
    from tokenswift_cli.models.demo import demo_gguf_path, is_demo_name

    if is_demo_name(config.name.strip()):
        return demo_gguf_path()
    path = Path(config.name.strip()).expanduser()
    return path if path.suffix.lower() == ".gguf" and path.is_file() else None


def sampler_keywords(sampling: SamplingSettings) -> dict[str, Any]:
    """What ``Llama.generate`` is asked for. It has no eta-sampling; its penalty has our window."""
    return {
        "temp": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.penalty,
    }


class LlamaPeer:
    """Plain decoding by llama.cpp.

    Args:
        config: model and sampling.
        capacity: positions of the longest text.
        threads: CPU threads, as many as ours.
        flash_attention: which of its two ways of attention.
        say: gets one line per slow step.
    """

    def __init__(self, config: Config, capacity: int, threads: int, flash_attention: bool, say: Say) -> None:
        library: Any = importlib.import_module(MODULE)
        path = gguf_file(config.model)
        sampling = config.sampling
        on_cpu = config.model.device in ("auto", "cpu")
        say(f"Loading {path} into llama.cpp")
        self._say = say
        self._llama = library.Llama(
            model_path=str(path),
            n_ctx=capacity + 1,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0 if on_cpu else -1,
            flash_attn=flash_attention,
            logits_all=False,
            last_n_tokens_size=sampling.penalty_window,
            seed=sampling.seed % 2**32,
            verbose=False,
        )
        self._keywords = sampler_keywords(sampling)
        self._prompt: tuple[int, ...] = ()
        self._prefill_seconds = 0.0
        self._memory = PeakMemory()

    def facts(self) -> dict[str, object]:
        """The version of the package."""
        return {"llama_cpp_python": importlib.metadata.version(DISTRIBUTION)}

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        """Read all but the last token; what the last context had in common with it is not read again."""
        old, new = self._prompt, tuple(prompt)
        self._memory.restart()
        if old and new[: len(old)] == old:
            self._llama.n_tokens = len(old) - 1  # rows behind it are dropped by the next evaluation
        else:
            self._llama.reset()
            self._prefill_seconds = 0.0
        started = time.perf_counter()
        step = int(self._llama.n_batch)
        for first in range(self._llama.n_tokens, len(new) - 1, step):
            last = min(first + step, len(new) - 1)
            self._llama.eval(new[first:last])
            self._say(f"read {last} of {len(new)} tokens")
        self._prefill_seconds += time.perf_counter() - started
        self._prompt = new
        return Prefill(self._prefill_seconds, self._memory.bytes())

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        """One turn. ``generate`` finds the context in its cache and evaluates its last token only."""
        self._memory.restart()
        warm_up = max(warm_up, 1)
        ends: list[float] = []
        for _ in self._llama.generate(list(self._prompt), **self._keywords):
            ends.append(time.perf_counter())
            if len(ends) == warm_up + tokens:
                break
        return Trial(
            tokens=tokens,
            seconds=ends[-1] - ends[warm_up - 1],
            steps=tokens,
            peak_bytes=self._memory.bytes(),
        )
