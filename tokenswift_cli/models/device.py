"""Which device a model runs on and which data type its weights have there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenswift_cli.config import AUTO_DTYPE
from tokenswift_cli.errors import ModelError

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """The device for ``auto`` (CUDA, else MPS, else CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises:
        ModelError: the name is not known, or this machine has no such device.
    """
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"{name!r} is not a device. Use auto, cpu, cuda, cuda:N or mps.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ModelError(f"The device {name} is not supported. Use auto, cpu, cuda, cuda:N or mps.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"The device {name} was asked for, but torch finds no CUDA device. Use --device cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ModelError(f"The device {name} was asked for, but the last one here is cuda:{last}.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("The device mps was asked for, but torch finds none. Use --device cpu.")
    return device


def choose_dtype(name: str, device_type: str, checkpoint_dtype: str | None) -> str:
    """``float32``, ``float16`` or ``bfloat16`` for what the user asked.

    ``auto`` is float32 on the CPU, where the shorter types are slower, and the checkpoint's own type
    (float32 if it names none) on an accelerator.
    """
    if name != "auto":
        return name
    if device_type == "cpu":
        return "float32"
    own = (checkpoint_dtype or "float32").removeprefix("torch.")
    return own if own in ("float32", "float16", "bfloat16") else "float32"


def stored_type(kv_dtype: str) -> torch.dtype | None:
    """The type that keys and values are stored in; None (``auto``) for the one the model makes them in."""
    import torch

    return None if kv_dtype == AUTO_DTYPE else getattr(torch, kv_dtype)
