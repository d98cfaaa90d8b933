"""Which models the lean decoder computes exactly: a list of classes, and all that could make one differ."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

# Class of the model -> classes of its decoder, layer, attention, feed-forward part, norm and rotary
# embedding. By exact class: a subclass may compute something else.
_PARTS: dict[type, tuple[type, ...]] = {
    llama.LlamaForCausalLM: (
        llama.LlamaModel,
        llama.LlamaDecoderLayer,
        llama.LlamaAttention,
        llama.LlamaMLP,
        llama.LlamaRMSNorm,
        llama.LlamaRotaryEmbedding,
    ),
    mistral.MistralForCausalLM: (
        mistral.MistralModel,
        mistral.MistralDecoderLayer,
        mistral.MistralAttention,
        mistral.MistralMLP,
        mistral.MistralRMSNorm,
        mistral.MistralRotaryEmbedding,
    ),
    qwen2.Qwen2ForCausalLM: (
        qwen2.Qwen2Model,
        qwen2.Qwen2DecoderLayer,
        qwen2.Qwen2Attention,
        qwen2.Qwen2MLP,
        qwen2.Qwen2RMSNorm,
        qwen2.Qwen2RotaryEmbedding,
    ),
    qwen3.Qwen3ForCausalLM: (
        qwen3.Qwen3Model,
        qwen3.Qwen3DecoderLayer,
        qwen3.Qwen3Attention,
        qwen3.Qwen3MLP,
        qwen3.Qwen3RMSNorm,
        qwen3.Qwen3RotaryEmbedding,
    ),
}

# Their configuration names one window for the whole model, others one for each layer.
_ONE_WINDOW: tuple[type, ...] = (mistral.MistralForCausalLM,)


def why_not_covered(model: PreTrainedModel) -> str | None:
    """None if the lean decoder computes what ``model`` does, else the reason, as the end of a sentence."""
    parts = _PARTS.get(type(model))
    if parts is None:
        return f"{type(model).__name__} is not one of {', '.join(sorted(known.__name__ for known in _PARTS))}"
    config = model.config
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}, not silu"
    if getattr(config, "pretraining_tp", 1) not in (None, 1):
        return f"pretraining_tp is {config.pretraining_tp}"
    if model.training:
        return "it is in training mode"
    parameters = list(model.parameters())
    for fact in ("dtype", "device"):
        if len(values := {getattr(parameter, fact) for parameter in parameters}) != 1:
            return f"its parameters have more than one {fact}: {', '.join(sorted(map(str, values)))}"
    if not parameters[0].is_floating_point() or parameters[0].element_size() < 2:
        return f"its weights are {parameters[0].dtype}"
    return _unknown_module(model, parts) or _odd_shape(model)


def window_of(model: PreTrainedModel, attention: nn.Module) -> int | None:
    """Keys that a row of this attention layer sees at most, itself included; None for all."""
    if type(model) in _ONE_WINDOW:
        return getattr(model.config, "sliding_window", None)
    return getattr(attention, "sliding_window", None)


def _unknown_module(model: PreTrainedModel, parts: tuple[type, ...]) -> str | None:
    """A module that is not the family's own, or that something was attached to."""
    known = {type(model), *parts, nn.Linear, nn.Embedding, nn.ModuleList}
    for name, module in model.named_modules():
        if type(module) not in known and not _is_silu(name, module):
            return f"{name} is a {type(module).__name__}"
        # What a call of the module would do besides: hooks, forward methods replaced on the object.
        for attached in ("_forward_hooks", "_forward_pre_hooks", "_hf_hook", "_old_forward"):
            if getattr(module, attached, None):
                return f"{name or type(module).__name__} has {attached.strip('_')} attached"
        if "forward" in vars(module):
            return f"{name or type(module).__name__} has another forward method than its class"
    return None


def _is_silu(name: str, module: nn.Module) -> bool:
    if not name.endswith(".act_fn"):
        return False
    # Libraries name this activation differently; what it computes tells.
    probe = torch.linspace(-9, 9, 37)
    with torch.no_grad():
        return torch.allclose(module(probe), torch.nn.functional.silu(probe), rtol=1e-5, atol=1e-6)


def _odd_shape(model: PreTrainedModel) -> str | None:
    """Shapes that the fused layers do not provide for."""
    embedding = model.get_input_embeddings()
    if embedding.max_norm is not None:
        return "its embeddings are renormalised"
    if len(model.model.layers) < model.config.num_hidden_layers:
        return "it has fewer layers than its configuration says"
    head = model.model.layers[0].self_attn.head_dim
    position = torch.zeros(1, 1, dtype=torch.long, device=embedding.weight.device)
    cosine, _ = model.model.rotary_emb(embedding.weight[:1, None], position)
    if cosine.shape[-1] != head:
        return f"its rotary embedding turns {cosine.shape[-1]} of {head} dimensions"
    return None
