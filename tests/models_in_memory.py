"""Tiny random models, made in memory, whose logits are spread enough to make choices interesting."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}


def tiny_llama(**changes: object) -> LlamaForCausalLM:
    """A Llama with 4 query heads over 2 key-value heads."""
    torch.manual_seed(0)
    return _spread(LlamaForCausalLM(LlamaConfig(**(SHAPE | changes))))


def tiny_mistral(sliding_window: int) -> MistralForCausalLM:
    """The same with sliding-window attention."""
    torch.manual_seed(0)
    return _spread(MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=sliding_window)))


def _spread(model):
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
        # Large attention weights make the text depend on what was read long ago.
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(20)
            layer.self_attn.o_proj.weight.mul_(5)
    return model.eval()
