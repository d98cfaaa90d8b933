"""The target's final norm: its input is the hidden state h_0 that the drafting heads start from.

Found by what a module does in one short pass, not by its name, so that every family of transformers is
served (``model.norm``, ``final_layer_norm``, ``ln_f``, ...), and checked: the output layer over the
module's output must give the model's logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models.attention import stock_implementation

_CHECK_TOKENS = 4

# Implementations of transformers' own; others (the engine's) need more than token ids to run.
_STOCK_ATTENTION = ("eager", "sdpa", "flash")


@torch.no_grad()
def final_norm_of(model: PreTrainedModel) -> nn.Module:
    """The module whose output the output layer reads and whose input, [B, T, d], is h_0.

    Args:
        model: in evaluation mode, on its device; runs over a few tokens.

    Raises:
        UnsupportedModelError: the model has no such module, or computes its logits in another way. Logits
            that are scaled or soft-capped behind the output layer are fine.
    """
    output = model.get_output_embeddings()
    name = type(model).__name__
    weight = getattr(output, "weight", None)
    if isinstance(weight, Tensor):
        width = weight.shape[-1]
        logits, calls = _observe(model)
        for norm, hidden, normed in reversed(calls):
            if normed.shape[-1] == width and _ignores_scale(norm, hidden) and _gives(output(normed), logits):
                return norm
    raise UnsupportedModelError(
        f"{name} has no final norm whose output its output layer reads, so drafting heads cannot be used "
        "with it. Use another model, or generate without heads."
    )


@contextmanager
def capturing(norm: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of ``norm``, each [B, T, d], of all passes inside the block."""
    states: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        states.append(inputs[0] if inputs else next(iter(keywords.values())))

    handle = norm.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield states
    finally:
        handle.remove()


@torch.no_grad()
def norm_scale(norm: nn.Module, hidden_size: int) -> Tensor:
    """Scale [d], float32 on the CPU, that ``norm`` gives each feature once its input has unit size.

    Measured, because families store it in different ways (Gemma: minus 1). The shift of a LayerNorm is
    left out, as the heads' norms have none.
    """
    parameter = next(norm.parameters(), torch.empty(0))
    probe = torch.ones(hidden_size, dtype=parameter.dtype, device=parameter.device)
    probe[1::2] = -1  # no mean, so that subtracting it changes nothing
    # Large against the epsilon, small enough for float16.
    probe *= 32
    return ((norm(probe[None]) - norm(-probe[None]))[0].float() / 2 * probe.sign().float()).cpu()


def norm_epsilon(norm: nn.Module) -> float | None:
    """The epsilon of ``norm``, None if it does not tell."""
    for name in ("variance_epsilon", "eps"):
        value = getattr(norm, name, None)
        if isinstance(value, float) and value > 0:
            return value
    return None


def _observe(model: PreTrainedModel) -> tuple[Tensor, list[tuple[nn.Module, Tensor, Tensor]]]:
    """Logits [T, V] of a short pass, and (module, input, output) of what may be a norm, in calling order."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        given = [*inputs, *keywords.values()]
        if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(result, Tensor):
            return
        if given[0].is_floating_point() and given[0].dim() == 3 and given[0].shape == result.shape:
            calls.append((module, given[0], result))

    leaves = [module for module in model.modules() if not any(module.children())]
    handles = [leaf.register_forward_hook(note, with_kwargs=True) for leaf in leaves]
    size = model.config.get_text_config(decoder=True).vocab_size
    ids = torch.tensor([[(7 * i + 3) % size for i in range(_CHECK_TOKENS)]], device=model.device)
    attention = model.config._attn_implementation
    try:
        if attention is not None and not attention.startswith(_STOCK_ATTENTION):
            model.set_attn_implementation(stock_implementation(model))
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    finally:
        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)
        for handle in handles:
            handle.remove()
    times = [id(module) for module, _, _ in calls]
    return logits, [call for call in calls if times.count(id(call[0])) == 1]


def _ignores_scale(module: nn.Module, hidden: Tensor) -> bool:
    """Whether the module gives the same for the input and for twice the input: what makes it a norm."""
    # In units far from the norm's epsilon, and from the largest float16.
    unit = 8 * hidden.float() / hidden.float().square().mean(-1, keepdim=True).sqrt().clamp(min=1e-12)
    once, twice = (module((factor * unit).to(hidden.dtype)).float() for factor in (1, 2))
    size = once.abs().max()
    tolerance = 1e-3 if hidden.dtype == torch.float32 else 3e-2
    return bool(size > 0) and bool((once - twice).abs().max() <= tolerance * size)


def _gives(raw: Tensor, logits: Tensor) -> bool:
    """Whether ``logits`` [T, V] are ``raw`` [1, T, V] or one rising function of it (scale, soft-cap)."""
    if raw.shape[1:] != logits.shape or not bool(raw.isfinite().all()):
        return False
    # Over all positions at once: the function must not depend on the position.
    wanted = logits.float().flatten()[raw.float().flatten().argsort()]
    spread = wanted[-1] - wanted[0]
    tolerance = 1e-4 if raw.dtype == torch.float32 else 2e-2
    return bool(spread > 0) and bool((wanted.diff() >= -tolerance * spread).all())
