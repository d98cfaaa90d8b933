"""Training text on disk: immutable files of token sequences with the hidden states the target had there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tokenswift_cli.durable import atomic_write
from tokenswift_cli.errors import TrainingDataError

SUFFIX = ".safetensors"
_PREFIX = "batch-"


@dataclass(frozen=True)
class Shard:
    """B sequences of L tokens.

    Attributes:
        tokens: int32 [B, L].
        hidden: float16 or float32 [B, L, d]; row t is the target's state before its final norm, after it
            read ``tokens[:, t]``.
        prompt_lengths: int32 [B]; the tokens from there on were chosen by the target.
        seeds: int64 [B], of the noise that chose them.
    """

    tokens: Tensor
    hidden: Tensor
    prompt_lengths: Tensor
    seeds: Tensor


def shard_path(directory: Path, index: int) -> Path:
    """Where the shard of this number lies."""
    return directory / f"{_PREFIX}{index:06d}{SUFFIX}"


def shard_paths(directory: Path) -> list[Path]:
    """All whole shards of a directory, in order."""
    return sorted(directory.glob(f"{_PREFIX}*{SUFFIX}"))


def write_shard(path: Path, shard: Shard) -> None:
    """Write a shard so that it is whole or absent, also after a power cut. Raises ``OSError``."""
    tensors = {
        "tokens": shard.tokens.to(torch.int32),
        "hidden": shard.hidden,
        "prompt_lengths": shard.prompt_lengths.to(torch.int32),
        "seeds": shard.seeds.to(torch.int64),
    }
    atomic_write(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def read_shard(path: Path) -> Shard:
    """Map a shard into memory.

    Raises:
        TrainingDataError: the file is not such a shard.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        shard = Shard(**tensors)
    except (SafetensorError, OSError, TypeError) as error:
        raise TrainingDataError(
            f"{path} is not a shard of training text ({error}). Delete it; it is written anew."
        ) from error
    count, length = shard.tokens.shape if shard.tokens.dim() == 2 else (0, 0)
    shapes = (shard.hidden.shape[:2], shard.prompt_lengths.shape, shard.seeds.shape)
    types = (shard.tokens.dtype, shard.prompt_lengths.dtype, shard.seeds.dtype)
    if (
        shapes != ((count, length), (count,), (count,))
        or types != (torch.int32, torch.int32, torch.int64)
        or shard.hidden.dim() != 3
        or not shard.hidden.dtype.is_floating_point
        or not count * length
    ):
        raise TrainingDataError(
            f"{path} is not a shard of training text (its tensors do not fit together). "
            "Delete it; it is written anew."
        )
    return shard
