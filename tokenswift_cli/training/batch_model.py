"""Many texts at once, one token of each per pass: the fast way to let a model write its own training text.

All lanes stand at the same position, as prompts are fed token by token too: no padding, no masks, and
attention over one preallocated store.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models.attention import refuse_unknown_keywords
from tokenswift_cli.models.final_norm import capturing, final_norm_of
from tokenswift_cli.models.layer_check import asked_windows
from tokenswift_cli.models.support import refuse, refuse_unknown_layers, refuse_unseen_state

NAME = "tokenswift_lanes"


class _Lanes:
    """Keys and values of B texts of equal length.

    Attributes:
        length: tokens read so far, the same for all lanes.
    """

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self._capacity = capacity
        self._stores: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def layers(self) -> int:
        return len(self._stores)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write one row per lane; returns all rows of the layer, [B, KV heads, length + 1, size] each."""
        if layer not in self._stores:
            batch, heads, _, size = key.shape
            self._stores[layer] = (
                key.new_empty(batch, heads, self._capacity, size),
                value.new_empty(batch, heads, self._capacity, value.shape[3]),
            )
        keys, values = self._stores[layer]
        keys[:, :, self.length] = key[:, :, 0]
        values[:, :, self.length] = value[:, :, 0]
        end = self.length + 1
        return keys[:, :, :end], values[:, :, :end]


_current: ContextVar[_Lanes | None] = ContextVar("tokenswift_lanes", default=None)


def lanes_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **keywords: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: one query row per lane over the lane's own rows.

    Args as in :func:`tokenswift_cli.models.attention.cached_attention`, with B lanes and T = 1.

    Raises:
        UnsupportedModelError: the layer asks for something this function does not compute.
    """
    lanes = _current.get()
    if lanes is None:
        raise RuntimeError("the lanes' attention is used by BatchModel only")
    refuse_unknown_keywords(module, keywords)
    keys, values = lanes.append(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    if sliding_window is not None:
        keys, values = keys[:, :, -sliding_window:], values[:, :, -sliding_window:]
    batch, heads, _, size = query.shape
    # Query heads that share a key-value head become rows of one matrix.
    folded = query.view(batch, key.shape[1], heads // key.shape[1], size)
    output = functional.scaled_dot_product_attention(folded, keys, values, scale=scaling)
    return output.reshape(batch, 1, heads, -1), None


class BatchModel:
    """A causal language model that reads one token per lane and pass.

    Args:
        model: in eval mode, on its device; its attention implementation is switched inside :meth:`reading`.

    Raises:
        UnsupportedModelError: the model does not compute the same in lanes as by itself.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.vocabulary_size: int = model.config.get_text_config().vocab_size
        self._norm = final_norm_of(model)
        self._takes_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._check()

    @contextmanager
    def reading(self, capacity: int) -> Iterator[LaneReader]:
        """Lanes of at most ``capacity`` tokens; the model's own attention is back afterwards."""
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(NAME)
        lanes = _Lanes(capacity)
        token = _current.set(lanes)
        try:
            yield LaneReader(self, lanes)
        finally:
            _current.reset(token)
            self.model.set_attn_implementation(before)

    def forward(self, lanes: _Lanes, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LaneReader.read`."""
        position = torch.tensor([[lanes.length]], device=self.device)
        keywords = {"logits_to_keep": 1} if self._takes_logits_to_keep else {}
        with capturing(self._norm) as states:
            result = self.model(
                input_ids=token_ids.to(self.device)[:, None],
                position_ids=position.expand(token_ids.shape[0], 1),
                use_cache=False,
                **keywords,
            )
        lanes.length += 1
        return result.logits[:, -1], states[-1][:, -1]

    @torch.inference_mode()
    def _check(self) -> None:
        """See that a few tokens read one by one give what the model gives for them at once."""
        name, config = type(self.model).__name__, self.model.config.get_text_config()
        refuse_unknown_layers(name, config)
        count = min(8, self.vocabulary_size)
        ids = torch.arange(2 * count, device=self.device).view(2, count) * 7 % self.vocabulary_size
        expected = self.model(input_ids=ids, use_cache=False).logits[:, -1].float()
        before = self.model.config._attn_implementation
        asked = asked_windows(self.model, ids[:1])
        self.model.set_attn_implementation(before)
        if isinstance(asked, str):
            refuse(name, asked)
        with self.reading(count) as reader:
            for column in range(count):
                logits, _ = reader.read(ids[:, column])
            refuse_unseen_state(name, config, reader.layers)
        error = (logits.float() - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
        if not error <= (1e-2 if expected.dtype == self.model.dtype else 0.1):
            raise UnsupportedModelError(
                f"{name} computes other logits in a batch of single tokens than by itself (relative "
                f"difference {float(error):.2g}). Train heads from text files instead of --self-distill."
            )


class LaneReader:
    """What :meth:`BatchModel.reading` gives."""

    def __init__(self, model: BatchModel, lanes: _Lanes) -> None:
        self._model = model
        self._lanes = lanes

    @property
    def layers(self) -> int:
        """Layers that called the attention function."""
        return self._lanes.layers

    @torch.inference_mode()
    def read(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read the next token of each lane.

        Args:
            token_ids: int64 [B].

        Returns:
            logits [B, V] and hidden states before the final norm [B, d], in the model's dtype.
        """
        return self._model.forward(self._lanes, token_ids)


AttentionInterface.register(NAME, lanes_attention)
