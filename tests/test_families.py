"""Case 32: every family is written exactly, or refused by name in one sentence (docs/models.md).

Texts of 100 tokens, longer than every window; exact against transformers' own greedy text, and with sampling
against our own plain decoding.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from families_in_memory import FAMILIES, REFUSED, WINDOW, Family, refused_rows, supported_rows
from test_exactness import PROMPT, Scripted, greedy_by_transformers, right_among_siblings, write
from tiny_model_directory import save_tiny_model
from transformers import PreTrainedModel

from tokenswift_cli.config import Config, ModelConfig, RunConfig
from tokenswift_cli.engine.planner import FixedPlanner
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import UnsupportedModelError
from tokenswift_cli.models import attention, decoder
from tokenswift_cli.models.heads import new_heads
from tokenswift_cli.models.target import Target
from tokenswift_cli.native.attention import load
from tokenswift_cli.prompt_input import PromptText
from tokenswift_cli.runner import generate

COUNT = 60
# Without it the greedy text of some tiny models is one token over and over. Transformers' own has no window.
PENALTY = 3.0
GREEDY = SamplingSettings(temperature=0.0, penalty=PENALTY, penalty_window=1024)
SAMPLING = SamplingSettings(seed=7, min_p=0.03, penalty=2.0, penalty_window=24)
DOCUMENT = Path(__file__).parent.parent / "docs" / "models.md"

by_name = {family.name: family for family in FAMILIES}
EVERY_PATH = pytest.mark.parametrize(
    ("family", "path"),
    [(family, path) for family in FAMILIES for path in family.paths],
    indirect=["path"],
    ids=lambda value: getattr(value, "name", value),
)


def with_a_wide_window(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, whose windows are longer than the text."""
    wide = copy.deepcopy(model)
    wide.config.sliding_window = 1000
    for module in wide.modules():
        if getattr(module, "sliding_window", None) is not None:
            module.sliding_window = 1000
    return wide


@EVERY_PATH
def test_greedy_text_is_that_of_transformers(family: Family, path: str) -> None:
    """Through pieces of a prompt, branching trees and rows that are taken back."""
    model = family.make()
    expected = greedy_by_transformers(model, COUNT, repetition_penalty=PENALTY)
    assert len(set(expected)) > 10, "a text this dull proves little"
    if getattr(model.config, "sliding_window", None):
        wide = greedy_by_transformers(with_a_wide_window(model), COUNT, repetition_penalty=PENALTY)
        assert wide != expected, "the window shows nowhere"
    drafter = Scripted(PROMPT + expected, right_among_siblings)
    tokens, steps = write(
        model, GREEDY, COUNT, drafters=[drafter], planner=FixedPlanner(20), method="lookup", prefill_chunk=7
    )
    assert tokens == expected
    assert len(steps) < COUNT // 2 and any(step.rows > step.drafted + 1 for step in steps)


@EVERY_PATH
def test_sampled_text_is_that_of_plain_decoding(family: Family, path: str) -> None:
    """Tables, self-drafts over a partial cache that is chosen anew on the way, and a resume."""
    model = family.make()
    plain, _ = write(model, SAMPLING, COUNT)
    assert len(set(plain)) > 10
    looked_up, _ = write(model, SAMPLING, COUNT, method="lookup", planner=FixedPlanner(12), prefill_chunk=9)
    assert looked_up == plain
    drafted, steps = write(
        model, SAMPLING, COUNT, method="auto", planner=FixedPlanner(8, 2), partial_cache=64, prefill_chunk=11
    )
    assert drafted == plain
    assert any("self" in step.shares for step in steps), "it did not draft for itself"
    resumed, _ = write(model, SAMPLING, COUNT - 25, method="lookup", prompt=PROMPT + plain[:25])
    assert resumed == plain[25:]


@EVERY_PATH
def test_heads_on_a_self_draft_write_the_plain_text(family: Family, path: str) -> None:
    """The paper's method; also shows that the final norm is found in every family."""
    model = family.make()
    plain, _ = write(model, SAMPLING, 24)
    heads = new_heads(model, 2, "linear", None)
    tokens, steps = write(
        model,
        SAMPLING,
        24,
        method="tokenswift",
        heads=heads,
        head_widths=(2, 2),
        partial_cache=32,
        partial_sinks=4,
    )
    assert tokens == plain
    assert {"self", "heads"} <= {drafter for step in steps for drafter in step.shares}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_path_is_the_one_of_the_table(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left alone, the engine takes the fastest one."""
    monkeypatch.delenv(decoder.SWITCH, raising=False)
    if family.paths[0] == "native" and load().kernel is None:
        pytest.skip(load().description)
    assert Target(family.make(), 8).path.startswith(family.paths[0])


@pytest.mark.parametrize("name", ["Mistral", "Gemma 2", "Gemma 3", "GPT-OSS"])
@pytest.mark.parametrize("path", ["generic", "torch"], indirect=True)
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 1100])
def test_logits_at_the_border_of_a_window_and_of_a_segment(name: str, path: str, length: int) -> None:
    """Shorter than the window, as long, and with full layers in several segments."""
    model = by_name[name].make()
    ids = torch.randint(256, (1, length + 4), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(ids, use_cache=False).logits[0, length:]
    target = Target(model, length + 4)
    for first in range(0, length, 300):
        target.read(ids[0, first : min(first + 300, length)].tolist())
    actual = target.verify(ids[0, length:].tolist())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_what_is_not_exact_is_refused_by_name(refused) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Target(refused.make(), 10)
    assert str(caught.value) == refused.sentence


def test_a_refused_model_leaves_no_run_behind(tmp_path: Path) -> None:
    """From its files on: the sentence comes before anything is written."""
    model = save_tiny_model(tmp_path / "model")
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_causal": False}))
    config = Config(model=ModelConfig(name=str(model)), run=RunConfig(directory=str(tmp_path / "run")))
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM masks more"):
        generate(config, PromptText("Once", b"Once", "test"), publish=lambda event: None)
    assert not (tmp_path / "run").exists()


def test_unknown_wishes_of_an_attention_are_refused_by_the_models_name(monkeypatch) -> None:
    """Whatever a later version of transformers hands to an attention function."""
    model = by_name["GPT-NeoX"].make()
    layer = model.gpt_neox.layers[1].attention
    stock = layer.forward
    monkeypatch.setattr(
        layer, "forward", lambda *given, **named: stock(*given, **named, position_bias=torch.ones(1))
    )
    monkeypatch.setenv(decoder.SWITCH, "generic")
    with pytest.raises(
        UnsupportedModelError, match="GPTNeoXForCausalLM asks its attention for 'position_bias'"
    ):
        Target(model, 10)


def test_a_model_refused_once_is_refused_again() -> None:
    """Also one that transformers' default attention cannot compute."""
    model = by_name["Gemma 2"].make()
    model.set_attn_implementation(attention.NAME)  # as a refusal leaves it
    assert Target(model, 10).path.startswith("generic")


def test_the_document_says_what_is_tested() -> None:
    """To write the tables anew: ``python tests/families_in_memory.py`` prints the rows."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| family", "| what"))]
    assert rows == supported_rows() + refused_rows()
