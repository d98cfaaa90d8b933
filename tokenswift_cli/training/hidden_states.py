"""The target's hidden states over text, and its own next-token states: what heads learn from."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokenswift_cli.models.heads import capturing, final_norm_of


class HiddenStates:
    """Reads whole sequences with a frozen model, through its own code.

    Args:
        model: in eval mode, on its device.

    Raises:
        UnsupportedModelError: the model has no final norm before its output layer.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device: torch.device = model.device
        self._norm = final_norm_of(model)
        self._takes_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """States [L, d] before the final norm after each of int64 [L] tokens, in the model's type."""
        keywords = {"logits_to_keep": 1} if self._takes_logits_to_keep else {}
        with capturing(self._norm) as states:
            self.model(input_ids=tokens.to(self.device)[None], use_cache=False, **keywords)
        return states[-1].reshape(len(tokens), -1)

    @torch.no_grad()
    def normed(self, hidden: Tensor) -> Tensor:
        """States [..., d] as the output layer reads them: the target's own guess of the next token."""
        normed: Tensor = self._norm(hidden.to(self.device, self.model.dtype))
        return normed
