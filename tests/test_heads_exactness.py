"""Drafting heads never change the text: both variants, both forms, all methods that use them."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from heads_in_memory import random_heads
from models_in_memory import SHAPE, tiny_llama

from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.errors import HeadsError, UnsupportedModelError
from tokenswift_cli.models.heads import HeadsShape, new_heads
from tokenswift_cli.models.target import Target

LENGTH = 700
PROMPT = [(i * 37) % 256 for i in range(40)]
SAMPLINGS = {
    "greedy with penalty": SamplingSettings(temperature=0.0, penalty=3.0),
    "plain": SamplingSettings(seed=1, min_p=0.0, penalty=1.0),
    "min-p with penalty": SamplingSettings(seed=5, min_p=0.02, suppress_ids=(3, 4, 5)),
}


def write(name, *, heads=None, planner=None, prompt=PROMPT, count=LENGTH, **drafting):
    target = Target(tiny_llama(), len(prompt) + count + 128)
    settings = DraftingSettings(**drafting)
    engine = Engine(target, SAMPLINGS[name], settings, heads=heads, planner=planner)
    list(engine.prefill(prompt, len(PROMPT)))
    steps = list(engine.steps(count))
    return [token for step in steps for token in step.tokens], steps


@cache
def plain(name):
    return write(name, method="autoregressive")[0]


def heads_of(variant, count=3, vocabulary=None):
    """Untrained heads: they guess that the distribution stays as it is, so shared noise makes some right."""
    return new_heads(tiny_llama(), count, variant, vocabulary)


def accepted_by(steps, family):
    return sum(step.shares.get(family, (0, 0))[1] for step in steps)


@pytest.mark.parametrize("variant", ["linear", "conditioned"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_heads_on_the_verified_state_write_the_plain_text(name, variant):
    tokens, steps = write(name, heads=heads_of(variant), planner=FixedPlanner(8), method="heads")
    assert tokens == plain(name)
    assert any(step.shares.get("heads", (0, 0))[0] == 3 for step in steps), "no chain of three was drafted"
    if name == "plain":
        assert accepted_by(steps, "heads") > 10, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize("variant", ["linear", "conditioned"])
def test_the_papers_tree_on_a_self_draft_writes_the_plain_text(variant):
    """A partial cache much shorter than the text, so that it is refreshed on the way."""
    tokens, steps = write(
        "plain", heads=heads_of(variant), method="tokenswift", partial_cache=128, ngram_candidates=4
    )
    assert tokens == plain("plain")
    assert accepted_by(steps, "heads") > 10
    assert accepted_by(steps, "self") > 50
    # 1 + 1 + 3 + 9 + 27, and the n-grams of the drafted token.
    assert max(step.rows for step in steps) >= 41


def test_heads_with_a_draft_vocabulary_write_the_plain_text_and_propose_only_from_it():
    vocabulary = torch.arange(0, 256, 3)
    tokens, steps = write(
        "plain", heads=heads_of("conditioned", vocabulary=vocabulary), planner=FixedPlanner(8), method="heads"
    )
    assert tokens == plain("plain")
    assert accepted_by(steps, "heads") > 5


def test_random_heads_without_shared_noise_write_the_plain_text():
    heads = random_heads(HeadsShape(2, SHAPE["hidden_size"]))
    tokens, _ = write(
        "plain", heads=heads, planner=FixedPlanner(6), method="heads", shared_noise=False, count=300
    )
    assert tokens == plain("plain")[:300]


def test_auto_with_heads_and_everything_else_writes_the_plain_text():
    for planner in (None, FixedPlanner(15, depth=2)):
        tokens, steps = write(
            "plain", heads=heads_of("conditioned"), planner=planner, method="auto", partial_cache=128
        )
        assert tokens == plain("plain")
    assert accepted_by(steps, "heads") > 10, "heads after a self-drafted chain never helped"


def test_a_text_goes_on_the_same_after_a_restart():
    """The first step after a restart has no state for the heads yet."""
    done = plain("plain")
    tokens, _ = write(
        "plain", heads=heads_of("linear"), planner=FixedPlanner(8), method="heads",
        prompt=PROMPT + done[:301], count=100,
    )  # fmt: skip
    assert tokens == done[301:401]


def test_a_vocabulary_that_is_all_suppressed_drafts_nothing():
    heads = heads_of("linear", vocabulary=torch.tensor([3, 4, 5]))
    tokens, steps = write(
        "min-p with penalty", heads=heads, planner=FixedPlanner(8), method="heads", count=60
    )
    assert tokens == plain("min-p with penalty")[:60]
    assert all(step.rows == 1 for step in steps)


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_heads_than_the_tree_is_refused(count):
    """Case 29: refused with both numbers."""
    with pytest.raises(HeadsError, match=rf"for 3 heads .*there are {count} heads"):
        write("plain", heads=heads_of("linear", count), method="tokenswift")


def test_methods_that_need_heads_say_so():
    for method in ("heads", "tokenswift"):
        with pytest.raises(HeadsError, match=f"Method {method} needs drafting heads"):
            write("plain", method=method)


def test_a_model_without_a_final_norm_is_refused_by_name():
    model = tiny_llama()
    model.model.norm = torch.nn.Identity()
    target = Target(model, 64)
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM"):
        Engine(target, SAMPLINGS["plain"], DraftingSettings(method="heads"), heads=heads_of("linear"))
