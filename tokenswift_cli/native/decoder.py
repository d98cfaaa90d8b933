"""The native forward pass as a function of tensors: a whole Llama-like decoder in one call.

Built on :mod:`tokenswift_cli.native.linear` and the same library as :mod:`tokenswift_cli.native.attention`.
A row's result depends, to the last bit, only on what the row is and sees: not on the rows computed with it,
not on threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenswift_cli.native.attention import NativeAttention
from tokenswift_cli.native.functions import functions_of
from tokenswift_cli.native.linear import PackedLinear, WeightsStruct

if TYPE_CHECKING:
    from torch import Tensor

INTERFACE = 1

_WORKSPACE_TOO_SMALL = 1
_OUTCOMES = {
    2: "a size is out of range",
    3: "a row sees neither prefix nor itself",
    4: "this processor does not have the instructions asked for",
}


class _Layer(ctypes.Structure):
    """As ``DecoderLayer`` in decoder_job.h."""

    _fields_ = (
        ("before_attention", ctypes.c_void_p),
        ("before_feed_forward", ctypes.c_void_p),
        ("head_scale", ctypes.c_void_p),
        ("query_key_value", WeightsStruct),
        ("attention_output", WeightsStruct),
        ("gate", WeightsStruct),
        ("up", WeightsStruct),
        ("down", WeightsStruct),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("reserved", ctypes.c_float),
    )


class _Model(ctypes.Structure):
    """As ``DecoderModel`` in decoder_job.h."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("layer_count", ctypes.c_int64),
        ("final_scale", ctypes.c_void_p),
        ("output", WeightsStruct),
        ("width", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("reserved", ctypes.c_float),
    )


