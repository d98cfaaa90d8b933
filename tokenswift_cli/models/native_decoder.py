"""The Llama family through the compiled forward pass, its weights packed as they were stored.

A matrix of a .gguf file keeps its quantized blocks, one of another checkpoint the shortest type that holds
every value exactly; sums are float32. So the model computed is the one that was loaded, with fewer bytes
to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenswift_cli.models.attention import AttentionStep
from tokenswift_cli.models.exact_storage import exact_storage
from tokenswift_cli.models.gguf_blocks import Blocks, GgufBlocks
from tokenswift_cli.models.lean.family import why_not_covered, window_of
from tokenswift_cli.models.rotary_table import RotaryTable
from tokenswift_cli.native.attention import NativeAttention
from tokenswift_cli.native.decoder import DecoderKernel, LayerWeights
from tokenswift_cli.native.linear import PackedLinear

# Rows of one pass: enough to read the weights seldom, few enough to keep what a pass works with small.
_MOST_ROWS = 128
_LEAST_ROWS = 16
_WORKSPACE_BYTES = 128 << 20
_SEGMENT_ROWS = 512  # of the attention's partial results


class NativeDecoder:
    """A model of the Llama family; made by :meth:`of`.

    Attributes: see :class:`tokenswift_cli.models.decoder.Decoder`.
    """

    row_invariant = True

    def __init__(
        self, model: PreTrainedModel, native: NativeAttention, stored: GgufBlocks | None, keep_model: bool
    ) -> None:
        decoder, config = model.model, model.config
        first = decoder.layers[0].self_attn
        self._size: int = first.head_dim
        self._heads = first.q_proj.out_features // self._size
        self._kv_heads = first.k_proj.out_features // self._size
        self._layer_count: int = config.num_hidden_layers
        self._vocabulary: int = model.lm_head.out_features
        packer = _Packer(native, stored, keep_model)
        layers = [self._layer(packer, model, index) for index in range(self._layer_count)]
        # The output matrix stays with the model, for drafting heads and as tied embeddings.
        output = packer.pack({"lm_head.weight": model.lm_head}, keep=True)
        self._kernel = DecoderKernel(
            native,
            layers,
            _plain(decoder.norm.weight),
            output,
            heads=self._heads,
            kv_heads=self._kv_heads,
            size=self._size,
            epsilon=config.rms_norm_eps,
        )
        self.weight_bytes = self.own_bytes = self._kernel.weight_bytes
        self.description = f"native ({native.instructions}; weights as {packer.summary()})"
        self._embeddings: Tensor = model.get_input_embeddings().weight.detach()
        self._rotary = RotaryTable(decoder.rotary_emb)
        self._windows = frozenset(layer.window for layer in layers if layer.window is not None)

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: PreTrainedModel,
        native: NativeAttention,
        stored: GgufBlocks | None,
        keep_model: bool,
    ) -> NativeDecoder | str:
        """Pack the weights of ``model``.

        Args:
            model: in evaluation mode.
            native: the compiled kernels.
            stored: the file the model was made from, if it was a .gguf file.
            keep_model: else the matrices of its layers are emptied as they are packed, and only its
                embeddings, norms, biases and output matrix are still there.

        Returns:
            The decoder; or why the model is not covered, as the end of a sentence.
        """
        reason = why_not_covered(model)
        if reason is not None:
            return reason
        weight = model.get_input_embeddings().weight
        if weight.device.type != "cpu":
            return f"the model is on {weight.device}"
        if native.team is None and torch.get_num_threads() > 1:
            return "it would run on one thread only: the OpenMP of this build of torch is not known"
        if model.model.layers[0].self_attn.head_dim % 2:
            return "its heads have an odd size"
        return cls(model, native, stored, keep_model)

    def keep_threads(self) -> None:
        """Go on with as many threads as torch uses now, whatever it is told later."""
        self._kernel.threads = torch.get_num_threads()

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: AttentionStep, logits_rows: int
    ) -> tuple[Tensor, Tensor]:
        """See :class:`tokenswift_cli.models.decoder.Decoder`; all float32."""
        rows = token_ids.shape[0]
        step.windows.update(self._windows)
        step.cache.make_room(self._layer_count, self._kv_heads, self._size, rows, torch.float32)
        states = self._embeddings.index_select(0, token_ids).float()
        cosine, sine = self._rotary(positions)
        logits = torch.empty((logits_rows, self._vocabulary))
        queries = None
        if step.queries is not None:
            queries = torch.empty((self._layer_count, self._heads, rows, self._size))
        cache = step.cache
        keys = [cache.keys(layer) for layer in range(self._layer_count)]
        values = [cache.values(layer) for layer in range(self._layer_count)]
        visibility = None if step.visibility is None else step.visibility.contiguous()
        most = rows if visibility is not None or queries is not None else self._most_rows(cache.length + rows)
        for first in range(0, rows, most):
            last = min(first + most, rows)
            # Rows of this piece that are among the last ``logits_rows``.
            begin = max(first, rows - logits_rows) - (rows - logits_rows)
            end = max(begin, last - (rows - logits_rows))
            self._kernel.run(
                states[first:last],
                cosine[first:last],
                sine[first:last],
                keys,
                values,
                cache.length + first,
                visibility,
                queries,
                logits[begin:end],
            )
        if queries is not None and step.queries is not None:
            folded = queries.view(self._layer_count, self._kv_heads, -1, rows, self._size)
            step.queries.update(enumerate(folded))
        return logits, states

    def _most_rows(self, length: int) -> int:
        row_bytes = 4 * self._heads * self._size * (1 + length // _SEGMENT_ROWS)
        return max(_LEAST_ROWS, min(_MOST_ROWS, _WORKSPACE_BYTES // row_bytes))

    def _layer(self, packer: _Packer, model: PreTrainedModel, index: int) -> LayerWeights:
        layer = model.model.layers[index]
        attention, feed_forward = layer.self_attn, layer.mlp
        path = f"model.layers.{index}"

        def packed(owner: nn.Module, place: str, *names: str) -> PackedLinear:
            return packer.pack({f"{path}.{place}.{name}.weight": getattr(owner, name) for name in names})

        return LayerWeights(
            before_attention=_plain(layer.input_layernorm.weight),
            before_feed_forward=_plain(layer.post_attention_layernorm.weight),
            head_scale=self._head_scale(attention),
            query_key_value=packed(attention, "self_attn", "q_proj", "k_proj", "v_proj"),
            attention_output=packed(attention, "self_attn", "o_proj"),
            gate=packed(feed_forward, "mlp", "gate_proj"),
            up=packed(feed_forward, "mlp", "up_proj"),
            down=packed(feed_forward, "mlp", "down_proj"),
            scaling=float(attention.scaling),
            window=window_of(model, attention),
        )

    def _head_scale(self, attention: Any) -> Tensor | None:
        if not hasattr(attention, "q_norm"):
            return None
        scales = [
            _plain(norm.weight).expand(heads, self._size)
            for norm, heads in ((attention.q_norm, self._heads), (attention.k_norm, self._kv_heads))
        ]
        return torch.cat(scales).contiguous()


class _Packer:
    """Packs matrices, and remembers in which formats."""

    def __init__(self, native: NativeAttention, stored: GgufBlocks | None, keep_model: bool) -> None:
        self._native = native
        self._keep = keep_model
        self._stored = stored
        self._bytes: dict[str, int] = {}

    def pack(self, parts: dict[str, nn.Linear], keep: bool = False) -> PackedLinear:
        """The linear layers, by parameter name, as one: their outputs side by side."""
        bias = _joined_bias(list(parts.values()))
        blocks = self._blocks(parts)
        if blocks is not None:
            joined = joined_blocks(blocks)
            linear = PackedLinear.of_blocks(
                self._native.library, joined.levels, joined.scales, joined.minima, bias, bits=joined.bits
            )
            name = f"{joined.bits}-bit blocks"
        else:
            weights = [part.weight.detach() for part in parts.values()]
            types = {exact_storage(weight) for weight in weights}
            dtype = types.pop() if len(types) == 1 else torch.float32
            weight = torch.cat([weight.to(dtype) for weight in weights])
            linear = PackedLinear.of_matrix(self._native.library, weight, bias)
            name = str(dtype).removeprefix("torch.")
        self._bytes[name] = self._bytes.get(name, 0) + linear.weight_bytes
        if not (keep or self._keep):
            for part in parts.values():
                part.weight = nn.Parameter(part.weight.new_empty(0), requires_grad=False)
        return linear

    def summary(self) -> str:
        """Names of the formats, the one with most bytes first."""
        return ", ".join(sorted(self._bytes, key=lambda name: -self._bytes[name]))

    def _blocks(self, parts: dict[str, nn.Linear]) -> list[Blocks] | None:
        if self._stored is None:
            return None
        found = []
        for name, part in parts.items():
            blocks = self._stored.blocks(name)
            if blocks is None or not self._stored.matches(name, part.weight):
                return None
            found.append(blocks)
        return found


def joined_blocks(parts: Sequence[Blocks]) -> Blocks:
    """Matrices with the same inputs as one; of mixed formats, in the one that holds them all."""
    block = min(part.block for part in parts)
    bits = max(part.bits for part in parts)
    scales = [_repeated(part.scales, part.block // block) for part in parts]
    minima = None
    if any(part.minima is not None for part in parts):
        minima = torch.cat(
            [
                torch.zeros_like(own) if part.minima is None else _repeated(part.minima, part.block // block)
                for part, own in zip(parts, scales, strict=True)
            ]
        )
    dtype = torch.int8 if bits == 8 else torch.uint8
    levels = torch.cat([part.levels.to(dtype) for part in parts])
    return Blocks(levels, torch.cat(scales), minima, block, bits)


def _repeated(factors: Tensor, times: int) -> Tensor:
    """One for each shorter block."""
    return factors if times == 1 else factors.repeat_interleave(times, dim=1)


def _joined_bias(parts: Sequence[nn.Linear]) -> Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    return torch.cat(
        [
            torch.zeros(part.out_features) if part.bias is None else part.bias.detach().float()
            for part in parts
        ]
    )


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous()
