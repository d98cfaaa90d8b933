"""Drafting heads: small layers that guess the tokens after the next one from the target's last hidden state.

The form is TokenSwift's (arXiv 2502.18890): the heads are chained on h_0, the output of the last decoder
layer *before* the final norm, and share the target's output matrix. Head k, counted from 1, is

    h_k = h_{k-1} + linear_k(input_layernorm_k(h_{k-1})),    logits_k = output(post_layernorm_k(h_k)).

If h_0 is the state after reading x_t, the target itself predicts x_{t+1} and head k predicts x_{t+1+k}.
The *conditioned* variant (after Hydra, arXiv 2402.05109) also sees the token before the one it predicts:

    u = mix_k(cat[input_layernorm_k(h_{k-1}), token_layernorm_k(embed(x_{t+k}))]),
    h_k = h_{k-1} + linear_k(silu(u)).

Knows tensors and modules; nothing of files, trees or sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models.final_norm import capturing as capturing
from tokenswift_cli.models.final_norm import final_norm_of as final_norm_of
from tokenswift_cli.models.final_norm import norm_epsilon, norm_scale

VARIANTS = ("linear", "conditioned")

# More and wider heads than anybody trains; a file that asks for more is damaged or hostile.
MAX_HEADS = 64
MAX_HIDDEN_SIZE = 1 << 20


@dataclass(frozen=True)
class HeadsShape:
    """What decides the tensors of the heads.

    Attributes:
        count: number of heads, 1 .. :data:`MAX_HEADS`.
        hidden_size: width d of the target's hidden states, 1 .. :data:`MAX_HIDDEN_SIZE`.
        variant: one of :data:`VARIANTS`.
        norm_eps: epsilon of all RMSNorms.

    Raises:
        ValueError: a value makes no sense.
    """

    count: int
    hidden_size: int
    variant: str = "conditioned"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= MAX_HEADS:
            raise ValueError(f"count must be a whole number from 1 to {MAX_HEADS}, not {self.count!r}")
        if type(self.hidden_size) is not int or not 1 <= self.hidden_size <= MAX_HIDDEN_SIZE:
            raise ValueError(
                f"hidden_size must be a whole number from 1 to {MAX_HIDDEN_SIZE}, not {self.hidden_size!r}"
            )
        if self.variant not in VARIANTS:
            raise ValueError(f"variant must be {' or '.join(VARIANTS)}, not {self.variant!r}")
        if not isinstance(self.norm_eps, int | float) or not 0 < self.norm_eps < math.inf:
            raise ValueError(f"norm_eps must be a positive number, not {self.norm_eps!r}")


class Head(nn.Module):
    """One head. Its linear layer starts at zero, so that an untrained head hands its state on unchanged."""

    mix: nn.Linear | None
    token_layernorm: nn.RMSNorm | None

    def __init__(self, shape: HeadsShape, final_norm: Tensor | None) -> None:
        super().__init__()
        size = shape.hidden_size
        self.linear = nn.Linear(size, size, bias=False)
        self.input_layernorm = nn.RMSNorm(size, eps=shape.norm_eps)
        self.post_layernorm = nn.RMSNorm(size, eps=shape.norm_eps)
        if shape.variant == "conditioned":
            self.mix = nn.Linear(2 * size, size, bias=False)
            self.token_layernorm = nn.RMSNorm(size, eps=shape.norm_eps)
        else:
            self.mix = None
            self.token_layernorm = None
        with torch.no_grad():
            self.linear.weight.zero_()
            if final_norm is not None:
                self.post_layernorm.weight.copy_(final_norm)

    def forward(self, state: Tensor, token_embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        """As :meth:`DraftHeads.step`."""
        normed = self.input_layernorm(state)
        if self.mix is not None and self.token_layernorm is not None and token_embedding is not None:
            normed = functional.silu(
                self.mix(torch.cat([normed, self.token_layernorm(token_embedding)], dim=-1))
            )
        state = state + self.linear(normed)
        return state, self.post_layernorm(state)


class DraftHeads(nn.Module):
    """All heads of one target, float32 unless converted.

    Args:
        shape: what to build.
        draft_vocabulary: int [R], strictly ascending target token ids the heads can propose; None for all.
        final_norm: [d], scale of the target's final norm (see :func:`norm_scale`), where the heads' last
            norms start; None for ones.

    Attributes:
        shape, draft_vocabulary: as given, the latter as an int64 buffer.
        heads: :class:`Head` modules, the first one predicts x_{t+2}.

    Raises:
        ValueError: a tensor has the wrong shape or content.
    """

    draft_vocabulary: Tensor | None

    def __init__(
        self, shape: HeadsShape, draft_vocabulary: Tensor | None = None, final_norm: Tensor | None = None
    ) -> None:
        super().__init__()
        if final_norm is not None and final_norm.shape != (shape.hidden_size,):
            raise ValueError(f"final_norm must have the shape [{shape.hidden_size}]")
        self.shape = shape
        self.register_buffer("draft_vocabulary", _checked_vocabulary(draft_vocabulary))
        self.heads = nn.ModuleList(Head(shape, final_norm) for _ in range(shape.count))

    @property
    def dtype(self) -> torch.dtype:
        """The type the heads compute in."""
        return cast(Head, self.heads[0]).linear.weight.dtype

    @torch.no_grad()
    def rescale(self, scale: float) -> None:
        """Make heads for states of size one into the same heads for states ``scale`` times as large.

        All that a head reads is normed, so only what it adds to the state has to grow.
        """
        for head in self.heads:
            cast(Head, head).linear.weight.mul_(scale)

    def step(self, index: int, state: Tensor, token_embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run one head.

        Args:
            index: 0 for the first head, which predicts x_{t+2}.
            state: [..., d], any floating type; h_0 for the first head, else the state of the one before.
            token_embedding: [..., d], embedding of the token before the one this head predicts (x_{t+1}
                for the first head) when the variant is "conditioned", else None.

        Returns:
            The head's state [..., d], and the normed state [..., d] that the output matrix takes; both in
            the heads' type.

        Raises:
            ValueError: there is no such head, or the embedding is missing or not wanted.
        """
        if not 0 <= index < self.shape.count:
            raise ValueError(f"there are {self.shape.count} heads, so no head {index}")
        if (token_embedding is not None) != (self.shape.variant == "conditioned"):
            need = "needs" if token_embedding is None else "does not take"
            raise ValueError(f"a {self.shape.variant} head {need} a token embedding")
        if token_embedding is not None:
            token_embedding = token_embedding.to(self.dtype)
        normed: tuple[Tensor, Tensor] = self.heads[index](state.to(self.dtype), token_embedding)
        return normed


