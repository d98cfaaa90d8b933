"""The drafting heads that are shipped for the demo model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models.heads_directory import load_heads
from tokenswift_cli.models.target import Target

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.usefixtures("stock_attention_afterwards")]

PROJECT = Path(__file__).parent.parent
PROMPT = PROJECT / "prompts" / "chronicle.txt"
SHIPPED_HEADS = PROJECT / "heads" / "smollm2-135m"
SAMPLING = SamplingSettings(seed=4)
COUNT = 96


@pytest.fixture(scope="module")
def plain_text(demo_model, demo_prompt_ids):
    target = Target(demo_model.model, len(demo_prompt_ids) + COUNT + 1, gguf=demo_model.gguf)
    engine = Engine(target, SAMPLING, DraftingSettings(method="autoregressive"))
    list(engine.prefill(demo_prompt_ids, len(demo_prompt_ids)))
    return [token for step in engine.steps(COUNT) for token in step.tokens]


@pytest.mark.parametrize("method", ["heads", "tokenswift"])
def test_the_shipped_heads_write_the_plain_text(demo_model, demo_prompt_ids, plain_text, method):
    """They belong to the demo model, are accepted now and then, and change nothing."""
    config = demo_model.model.config
    heads = load_heads(SHIPPED_HEADS, demo_model.identity, config.hidden_size, config.vocab_size)
    drafting = DraftingSettings(method=method, heads="given", ngram_candidates=4)
    planner = FixedPlanner(6) if method == "heads" else None
    target = Target(demo_model.model, len(demo_prompt_ids) + 2 * COUNT, gguf=demo_model.gguf)
    engine = Engine(target, SAMPLING, drafting, heads=heads, planner=planner)
    list(engine.prefill(demo_prompt_ids, len(demo_prompt_ids)))
    steps = list(engine.steps(COUNT))
    assert [token for step in steps for token in step.tokens] == plain_text
    assert sum(step.shares.get("heads", (0, 0))[1] for step in steps) > 3