class _Pass(ctypes.Structure):
    """As ``DecoderPass`` in decoder_job.h."""

    _fields_ = (
        ("model", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("cosine", ctypes.c_void_p),
        ("sine", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("key_head", ctypes.c_int64),
        ("key_row", ctypes.c_int64),
        ("value_head", ctypes.c_int64),
        ("value_row", ctypes.c_int64),
        ("visibility", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("prefix", ctypes.c_int64),
        ("queries", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("logits_rows", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("thread_number", ctypes.c_void_p),
        ("thread_count", ctypes.c_void_p),
        ("half", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("instructions", ctypes.c_int32),
    )


@dataclass(frozen=True)
class LayerWeights:
    """One layer. All plain tensors are float32, contiguous, on the CPU.

    Attributes:
        before_attention, before_feed_forward: [d], scales of the norms.
        head_scale: [query heads + KV heads, size], scales of the norms of queries and keys; None without.
        query_key_value: from d to (query heads + 2 * KV heads) * size.
        attention_output: from query heads * size to d.
        gate, up: from d to the feed-forward width.
        down: from the feed-forward width to d.
        scaling: factor on the attention scores.
        window: positions a row sees at most, itself included; None for all.
    """

    before_attention: Tensor
    before_feed_forward: Tensor
    head_scale: Tensor | None
    query_key_value: PackedLinear
    attention_output: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear
    scaling: float
    window: int | None


class DecoderKernel:
    """The compiled pass over one model's weights.

    Args:
        native: the loaded library, its threads and its instruction set.
        layers: of the model.
        final_scale: float32 [d], scale of the final norm.
        output: from d to the vocabulary.
        heads, kv_heads, size: query heads, KV heads, elements of a head (even).
        epsilon: of all norms.

    Attributes:
        threads: of a pass; None for as many as torch uses.
        weight_bytes: bytes of weights that a pass reads.

    Raises:
        BuildError: the library is another version's.
        ValueError: shapes do not fit.
    """

    threads: int | None = None

    def __init__(
        self,
        native: NativeAttention,
        layers: Sequence[LayerWeights],
        final_scale: Tensor,
        output: PackedLinear,
        *,
        heads: int,
        kv_heads: int,
        size: int,
        epsilon: float,
    ) -> None:
        import torch

        library = native.library
        self._run, self._workspace_bytes = functions_of(
            library, "decoder", INTERFACE, "decoder", "decoder_workspace"
        )
        self._workspace_bytes.restype = ctypes.c_int64
        self._torch = torch
        # ctypes keeps addresses only: these keep what they point to.
        self._layers = tuple(layers)
        self._final_scale = final_scale
        self._output = output
        for layer in self._layers:
            _check_layer(layer, final_scale.shape[0], heads, kv_heads, size)
        self._structs = (_Layer * len(layers))(*(_layer_struct(layer) for layer in layers))
        self._model = _Model(
            ctypes.addressof(self._structs),
            len(layers),
            final_scale.data_ptr(),
            output.weights,
            final_scale.shape[0],
            heads,
            kv_heads,
            size,
            self._layers[0].gate.outputs,
            epsilon,
        )
        team = native.team
        self._pass = _Pass(model=ctypes.addressof(self._model), instructions=native.instructions_index)
        if team is not None:
            self._pass.parallel = team.parallel
            self._pass.thread_number = team.thread_number
            self._pass.thread_count = team.thread_count
        self._alone = team is None
        self._pointers = ctypes.c_void_p * len(layers)
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self.weight_bytes = output.weight_bytes + sum(
            linear.weight_bytes
            for layer in layers
            for linear in (layer.query_key_value, layer.attention_output, layer.gate, layer.up, layer.down)
        )

    def run(
        self,
        states: Tensor,
        cosine: Tensor,
        sine: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        prefix: int,
        visibility: Tensor | None,
        queries: Tensor | None,
        logits: Tensor,
    ) -> None:
        """One pass of T rows, all tensors contiguous on the CPU.

        Args:
            states: float32 [T, d], the embedded tokens; afterwards the states before the final norm.
            cosine, sine: float32 [T, size / 2], the rotation of each row.
            keys, values: by layer, float32 or float16 [KV heads, capacity, size]; rows ``prefix`` .. are
                written.
            prefix: rows of the cache that every row sees.
            visibility: bool [T, T], which row sees which; None means causal order.
            queries: float32 [layers, query heads, T, size], gets the rotated queries; or None.
            logits: float32 [L, V], gets those of the last L rows.

        Raises:
            ValueError: a row sees nothing, or a size is out of range.
        """
        given, first = self._pass, keys[0]
        rows = states.shape[0]
        if prefix + rows > first.shape[1]:
            raise ValueError(f"{prefix} + {rows} rows do not fit a cache of {first.shape[1]}")
        given.states = states.data_ptr()
        given.cosine, given.sine = cosine.data_ptr(), sine.data_ptr()
        key_pointers = self._pointers(*[tensor.data_ptr() for tensor in keys])
        value_pointers = self._pointers(*[tensor.data_ptr() for tensor in values])
        given.keys, given.values = ctypes.addressof(key_pointers), ctypes.addressof(value_pointers)
        given.key_head, given.key_row, _ = first.stride()
        given.value_head, given.value_row, _ = values[0].stride()
        given.visibility = None if visibility is None else visibility.data_ptr()
        given.rows, given.prefix = rows, prefix
        given.queries = None if queries is None else queries.data_ptr()
        given.logits, given.logits_rows = logits.data_ptr(), logits.shape[0]
        given.half = first.dtype is self._torch.float16
        given.threads = 1 if self._alone else self.threads or self._torch.get_num_threads()
        given.workspace, given.workspace_bytes = self._workspace.data_ptr(), self._workspace.numel()
        outcome = self._run(ctypes.byref(given))
        if outcome == _WORKSPACE_TOO_SMALL:
            needed = self._workspace_bytes(ctypes.byref(given))
            self._workspace = self._torch.empty(needed * 5 // 4, dtype=self._torch.uint8)
            given.workspace, given.workspace_bytes = self._workspace.data_ptr(), self._workspace.numel()
            outcome = self._run(ctypes.byref(given))
        if outcome:
            raise ValueError(f"the decoder's pass: {_OUTCOMES.get(outcome, f'error {outcome}')}")


def _layer_struct(layer: LayerWeights) -> _Layer:
    return _Layer(
        layer.before_attention.data_ptr(),
        layer.before_feed_forward.data_ptr(),
        None if layer.head_scale is None else layer.head_scale.data_ptr(),
        layer.query_key_value.weights,
        layer.attention_output.weights,
        layer.gate.weights,
        layer.up.weights,
        layer.down.weights,
        layer.window or 0,
        layer.scaling,
    )


def _check_layer(layer: LayerWeights, width: int, heads: int, kv_heads: int, size: int) -> None:
    hidden = layer.gate.outputs
    wanted = {
        "query_key_value": (layer.query_key_value, (heads + 2 * kv_heads) * size, width),
        "attention_output": (layer.attention_output, width, heads * size),
        "gate": (layer.gate, hidden, width),
        "up": (layer.up, hidden, width),
        "down": (layer.down, width, hidden),
    }
    for name, (linear, outputs, inputs) in wanted.items():
        if (linear.outputs, linear.inputs) != (outputs, inputs):
            raise ValueError(f"{name} is {linear.outputs} x {linear.inputs}, not {outputs} x {inputs}")
