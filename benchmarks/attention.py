"""Attention of a few new rows over a long cache: torch's operators against the native kernel.

python benchmarks/attention.py --contexts 2048,8192,32768 --rows 1,4,8,16

Milliseconds for one forward pass of a model with --layers layers of random keys and values (the default
shapes are the demo model's), attention alone. All variants of a cell are run in turn, again and again;
the medians are shown. Both write the new rows into the cache first, as a forward pass does.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

from tokenswift_cli.openmp import share_cores

share_cores()  # before torch is loaded

import common  # noqa: E402
import torch  # noqa: E402

from tokenswift_cli.models import attention  # noqa: E402
from tokenswift_cli.models.attention import AttentionStep, attending, cached_attention  # noqa: E402
from tokenswift_cli.models.kv_cache import KeyValueCache  # noqa: E402
from tokenswift_cli.native.attention import Loaded, NativeAttention, load  # noqa: E402

# Caches together are larger than what a processor keeps close, as a model's are; more only cost memory.
_BYTES_AT_LEAST = 512 << 20


def copy_gigabytes_per_second(clock: Callable[[], float], repeats: int = 7) -> float:
    """Bytes read and written per second by a copy of 256 MiB with all threads."""
    source = torch.ones(64 << 20)
    target = torch.empty_like(source)
    times = []
    for _ in range(repeats):
        started = clock()
        target.copy_(source)
        times.append(clock() - started)
    return 2 * source.numel() * 4 / min(times) / 1e9


def filled(arguments: argparse.Namespace, context: int, layers: int, dtype: torch.dtype) -> KeyValueCache:
    """A cache of ``context`` committed rows."""
    cache = KeyValueCache(context + max(arguments.rows))
    for layer in range(layers):
        shape = (arguments.kv_heads, context, arguments.size)
        cache.write(layer, *(torch.randn(shape).to(dtype) for _ in range(2)))
    cache.length = context
    return cache


def torch_pass(cache: KeyValueCache, query: torch.Tensor, rows: torch.Tensor) -> Callable[[], None]:
    """One pass through models/attention.py as a model would make it where there is no compiler."""
    attention.load = lambda: Loaded(None, "not for this one")  # type: ignore[assignment]
    modules = [SimpleNamespace(layer_idx=layer) for layer in range(cache.layers)]

    def run() -> None:
        step = AttentionStep(cache, None, torch.arange(query.shape[1]))
        with attending(step):
            for module in modules:
                cached_attention(module, query[None], rows[None], rows[None], None)  # type: ignore[arg-type]

    return run


def native_pass(
    kernel: NativeAttention, cache: KeyValueCache, query: torch.Tensor, rows: torch.Tensor
) -> Callable[[], None]:
    """The same through the kernel."""
    scale = query.shape[2] ** -0.5

    def run() -> None:
        for layer in range(cache.layers):
            cache.write(layer, rows, rows)
            kernel.attend_heads(query, cache.keys(layer), cache.values(layer), cache.length, None, scale)

    return run


def medians(
    passes: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds of each, run in turn, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for repeat in range(repeats + 1):
        for name, run in passes.items():
            started = clock()
            run()
            if repeat:
                times[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=numbers, default=[2048, 8192, 32768])
    parser.add_argument("--rows", type=numbers, default=[1, 4, 8, 16])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--group", type=int, default=3, help="query heads per key-value head")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread and its CPU time, for a machine that is busy"
    )
    arguments = parser.parse_args()
    clock = time.perf_counter
    if arguments.cpu_time:
        arguments.threads, clock = 1, time.thread_time
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    loaded = load()
    if loaded.kernel is None:
        raise SystemExit(f"error: no native kernel here: {loaded.description}")
    bandwidth = copy_gigabytes_per_second(clock)
    table = []
    for context in arguments.contexts:
        row_bytes = 2 * arguments.kv_heads * arguments.size  # times the bytes of an element
        layers = min(arguments.layers, max(1, -(-_BYTES_AT_LEAST // (row_bytes * context * 2))))
        caches = {
            dtype: filled(arguments, context, layers, dtype) for dtype in (torch.float32, torch.float16)
        }
        for rows in arguments.rows:
            query = torch.randn(arguments.kv_heads * arguments.group, rows, arguments.size)
            new = torch.randn(arguments.kv_heads, rows, arguments.size)
            with torch.inference_mode():
                single, half = caches[torch.float32], caches[torch.float16]
                seconds = medians(
                    {
                        "torch": torch_pass(single, query, new),
                        "float32": native_pass(loaded.kernel, single, query, new),
                        "float16": native_pass(loaded.kernel, half, query, new.half()),
                    },
                    arguments.repeats,
                    clock,
                )
            scale = arguments.layers / layers
            read = {name: layers * context * row_bytes * (2 if name == "float16" else 4) for name in seconds}
            operations = 4 * layers * context * arguments.kv_heads * arguments.group * arguments.size * rows
            table.append(
                [
                    str(context),
                    str(rows),
                    *(common.number(seconds[name] * scale * 1e3, 1) for name in seconds),
                    *(common.number(seconds["torch"] / seconds[name]) for name in ("float32", "float16")),
                    *(common.number(read[name] / seconds[name] / 1e9, 1) for name in seconds),
                    common.number(operations / seconds["float16"] / 1e9, 0),
                ]
            )
            print(table[-1], flush=True)
        del caches
    threads = "one thread's CPU time" if arguments.cpu_time else f"{arguments.threads} threads"
    print(
        f"\n{arguments.layers} layers of {arguments.kv_heads} KV heads x {arguments.group} of size "
        f"{arguments.size}; {threads} on {platform.machine()}; native: {loaded.description}; "
        f"a copy moves {bandwidth:.1f} GB/s (read + write); medians of {arguments.repeats}\n"
    )
    head = ["context", "rows", "torch float32 ms", "native float32 ms", "native float16 ms"]
    head += ["torch / float32", "torch / float16"]
    head += ["torch GB/s", "float32 GB/s", "float16 GB/s", "float16 GFLOP/s"]
    common.table(head, table)


if __name__ == "__main__":
    main()
