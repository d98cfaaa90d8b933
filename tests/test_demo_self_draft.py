"""Self-drafting on the demo model: a real text, a partial cache that has to choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.models.target import Target

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.usefixtures("stock_attention_afterwards")]

ROOT = Path(__file__).parent.parent
SAMPLING = SamplingSettings(seed=4)


def test_self_draft_is_mostly_accepted_at_three_thousand_tokens(demo_model):
    """A partial cache of 1,024 rows, paper sampling: at least 0.80 of the drafted tokens are accepted.

    The text is real (the project's own prompts and licence); so is the check that nothing changed it.
    """
    files = [*sorted((ROOT / "prompts").glob("*.txt")), ROOT / "LICENSE"]
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in files)
    ids = demo_model.tokenizer(text)["input_ids"][:3072]
    assert len(ids) == 3072
    target = Target(demo_model.model, 3072 + 200, gguf=demo_model.gguf)
    texts, accepted, drafted = [], 0, 0
    for planner in (FixedPlanner(1, 1), FixedPlanner(0)):
        target.cache.length = min(target.cache.length, len(ids) - 1)
        drafting = DraftingSettings(drafters=("self",), partial_cache=1024)
        engine = Engine(
            target, SAMPLING, drafting, planner=planner, end_ids=demo_model.eos_ids, ignore_end=True
        )
        list(engine.prefill(ids, len(ids)))
        steps = list(engine.steps(120))
        texts.append([token for step in steps for token in step.tokens])
        accepted += sum(step.accepted for step in steps)
        drafted += sum(step.drafted for step in steps)
    assert texts[0] == texts[1]
    assert drafted > 40 and accepted / drafted >= 0.80
