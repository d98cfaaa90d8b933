"""The demo model, end to end: a real Llama with grouped-query attention and a real tokenizer."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models import attention
from tokenswift_cli.models.target import Target

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.usefixtures("stock_attention_afterwards")]

PROMPT = Path(__file__).parent.parent / "prompts" / "chronicle.txt"
SAMPLING = SamplingSettings(seed=4)
TOKENS = 512


def write(loaded, demo_prompt_ids, sampling, count, method, planner=None):
    target = Target(loaded.model, len(demo_prompt_ids) + count + 32, gguf=loaded.gguf)
    engine = Engine(target, sampling, DraftingSettings(method=method), planner=planner)
    list(engine.prefill(demo_prompt_ids, len(demo_prompt_ids)))
    steps = list(engine.steps(count))
    return [token for step in steps for token in step.tokens], steps


@pytest.fixture(scope="module")
def plain_tokens(demo_model, demo_prompt_ids):
    return write(demo_model, demo_prompt_ids, SAMPLING, TOKENS, "autoregressive")[0]


def test_lookup_writes_the_plain_text(demo_model, demo_prompt_ids, plain_tokens):
    """Case 1, with sampling, penalty and min-p; every step verifies what was proposed."""
    tokens, steps = write(demo_model, demo_prompt_ids, SAMPLING, TOKENS, "lookup", FixedPlanner(7))
    assert tokens == plain_tokens
    assert any(step.accepted for step in steps)


def test_greedy_equals_transformers(demo_model, demo_prompt_ids):
    """200 tokens of ``generate(do_sample=False)``, written with drafting."""
    greedy = SamplingSettings(temperature=0.0, penalty=1.0)
    tokens, _ = write(demo_model, demo_prompt_ids, greedy, 200, "lookup", FixedPlanner(7))
    demo_model.model.set_attn_implementation("sdpa")
    try:
        prompt = torch.tensor([demo_prompt_ids])
        expected = demo_model.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=200,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(demo_prompt_ids) :]
    finally:
        demo_model.model.set_attn_implementation(attention.NAME)
    assert tokens == expected.tolist()


def test_killed_and_resumed_run_is_the_plain_text(plain_tokens, tmp_path):
    """Cases 19 and 20 on the real model: kill -9 twice, other chunk sizes, another method each time."""
    run_dir = tmp_path / "run"
    base = [sys.executable, "-m", "tokenswift_cli"]
    first = [
        *base, "generate", "-p", str(PROMPT), "-n", str(TOKENS), "-o", str(run_dir), "--seed", "4",
        "--ignore-eos", "--chunk-tokens", "40", "--method", "lookup", "--progress", "json",
    ]  # fmt: skip
    again = [*base, "resume", str(run_dir), "--progress", "json"]
    generator = random.Random(8)
    for command in (first, [*again, "--chunk-tokens", "64", "--method", "auto"]):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for line in process.stderr:
            if json.loads(line)["event"] == "checkpoint_saved":
                time.sleep(generator.uniform(0, 0.5))
                process.send_signal(signal.SIGKILL)
                break
        process.stderr.close()
        process.wait()
    before = len(np.fromfile(run_dir / "tokens.bin", dtype="<u4"))
    assert 0 < before < TOKENS
    subprocess.run(again, check=True, capture_output=True)
    assert np.fromfile(run_dir / "tokens.bin", dtype="<u4").tolist() == plain_tokens
