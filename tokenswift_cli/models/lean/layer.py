"""One decoder layer, bound once: fused weights, and what a pass needs, as plain attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tokenswift_cli.models.lean.linear import Linear
from tokenswift_cli.models.lean.plan import LinearPlan, Shape


@dataclass(frozen=True)
class Layer:
    """One layer, ready to run.

    Attributes:
        index: in the cache.
        before_attention, before_feed_forward: scales [d] of the two norms.
        query_key_value: from [T, d] to [T, (query heads + 2 * KV heads) * D].
        head_scale: [query heads + KV heads, D], scale of the norms of queries and keys; None without.
        attention_output: from [T, query heads * D] to [T, d].
        gate_up: from [T, d] to [T, 2 * width].
        down: from [T, width] to [T, d].
        scaling: factor on the attention scores.
        window: keys a row sees at most, itself included; None for all.
    """

    index: int
    before_attention: Tensor
    query_key_value: Linear
    head_scale: Tensor | None
    attention_output: Linear
    before_feed_forward: Tensor
    gate_up: Linear
    down: Linear
    scaling: float
    window: int | None


def linear_groups(layer: Any) -> tuple[tuple[nn.Linear, ...], ...]:
    """The linear layers of a decoder layer; those of one group have one input and become one layer."""
    attention, feed_forward = layer.self_attn, layer.mlp
    return (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (feed_forward.gate_proj, feed_forward.up_proj),
        (feed_forward.down_proj,),
    )


def fused_shape(parts: Sequence[nn.Linear]) -> Shape:
    """Shape of the one layer that :func:`fuse` makes of these."""
    outputs = sum(part.out_features for part in parts)
    return Shape(outputs, parts[0].in_features, any(part.bias is not None for part in parts))


def fuse(parts: Sequence[nn.Linear], plan: LinearPlan, dtype: torch.dtype, keep_model: bool) -> Linear:
    """One layer that computes what the parts do, whose weights it takes over.

    The parts' weights become views of its storage, so that the model still runs as before, where the
    storage can be looked at; else they stay if ``keep_model``, or become empty, so that any use of them
    fails.
    """
    weights = [part.weight.detach() for part in parts]
    weight = (weights[0] if len(weights) == 1 else torch.cat(weights)).to(dtype)
    linear = plan.build(weight, _fused_bias(parts, dtype))
    matrix = linear.matrix
    first = 0
    for part in parts:
        last = first + part.out_features
        if matrix is None or matrix.dtype != part.weight.dtype:
            if keep_model:
                continue
            part.weight = nn.Parameter(part.weight.new_empty(0), requires_grad=False)
        elif matrix.data_ptr() != part.weight.data_ptr() or len(parts) > 1:
            part.weight.data = matrix[first:last]
        first = last
    return linear


def bind_layer(
    index: int, layer: Any, plan: LinearPlan, dtype: torch.dtype, window: int | None, keep_model: bool
) -> Layer:
    """``layer`` of a covered model (:mod:`tokenswift_cli.models.lean.family`) as a :class:`Layer`."""
    attention = layer.self_attn
    query_key_value, attention_output, gate_up, down = linear_groups(layer)
    head_scale = None
    if hasattr(attention, "q_norm"):
        size = attention.head_dim
        scales = [
            norm.weight.detach().to(dtype).expand(part.out_features // size, size)
            for norm, part in zip((attention.q_norm, attention.k_norm), query_key_value, strict=False)
        ]
        head_scale = torch.cat(scales)
    return Layer(
        index=index,
        before_attention=layer.input_layernorm.weight.detach().to(dtype),
        query_key_value=fuse(query_key_value, plan, dtype, keep_model),
        head_scale=head_scale,
        attention_output=fuse(attention_output, plan, dtype, keep_model),
        before_feed_forward=layer.post_attention_layernorm.weight.detach().to(dtype),
        gate_up=fuse(gate_up, plan, dtype, keep_model),
        down=fuse(down, plan, dtype, keep_model),
        scaling=float(attention.scaling),
        window=window,
    )


def _fused_bias(parts: Sequence[nn.Linear], dtype: torch.dtype) -> Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    return torch.cat(
        [
            torch.zeros(part.out_features, dtype=dtype, device=part.weight.device)
            if part.bias is None
            else part.bias.detach().to(dtype)
            for part in parts
        ]
    )
