"""Longer than the model was trained for: YaRN (arXiv 2309.00071), by transformers' own rotary code.

The scaling is fixed for the whole text: the same factor from the first token to the last.
"""

from __future__ import annotations

from typing import Any

from tokenswift_cli.errors import ModelError


def scale_positions(model_config: Any, factor: float, name: str) -> None:
    """Change a transformers configuration, in place, to YaRN with ``factor`` times as many positions.

    Args:
        model_config: of the model, before it is made.
        factor: > 1.
        name: of the model, for the message.

    Raises:
        ModelError: the model has no plain rotary embedding, or names no limit to scale.
    """
    config = model_config.get_text_config(decoder=True)
    rope, limit = getattr(config, "rope_parameters", None), getattr(config, "max_position_embeddings", None)
    if not isinstance(rope, dict) or "rope_theta" not in rope or not isinstance(limit, int):
        raise ModelError(
            f"{name} has no rotary embedding with one base and a position limit, so --rope-scaling cannot be "
            "used with it. Leave it out, or use another model."
        )
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ModelError(
            f"{name} scales its positions already ({kind}), so --rope-scaling cannot be used with it. "
            "Leave it out, or change the scaling in the model's config.json."
        )
    config.rope_parameters = {
        **rope,
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": limit,
    }
    config.max_position_embeddings = int(limit * factor)
