"""The blockwise loss equals the plain one, in value and gradient, for every block size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tokenswift_cli.training.loss import Labels, Output, heads_loss


def example(
    seed: int, heads: int, rows: int, width: int, size: int, *, teacher: bool, bias: bool
) -> tuple[Tensor, Output, Labels, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    valid = torch.rand(heads, rows, generator=generator) < 0.7
    places = torch.arange(rows) + torch.arange(heads)[:, None] + 1
    valid &= places < rows  # the teacher's row must exist
    tokens = torch.randint(-1, size, (heads, rows), generator=generator)
    if not teacher:
        valid &= tokens >= 0
    output = Output(randn(size, width), randn(size) if bias else None)
    labels = Labels(tokens, valid, randn(rows, width) if teacher else None)
    return randn(heads, rows, width), output, labels, randn(heads).abs()


def plain_loss(normed: Tensor, output: Output, labels: Labels, shares: Tensor) -> Tensor:
    """One row at a time, as the definition says."""
    total = normed.new_zeros(())
    for head, row in labels.valid.nonzero().tolist():
        logits = functional.linear(normed[head, row], output.weight, output.bias)
        if labels.teacher is None:
            wanted = functional.one_hot(labels.tokens[head, row], len(logits)).to(logits.dtype)
        else:
            guess = functional.linear(labels.teacher[row + 1 + head], output.weight, output.bias)
            wanted = guess.softmax(dim=0)
        total = total - shares[head] * (wanted * logits.log_softmax(dim=0)).sum()
    return total


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    heads=st.integers(1, 4),
    rows=st.integers(1, 12),
    block=st.integers(1, 14),
    teacher=st.booleans(),
    bias=st.booleans(),
)
def test_value_and_gradient_equal_the_plain_loss(
    seed: int, heads: int, rows: int, block: int, teacher: bool, bias: bool
) -> None:
    normed, output, labels, shares = example(seed, heads, rows, 5, 7, teacher=teacher, bias=bias)
    normed.requires_grad_(True)
    wanted = plain_loss(normed, output, labels, shares)
    wanted_gradient = torch.zeros_like(normed)
    if bool(labels.valid.any()):
        (wanted_gradient,) = torch.autograd.grad(wanted, normed)
    found = heads_loss(normed, output, labels, shares, block)
    assert torch.allclose(found.loss, wanted, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(3 * found.loss, normed)
    assert torch.allclose(gradient, 3 * wanted_gradient, rtol=1e-10, atol=1e-12)
    assert found.counts.tolist() == labels.valid.sum(dim=1).tolist()
    assert torch.allclose((found.sums * shares).sum(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("teacher", [False, True])
def test_the_block_size_changes_no_figure(teacher: bool) -> None:
    normed, output, labels, shares = example(7, 3, 40, 8, 30, teacher=teacher, bias=False)
    wanted = heads_loss(normed, output, labels, shares, 1000)
    for block in (1, 2, 7, 39, 40):
        found = heads_loss(normed, output, labels, shares, block)
        assert torch.allclose(found.sums, wanted.sums, rtol=1e-12)
        for name in ("counts", "top1", "top3"):
            assert torch.equal(getattr(found, name), getattr(wanted, name))


def test_hits_are_counted_against_the_text_also_where_the_label_is_the_target() -> None:
    """A token that the heads cannot propose is a miss."""
    normed, output, labels, shares = example(11, 2, 30, 6, 9, teacher=True, bias=True)
    found = heads_loss(normed, output, labels, shares, 4)
    for head in range(2):
        best = output.logits(normed[head]).topk(3).indices
        rows = labels.valid[head]
        hits = (best == labels.tokens[head][:, None]) & rows[:, None]
        assert int(found.top1[head]) == int(hits[:, 0].sum())
        assert int(found.top3[head]) == int(hits.sum())
    assert bool((labels.tokens[labels.valid] < 0).any())


def test_half_precision_weights_lose_no_small_gradients() -> None:
    """A mean over many positions must not push slopes below float16's least number."""
    normed, output, labels, _ = example(3, 2, 20, 8, 6, teacher=True, bias=False)
    shares = torch.full((2,), 1e-7)
    wanted_normed = normed.clone().requires_grad_(True)
    plain_loss(wanted_normed, output, labels, shares.double()).backward()
    half = Output(output.weight.half())
    short = Labels(labels.tokens, labels.valid, labels.teacher.half() if labels.teacher is not None else None)
    found_normed = normed.float().requires_grad_(True)
    heads_loss(found_normed, half, short, shares, 6).loss.backward()
    assert found_normed.grad is not None and wanted_normed.grad is not None
    error = (found_normed.grad.double() - wanted_normed.grad).norm() / wanted_normed.grad.norm()
    assert error < 0.01


def test_memory_stays_within_a_few_blocks_of_logits() -> None:
    """The logits of all positions never exist together: the largest tensor made is one block."""
    rows, size, block = 256, 500, 16
    normed, output, labels, shares = example(5, 2, rows, 4, size, teacher=True, bias=False)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.numel())
            return result

    with Watch():
        heads_loss(normed.requires_grad_(True), output, labels, shares, block)
    assert largest <= (block + 2) * size
