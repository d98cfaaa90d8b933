"""Speed settings never change the text (cases 1-6, 8-10).

All on a tiny random Llama in float32; the texts are longer than 2,000 tokens, so that several cache
segments, full penalty windows and all n-gram states occur.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from models_in_memory import tiny_llama, tiny_mistral

from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.filling import Filled
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.engine.tree import Draft
from tokenswift_cli.models.target import Target

LONG = 2100
PROMPT = [(i * 37) % 256 for i in range(40)]

SAMPLINGS = {
    "greedy": SamplingSettings(temperature=0.0, penalty=1.0),
    "greedy with penalty": SamplingSettings(temperature=0.0, penalty=3.0),
    "plain sampling": SamplingSettings(seed=1, min_p=0.0, penalty=1.0),
    "cool with penalty": SamplingSettings(seed=2, temperature=0.8, min_p=0.0, penalty=1.1, penalty_window=64),
    "top-k": SamplingSettings(seed=3, top_k=20, min_p=0.0, penalty=1.0),
    "top-p": SamplingSettings(seed=4, top_p=0.6, min_p=0.0),
    "min-p": SamplingSettings(seed=5, min_p=0.05),
    "eta": SamplingSettings(seed=6, eta=0.02, min_p=0.0, suppress_ids=(7, 8)),
}


class Scripted:
    """A drafter that knows the text and proposes what a function makes of it."""

    def __init__(self, text, propose):
        self.name = "scripted"
        self._text = text
        self._propose = propose
        self._length = 0

    def extend(self, tokens):
        self._length += len(tokens)

    def propose(self, path=()):
        return [] if path else self._propose(self._text, self._length)


def always_right(text, at):
    return [Draft(tuple(text[at : at + 7]), "right")] if at < len(text) else []


def always_wrong(text, at):
    return [Draft(tuple((t + 1) % 256 for t in text[at : at + 7]), "wrong")] if at < len(text) else []


def right_among_siblings(text, at):
    """The true path comes last, below many first tokens, so that node order differs from depth."""
    if at >= len(text):
        return []
    wrong = [Draft(((text[at] + i) % 256, 1, 2), "wrong") for i in range(1, 5)]
    return [*wrong, Draft(tuple(text[at : at + 4]), "right")]


def sometimes_right(text, at):
    generator = random.Random(at)
    drafts = []
    for _ in range(3):
        path = list(text[at : at + generator.randrange(1, 6)])
        if path and generator.random() < 0.7:
            path[generator.randrange(len(path))] = generator.randrange(256)
        if path:
            drafts.append(Draft(tuple(path), "sometimes"))
    return drafts


def write(model, sampling, count, *, method="autoregressive", drafters=None, planner=None, **options):
    """Tokens and steps of one text."""
    names = (
        "prefill_chunk", "partial_cache", "partial_sinks", "drafters_allowed", "shared_noise", "self_depth",
        "head_widths",
    )  # fmt: skip
    chosen = {name.removesuffix("_allowed"): options.pop(name) for name in names if name in options}
    drafting = DraftingSettings(method=method, **chosen)
    prompt = options.pop("prompt", PROMPT)
    target = Target(model, options.pop("capacity", len(prompt) + count + 32))
    engine = Engine(target, sampling, drafting, drafters=drafters, planner=planner, **options)
    for _ in engine.prefill(prompt, len(PROMPT)):
        pass
    steps = list(engine.steps(count))
    return [token for step in steps for token in step.tokens], steps


@cache
def plain_text(name):
    tokens, _ = write(tiny_llama(), SAMPLINGS[name], LONG)
    return tuple(tokens)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_lookup_writes_the_plain_text(name):
    tokens, steps = write(tiny_llama(), SAMPLINGS[name], LONG, method="lookup", planner=FixedPlanner(15))
    assert sum(step.accepted for step in steps) > 20, "nothing was accepted, so nothing was tested"
    assert any(step.rows > step.drafted + 1 for step in steps), "no branching tree was verified"
    assert tokens == list(plain_text(name))


def test_texts_stay_interesting():
    """A text that repeats one token proves little: all but the plain greedy one stay varied to the end."""
    for name in SAMPLINGS:
        assert name == "greedy" or len(set(plain_text(name)[-300:])) > 20, name


@pytest.mark.parametrize("name", ["greedy", "min-p"])
def test_auto_writes_the_plain_text(name):
    tokens, _ = write(tiny_llama(), SAMPLINGS[name], LONG, method="auto")
    assert tokens == list(plain_text(name))


@pytest.mark.parametrize("name", ["greedy with penalty", "top-p"])
@pytest.mark.parametrize(
    ("script", "accepts"),
    [(always_right, 0.9), (always_wrong, 0.0), (right_among_siblings, 0.9), (sometimes_right, 0.1)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_adversarial_drafters_cannot_change_the_text(name, script, accepts):
    text = list(plain_text(name))
    drafter = Scripted(PROMPT + text, script)
    tokens, steps = write(
        tiny_llama(), SAMPLINGS[name], LONG, method="lookup", drafters=[drafter], planner=FixedPlanner(20)
    )
    assert tokens == text
    drafted, accepted = sum(s.drafted for s in steps), sum(s.accepted for s in steps)
    assert drafted
    if accepts:
        assert accepted / drafted >= accepts
    else:
        assert accepted == 0 and len(steps) == LONG


def test_a_first_draft_is_never_committed_unverified():
    """Case 2: the very first step gets a wrong draft."""
    text = list(plain_text("greedy"))
    drafter = Scripted(PROMPT + text, always_wrong)
    tokens, _ = write(tiny_llama(), SAMPLINGS["greedy"], 3, drafters=[drafter], planner=FixedPlanner(20))
    assert tokens == text[:3]


@pytest.mark.parametrize("count", [1, 2, 3, 17])
@pytest.mark.parametrize("script", [always_right, right_among_siblings])
def test_exactly_as_many_tokens_as_asked_for(count, script):
    """Case 8: blocks are cut, and a count given in parts is the same text."""
    text = list(plain_text("min-p"))
    drafter = Scripted(PROMPT + text, script)
    tokens, _ = write(tiny_llama(), SAMPLINGS["min-p"], count, drafters=[drafter], planner=FixedPlanner(20))
    assert tokens == text[:count]


def test_steps_may_be_asked_for_in_parts():
    """Case 6: chunking does not matter."""
    text = list(plain_text("min-p"))
    target = Target(tiny_llama(), 100)
    engine = Engine(target, SAMPLINGS["min-p"], DraftingSettings(method="lookup"), planner=FixedPlanner(9))
    list(engine.prefill(PROMPT, len(PROMPT)))
    tokens = []
    for part in (1, 5, 250, 3, 41):
        tokens += [token for step in engine.steps(part) for token in step.tokens]
    assert tokens == text[:300]


@pytest.mark.parametrize("cut", [1, 700, 1500])
def test_text_goes_on_after_a_fresh_prefill(cut):
    """Case 19: what a resume does, at any place, with another prefill size."""
    text = list(plain_text("top-p"))
    tokens, _ = write(
        tiny_llama(),
        SAMPLINGS["top-p"],
        LONG - cut,
        method="lookup",
        prompt=PROMPT + text[:cut],
        prefill_chunk=300,
    )
    assert tokens == text[cut:]


def test_seed_decides_the_text():
    other = SamplingSettings(seed=99, min_p=0.05)
    tokens, _ = write(tiny_llama(), other, 50)
    assert tokens != list(plain_text("min-p"))[:50]


def test_end_of_text_inside_an_accepted_block():
    """Case 10: the text ends with the first one; the rest of the block is dropped."""
    text = list(plain_text("min-p"))
    end = next(token for token in text[100:] if token not in text[:100])
    place = text.index(end)
    drafter = Scripted(PROMPT + text, always_right)
    tokens, _ = write(
        tiny_llama(),
        SAMPLINGS["min-p"],
        LONG,
        drafters=[drafter],
        planner=FixedPlanner(20),
        end_ids=[end, 255],
    )
    assert tokens == text[: place + 1]


@pytest.mark.parametrize("end_ids", [[], [3], [3, 250, 251]])
def test_none_one_and_several_end_ids(end_ids):
    """Case 9: no end-of-text id, one, several."""
    text = list(plain_text("min-p"))
    tokens, _ = write(tiny_llama(), SAMPLINGS["min-p"], 400, method="lookup", end_ids=end_ids)
    ends = [place for place, token in enumerate(text[:400]) if token in end_ids]
    assert tokens == text[: ends[0] + 1 if ends else 400]


def test_ignored_end_ids_never_occur_and_min_tokens_holds_them_back():
    end_ids = list(range(100))
    ignored, _ = write(
        tiny_llama(), SAMPLINGS["min-p"], 300, method="lookup", end_ids=end_ids, ignore_end=True
    )
    assert len(ignored) == 300 and not set(ignored) & set(end_ids)
    held, _ = write(tiny_llama(), SAMPLINGS["min-p"], 300, method="lookup", end_ids=end_ids, min_tokens=40)
    plain, _ = write(tiny_llama(), SAMPLINGS["min-p"], 300, end_ids=end_ids, min_tokens=40)
    assert held == plain
    assert len(held) > 40 and not set(held[:40]) & set(end_ids) and held[-1] in end_ids


def greedy_by_transformers(model, count, **options):
    prompt = torch.tensor([PROMPT])
    ids = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
        eos_token_id=None,
        **options,
    )
    return ids[0, len(PROMPT) :].tolist()


def test_greedy_text_equals_transformers():
    model = tiny_llama()
    expected = greedy_by_transformers(model, 300)
    tokens, _ = write(model, SAMPLINGS["greedy"], 300, method="lookup", planner=FixedPlanner(15))
    assert tokens == expected


def test_penalty_window_holds_drafted_tokens():
    """Case 5: with every token of a block drafted, a one-token window still penalises the token before."""
    sampling = SamplingSettings(temperature=0.0, penalty=3.0, penalty_window=1)
    plain, _ = write(tiny_llama(), sampling, 400)
    drafter = Scripted(PROMPT + plain, always_right)
    tokens, steps = write(tiny_llama(), sampling, 400, drafters=[drafter], planner=FixedPlanner(20))
    assert tokens == plain and len(steps) < 80


def test_sliding_window_model_writes_the_plain_text_of_transformers():
    model = tiny_mistral(sliding_window=50)
    expected = greedy_by_transformers(model, 200)
    drafter = Scripted(PROMPT + expected, right_among_siblings)
    tokens, _ = write(model, SAMPLINGS["greedy"], 200, drafters=[drafter], planner=FixedPlanner(20))
    assert tokens == expected


def test_growing_cache_writes_the_plain_text(monkeypatch):
    """A cache that has to grow again and again holds what a preallocated one holds."""
    from tokenswift_cli.models import kv_cache

    monkeypatch.setattr(kv_cache, "GROWTH_TOKENS", 7)
    tokens, _ = write(tiny_llama(), SAMPLINGS["min-p"], 200, method="lookup", capacity=1)
    assert tokens == list(plain_text("min-p"))[:200]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_self_draft_with_all_drafters_writes_the_plain_text(name):
    """Case 4: across many refreshes of a small partial cache, with branches from every drafter."""
    tokens, steps = write(
        tiny_llama(), SAMPLINGS[name], LONG, method="auto", planner=FixedPlanner(12, 2), partial_cache=256
    )
    drafters = {drafter for step in steps for drafter in step.shares}
    assert {"self", "ngram", "suffix"} <= drafters
    assert tokens == list(plain_text(name))


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("shared_noise", [True, False])
def test_self_draft_alone_writes_the_plain_text(depth, shared_noise):
    """Switching the shared noise off changes acceptance and not one token."""
    tokens, steps = write(
        tiny_llama(),
        SAMPLINGS["plain sampling"],
        700,
        method="auto",
        planner=FixedPlanner(depth, depth),
        partial_cache=512,
        drafters_allowed=("self",),
        shared_noise=shared_noise,
    )
    assert tokens == list(plain_text("plain sampling"))[:700]
    assert {drafter for step in steps for drafter in step.shares} == {"self"}


def test_shared_noise_is_worth_acceptance():
    rates = {}
    for shared_noise in (True, False):
        _, steps = write(
            tiny_llama(),
            SAMPLINGS["plain sampling"],
            400,
            method="auto",
            planner=FixedPlanner(1, 1),
            partial_cache=1024,
            drafters_allowed=("self",),
            shared_noise=shared_noise,
        )
        rates[shared_noise] = sum(s.accepted for s in steps) / sum(s.drafted for s in steps)
    # The whole text fits into the partial cache, so the draft is the target: only the noise differs.
    assert rates[True] == 1.0 and rates[False] < 0.5


def test_adversarial_lookups_beside_self_draft():
    text = list(plain_text("top-p"))
    drafter = Scripted(PROMPT + text, sometimes_right)
    tokens, _ = write(
        tiny_llama(),
        SAMPLINGS["top-p"],
        800,
        method="auto",
        drafters=[drafter],
        planner=FixedPlanner(12, 3),
        partial_cache=128,
    )
    assert tokens == text[:800]


def test_rows_that_stand_in_the_cache_are_not_read_again():
    text = list(plain_text("min-p"))
    target = Target(tiny_llama(), 400)
    target.read((PROMPT + text)[:130])
    engine = Engine(target, SAMPLINGS["min-p"], DraftingSettings(method="lookup"), planner=FixedPlanner(9))
    assert list(engine.prefill(PROMPT + text[:100], len(PROMPT))) == [Filled(139, 0)]
    tokens = [token for step in engine.steps(150) for token in step.tokens]
    assert tokens == text[100:250]
    with pytest.raises(ValueError, match="cache"):
        list(Engine(target, SAMPLINGS["min-p"], DraftingSettings()).prefill(PROMPT, len(PROMPT)))


def test_probes_are_steps_like_any_other(monkeypatch):
    """A step made to measure a cost commits the text's own tokens, and its filler is in no statistics."""
    from tokenswift_cli.engine import probes

    monkeypatch.setattr(probes, "_INTERVAL", 1)
    tokens, steps = write(tiny_llama(), SAMPLINGS["min-p"], 400, method="auto", partial_cache=128)
    assert tokens == list(plain_text("min-p"))[:400]
    assert {2, 4} <= {step.rows for step in steps}
    assert {drafter for step in steps for drafter in step.shares} <= {"self", "ngram", "suffix"}
