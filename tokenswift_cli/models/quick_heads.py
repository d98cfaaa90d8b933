"""Drafting heads over short copies of their matrices, for the CPU: most of a head's time is reading them.

The heads' own layers are kept as float16, the output matrix as 8-bit blocks. Both round, which is of no
matter for the text: drafts are verified. They run on one thread: with so little to do, waking another takes
longer than it saves.
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokenswift_cli.models.heads import DraftHeads, Head, HeadsOutput
from tokenswift_cli.native.attention import load
from tokenswift_cli.native.linear import PackedLinear

_BLOCK = 32
_LARGEST_LEVEL = 127
_ROWS_AT_ONCE = 4096


class HeadRunner:
    """Runs heads the quickest way: compiled where that can be had, else with torch.

    Args:
        heads, output: on one device.
    """

    def __init__(self, heads: DraftHeads, output: HeadsOutput) -> None:
        self._heads, self._output = heads, output
        self._quick: list[_QuickHead] = []
        kernel = load().kernel if output.weight.is_cpu else None
        if kernel is not None and heads.shape.hidden_size % _BLOCK == 0:
            self._quick = [_QuickHead(kernel.library, head) for head in heads.heads]
            self._scores = _in_blocks(kernel.library, output.weight, output.bias)

    def run(self, index: int, state: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        """As :meth:`tokenswift_cli.models.heads.DraftHeads.step` for one row, with scores [R or V]."""
        if not self._quick:
            state, normed = self._heads.step(index, state, embedding)
            return state, self._output.logits(normed)
        state, normed = self._quick[index](state.float(), None if embedding is None else embedding.float())
        return state, self._scores(normed[None], threads=1)[0]


class _QuickHead:
    """As :class:`tokenswift_cli.models.heads.Head`, for one row."""

    def __init__(self, library: CDLL, head: nn.Module) -> None:
        assert isinstance(head, Head)
        self._linear = PackedLinear.of_matrix(library, _short(head.linear.weight))
        self._mix = None if head.mix is None else PackedLinear.of_matrix(library, _short(head.mix.weight))
        self._input = head.input_layernorm
        self._token = head.token_layernorm
        self._post = head.post_layernorm

    def __call__(self, state: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        normed = _norm(state, self._input)
        if self._mix is not None and self._token is not None and embedding is not None:
            both = torch.cat([normed, _norm(embedding, self._token)])
            normed = functional.silu(self._mix(both[None], threads=1)[0])
        state = state + self._linear(normed[None], threads=1)[0]
        return state, _norm(state, self._post)


def _short(weight: Tensor) -> Tensor:
    """As float16, if that can hold it."""
    half = weight.detach().half()
    return half if bool(half.isfinite().all()) else weight.detach().float()


def _norm(row: Tensor, norm: nn.RMSNorm) -> Tensor:
    return functional.rms_norm(row, row.shape, norm.weight, norm.eps)


def _in_blocks(library: CDLL, weight: Tensor, bias: Tensor | None) -> PackedLinear:
    """[R, d] rounded to 8 bits, each block of a row with a scale of its own."""
    all_levels, all_scales = [], []
    for rows in weight.split(_ROWS_AT_ONCE):  # a large vocabulary never stands there in float32
        blocks = rows.float().unflatten(1, (-1, _BLOCK))
        scales = blocks.abs().amax(dim=2).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_LEVEL
        all_levels.append((blocks / scales.unsqueeze(2)).round().to(torch.int8).flatten(1))
        all_scales.append(scales)
    return PackedLinear.of_blocks(library, torch.cat(all_levels), torch.cat(all_scales), bias=bias, bits=8)
