"""The state that heads start from, found in every family without knowing its names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models_in_memory import tiny_llama as make_llama
from models_in_memory import tiny_mistral
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaForCausalLM,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.modeling_outputs import CausalLMOutput

from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models.final_norm import norm_epsilon, norm_scale
from tokenswift_cli.models.heads import HeadsOutput, capturing, final_norm_of, new_heads
from tokenswift_cli.models.target import Target

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
OPT = {name: SHAPE[name] for name in SHAPE if name != "intermediate_size"} | {"ffn_dim": 64}


def made(config: PretrainedConfig) -> PreTrainedModel:
    """A random model whose norms are random too, so that no two of them do the same."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.3)
            else:
                parameter.mul_(5)
    return model


FAMILIES: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "llama": (make_llama, "model.norm"),
    "mistral": (lambda: tiny_mistral(8), "model.norm"),
    "qwen2": (lambda: made(Qwen2Config(**SHAPE, num_key_value_heads=2)), "model.norm"),
    "phi3": (lambda: made(Phi3Config(**SHAPE, num_key_value_heads=2)), "model.norm"),
    "gemma2": (lambda: made(Gemma2Config(**SHAPE, num_key_value_heads=2, head_dim=8)), "model.norm"),
    "granite": (lambda: made(GraniteConfig(**SHAPE, logits_scaling=8.0)), "model.norm"),
    "gpt_neox": (lambda: made(GPTNeoXConfig(**SHAPE)), "gpt_neox.final_layer_norm"),
    "gpt2": (lambda: made(GPT2Config(**GPT2)), "transformer.ln_f"),
    "opt": (lambda: made(OPTConfig(**OPT, word_embed_proj_dim=32)), "model.decoder.final_layer_norm"),
    # Without a norm of its own at the end: the last layer ends in one.
    "opt_post_norm": (
        lambda: made(OPTConfig(**OPT, word_embed_proj_dim=32, do_layer_norm_before=False)),
        "model.decoder.layers.1.final_layer_norm",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_final_norm_is_found(family: str, dtype: torch.dtype) -> None:
    make, name = FAMILIES[family]
    model = make().to(dtype)
    norm = final_norm_of(model)
    assert norm is model.get_submodule(name)
    ids = torch.tensor([[5, 6, 7, 8, 9], [15, 16, 17, 18, 19]])
    with torch.no_grad(), capturing(norm) as states:
        logits = model(input_ids=ids, use_cache=False).logits
        again = model.get_output_embeddings()(norm(states[0]))
    assert states[0].shape == (2, 5, model.config.hidden_size)
    if family == "gemma2":
        cap = model.config.final_logit_softcapping
        again = cap * torch.tanh(again / cap)
    elif family == "granite":
        again = again / model.config.logits_scaling
    torch.testing.assert_close(again, logits)


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "gemma2"])
def test_untrained_heads_repeat_the_target_in_families_with_a_plain_norm(family: str) -> None:
    """Gemma stores its scale minus 1: what counts is what the norm does."""
    model = FAMILIES[family][0]()
    heads = new_heads(model, 1, "linear")
    norm = final_norm_of(model)
    hidden = torch.randn(3, model.config.hidden_size)
    _, normed = heads.step(0, hidden, None)
    with torch.no_grad():
        expected = model.get_output_embeddings()(norm(hidden))
    torch.testing.assert_close(HeadsOutput(model, heads).logits(normed), expected, rtol=1e-4, atol=1e-4)


def test_the_scale_of_a_norm_is_measured() -> None:
    norm = nn.LayerNorm(16, eps=1e-6)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    torch.testing.assert_close(norm_scale(norm, 16), norm.weight.detach(), rtol=1e-4, atol=1e-5)
    assert norm_epsilon(norm) == 1e-6
    assert norm_epsilon(nn.Identity()) is None


@pytest.mark.parametrize("path", ["generic"], indirect=True)
def test_it_is_found_while_the_engine_drives_the_attention(path: str) -> None:
    model = make_llama()
    target = Target(model, 16)
    implementation = model.config._attn_implementation
    norm = final_norm_of(model)
    assert norm is model.model.norm
    assert model.config._attn_implementation == implementation
    with capturing(norm) as states:
        target.read([1, 2, 3])
        target.verify([4, 5])
    assert [tuple(state.shape) for state in states] == [(1, 3, 64), (1, 2, 64)]


def test_nothing_is_left_behind() -> None:
    model = make_llama()
    norm = final_norm_of(model)
    with pytest.raises(RuntimeError), capturing(norm) as states:
        raise RuntimeError
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 2]]))
    assert states == []
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules()
    )  # hooks cost time in every pass


class BiasedLlama(LlamaForCausalLM):
    """Adds something else to its logits than a rising function of the output layer's scores."""

    def forward(self, **keywords: object) -> CausalLMOutput:
        result = super().forward(**keywords)
        return CausalLMOutput(logits=result.logits + 5 * torch.linspace(-1, 1, 256).cos())


class DetouredLlama(LlamaForCausalLM):
    """Reads its logits from something else than the final norm."""

    def forward(self, **keywords: object) -> CausalLMOutput:
        super().forward(**keywords)
        return CausalLMOutput(logits=self.lm_head(self.model.embed_tokens(keywords["input_ids"])))


@pytest.mark.parametrize("odd", [BiasedLlama, DetouredLlama])
def test_logits_computed_in_another_way_are_refused_by_name(odd: type[LlamaForCausalLM]) -> None:
    model = odd(make_llama().config).eval()
    with pytest.raises(UnsupportedModelError, match=f"{odd.__name__} has no final norm"):
        final_norm_of(model)


def test_a_projection_behind_the_norm_is_refused() -> None:
    model = made(OPTConfig(**OPT, word_embed_proj_dim=16))
    with pytest.raises(UnsupportedModelError, match="OPTForCausalLM has no final norm"):
        final_norm_of(model)


def test_a_norm_used_twice_is_refused() -> None:
    """Its captured inputs would be of two kinds."""
    model = make_llama()
    model.model.layers[0].input_layernorm = model.model.norm
    with pytest.raises(UnsupportedModelError, match="final norm"):
        final_norm_of(model)
