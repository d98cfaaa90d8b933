"""A tiny Llama written as a .gguf file: random float32 weights and a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers

LAYERS, WIDTH, HEADS, KEY_VALUE_HEADS, INNER = 2, 64, 4, 2, 96
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_ID = 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def save_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """Write the file and return its path; the output layer is tied to the embedding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["t h", "h e", "th e", "\u0120 the"]
    tokens = [*SPECIAL, *alphabet, *(merge.replace(" ", "") for merge in merges)]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    types = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END_ID)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(END_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, shape in _tensors(len(tokens)):
        random = np.random.default_rng([seed, len(name), *shape])
        values = np.ones(shape) if name.endswith("norm.weight") else random.normal(0, 0.3, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(vocabulary: int) -> list[tuple[str, tuple[int, ...]]]:
    key_value = WIDTH // HEADS * KEY_VALUE_HEADS
    found: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (vocabulary, WIDTH)),
        ("output_norm.weight", (WIDTH,)),
    ]
    for layer in range(LAYERS):
        shapes = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (key_value, WIDTH),
            "attn_v": (key_value, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }
        found += [(f"blk.{layer}.{name}.weight", shape) for name, shape in shapes.items()]
    return found
