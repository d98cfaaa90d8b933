"""YaRN by transformers' own code: the same logits, a longer limit, and refusals by name."""

from __future__ import annotations

import copy

import pytest
import torch
from llama_families import IDS
from models_in_memory import SHAPE
from tiny_model_directory import save_tiny_model
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from tokenswift_cli.config import ModelConfig, parse_rope_scaling
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.loading import load_model
from tokenswift_cli.models.rope_scaling import scale_positions
from tokenswift_cli.models.target import Target


@pytest.mark.parametrize(
    ("text", "factor"), [(None, None), ("none", None), ("yarn:4", 4.0), ("yarn:1.5", 1.5)]
)
def test_what_can_be_said(text, factor):
    assert parse_rope_scaling(text) == factor


@pytest.mark.parametrize(
    "text", ["yarn", "yarn:", "yarn:x", "yarn:1", "yarn:-2", "yarn:nan", "yarn:1e9", "ntk:4", ""]
)
def test_what_cannot(text):
    with pytest.raises(ValueError, match="yarn:FACTOR"):
        parse_rope_scaling(text)


def test_a_loaded_model_computes_what_transformers_does_with_the_same_scaling(tmp_path):
    """Beyond the old limit, through the decoder that the model gets here."""
    save_tiny_model(tmp_path, max_position_embeddings=256)
    loaded = load_model(
        ModelConfig(name=str(tmp_path), device="cpu", rope_scaling="yarn:4"), lambda message: None
    )
    assert loaded.position_limit == 1024
    plain = load_model(ModelConfig(name=str(tmp_path), device="cpu"), lambda message: None)
    assert plain.position_limit == 256
    config = copy.deepcopy(plain.model.config)
    config.rope_parameters = {
        **config.rope_parameters,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    config.max_position_embeddings = 1024
    expected_model = LlamaForCausalLM(config).eval()
    expected_model.load_state_dict(plain.model.state_dict())
    ids = IDS[:, :700] % config.vocab_size
    with torch.inference_mode():
        expected = expected_model(ids).logits[0]
        unscaled = plain.model(ids).logits[0]
    actual = Target(loaded.model, 700).verify(ids[0].tolist())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(actual, unscaled, rtol=1e-3, atol=1e-3)


def test_models_that_cannot_be_scaled_are_refused_by_name():
    with pytest.raises(ModelError, match="my-model has no rotary embedding"):
        scale_positions(GPT2Config(), 4.0, "my-model")
    scaled = LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    )
    with pytest.raises(ModelError, match=r"scales its positions already \(linear\)"):
        scale_positions(scaled, 4.0, "my-model")
