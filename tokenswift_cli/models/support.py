"""Which attention the engine computes exactly; every other kind is refused by name, never silently wrong."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from tokenswift_cli.errors import UnsupportedModelError

_KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}


def refuse_unknown_layers(name: str, text_config: Any) -> None:
    """Refuse layers that are named and not known, before anything is computed.

    Args:
        name: of the model class, for the message.
        text_config: the language model's configuration.
    """
    unknown = set(getattr(text_config, "layer_types", None) or ()) - _KNOWN_LAYER_TYPES
    if unknown:
        _refuse(name, f"has {', '.join(sorted(unknown))} layers")
    if getattr(text_config, "attention_chunk_size", None):
        _refuse(name, f"attends in chunks of {text_config.attention_chunk_size} tokens")


def refuse_unseen_state(name: str, text_config: Any, cached_layers: int, windows: Set[int]) -> None:
    """Refuse what a short pass showed to bypass the engine's attention.

    A short pass cannot show that a window is missing, as nothing lies outside it: so the window itself
    must have been handed to the attention function.

    Args:
        name, text_config: as in :func:`refuse_unknown_layers`.
        cached_layers: layers that called the attention function.
        windows: sliding windows they asked for.
    """
    layers = text_config.num_hidden_layers
    if cached_layers != layers:
        _refuse(name, f"has {layers} layers of which only {cached_layers} keep keys and values of their own")
    window = getattr(text_config, "sliding_window", None)
    if window and not windows and getattr(text_config, "use_sliding_window", True):
        _refuse(name, f"applies its window of {window} tokens outside the attention function")


def _refuse(name: str, what: str) -> None:
    raise UnsupportedModelError(f"{name} {what}, which is not supported exactly. Use another model.")
