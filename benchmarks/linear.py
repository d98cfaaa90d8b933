"""Time of all linear layers of a model by variant and number of rows, as Markdown.

python benchmarks/linear.py --model smollm2-135m --threads 2

Each layer has weights of its own, as in a pass: nothing stays in the processor's caches that a pass would
not keep there. Variants and numbers of rows take turns; the least of the rounds counts. The second table
says between which numbers of rows a row is rounded alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import common
import torch
from torch import Tensor, nn

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.models.lean.calibration import row_classes, usable_sizes
from tokenswift_cli.models.lean.layer import fused_shape, linear_groups
from tokenswift_cli.models.lean.linear import VARIANTS, Linear
from tokenswift_cli.models.lean.plan import Shape
from tokenswift_cli.native.attention import load
from tokenswift_cli.native.linear import PackedLinear

Make = Callable[[Tensor, Tensor | None], Linear]

ROWS = (1, 2, 4, 8, 16, 32, 64)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEMO_MODEL, help="of the Llama family")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-output-layer", action="store_true", help="leave the output layer out")
    options = parser.parse_args()
    model = common.load(options.model, options.threads).model
    groups = [group for layer in model.model.layers for group in linear_groups(layer)]
    if not options.no_output_layer:
        groups.append((model.lm_head,))
    times, shapes = measure(groups, options.rounds)
    weights = sum(shape.outputs * shape.inputs for shape in shapes)
    print(
        f"{options.model}: {len(groups)} layers, {weights / 1e6:.0f} million weights, "
        f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}; "
        f"milliseconds per pass, least of {options.rounds}\n"
    )
    print("| variant | " + " | ".join(f"T = {rows}" for rows in ROWS) + " | GB/s at T = 1 |")
    print("|---|" + "---|" * (len(ROWS) + 1))
    for name, (seconds, size) in times.items():
        cells = " | ".join(f"{1e3 * seconds[rows]:.1f}" for rows in ROWS)
        print(f"| {name} | {cells} | {size / seconds[1] / 1e9:.1f} |")
    print("\n| shape | " + " | ".join(times) + " |")
    print("|---|" + "---|" * len(times))
    for shape in dict.fromkeys(shapes):
        cells = " | ".join(alike(shape, name) for name in times)
        print(f"| {shape.outputs} x {shape.inputs} | {cells} |")


def measure(
    groups: list[tuple[nn.Linear, ...]], rounds: int
) -> tuple[dict[str, tuple[dict[int, float], int]], list[Shape]]:
    """By variant, seconds for all groups by number of rows and the bytes of their weights; the shapes."""
    shapes = [fused_shape(group) for group in groups]
    layers: dict[str, list[Linear]] = {}
    for name, variant in variants().items():
        try:
            layers[name] = [copied(group, variant) for group in groups]
        except RuntimeError as error:
            print(f"{name} is left out: {error}\n")
    best = {name: dict.fromkeys(ROWS, float("inf")) for name in layers}
    with torch.inference_mode():
        for _ in range(rounds):
            for rows in ROWS:
                inputs = {shape.inputs: torch.randn(rows, shape.inputs) for shape in shapes}
                given = [inputs[shape.inputs] for shape in shapes]
                for name, linears in layers.items():
                    start = time.perf_counter()
                    for linear, x in zip(linears, given, strict=True):
                        linear(x)
                    best[name][rows] = min(best[name][rows], time.perf_counter() - start)
    sizes = {name: sum(linear.weight_bytes for linear in linears) for name, linears in layers.items()}
    return {name: (best[name], sizes[name]) for name in layers}, shapes


def variants() -> dict[str, Make]:
    """Torch's ways, and the compiled ones where there is a compiler; blocks hold random levels."""
    kernel = load().kernel
    if kernel is None:
        return dict(VARIANTS)
    library = kernel.library

    def stored(dtype: torch.dtype) -> Make:
        return lambda weight, bias: PackedLinear.of_matrix(library, weight.to(dtype), bias)

    def blocks(bits: int) -> Make:
        def make(weight: Tensor, bias: Tensor | None) -> Linear:
            levels = torch.randint(0, 16, weight.shape, dtype=torch.uint8 if bits == 4 else torch.int8)
            factors = torch.rand(weight.shape[0], weight.shape[1] // 32)
            return PackedLinear.of_blocks(
                library, levels, factors, factors if bits == 4 else None, bias, bits=bits
            )

        return make

    return VARIANTS | {
        "native float32": stored(torch.float32),
        "native float16": stored(torch.float16),
        "native 8-bit blocks": blocks(8),
        "native 4-bit blocks": blocks(4),
    }


def copied(group: tuple[nn.Linear, ...], variant: Make) -> Linear:
    """The fused layer with a copy of the weights, so that variants do not share a cache."""
    bias = torch.cat([part.bias for part in group]) if group[0].bias is not None else None
    return variant(torch.cat([part.weight for part in group]).float(), bias)


def alike(shape: Shape, name: str) -> str:
    """Between which numbers of rows a row of this layer is rounded alike."""
    weight = torch.randn(shape.outputs, shape.inputs) / shape.inputs**0.5
    classes = row_classes(
        variants()[name](weight, torch.zeros(shape.outputs) if shape.bias else None), shape.inputs
    )
    found = usable_sizes(classes)
    if not found:
        return "none"
    return "; ".join("all" if len(sizes) == len(classes) else ", ".join(map(str, sizes)) for sizes in found)


if __name__ == "__main__":
    main()
