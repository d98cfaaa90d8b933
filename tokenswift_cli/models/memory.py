"""Does a model fit into memory? Known from the headers of its files, before a weight is read."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

from tokenswift_cli.errors import PreflightError
from tokenswift_cli.models.checkpoint import weight_files

_GIB = float(1 << 30)
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def parameter_count(directory: Path) -> int:
    """Numbers in the weights of a model directory.

    Raises:
        ModelError: it has no safetensors weights.
    """
    return sum(_numbers(directory / name) for name in weight_files(directory))


def require_memory(name: str, directory: Path, dtype: str, free_bytes: int | None) -> None:
    """Refuse a model whose weights alone exceed the memory.

    Args:
        name: of the model, for the message.
        directory: holds its safetensors files.
        dtype: it will be loaded in.
        free_bytes: memory free on the device; None if unknown, then nothing is refused.

    Raises:
        PreflightError: with the numbers and remedies.
    """
    needed = parameter_count(directory) * _BYTES[dtype]
    if free_bytes is not None and needed > free_bytes:
        remedy = "a 16-bit --dtype or " if dtype == "float32" else ""
        raise PreflightError(
            f"The weights of {name} in {dtype} need {needed / _GIB:.2f} GiB, but only "
            f"{free_bytes / _GIB:.2f} GiB are free. Free memory, or use {remedy}a smaller model."
        )


def free_memory(device_type: str) -> int | None:
    """Bytes still free where a model will live; None if the device does not tell."""
    if device_type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    if device_type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return None


def _numbers(path: Path) -> int:
    """From the header: 8 bytes of length, then JSON with the shape of each tensor."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 1 << 28)))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        # A damaged file is reported by whoever reads the weights.
        return 0
