"""What every layer of a model asks of its attention, held against the mask that transformers would give it.

A short text cannot show that a window, a chunk or a sparse pattern is missing, as nothing lies outside it.
But transformers makes masks from functions of two positions, and a function can be asked about positions that
no short text has. So one pass over a few tokens, with an attention that computes nothing, tells for texts of
any length whether order and window are all that decides what a row sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from tokenswift_cli.models.attention import unknown_keywords

NAME = "tokenswift-check"

# Of (batch, head, position of the row, position of the key), elementwise.
MaskFunction = Callable[[int, int, Tensor, Tensor], Tensor]

# Rows at positions that no chunk or block has at its end as well as in its middle.
_ROWS = ((1 << 24), (1 << 24) + 4099, (1 << 23) + 77)


@dataclass(frozen=True)
class _Mask:
    """A mask as transformers made it: the tensor that the model got, and where it comes from."""

    tensor: Tensor
    function: MaskFunction
    window: int | None


@dataclass(frozen=True)
class _Call:
    """One call of the attention function: the window asked for, and the mask.

    ``mask`` is None for plain order. ``own_mask``: the model gave another one than transformers made for it.
    """

    layer: int
    window: int | None
    mask: _Mask | None
    own_mask: bool


@dataclass
class _Observed:
    masks: list[_Mask] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


_current: ContextVar[_Observed | None] = ContextVar("tokenswift_check", default=None)


@torch.inference_mode()
def asked_windows(model: PreTrainedModel, token_ids: Tensor) -> dict[int, int | None] | str:
    """The window of every layer, None for all keys; or why not every row sees just the keys before it in one.

    Args:
        model: in evaluation mode, on its device; its attention implementation is changed.
        token_ids: int64 [1, T], T > 1.

    Returns:
        By layer; or what the model does instead, as the end of a sentence that begins with its name.
    """
    model.set_attn_implementation(NAME)
    with _observing() as observed:
        model(input_ids=token_ids, use_cache=False)
    for keyword in observed.unknown:
        return f"asks its attention for {keyword!r}"
    for layer, times in Counter(call.layer for call in observed.calls).items():
        if times > 1:
            return f"attends {times} times in layer {layer} for each token"
    for call in observed.calls:
        difference = _difference(call, observed)
        if difference is not None:
            return difference
    return {call.layer: call.window for call in observed.calls}


def _difference(call: _Call, observed: _Observed) -> str | None:
    """What a row sees otherwise than the keys before it within the window asked for; None if nothing."""
    if call.mask is None and not call.own_mask and call.window is None:
        return None
    if call.mask is not None and _agrees(call.mask.function, call.window):
        return None
    asked = {other.window for other in observed.calls}
    for made in observed.masks if call.mask is None else [call.mask]:
        if made.window is not None and made.window not in asked:
            return f"applies its window of {made.window} tokens outside the attention function"
    if call.window is not None and not call.own_mask:
        where = f"in layer {call.layer}, where its own mask is another one"
        return f"asks for a window of {call.window} tokens {where}"
    return f"masks more in layer {call.layer} than order and a window do"


@contextmanager
def _observing() -> Iterator[_Observed]:
    observed = _Observed()
    token = _current.set(observed)
    try:
        yield observed
    finally:
        _current.reset(token)


def _agrees(function: MaskFunction, window: int | None) -> bool:
    """Whether a row sees the keys before it, itself included, and of those ``window`` at most."""
    near = {(1 << power) + step for power in range(23) for step in (-1, 0, 1)}
    if window is not None:
        near |= {window - 1, window, window + 1}
    distances = torch.tensor(sorted({-1, *near}))
    expected = distances >= 0
    if window is not None:
        expected &= distances < window
    for position in _ROWS:
        row = torch.tensor(position)
        try:
            visible = torch.as_tensor(function(0, 0, row, row - distances))
        except (IndexError, RuntimeError, TypeError):  # it looks things up by position
            return False
        if not torch.equal(visible.expand_as(expected).cpu(), expected):
            return False
    return True


def _observed_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: MaskFunction,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **keywords: object,
) -> Tensor:
    """The mask function that transformers calls for every kind of layer; bool [B, 1, q, kv], causal."""
    mask = torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool, device=device).tril()
    observed = _current.get()
    assert observed is not None
    observed.masks.append(_Mask(mask, mask_function, local_size))
    return mask


def _observed_attention(
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
    """As :func:`tokenswift_cli.models.attention.cached_attention`; notes what is asked and gives zeros."""
    observed = _current.get()
    assert observed is not None
    observed.unknown += unknown_keywords(keywords)
    # By identity: what a model changed in a mask is another tensor.
    mask = next((made for made in observed.masks if made.tensor is attention_mask), None)
    own_mask = attention_mask is not None and mask is None
    observed.calls.append(_Call(int(module.layer_idx), sliding_window, mask, own_mask))  # type: ignore[arg-type]
    batch, heads, rows = query.shape[:3]
    return value.new_zeros(batch, rows, heads, value.shape[-1]), None


AttentionInterface.register(NAME, _observed_attention)
AttentionMaskInterface.register(NAME, _observed_mask)
