"""A complete tiny model on disk: random Llama, byte-level tokenizer, chat template."""

from __future__ import annotations

from pathlib import Path

from models_in_memory import tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<end>"
END_ID = 256


def save_tiny_model(directory: Path, **changes: object) -> Path:
    """Write model and tokenizer; every byte is a token, so random text is full of torn characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    model = tiny_llama(vocab_size=257, eos_token_id=END_ID, bos_token_id=None, **changes)
    model.generation_config.eos_token_id = END_ID
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory
