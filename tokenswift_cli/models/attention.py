"""Exact attention of a few query rows over a long preallocated cache.

Registered through ``transformers.AttentionInterface``, so no model file is forked: a model's own code
computes queries, keys and values, calls :func:`cached_attention`, and goes on with the result.

The cache is split into *segments* that every row sees whole (no mask, all cores work) and a short
*rest* that ends in the rows being computed (masked by tree or causality). The parts are merged by their
log-sum-exp, which is exact: softmax over a union of key sets is the average of the softmaxes over the
sets, weighted by exp(log-sum-exp). Query heads that share a key-value head become rows of one matrix,
so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.native.attention import load

NAME = "tokenswift"

# Segments start at multiples of this, whatever the length, so that a row's sums are split alike in
# plain and in speculative decoding.
SEGMENT_TOKENS = 1024

# From this many folded rows on, the rows alone keep all cores busy and segments only cost memory.
_MANY_ROWS = 128

# With more, torch's operators do as well as the compiled kernel, with less workspace.
_NATIVE_ROWS = 96

# Keys and values stored in another type than they are computed with are converted this many elements at a
# time (a whole segment at least), so that a long cache never stands there twice.
_MAX_CONVERTED = 1 << 20

# The portable path materialises scores; this bounds them (elements).
_MAX_SCORES = 1 << 25

# Keywords that model code hands on and that do not change the attention computed here.
_HARMLESS_KEYWORDS = frozenset(
    {
        "cache",
        "cache_position",
        "head_mask",
        "is_causal",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "past_key_values",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


@dataclass
class AttentionStep:
    """What one forward pass attends to.

    Attributes:
        cache: holds the prefix; the pass writes its own rows behind it.
        visibility: bool [T, T], which rows of the pass see which; None means causal order.
        depths: int64 [T], each row's position minus the position of the first.
        queries: when not None, gets each layer's queries, [KV heads, group, T, key size].
        windows: the sliding windows that layers asked for.
    """

    cache: KeyValueCache
    visibility: Tensor | None
    depths: Tensor
    queries: dict[int, Tensor] | None = None
    windows: set[int] = field(default_factory=set)
    _masks: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def mask(self, first: int, group: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask over the keys from ``first`` on, the same for all layers of a kind.

        Args:
            first: absolute position of the first key.
            group: query heads per key-value head; the rows are repeated that often.
            window: keys a row sees at most, itself included; None for all.

        Returns:
            [group * T, cache.length - first + T] of 0 and -inf.
        """
        key = (first, group, window or 0)
        if key not in self._masks:
            rows = self.depths.numel()
            tail = self.visibility
            if tail is None:
                tail = torch.ones(rows, rows, dtype=torch.bool, device=self.depths.device).tril()
            prefix = torch.ones(rows, self.cache.length - first, dtype=torch.bool, device=self.depths.device)
            visible = torch.cat([prefix, tail], dim=1)
            if window is not None:
                positions = torch.cat(
                    [torch.arange(first - self.cache.length, 0, device=self.depths.device), self.depths]
                )
                visible &= positions[None, :] > self.depths[:, None] - window
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            mask.masked_fill_(~visible, float("-inf"))
            self._masks[key] = mask.repeat(group, 1)
        return self._masks[key]


_current: ContextVar[AttentionStep | None] = ContextVar("tokenswift_attention_step", default=None)


@contextmanager
def attending(step: AttentionStep) -> Iterator[None]:
    """Make ``step`` what the model's attention layers see inside the block."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def stock_implementation(model: PreTrainedModel) -> str:
    """The name of transformers' own attention that computes all that ``model`` asks for."""
    return "sdpa" if model._supports_sdpa else "eager"


def unknown_keywords(keywords: Mapping[str, object]) -> list[str]:
    """What a layer asks of its attention that may change the result beyond what is computed here."""
    return [
        name
        for name, given in keywords.items()
        if given is not None and given is not False and name not in _HARMLESS_KEYWORDS
    ]


def refuse_unknown_keywords(module: nn.Module, keywords: Mapping[str, object]) -> None:
    """Refuse what a layer asks of its attention beyond what is computed here.

    Raises:
        UnsupportedModelError: a keyword is given that may change the result.
    """
    for name in unknown_keywords(keywords):
        raise UnsupportedModelError(
            f"{type(module).__name__} asks for attention with {name!r}, which is not supported exactly. "
            "Use another model."
        )


def cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls for every layer.

    Args:
        module: the attention layer; its ``layer_idx`` names the cache layer.
        query: [1, query heads, T, key size], rotary embedding applied.
        key: [1, KV heads, T, key size], likewise.
        value: [1, KV heads, T, value size].
        attention_mask: None; masks are made here.
        scaling: factor on the scores; 1/sqrt(key size) when None.
        dropout: 0; this is inference.
        sliding_window: keys a row sees at most, itself included.
        softcap: scores become ``softcap * tanh(score / softcap)`` (Gemma 2).
        s_aux: [query heads], the score of an attention sink that takes its share and has no value (GPT-OSS).
        keywords: anything else must be harmless or None.

    Returns:
        [1, T, query heads, value size] and no weights.

    Raises:
        UnsupportedModelError: the layer asks for something this function does not compute.
    """
    step = _current.get()
    if step is None:
        raise RuntimeError("the tokenswift attention needs an AttentionStep; use Target, or set another one")
    refuse_unknown_keywords(module, keywords)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    cache, start = step.cache, step.cache.length
    cache.write(layer, key[0], value[0])

    if sliding_window is not None:
        step.windows.add(sliding_window)
    heads, rows, size = query.shape[1:]
    kv_heads = key.shape[1]
    group = heads // kv_heads
    scale = size**-0.5 if scaling is None else scaling
    folded = query.reshape(kv_heads, group * rows, size)
    if step.queries is not None:
        step.queries[layer] = folded.view(kv_heads, group, rows, size)
    keys, values = cache.keys(layer), cache.values(layer)
    plain = softcap is None and s_aux is None
    if plain and query.device.type == "cpu" and query.dtype == torch.float32 and group * rows <= _NATIVE_ROWS:
        kernel = load().kernel
        if kernel is not None:
            return kernel.attend_heads(query[0], keys, values, start, step.visibility, scale, sliding_window)[
                None
            ], None
    sinks = None if s_aux is None else s_aux.float().view(kv_heads, group).repeat_interleave(rows, dim=1)
    output = _attend(step, folded, keys, values, start, rows, group, scale, sliding_window, softcap, sinks)
    return output.view(1, heads, rows, -1).transpose(1, 2), None


def _attend(
    step: AttentionStep,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    rows: int,
    group: int,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[KV heads, group * T, value size] from the cache's segments and the masked rest.

    ``sinks`` is float32 [KV heads, group * T]: scores that take part in the softmax and have no value.

    Where the cache stores another type than the query's, all is computed in the one that holds both (float32
    for float16 keys and float32 or bfloat16 queries), and only the result is of the query's type.
    """
    end = start + rows
    asked, dtype = query.dtype, torch.promote_types(query.dtype, keys.dtype)
    query = query.to(dtype)
    if window is not None and end > window:
        # Rows of different depth see different keys: one masked piece holds all they can see.
        first, segments = max(0, start - window + 1), 0
    else:
        window = None
        segments = start // SEGMENT_TOKENS
        first = segments * SEGMENT_TOKENS
    single = rows == 1 and window is None
    mask = None if single else step.mask(first, group, window, query.dtype)
    output, weight = _attention_part(
        query[None],
        keys[None, :, first:end].to(dtype),
        values[None, :, first:end].to(dtype),
        mask,
        scale,
        softcap,
    )
    for last, part in _parts(query, keys, values, segments):
        outputs, weights = _attention_part(*part, None, scale, softcap)
        outputs, weights = torch.cat([outputs, output]), torch.cat([weights, weight])
        shares = torch.softmax(weights, dim=0).unsqueeze(-1).to(output.dtype)
        output = (outputs * shares).sum(dim=0, keepdim=True)
        if not last or sinks is not None:
            weight = torch.logsumexp(weights, dim=0, keepdim=True)
    if sinks is not None:
        # The keys' share of a softmax over keys and sink.
        output = output * torch.sigmoid(weight.float() - sinks).unsqueeze(-1).to(output.dtype)
    return output[0].to(asked)


def _parts(
    query: Tensor, keys: Tensor, values: Tensor, segments: int
) -> Iterator[tuple[bool, tuple[Tensor, Tensor, Tensor]]]:
    """Query, keys and values of the first ``segments`` segments, as :func:`_attention_part` takes them.

    All at once, or piece by piece if they have to be converted to the query's type first; each with whether
    it is the last one.
    """
    at_once = max(1, segments)
    if keys.dtype != query.dtype:
        elements = SEGMENT_TOKENS * keys.shape[0] * max(keys.shape[2], values.shape[2])
        at_once = max(1, _MAX_CONVERTED // elements)
    for first in range(0, segments, at_once):
        count = min(at_once, segments - first)
        span = slice(first * SEGMENT_TOKENS, (first + count) * SEGMENT_TOKENS)
        some_keys, some_values = keys[:, span].to(query.dtype), values[:, span].to(query.dtype)
        if query.shape[1] >= _MANY_ROWS:
            part = (query[None], some_keys[None], some_values[None])
        else:
            part = (
                query.expand(count, *query.shape),
                some_keys.unflatten(1, (count, SEGMENT_TOKENS)).transpose(0, 1),
                some_values.unflatten(1, (count, SEGMENT_TOKENS)).transpose(0, 1),
            )
        yield first + count == segments, part


def _attention_part(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over one set of keys, with the log-sum-exp of its scores for the merge.

    Args:
        query: [B, heads, R, key size].
        keys: [B, heads, N, key size].
        values: [B, heads, N, value size].
        mask: additive [R, N], or None.
        scale: factor on the scores.
        softcap: bound of the scores, reached by tanh; None for none.

    Returns:
        output [B, heads, R, value size] and float32 log-sum-exp [B, heads, R].
    """
    if softcap is None and query.device.type == "cpu" and keys.shape[-1] == values.shape[-1]:
        output, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, attn_mask=None if mask is None else mask[None, None], scale=scale
        )
        return output, weight
    return _portable_attention_part(query, keys, values, mask, scale, softcap)


def _portable_attention_part(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As :func:`_attention_part`, from plain operators on any device, with bounded memory."""
    rows = max(1, _MAX_SCORES // max(1, query.shape[0] * query.shape[1] * keys.shape[2]))
    outputs, weights = [], []
    for first in range(0, query.shape[2], rows):
        piece = slice(first, first + rows)
        scores = (query[:, :, piece] * scale @ keys.transpose(-1, -2)).float()
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if mask is not None:
            scores += mask[piece]
        weight = torch.logsumexp(scores, dim=-1)
        shares = torch.exp(scores - weight.unsqueeze(-1)).to(values.dtype)
        outputs.append(shares @ values)
        weights.append(weight)
    return torch.cat(outputs, dim=2), torch.cat(weights, dim=2)


AttentionInterface.register(NAME, cached_attention)
