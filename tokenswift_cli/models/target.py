"""The target model: any causal LM of transformers, driven through its own code with our cache.

Knows token ids and tensors; nothing of tokenizers, sampling or drafts.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models import attention
from tokenswift_cli.models.decoder import SWITCH, Decoder, choose_decoder
from tokenswift_cli.models.final_norm import capturing, final_norm_of
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.kv_layout import KeyValueLayout
from tokenswift_cli.models.layer_check import asked_windows
from tokenswift_cli.models.memory import free_memory
from tokenswift_cli.models.native_decoder import NativeDecoder
from tokenswift_cli.models.support import refuse, refuse_unknown_layers, refuse_unseen_state

# Two correct float32 computations of the same logits differ by far less than this share of their size.
_CHECK_TOLERANCE = 1e-2
_CHECK_TOKENS = 12


@dataclass(frozen=True)
class _Adopted:
    """What is known of a model once it was checked; targets of one model share it."""

    decoder: Decoder | None
    path: str
    layout: KeyValueLayout
    windows: frozenset[int]


_adopted: WeakKeyDictionary[PreTrainedModel, _Adopted] = WeakKeyDictionary()


class Target:
    """One model and the cache of one sequence.

    Args:
        model: in eval mode, on its device; its attention implementation is changed.
        capacity: tokens to preallocate the cache for.
        gguf: the file the model was made from, if it was a .gguf file: its weights need not be unpacked.
        keep_model: whether the model's own code must still run afterwards, at the cost of memory.
        kv_dtype: type that keys and values are stored in; None for the one they are made in.

    Attributes:
        path: for people: which way the passes are computed.
        cache: keys and values of the committed tokens.
        kv_layout: what one token leaves in the cache.
        states: [T, d], hidden states before the final norm of the rows of the last :meth:`verify` or
            :meth:`draft`; None unless :meth:`keep_states` was called.

    Raises:
        UnsupportedModelError: the model does not compute the same with our cache as by itself.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        capacity: int,
        *,
        gguf: Path | None = None,
        keep_model: bool = True,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.vocabulary_size: int = model.config.get_text_config().vocab_size
        self._takes_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._windows: set[int] = set()
        self.states: Tensor | None = None
        self._keeps_states = False
        self._final_norm: nn.Module | None = None
        self._decoder: Decoder | None = None
        known = _adopted.get(model)
        if known is None:
            _adopted[model] = known = self._adopt(gguf, keep_model)
        elif known.decoder is None:
            self.model.set_attn_implementation(attention.NAME)
        self._decoder = known.decoder
        self._windows.update(known.windows)
        self.path = known.path
        self.kv_layout = replace(known.layout, dtype=kv_dtype or known.layout.dtype)
        self.cache = KeyValueCache(capacity, kv_dtype, self.device)

    def take_threads(self) -> None:
        """Keep torch's threads for the compiled passes, where there are such, and leave torch one.

        What torch does besides, per token, is so little that waking a second thread for it takes longer. It
        changes torch for the whole process.
        """
        if isinstance(self._decoder, NativeDecoder):
            self._decoder.keep_threads()
            torch.set_num_threads(1)

    def keep_states(self) -> None:
        """Keep the hidden states of each pass from now on, for drafting heads.

        Raises:
            UnsupportedModelError: the model has no final norm that its output layer reads.
        """
        if self._decoder is None and self._final_norm is None:
            self._final_norm = final_norm_of(self.model)
        self._keeps_states = True

    @property
    def head_dtype(self) -> torch.dtype:
        """The type in which drafting heads compute: float32 on the CPU, the model's own elsewhere."""
        return torch.float32 if self.device.type == "cpu" else self.model.dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters and buffers, packed copies included."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        packed = 0 if self._decoder is None else self._decoder.own_bytes
        return packed + sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that a pass of a few rows reads."""
        if self._decoder is not None:
            return self._decoder.weight_bytes
        embeddings = self.model.get_input_embeddings().weight
        output = getattr(self.model.get_output_embeddings(), "weight", None)
        tied = output is not None and output.data_ptr() == embeddings.data_ptr()
        return self.weight_bytes - (0 if tied else embeddings.numel() * embeddings.element_size())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes one token takes in the cache."""
        return self.kv_layout.bytes_per_token

    @property
    def row_invariant(self) -> bool:
        """Whether the logits of a row are the same to the bit whatever is computed with it."""
        return self._decoder is not None and self._decoder.row_invariant

    def free_bytes(self) -> int | None:
        """Memory still free where the cache will live; None if the device does not tell."""
        return free_memory(self.device.type)

    @torch.inference_mode()
    def read(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the cache in plain order, without logits (prefill)."""
        self._forward(self.cache, token_ids, self.cache.length, logits=0)
        self.cache.length += len(token_ids)

    @torch.inference_mode()
    def verify(
        self,
        token_ids: Sequence[int],
        depths: Sequence[int] | None = None,
        visibility: Tensor | None = None,
        queries: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Logits after each of T tokens that stand behind the cache as a tree; commits nothing.

        Args:
            token_ids: the root and the drafted tokens, parents first.
            depths: position of each token minus the cache's length; None for a chain.
            visibility: bool [T, T] on any device; None for a chain.
            queries: gets the queries of all layers, for :meth:`PartialCache.refresh`.

        Returns:
            [T, V] in the model's dtype, on its device.
        """
        return self._forward(
            self.cache, token_ids, self.cache.length, depths=depths, visibility=visibility, queries=queries
        )

    @torch.inference_mode()
    def draft(self, cache: KeyValueCache, token_id: int, position: int) -> Tensor:
        """Logits after one token that attends to ``cache`` only; its row stays there.

        Args:
            cache: a partial cache, or the full one.
            token_id: the token.
            position: its absolute position, which the cache's length need not tell.

        Returns:
            [V] in the model's dtype.
        """
        logits = self._forward(cache, [token_id], position)
        cache.length += 1
        return logits[0]

    @torch.inference_mode()
    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last :meth:`verify` as the next tokens of the sequence."""
        self.cache.commit(rows)

    def _forward(
        self,
        cache: KeyValueCache,
        token_ids: Sequence[int],
        position: int,
        *,
        depths: Sequence[int] | None = None,
        visibility: Tensor | None = None,
        queries: dict[int, Tensor] | None = None,
        logits: int | None = None,
    ) -> Tensor:
        """Logits of the last ``logits`` rows (None for all) of a pass whose first token has ``position``.

        A model's own code may compute more of them.
        """
        ids = torch.tensor([token_ids], device=self.device)
        if depths is None:
            offsets = torch.arange(len(token_ids), device=self.device)
        else:
            offsets = torch.tensor(depths, device=self.device)
        if visibility is not None:
            visibility = visibility.to(self.device)
        step = attention.AttentionStep(cache, visibility, offsets, queries, self._windows)
        if self._decoder is not None:
            wanted = len(token_ids) if logits is None else logits
            rows, states = self._decoder.forward(ids[0], offsets + position, step, wanted)
            if self._keeps_states and wanted:
                self.states = states
            return rows
        # Zero would mean all of them.
        keywords = (
            {"logits_to_keep": max(logits, 1)} if logits is not None and self._takes_logits_to_keep else {}
        )
        norm = self._final_norm if logits is None else None
        keeping: AbstractContextManager[list[Tensor]] = nullcontext([]) if norm is None else capturing(norm)
        with attention.attending(step), keeping as captured:
            result = self.model(
                input_ids=ids, position_ids=(offsets + position)[None], use_cache=False, **keywords
            )
        if captured:
            self.states = captured[-1][0]
        computed: Tensor = result.logits[0]
        return computed

    @torch.inference_mode()
    def _adopt(self, gguf: Path | None, keep_model: bool) -> _Adopted:
        """Switch to our attention and the fastest decoder, and see that what they compute is right.

        A few tokens are read in two pieces, the second one as a tree.
        """
        name = type(self.model).__name__
        text_config = self.model.config.get_text_config()
        refuse_unknown_layers(name, text_config)
        count = min(_CHECK_TOKENS, self.vocabulary_size)
        token_ids = [(7 * i + 3) % self.vocabulary_size for i in range(count)]
        ids = torch.tensor([token_ids], device=self.device)
        if self.model.config._attn_implementation == attention.NAME:
            self.model.set_attn_implementation(attention.stock_implementation(self.model))
        try:
            expected = self.model(input_ids=ids, use_cache=False).logits[0]
        except (AttributeError, KeyError, TypeError, ValueError) as fault:
            raise UnsupportedModelError(
                f"{name} does not run on token ids alone ({type(fault).__name__}: {fault}). "
                "Use another model."
            ) from fault
        self.model.set_attn_implementation(attention.NAME)
        if self.model.config._attn_implementation != attention.NAME:
            raise UnsupportedModelError(
                f"{name} does not use transformers' attention interface, so its cache cannot be driven. "
                "Use another model."
            )
        half = count // 2
        asked = asked_windows(self.model, ids[:, :half])
        if isinstance(asked, str):
            refuse(name, asked)
        refuse_unseen_state(name, text_config, len(asked))
        self.model.set_attn_implementation(attention.NAME)
        self._decoder, path = choose_decoder(self.model, gguf, keep_model)
        cache = KeyValueCache(count)
        self._forward(cache, token_ids[:half], 0)
        if self._windows != {window for window in asked.values() if window is not None}:
            raise UnsupportedModelError(
                f"{name} has other windows than the path that was chosen for it ({path}), so its text would "
                f"not be exact. Set {SWITCH}=generic."
            )
        cache.length = half
        # A tree: every second node is a sibling that must not be seen by the path.
        nodes = [token for token in token_ids[half:] for _ in range(2)]
        depths = [index for index in range(count - half) for _ in range(2)]
        size = len(nodes)
        visible = torch.eye(size, dtype=torch.bool)
        depth = torch.tensor(depths)
        visible[:, ::2] |= depth[:, None] > depth[None, ::2]
        actual = self._forward(cache, nodes, half, depths=depths, visibility=visible)
        wanted = expected[half:].repeat_interleave(2, dim=0)
        error = (actual.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp(min=1e-6)
        tolerance = _CHECK_TOLERANCE if expected.dtype == torch.float32 else 0.1
        if not error <= tolerance:
            remedy = "Use another model." if self._decoder is None else f"Set {SWITCH}=generic."
            raise UnsupportedModelError(
                f"{name} computes other logits with the engine's attention than by itself (relative "
                f"difference {float(error):.2g}, {path}), so its text would not be exact. {remedy}"
            )
        layout = cache.layout
        assert layout is not None  # rows were written
        return _Adopted(self._decoder, path, layout, frozenset(self._windows))
