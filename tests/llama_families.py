"""Tiny models of the Llama family, one for every setting that changes what a decoder computes, and a tree."""

from __future__ import annotations

import torch
from models_in_memory import SHAPE
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

IDS = torch.randint(256, (1, 1300), generator=torch.Generator().manual_seed(0))

TREE = torch.tensor([5, 6, 7, 8, 9, 10])
PARENTS = [-1, 0, 0, 2, 1, 3]
DEPTHS = torch.tensor([0, 1, 1, 2, 2, 3])


def visibility() -> torch.Tensor:
    visible = torch.eye(len(PARENTS), dtype=torch.bool)
    for row, parent in enumerate(PARENTS):
        if parent >= 0:
            visible[row] |= visible[parent]
    return visible


def rope(kind, **parameters):
    return {"rope_type": kind, "rope_theta": 10000.0, **parameters}


SHORT = {"max_position_embeddings": 256}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama with biases": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": (LlamaForCausalLM, LlamaConfig, {"head_dim": 32}),
    "llama without groups": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
    "llama tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama with one kv head": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1}),
    "llama 3 rope": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=256,
            )
        },
    ),
    "llama linear rope": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": rope("linear", factor=4.0)}),
    "llama yarn": (
        LlamaForCausalLM,
        LlamaConfig,
        {"rope_parameters": rope("yarn", factor=8.0, original_max_position_embeddings=256)},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "mistral with a window": (MistralForCausalLM, MistralConfig, {"sliding_window": 100}),
    "qwen 2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen 2 yarn": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=256)},
    ),
    "qwen 2 with windows in some layers": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1},
    ),
    "qwen 3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
    "qwen 3 with windows and biases": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 100,
            "max_window_layers": 1,
        },
    ),
}


def make(name: str):
    """The model in float32, with norms and biases that are not what they are set to at the start."""
    model_class, config_class, changes = MODELS[name]
    torch.manual_seed(0)
    return lively(model_class(config_class(**(SHAPE | changes))).eval())


def lively(model):
    """The same model with random norms and biases, and attention that looks at something."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5, 1.5)
            elif key.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "q_proj" in key:
                parameter.mul_(20)
            elif "o_proj" in key:
                parameter.mul_(5)
    return model
