"""Which attention the engine computes exactly; every other kind is refused by name, never silently wrong."""

from __future__ import annotations

from typing import Any, NoReturn

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
        refuse(name, f"has {', '.join(sorted(unknown))} layers")
    if getattr(text_config, "attention_chunk_size", None):
        refuse(name, f"attends in chunks of {text_config.attention_chunk_size} tokens")


def refuse_unseen_state(name: str, text_config: Any, cached_layers: int) -> None:
    """Refuse layers that a short pass showed to keep what they know elsewhere than in keys and values.

    Args:
        name, text_config: as in :func:`refuse_unknown_layers`.
        cached_layers: layers that called the attention function.
    """
    layers = text_config.num_hidden_layers
    if cached_layers < layers:
        refuse(name, f"has {layers} layers of which only {cached_layers} keep keys and values of their own")
    if cached_layers > layers:
        refuse(name, f"has {layers} layers and keeps keys and values of {cached_layers}")


def refuse(name: str, what: str) -> NoReturn:
    """Refuse the model ``name``, which does ``what``: the end of a sentence that begins with the name."""
    raise UnsupportedModelError(f"{name} {what}, which is not supported exactly. Use another model.")
