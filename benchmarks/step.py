"""Where the time of a step goes: weights, attention, host and draft, beside what the machine allows.

python benchmarks/step.py --contexts 2048,7936,32768 --rows 1,2,4,8,16

The cache is filled with random keys and values, because no speed depends on them; so a context costs no
prefill, and may be longer than the model was made for. The parts of a cell take turns; medians are shown.
Floors: bytes read over what a sum over memory reads per second, and multiplications over what a large
product makes per second; a pass can be no faster than the larger one.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import common
import torch
from attention import numbers

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.target import Target


@torch.inference_mode()
def fill(cache: KeyValueCache, target: Target, tokens: int) -> None:
    """Random rows up to ``tokens`` in all layers."""
    if not cache.layers:
        target.verify([1])  # makes the layers known; nothing is committed
        if cache is not target.cache:
            target.draft(cache, 1, 0)
    cache.length = 0
    for layer in range(cache.layers):
        heads, _, size = cache.keys(layer).shape
        cache.write(layer, torch.randn(heads, tokens, size), torch.randn(heads, tokens, size))
    cache.length = tokens


def read_gigabytes_per_second() -> float:
    """Bytes per second of a sum over 512 MiB with all threads."""
    source = torch.ones(128 << 20)
    return source.nbytes / least(source.sum, 7) / 1e9


def gigaflops() -> float:
    """Operations per second of a large float32 product with all threads."""
    size = 1536
    left, right = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / least(lambda: left @ right, 7) / 1e9


def least(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the quickest of several runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def medians(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each, run in turn, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(repeats + 1):
        for name, run in parts.items():
            started = time.perf_counter()
            run()
            if repeat:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def host_milliseconds(loaded: object, target: Target, context: int, repeats: int) -> tuple[float, float]:
    """(a plain step, its forward pass) in milliseconds, medians over steps of one text."""
    target.cache.length = context
    sampling = SamplingSettings(seed=7, penalty=1.2, min_p=0.1)
    engine = Engine(target, sampling, DraftingSettings(method="autoregressive"))
    for _ in engine.prefill([1] * (context + 1), context + 1):
        pass
    passes: list[float] = []
    verify = target.verify

    def timed(*given: object, **keywords: object) -> torch.Tensor:
        started = time.perf_counter()
        logits: torch.Tensor = verify(*given, **keywords)  # type: ignore[arg-type]
        passes.append(1e3 * (time.perf_counter() - started))
        return logits

    target.verify = timed  # type: ignore[method-assign]
    steps = []
    started = time.perf_counter()
    for _ in engine.steps(8 * repeats):
        now = time.perf_counter()
        steps.append(1e3 * (now - started))
        started = now
    del target.verify
    return statistics.median(steps[4:]), statistics.median(passes[4:])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--contexts", type=numbers, default=[2048, 7936, 32768])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--kv-dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--partial", type=int, default=1024, help="rows of the drafts' cache")
    arguments = parser.parse_args()
    loaded = common.load(arguments.model)
    stored = getattr(torch, arguments.kv_dtype)
    room = max(arguments.contexts) + max([*arguments.rows, 8 * arguments.repeats]) + 1
    target = Target(loaded.model, room, gguf=loaded.gguf, keep_model=False, kv_dtype=stored)
    partial = KeyValueCache(arguments.partial + 1, stored)
    fill(partial, target, arguments.partial)
    config = loaded.model.config.get_text_config()
    bandwidth, flops = read_gigabytes_per_second(), gigaflops()
    print(
        f"{arguments.model}, {target.path}; {torch.get_num_threads()} threads on {platform.machine()}; "
        f"key-value cache {arguments.kv_dtype}; memory reads {bandwidth:.1f} GB/s, float32 products make "
        f"{flops:.0f} GFLOP/s; milliseconds, medians of {arguments.repeats}\n"
    )
    rows_table, step_table = [], []
    for context in arguments.contexts:
        fill(target.cache, target, context)
        plain = None
        for rows in arguments.rows:
            ids = [(7 * i + 3) % target.vocabulary_size for i in range(rows)]

            def whole(ids: list[int] = ids, context: int = context) -> None:
                target.cache.length = context
                target.verify(ids)

            def weights(ids: list[int] = ids) -> None:
                target.cache.length = 0
                target.verify(ids)

            times = medians({"whole": whole, "weights": weights}, arguments.repeats)
            plain = plain or times["whole"]
            parameters = sum(p.numel() for p in weight_shapes(config))
            memory = (target.pass_bytes + target.kv_bytes_per_token * context) / bandwidth / 1e6
            heads = config.num_attention_heads * config.num_hidden_layers
            size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            arithmetic = 2 * rows * (parameters + 2 * heads * size * context) / flops / 1e6
            rows_table.append(
                [
                    str(context),
                    str(rows),
                    common.number(times["whole"], 1),
                    common.number(times["weights"], 1),
                    common.number(times["whole"] - times["weights"], 1),
                    common.number(memory, 1),
                    common.number(arithmetic, 1),
                    common.number(times["whole"] / plain),
                ]
            )
        fill(target.cache, target, context)
        step, forward = host_milliseconds(loaded, target, context, arguments.repeats)

        def draft(context: int = context) -> None:
            partial.length = arguments.partial
            target.draft(partial, 5, context)

        drafted = medians({"draft": draft}, arguments.repeats)["draft"]
        step_table.append(
            [str(context), *(common.number(value) for value in (step, forward, step - forward, drafted))]
        )
    common.table(
        ["context", "rows", "pass", "weights", "attention", "memory floor", "arithmetic floor", "/ 1 row"],
        rows_table,
    )
    print()
    common.table(
        ["context", "plain step", "its pass", "host", f"draft pass ({arguments.partial} rows)"], step_table
    )


def weight_shapes(config: object) -> list[torch.Tensor]:
    """The matrices of a pass, as tensors without storage."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    embeddings = model.get_input_embeddings().weight
    return [p for p in matrices if tied or p is not embeddings]


if __name__ == "__main__":
    main()
