"""The heads' loss against a frozen output matrix, in blocks of positions so that memory stays bounded.

Logits over a whole vocabulary are by far the largest tensors of the training. They never exist for more
than ``block`` positions of one head at a time: the forward pass computes each block's loss and, at once,
the gradient with respect to the normed states that entered it, which is all that the backward pass needs.

Positions are rows of one stream. Row i holds the hidden state after token x_i; head j, counted from 0,
stands for x_{i+2+j} there, and the target's own guess of that token is at row i+1+j.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


@dataclass(frozen=True)
class Output:
    """The frozen output layer over R rows.

    Attributes:
        weight: [R, d].
        bias: [R] or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    def logits(self, normed: Tensor) -> Tensor:
        """[n, R] of normed states [n, d]; at least float32."""
        logits = functional.linear(normed.to(self.weight.dtype), self.weight, self.bias)
        return logits.to(_wide(logits.dtype))

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Gradient [n, d] with respect to the normed states, of a gradient [n, R] of the logits."""
        pulled = gradient.to(self.weight.dtype) @ self.weight
        return pulled.to(_wide(pulled.dtype))


@dataclass(frozen=True)
class Labels:
    """What the heads should say.

    Attributes:
        tokens: int64 [H, M], row of the output layer of the token that each head stands for; -1 where the
            output layer does not have it.
        valid: bool [H, M], where the loss counts. With token labels a valid row has a token >= 0.
        teacher: [M, d], the target's normed states: the loss is the cross-entropy against its own
            distribution over the R rows. None: against the tokens.
    """

    tokens: Tensor
    valid: Tensor
    teacher: Tensor | None = None


@dataclass(frozen=True)
class HeadLoss:
    """Loss and hits of H heads.

    Attributes:
        loss: scalar; differentiable with respect to the normed states.
        sums: float [H], sum of each head's cross-entropies in nats.
        counts: int64 [H], valid positions.
        top1, top3: int64 [H], valid positions whose token is the head's best, among its best three.
    """

    loss: Tensor
    sums: Tensor
    counts: Tensor
    top1: Tensor
    top3: Tensor


def heads_loss(normed: Tensor, output: Output, labels: Labels, shares: Tensor, block: int) -> HeadLoss:
    """The weighted sum over heads of their cross-entropies, and how often they were right.

    Args:
        normed: [H, M, d], what the heads hand to the output layer.
        output: frozen.
        labels: of the same rows.
        shares: float [H], what one position's cross-entropy of each head adds to the loss (1 / number of
            positions makes a mean).
        block: positions per block of logits; changes memory and speed only.

    Returns:
        Loss and counts. A non-finite logit makes the loss non-finite.
    """
    loss, sums, counts, top1, top3 = _HeadsLoss.apply(normed, output, labels, shares, block)
    return HeadLoss(loss, sums, counts, top1, top3)


class _HeadsLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, normed: Tensor, output: Output, labels: Labels, shares: Tensor, block: int
    ) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[0]
        gradient = torch.zeros_like(normed) if wanted else None
        heads = normed.shape[0]
        exact = torch.float32 if normed.device.type == "mps" else torch.float64  # which MPS does not have
        sums = torch.zeros(heads, dtype=exact, device=normed.device)
        top1, top3 = (torch.zeros(heads, dtype=torch.int64, device=normed.device) for _ in range(2))
        for head, rows, teacher in _blocks(output, labels, block):
            tokens = labels.tokens[head, rows]
            logits = output.logits(normed[head, rows])
            mass = torch.logsumexp(logits, dim=1)
            known = tokens >= 0
            label_logits = logits.gather(1, tokens.clamp(min=0)[:, None])
            better = (logits > label_logits).sum(dim=1)
            top1[head] += ((better < 1) & known).sum()
            top3[head] += ((better < 3) & known).sum()
            agreement = label_logits[:, 0] if teacher is None else torch.einsum("nr,nr->n", teacher, logits)
            sums[head] += (mass - agreement).to(exact).sum()
            if gradient is None:
                continue
            slope = logits.sub_(mass[:, None]).exp_()
            if teacher is None:
                slope.scatter_add_(1, tokens[:, None], slope.new_full((len(tokens), 1), -1.0))
            else:
                slope.sub_(teacher)
            # The share comes last: in half precision it would push small slopes below the least number.
            gradient[head, rows] = (output.pull_back(slope) * shares[head]).to(gradient.dtype)
        ctx.gradient = gradient
        counts = labels.valid.sum(dim=1)
        ctx.mark_non_differentiable(sums, counts, top1, top3)
        loss = (sums * shares.to(exact)).sum().to(_wide(normed.dtype))
        return loss, sums, counts, top1, top3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        gradient = ctx.gradient
        return (None if gradient is None else gradient * gradients[0]), None, None, None, None


def _blocks(output: Output, labels: Labels, block: int) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """(head, valid rows of a block, the teacher's probabilities there) for all blocks and heads."""
    heads, length = labels.valid.shape
    for start in range(0, length, block):
        end = min(start + block, length)
        valid = labels.valid[:, start:end]
        if not bool(valid.any()):
            continue
        guesses = None
        if labels.teacher is not None:
            # Neighbouring heads ask for neighbouring rows: computed once for all of them.
            guesses = torch.softmax(output.logits(labels.teacher[start + 1 : end + heads]), dim=1)
        for head in range(heads):
            rows = valid[head].nonzero()[:, 0]
            if not len(rows):
                continue
            if guesses is None:
                yield head, rows + start, None
            elif len(rows) == end - start:
                yield head, rows + start, guesses[head : head + end - start]
            else:
                yield head, rows + start, guesses[rows + head]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
