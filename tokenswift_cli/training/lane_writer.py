"""Several texts written at once, one token of each per pass, with the engine's own choice of each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.training.batch_model import BatchModel


@torch.inference_mode()
def write_lanes(
    model: BatchModel, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler], length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Write B texts of ``length`` tokens, prompts included.

    Args:
        model: the target.
        prompts: B token id lists, each with 1 to ``length`` - 1 ids.
        samplers: one per text.
        length: tokens of each text.

    Yields:
        after each pass the tokens, int64 [B, length], and the hidden states [B, d] after the last token read;
        the tokens are one tensor that is being filled, with the next token chosen already.
    """
    lanes = range(len(prompts))
    tokens = torch.zeros(len(prompts), length, dtype=torch.int64, device=model.device)
    for lane, prompt in enumerate(prompts):
        tokens[lane, : len(prompt)] = torch.tensor(prompt)
    with model.reading(length) as reader:
        for position in range(length):
            logits, states = reader.read(tokens[:, position])
            following = position + 1
            if following < length:
                chosen = [
                    int(tokens[lane, following])
                    if following < len(prompts[lane])
                    else _choose(samplers[lane], logits[lane], tokens[lane], following)
                    for lane in lanes
                ]
                tokens[:, following] = torch.tensor(chosen, device=model.device)
            yield tokens, states


def _choose(sampler: Sampler, logits: Tensor, tokens: Tensor, position: int) -> int:
    first = max(0, position - sampler.settings.penalty_window)
    return sampler.choose(logits, tokens[first:position], position)