class HeadsOutput:
    """The target's output layer restricted to what the heads can propose, and its input embeddings.

    The scores are the output layer's own: a model that soft-caps or scales its logits does that after it,
    and the heads are trained without.

    Attributes:
        weight: [R, d], or the model's own [V, d] (no copy) for the whole vocabulary; the model's type.
        bias: [R] or [V], None for most models.
        token_ids: int64 [R] on the model's device, target ids of the rows; None for the whole vocabulary.

    Raises:
        UnsupportedModelError: the model's matrices do not fit its hidden states.
        ValueError: the draft vocabulary goes beyond the model's.
    """

    weight: Tensor
    bias: Tensor | None
    token_ids: Tensor | None

    def __init__(self, model: PreTrainedModel, heads: DraftHeads) -> None:
        size = heads.shape.hidden_size
        name = type(model).__name__
        output = model.get_output_embeddings()
        weight = getattr(output, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[1] != size:
            raise UnsupportedModelError(
                f"{name} has no output matrix over hidden states of width {size}, so heads cannot be used "
                "with it. Use another model, or generate without heads."
            )
        self._embedding: nn.Module = model.get_input_embeddings()
        width = getattr(self._embedding, "embedding_dim", size)
        if heads.shape.variant == "conditioned" and width != size:
            raise UnsupportedModelError(
                f"{name} has token embeddings of width {width} and hidden states of width {size}, so only "
                'heads of the variant "linear" can be used with it.'
            )
        bias = getattr(output, "bias", None)
        vocabulary = heads.draft_vocabulary
        if vocabulary is None:
            self.weight, self.bias, self.token_ids = weight.detach(), _detached(bias), None
            return
        if int(vocabulary[-1]) >= len(weight):
            raise ValueError(
                f"the draft vocabulary names id {int(vocabulary[-1])}, the model has {len(weight)}"
            )
        self.token_ids = vocabulary.to(weight.device)
        self.weight = weight.detach()[self.token_ids]
        self.bias = None if bias is None else bias.detach()[self.token_ids]

    def logits(self, normed: Tensor) -> Tensor:
        """Scores [..., R or V], float32, of normed states [..., d] of any floating type."""
        return functional.linear(normed.to(self.weight.dtype), self.weight, self.bias).float()

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., d] of target token ids [...], as the model's embedding layer makes them."""
        rows: Tensor = self._embedding(token_ids)
        return rows


def new_heads(
    model: PreTrainedModel,
    count: int,
    variant: str = "conditioned",
    draft_vocabulary: Tensor | None = None,
) -> DraftHeads:
    """Untrained heads for ``model``, on the CPU; each repeats what the target predicts itself.

    Raises:
        UnsupportedModelError: the model has no final norm, see :func:`final_norm_of`.
        ValueError: as :class:`HeadsShape` and :class:`DraftHeads`.
    """
    norm = final_norm_of(model)
    size = int(model.config.get_text_config(decoder=True).hidden_size)
    shape = HeadsShape(count, size, variant, norm_epsilon(norm) or HeadsShape.norm_eps)
    return DraftHeads(shape, draft_vocabulary, norm_scale(norm, size))


def _checked_vocabulary(ids: Tensor | None) -> Tensor | None:
    if ids is None:
        return None
    if ids.dim() != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError("the draft vocabulary must be a list of token ids")
    ids = ids.detach().to(torch.int64).clone()
    if int(ids[0]) < 0 or bool((ids[1:] <= ids[:-1]).any()):
        raise ValueError("the ids of the draft vocabulary must be ascending, each once, none negative")
    return ids


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
