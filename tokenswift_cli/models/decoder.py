"""The ways to compute a forward pass of the target over our cache, and the choice among them.

``native`` is compiled code for the Llama family on the CPU, ``lean`` the same with few torch operators,
``generic`` the model's own code with our attention, for every model. All compute the same function; they
round differently in the last bits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokenswift_cli.errors import UsageError
from tokenswift_cli.models.attention import AttentionStep

PATHS = ("native", "lean", "generic")
SWITCH = "TOKENSWIFT_PATH"

# With so few weights they stay in the processor's caches.
_SMALL_MODEL = 1 << 20


class Decoder(Protocol):
    """A forward pass that does not run through the model's own code.

    Attributes:
        description: what it is, in a few words for people.
        weight_bytes: bytes of weights that one pass of a few rows reads; embeddings not counted.
        own_bytes: those of them that the model's own parameters do not hold.
        row_invariant: whether a row comes out the same to the bit whatever it is computed with.
    """

    @property
    def description(self) -> str: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def own_bytes(self) -> int: ...

    @property
    def row_invariant(self) -> bool: ...

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: AttentionStep, logits_rows: int
    ) -> tuple[Tensor, Tensor]:
        """One pass; its keys and values land behind the cache's committed rows.

        Args:
            token_ids: int64 [T] on the model's device.
            positions: int64 [T], absolute.
            step: what the rows attend to.
            logits_rows: number of last rows to compute logits of, 0..T.

        Returns:
            logits [logits_rows, V] and the states [T, d] before the final norm.
        """
        ...


def choose_decoder(model: PreTrainedModel, gguf: Path | None, keep_model: bool) -> tuple[Decoder | None, str]:
    """The fastest way that covers ``model`` on this machine.

    ``TOKENSWIFT_PATH`` asks for one of ``PATHS``.

    Args:
        model: in evaluation mode, on its device.
        gguf: the file it was made from, if it was a .gguf file.
        keep_model: whether its own code must still run afterwards, at the cost of memory.

    Returns:
        The decoder, None for the generic way; and one line for people: what is used, and why nothing faster.

    Raises:
        UsageError: the way asked for is unknown, or does not cover the model here.
    """
    wanted = os.environ.get(SWITCH, "").strip()
    if wanted and wanted not in PATHS:
        raise UsageError(f"{SWITCH} is {wanted!r}. Use one of {', '.join(PATHS)}, or unset it.")
    reasons: list[str] = []
    decoder: Decoder | str
    if wanted in ("", "native"):
        decoder = _native(model, gguf, keep_model)
        if not isinstance(decoder, str):
            return decoder, decoder.description
        reasons.append(f"native: {decoder}")
    if wanted in ("", "lean"):
        decoder = _lean(model, keep_model, asked_for=bool(wanted))
        if not isinstance(decoder, str):
            return decoder, "; ".join([decoder.description, *reasons])
        reasons.append(f"lean: {decoder}")
    if wanted in ("native", "lean"):
        raise UsageError(f"{SWITCH}={wanted} cannot be had: {reasons[-1].partition(': ')[2]}. Unset it.")
    return None, "; ".join(["generic (the model's own code)", *reasons])


def _native(model: PreTrainedModel, gguf: Path | None, keep_model: bool) -> Decoder | str:
    from tokenswift_cli.models.gguf_blocks import GgufBlocks
    from tokenswift_cli.models.native_decoder import NativeDecoder
    from tokenswift_cli.native.attention import load

    loaded = load()
    if loaded.kernel is None:
        return loaded.description
    return NativeDecoder.of(model, loaded.kernel, None if gguf is None else GgufBlocks(gguf), keep_model)


def _lean(model: PreTrainedModel, keep_model: bool, asked_for: bool) -> Decoder | str:
    from tokenswift_cli.models.lean.decoder import LeanDecoder

    if model.device.type != "cpu":
        return f"not measured on {model.device.type}"
    if not asked_for and model.num_parameters() < _SMALL_MODEL:
        return "the model is so small that finding its plan would take longer than it saves"
    packed = model.dtype == torch.float16
    return LeanDecoder.of(model, packed=packed, keep_model=keep_model)
