"""The decoder of the Llama family with few operators per layer: what transformers computes, faster.

Queries, keys and values come from one product, and so do gate and up; sums are made in place; the
attention is the engine's own. Everything that does not depend on the tokens is bound once. Rotary
embeddings come from the model's own module, so that every kind of scaling is transformers' own.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from tokenswift_cli.models import attention
from tokenswift_cli.models.attention import AttentionStep
from tokenswift_cli.models.lean.family import why_not_covered, window_of
from tokenswift_cli.models.lean.layer import Layer, bind_layer, fused_shape, linear_groups
from tokenswift_cli.models.lean.linear import Linear
from tokenswift_cli.models.lean.norm import RootMeanSquareNorm
from tokenswift_cli.models.lean.plan import LinearPlan, Shape, plain_plan
from tokenswift_cli.models.lean.plan_store import plan_for

# Share of decoding time that rows which round alike may cost.
TOLERANCE = 0.05


class LeanDecoder:
    """A model of the Llama family; made by :meth:`of`.

    Attributes:
        plan: how the linear layers multiply, and whether rows round alike in them.
        row_invariant: False: torch's attention rounds a row by how many keys it is given, masked ones too.
        dtype: of states, logits, keys and values.
        weight_bytes: bytes of weights that one pass of a few rows reads; embeddings not counted.
        own_bytes: those of them that the model's own parameters do not hold.
    """

    row_invariant = False

    plan: LinearPlan
    dtype: torch.dtype
    weight_bytes: int
    own_bytes: int

    def __init__(
        self, model: PreTrainedModel, plan: LinearPlan, dtype: torch.dtype, keep_model: bool
    ) -> None:
        decoder, config = model.model, model.config
        self.plan = plan
        self.dtype = dtype
        first = decoder.layers[0].self_attn
        self._size: int = first.head_dim
        self._heads = first.q_proj.out_features // self._size
        self._kv_heads = first.k_proj.out_features // self._size
        self._width: int = decoder.layers[0].mlp.gate_proj.out_features
        self._rotary: nn.Module = decoder.rotary_emb
        bind = partial(_bind_layer, model, plan, dtype, keep_model)
        # Packing runs on one core and outside Python's lock, so layers are packed side by side.
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            self._layers = tuple(pool.map(bind, range(config.num_hidden_layers)))
        self._windows = frozenset(layer.window for layer in self._layers if layer.window is not None)
        self._vocabulary: int = model.lm_head.out_features
        self._output = _bind_output(model, plan, dtype)
        self._embeddings: Tensor = model.get_input_embeddings().weight.detach()
        device = self._embeddings.device
        self._final_scale = decoder.norm.weight.detach().to(dtype)
        self._norm = RootMeanSquareNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self._head_norm = RootMeanSquareNorm(self._size, config.rms_norm_eps, dtype, device)
        linears = [
            self._output,
            *(
                linear
                for layer in self._layers
                for linear in (layer.query_key_value, layer.attention_output, layer.gate_up, layer.down)
            ),
        ]
        self.weight_bytes = sum(linear.weight_bytes for linear in linears)
        # What can be looked at became the model's own parameters, in their type.
        shared = next(model.parameters()).dtype
        self.own_bytes = sum(
            linear.weight_bytes
            for linear in linears
            if linear.matrix is None or linear.matrix.dtype != shared
        )

    @property
    def description(self) -> str:
        """What it is, in a few words for people."""
        names = sorted({name for ways in self.plan.ways.values() for _, name in ways})
        return f"lean (torch; linear layers by {', '.join(names)})"

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: PreTrainedModel,
        *,
        packed: bool,
        keep_model: bool = False,
        tolerance: float = TOLERANCE,
        plans: Path | None = None,
    ) -> LeanDecoder | str:
        """Take over the weights of ``model``.

        Unless ``keep_model``, it computes as before only if its weights could become views of the fused
        ones; with opaque storage (packed float16, oneDNN's layout) the matrices of its layers are empty, and
        only its embeddings, norms, biases and output matrix are still there.

        Args:
            model: in evaluation mode, on its device.
            packed: keep the weights as float16 and compute in float32; for the CPU only.
            keep_model: whether its own code must still run afterwards, at the cost of memory.
            tolerance: share of decoding time that rows which round alike may cost; ``math.inf`` for any.
            plans: directory of measured plans, in the cache directory by default.

        Returns:
            The decoder; or why the model is not covered, as the end of a sentence, and it is as before.
        """
        reason = why_not_covered(model)
        if reason is not None:
            return reason
        weight = model.get_input_embeddings().weight
        if packed and weight.device.type != "cpu":
            return f"weights packed as float16 are for the CPU, and the model is on {weight.device}"
        shapes = _shapes(model)
        dtype = torch.float32 if packed else weight.dtype
        if weight.device.type != "cpu" or dtype != torch.float32:
            return cls(model, plain_plan(set(shapes)), dtype, keep_model)
        plan = plan_for(shapes, packed, tolerance, plans)
        return plan if isinstance(plan, str) else cls(model, plan, dtype, keep_model)

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: AttentionStep, logits_rows: int
    ) -> tuple[Tensor, Tensor]:
        """See :class:`tokenswift_cli.models.decoder.Decoder`; logits and states in :attr:`dtype`."""
        rows, start = token_ids.shape[0], step.cache.length
        padded = self.plan.padded(rows)
        size, heads, kv_heads, width = self._size, self._heads, self._kv_heads, self._width
        group = heads // kv_heads
        both, all_heads = heads + kv_heads, heads + 2 * kv_heads
        norm, cache, queries = self._norm, step.cache, step.queries
        step.windows.update(self._windows)

        states = self._embedded(token_ids, padded)
        cosine, sine = self._rotary(states[None], positions[None])
        cosine = cosine[0]
        # The rotation of (a, b) is (a cos - b sin, b cos + a sin).
        sine_a, sine_b = sine[0].chunk(2, dim=1)
        sine_a = -sine_a
        attended = states.new_zeros(padded, heads * size)
        attended_by_head = attended[:rows].view(rows, heads, size).transpose(0, 1)

        for layer in self._layers:
            projected = layer.query_key_value(norm(states, layer.before_attention))
            by_head = projected.view(padded, all_heads, size)
            if layer.head_scale is not None:
                self._head_norm.in_place(by_head[:, :both], layer.head_scale)
            turning, values = by_head[:rows].transpose(0, 1).split((both, kv_heads))
            turned = torch.empty((both, rows, size), dtype=states.dtype, device=states.device)
            torch.mul(turning, cosine, out=turned)
            half_a, half_b = turning.chunk(2, dim=2)
            turned_a, turned_b = turned.chunk(2, dim=2)
            turned_a.addcmul_(half_b, sine_a)
            turned_b.addcmul_(half_a, sine_b)
            query, keys = turned.split((heads, kv_heads))
            cache.write(layer.index, keys, values)
            # Query heads of one KV head are neighbours: their rows fold without a copy.
            folded = query.view(kv_heads, group * rows, size)
            if queries is not None:
                queries[layer.index] = folded.view(kv_heads, group, rows, size)
            attended_by_head.copy_(
                _attend(step, layer.index, folded, start, rows, group, layer.scaling, layer.window)
            )
            states.add_(layer.attention_output(attended))
            gate, up = layer.gate_up(norm(states, layer.before_feed_forward)).split(width, dim=1)
            states.add_(layer.down(functional.silu(gate).mul_(up)))

        return self._logits(states, rows, logits_rows), states[:rows]

    def _embedded(self, token_ids: Tensor, padded: int) -> Tensor:
        """[padded, d]; rows behind the tokens are zero and stay out of the attention."""
        found = self._embeddings.index_select(0, token_ids)
        if found.dtype == self.dtype and padded == len(found):
            return found
        states = torch.zeros(padded, found.shape[1], dtype=self.dtype, device=found.device)
        states[: len(found)] = found
        return states

    def _logits(self, states: Tensor, rows: int, wanted: int) -> Tensor:
        if wanted == rows:
            return self._output(self._norm(states, self._final_scale))[:rows]
        if not wanted:
            return states.new_empty(0, self._vocabulary)
        chosen = states.new_zeros(self.plan.padded(wanted), states.shape[1])
        chosen[:wanted] = states[rows - wanted : rows]
        return self._output(self._norm(chosen, self._final_scale))[:wanted]


def _attend(
    step: AttentionStep,
    layer: int,
    folded: Tensor,
    start: int,
    rows: int,
    group: int,
    scaling: float,
    window: int | None,
) -> Tensor:
    """[query heads, T, D] of the rows just written to the cache."""
    keys, values = step.cache.keys(layer), step.cache.values(layer)
    output = attention._attend(step, folded, keys, values, start, rows, group, scaling, window)
    return output.reshape(-1, rows, output.shape[-1])


def _bind_layer(
    model: PreTrainedModel, plan: LinearPlan, dtype: torch.dtype, keep_model: bool, index: int
) -> Layer:
    layer = model.model.layers[index]
    return bind_layer(index, layer, plan, dtype, window_of(model, layer.self_attn), keep_model)


def _shapes(model: PreTrainedModel) -> Counter[Shape]:
    layers = model.model.layers[: model.config.num_hidden_layers]
    groups = [group for layer in layers for group in linear_groups(layer)]
    return Counter([*(fused_shape(group) for group in groups), fused_shape([model.lm_head])])


def _bind_output(model: PreTrainedModel, plan: LinearPlan, dtype: torch.dtype) -> Linear:
    """The output layer. Its matrix stays with the model, for drafting heads and as tied embeddings."""
    output = model.lm_head
    weight = output.weight
    bias = None if output.bias is None else output.bias.detach().to(dtype)
    linear = plan.build(weight.detach().to(dtype), bias)
    if linear.matrix is not None and linear.matrix.dtype == weight.dtype:
        weight.data = linear.matrix  # of tied embeddings, too: it is the same parameter
    return linear
