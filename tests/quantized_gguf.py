"""Random quantized tensors, and tiny models made of them, written as .gguf files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

LAYERS, WIDTH, HEADS, KEY_VALUE_HEADS, INNER, VOCABULARY = 2, 256, 4, 2, 512, 96
# Type -> where in its unit the float16 numbers stand, in bytes (from the format's description).
FLOATS_AT: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random_bytes(name: str, outputs: int, inputs: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Any bytes at all [outputs, bytes of a row], but for the float16 numbers, which are small and finite."""
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    units = random.integers(0, 256, (outputs * inputs // weights, size), dtype=np.uint8)
    for at in FLOATS_AT[name]:
        units[:, at : at + 2] = random.normal(0, 0.02, len(units)).astype("<f2")[:, None].view(np.uint8)
    return units.reshape(outputs, -1)


def write_tensor(path: Path, name: str, data: NDArray[np.uint8]) -> Path:
    """A file of architecture llama with the one tensor ``token_embd.weight``, of type ``name``."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", data, raw_dtype=GGMLQuantizationType[name])
    return _close(writer, path)


def write_model(path: Path, architecture: str, types: tuple[str, ...], tied: bool = True) -> Path:
    """A model that transformers reads; its matrices have the ``types`` in turn."""
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    if architecture == "llama":
        writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    for number, (name, shape) in enumerate(_tensors(architecture, tied)):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
        else:
            kind = types[number % len(types)]
            data = random_bytes(kind, shape[0], shape[1], random)
            writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
    return _close(writer, path)


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(architecture: str, tied: bool) -> list[tuple[str, tuple[int, ...]]]:
    # transformers gives Qwen3 heads of 128 whatever the file says.
    head = 128 if architecture == "qwen3" else WIDTH // HEADS
    query, key_value = head * HEADS, head * KEY_VALUE_HEADS
    found: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd", (VOCABULARY, WIDTH)),
        ("output_norm", (WIDTH,)),
    ]
    if not tied:
        found.append(("output", (VOCABULARY, WIDTH)))
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,),
        "attn_q": (query, WIDTH),
        "attn_k": (key_value, WIDTH),
        "attn_v": (key_value, WIDTH),
        "attn_output": (WIDTH, query),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    if architecture == "qwen3":
        shapes |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    for layer in range(LAYERS):
        found += [(f"blk.{layer}.{name}", shape) for name, shape in shapes.items()]
    weights = [(f"{name}.weight", shape) for name, shape in found]
    if architecture == "qwen2":
        for layer in range(LAYERS):
            weights += [(f"blk.{layer}.attn_{part}.bias", shapes[f"attn_{part}"][:1]) for part in "qkv"]
    return weights
