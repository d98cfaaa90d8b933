"""How much memory a run of the demo model takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.demo, pytest.mark.slow]

PROMPT = Path(__file__).parent.parent / "prompts" / "chronicle.txt"


def test_peak_memory_is_bounded(tmp_path, demo_model):
    """Weights + preallocated key-value cache + at most 1 GiB, at 2,048 prompt and 512 new tokens."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT.read_text(encoding="utf-8") * 40, encoding="utf-8")
    ids = demo_model.tokenizer(prompt.read_text(encoding="utf-8"))["input_ids"][:2048]
    prompt.write_text(demo_model.tokenizer.decode(ids), encoding="utf-8")
    command = [
        sys.executable, "-m", "tokenswift_cli", "generate", "-p", str(prompt), "-n", "512",
        "-o", str(tmp_path / "run"), "--ignore-eos", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    weights = sum(p.numel() * p.element_size() for p in demo_model.model.parameters())
    text = demo_model.model.config
    per_token = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * 4
    cache = per_token * (result["prompt_tokens"] + 512)
    assert result["prompt_tokens"] > 1900
    assert result["peak_process_bytes"] < weights + cache + (1 << 30)
