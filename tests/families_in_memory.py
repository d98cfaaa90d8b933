"""Every family of docs/models.md as a tiny random model: those written exactly, and those refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from llama_families import lively, rope
from models_in_memory import SHAPE
from transformers import PreTrainedModel

COMPILED = ("native", "lean", "generic")
OWN_CODE = ("generic",)

# Shorter than every text of the tests, and for half of it longer than what a model is checked with.
WINDOW = 13


@dataclass(frozen=True)
class Family:
    """A family that is supported.

    Attributes:
        name: for people.
        model: name of its class in transformers; the configuration's is made from it.
        settings: changes to SHAPE; None takes a setting out.
        paths: ways to compute a pass that cover it, the fastest first.
        attention: what is special about it, for the table.
    """

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = OWN_CODE
    attention: str = "all keys"

    def make(self) -> PreTrainedModel:
        """In float32, whose choices depend on what was read long ago."""
        return _make(self.model, self.settings)


@dataclass(frozen=True)
class Refused:
    """A family that is refused, and the sentence."""

    name: str
    make: Callable[[], PreTrainedModel]
    sentence: str


def _make(model: str, settings: dict[str, Any]) -> PreTrainedModel:
    config_class = getattr(transformers, _CONFIGURATIONS.get(model, model.replace("ForCausalLM", "Config")))
    shape = {key: value for key, value in (SHAPE | settings).items() if value is not None}
    torch.manual_seed(0)
    made = lively(getattr(transformers, model)(config_class(**shape)).eval().float())
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if key.endswith(("qkv_proj.weight", "query_key_value.weight", "Wqkv.weight", "c_attn.weight")):
                parameter.mul_(4)
            elif key.endswith(("out_proj.weight", "attention.dense.weight")):
                parameter.mul_(5)
            elif key.endswith("sinks"):
                parameter.normal_(std=2)
        output = made.get_output_embeddings()
        if output.weight is not made.get_input_embeddings().weight:
            output.weight.mul_(20)
    return made


_CONFIGURATIONS = {
    "Gemma3ForCausalLM": "Gemma3TextConfig",
    "Gemma3nForCausalLM": "Gemma3nTextConfig",
    "Gemma4ForCausalLM": "Gemma4TextConfig",
    "Llama4ForCausalLM": "Llama4TextConfig",
    "GPT2LMHeadModel": "GPT2Config",
    "BertLMHeadModel": "BertConfig",
}

_LOCAL = {"sliding_window": WINDOW}
_ALTERNATING = {**_LOCAL, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_OPT = {
    "ffn_dim": 128,
    "word_embed_proj_dim": 64,
    "max_position_embeddings": 512,
    "num_key_value_heads": None,
    "intermediate_size": None,
}

FAMILIES = (
    Family("Llama 2", "LlamaForCausalLM", {"num_key_value_heads": 4}, COMPILED),
    Family(
        "Llama 2 with YaRN",
        "LlamaForCausalLM",
        {
            "num_key_value_heads": 4,
            "rope_parameters": rope("yarn", factor=8.0, original_max_position_embeddings=32),
        },
        COMPILED,
    ),
    Family(
        "Llama 3",
        "LlamaForCausalLM",
        {
            "rope_parameters": rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            )
        },
        COMPILED,
    ),
    Family("Qwen2.5", "Qwen2ForCausalLM", {}, COMPILED),
    Family("Qwen3", "Qwen3ForCausalLM", {"head_dim": 32}, COMPILED),
    Family("Mistral", "MistralForCausalLM", _LOCAL, COMPILED, "windows"),
    Family("Phi-3", "Phi3ForCausalLM", _LOCAL | {"pad_token_id": 0}, OWN_CODE, "windows"),
    Family(
        "Gemma 2",
        "Gemma2ForCausalLM",
        _ALTERNATING | {"head_dim": 16, "attn_logit_softcapping": 2.0},
        OWN_CODE,
        "windows in every second layer, soft-capped scores and logits",
    ),
    Family(
        "Gemma 3",
        "Gemma3ForCausalLM",
        _ALTERNATING | {"head_dim": 16},
        OWN_CODE,
        "windows in most layers",
    ),
    Family(
        "Gemma 3n",
        "Gemma3nForCausalLM",
        {
            **_LOCAL,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "head_dim": 16,
            "intermediate_size": [64] * 4,
            "activation_sparsity_pattern": [0.0] * 4,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 256,
            "hidden_size_per_layer_input": 8,
        },
        OWN_CODE,
        "windows in most layers, keys and values shared by layers",
    ),
    Family("Mixtral", "MixtralForCausalLM", _LOCAL | _EXPERTS, OWN_CODE, "windows; experts"),
    Family(
        "Qwen3-MoE",
        "Qwen3MoeForCausalLM",
        _EXPERTS | {"head_dim": 16, "moe_intermediate_size": 32},
        OWN_CODE,
        "all keys; experts",
    ),
    Family(
        "GPT-OSS",
        "GptOssForCausalLM",
        _ALTERNATING | _EXPERTS | {"head_dim": 16},
        OWN_CODE,
        "windows in every second layer, attention sinks; experts",
    ),
    Family(
        "DeepSeek-V3",
        "DeepseekV3ForCausalLM",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
        },
        OWN_CODE,
        "all keys, larger than values; experts",
    ),
    Family("GPT-NeoX", "GPTNeoXForCausalLM", {"num_key_value_heads": None}),
    Family("OPT", "OPTForCausalLM", _OPT, OWN_CODE, "all keys; learned positions"),
    Family(
        "GPT-2",
        "GPT2LMHeadModel",
        {"num_key_value_heads": None, "intermediate_size": None, "max_position_embeddings": 512},
        OWN_CODE,
        "all keys; learned positions",
    ),
)


def _plain(*without: str, **settings: Any) -> dict[str, Any]:
    return {**dict.fromkeys(without), **settings}


def _not_causal() -> PreTrainedModel:
    model = _make("LlamaForCausalLM", {})
    model.config.is_causal = False
    return model


def _window_by_accident() -> PreTrainedModel:
    """The attention reads a window that the masks of this family do not know."""
    return _make("OlmoeForCausalLM", _EXPERTS | _LOCAL)


_END = ", which is not supported exactly. Use another model."
_NO_INTERFACE = (
    " does not use transformers' attention interface, so its cache cannot be driven. Use another model."
)

REFUSED = (
    Refused(
        "Llama 4 (chunks)",
        lambda: _make(
            "Llama4ForCausalLM", _plain(head_dim=16, intermediate_size_mlp=128, num_local_experts=2)
        ),
        "Llama4ForCausalLM has chunked_attention layers" + _END,
    ),
    Refused(
        "Mamba (state space)",
        lambda: _make("MambaForCausalLM", {}),
        "MambaForCausalLM has linear_attention layers" + _END,
    ),
    Refused(
        "Jamba (state space)",
        lambda: _make("JambaForCausalLM", _plain(attn_layer_period=2, attn_layer_offset=1, num_experts=2)),
        "JambaForCausalLM has linear_attention layers" + _END,
    ),
    Refused(
        "Qwen3-Next (linear attention)",
        lambda: _make(
            "Qwen3NextForCausalLM",
            _EXPERTS
            | _plain(
                layer_types=["linear_attention", "full_attention"],
                head_dim=16,
                linear_num_value_heads=2,
                linear_num_key_heads=2,
                linear_key_head_dim=16,
                linear_value_head_dim=16,
                moe_intermediate_size=32,
                shared_expert_intermediate_size=32,
            ),
        ),
        "Qwen3NextForCausalLM has linear_attention layers" + _END,
    ),
    Refused(
        "LFM2 (convolutions)",
        lambda: _make("Lfm2ForCausalLM", _plain(layer_types=["conv", "full_attention"])),
        "Lfm2ForCausalLM has conv layers" + _END,
    ),
    Refused("Bloom (ALiBi)", lambda: _make("BloomForCausalLM", {}), "BloomForCausalLM" + _NO_INTERFACE),
    Refused(
        "MPT (ALiBi)",
        lambda: _make("MptForCausalLM", _plain(d_model=64, n_heads=4, n_layers=2)),
        "MptForCausalLM" + _NO_INTERFACE,
    ),
    Refused("Falcon", lambda: _make("FalconForCausalLM", {}), "FalconForCausalLM" + _NO_INTERFACE),
    Refused(
        "GPT-Neo (local layers)",
        lambda: _make(
            "GPTNeoForCausalLM", _plain(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])
        ),
        "GPTNeoForCausalLM" + _NO_INTERFACE,
    ),
    Refused(
        "Doge (masks of its own)",
        lambda: _make("DogeForCausalLM", _LOCAL),
        f"DogeForCausalLM applies its window of {WINDOW} tokens outside the attention function" + _END,
    ),
    Refused(
        "Phi-3.5-MoE (with a window)",
        lambda: _make("PhimoeForCausalLM", _LOCAL | _EXPERTS),
        f"PhimoeForCausalLM applies its window of {WINDOW} tokens outside the attention function" + _END,
    ),
    Refused(
        "OLMoE with a window in its configuration",
        _window_by_accident,
        f"OlmoeForCausalLM asks for a window of {WINDOW} tokens in layer 0, where its own mask is another one"
        + _END,
    ),
    Refused(
        "Dory (layers that run several times)",
        lambda: _make("DoryForCausalLM", _plain(num_hidden_layers=4, head_dim=16)),
        "DoryForCausalLM attends 2 times in layer 0 for each token" + _END,
    ),
    Refused(
        "any model made to look ahead (is_causal false)",
        _not_causal,
        "LlamaForCausalLM masks more in layer 0 than order and a window do" + _END,
    ),
)


def supported_rows() -> list[str]:
    """The rows of the first table of docs/models.md."""
    return [
        f"| {family.name} | `{family.model}` | {family.attention} | {', '.join(family.paths)} |"
        for family in FAMILIES
    ]


def refused_rows() -> list[str]:
    """The rows of the second one."""
    return [f"| {refused.name} | {refused.sentence} |" for refused in REFUSED]


if __name__ == "__main__":
    print(*supported_rows(), "", *refused_rows(), sep="\n")
