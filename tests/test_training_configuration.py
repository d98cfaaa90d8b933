"""The configuration of a training: shipped files, precedence, and all errors at once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from tokenswift_cli.errors import ConfigError
from tokenswift_cli.models.heads import VARIANTS
from tokenswift_cli.training.configuration import resolve_training
from tokenswift_cli.training.flags import TRAINING_FLAGS
from tokenswift_cli.training.rules import TRAINING_CROSS_RULES, TRAINING_RULES, TRAINING_TABLE
from tokenswift_cli.training.settings import HEAD_VARIANTS, TrainingConfig
from tokenswift_cli.yaml_config import read_yaml

CONFIGS = Path(__file__).parent.parent / "configs"


def resolved(
    tmp_path: Path, text: str, cli: dict[str, object] | None = None, **environ: str
) -> TrainingConfig:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return resolve_training(cli or {}, path, environ)


def test_shipped_configurations_load() -> None:
    paths = sorted(CONFIGS.glob("train-heads*.yaml"))
    assert len(paths) >= 2
    for path in paths:
        config = resolve_training({}, path, {})
        if config.self_distill.prompts is not None:
            assert Path(config.self_distill.prompts).is_absolute()


def test_the_papers_values() -> None:
    config = resolve_training({}, CONFIGS / "train-heads.yaml", {})
    heads, training, data = config.heads, config.training, config.data
    assert (heads.count, heads.variant, heads.draft_vocabulary) == (3, "linear", 0)
    assert (training.steps, training.learning_rate, training.labels) == (200, 5e-3, "tokens")
    assert (training.warmup, training.weight_decay) == (0.25, 0.1)
    assert training.batch_windows * training.gradient_accumulation == 120
    assert (data.sequence_tokens, training.window_tokens) == (8192, 0)


def test_the_papers_file_explains_every_key_once() -> None:
    text = (CONFIGS / "train-heads.yaml").read_text(encoding="utf-8")
    written, section = [], ""
    for line in text.splitlines():
        name = line.strip().removeprefix("# ").partition(":")[0]
        if line.strip() and not line.startswith(("#", " ")):
            section = name
        elif line.startswith("  "):
            written.append(f"{section}.{name}")
            assert "  # " in line or " # " in line, f"{name} has no comment"
    assert written == list(TRAINING_TABLE.keys)


def test_rules_and_flags_name_keys_that_exist() -> None:
    assert HEAD_VARIANTS == VARIANTS
    assert set(TRAINING_RULES) <= set(TRAINING_TABLE.keys)
    assert {flag.path for flag in TRAINING_FLAGS} <= set(TRAINING_TABLE.keys)
    for path, default in TRAINING_TABLE.flatten(TrainingConfig()).items():
        if default is not None:
            assert TRAINING_TABLE.read_value(path, default) == default, path
    assert [rule.path for rule in TRAINING_CROSS_RULES if rule.broken(TrainingConfig())] == []


def test_numbers_are_numbers(tmp_path) -> None:
    """Case 26."""
    config = resolved(
        tmp_path,
        "training: {learning_rate: 1e-4, window_tokens: 1k, beta2: 95e-2}\nself_distill: {tokens: 1.5M}\n"
        "data: {text_key: no, paths: a.txt}",
    )
    assert (config.training.learning_rate, config.training.window_tokens) == (1e-4, 1000)
    assert (config.training.beta2, config.self_distill.tokens) == (0.95, 1_500_000)
    assert config.data.text_key == "no" and config.data.paths == (str(tmp_path / "a.txt"),)


def test_the_stronger_place_wins(tmp_path) -> None:
    text = "model: {name: yaml}\nheads: {variant: linear}\nsampling: {seed: 1}\ntraining: {steps: 5}"
    config = resolved(
        tmp_path,
        text,
        {"heads.variant": "conditioned", "data.paths": ["x.txt", "d"], "model.threads": None},
        TOKENSWIFT_MODEL="environment",
        TOKENSWIFT_SEED="9",
        TOKENSWIFT_METHOD="lookup",
    )
    assert (config.model.name, config.sampling.seed) == ("environment", 9)
    assert (config.heads.variant, config.training.steps) == ("conditioned", 5)
    assert config.data.paths == ("x.txt", "d")  # of the command line: relative to the current folder


def test_steps_and_epochs_say_the_same_thing(tmp_path) -> None:
    """A stronger place that names one replaces the other; one place may not name both."""
    assert resolved(tmp_path, "training: {epochs: 4}", {"training.steps": "7"}).training.steps == 7
    config = resolved(tmp_path, "training: {epochs: 4}")
    assert (config.training.steps, config.training.epochs) == (0, 4.0)
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, "training:\n  steps: 3\n  epochs: 4")
    (problem,) = caught.value.problems
    assert "c.yaml line 2: training.steps and" in problem and "exclude each other" in problem
    assert resolved(tmp_path, "training: {epochs: 4, steps: 0}").training.epochs == 4


def test_all_errors_come_at_once_with_their_place(tmp_path) -> None:
    text = """\
training:
  learning_rat: 1e-3
  warmup: 1.5
  labels: tokenz
heads: {count: 0}
dat: {}
generation: {max_tokens: 5}
sampling: {temperature: .nan}
"""
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, text, {"training.steps": "x"}, TOKENSWIFT_THREADS="many")
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 9
    for expected in (
        "c.yaml line 2: unknown key training.learning_rat; did you mean training.learning_rate?",
        "line 3: training.warmup must be between 0 and 1, got 1.5",
        "line 4: training.labels must be one of tokens, target (did you mean tokens?)",
        "line 5: heads.count must be between 1 and 16, got 0",
        "line 6: unknown section dat; did you mean data?",
        "line 7: unknown section generation",
        "line 8: sampling.temperature must be a finite number",
        "TOKENSWIFT_THREADS must be a whole number, got 'many'",
        "--steps must be a whole number such as 2048, 100k or 1.5M, got 'x'",
    ):
        assert expected in problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "evaluation: {tokens: 64, prompt_tokens: 62}",
            "evaluation.prompt_tokens must leave room for 3 heads",
        ),
        ("data: {sequence_tokens: 8}\nheads: {count: 8}", "data.sequence_tokens must be at least 10 for 8"),
        (
            "self_distill: {tokens_per_sequence: 8}\nheads: {count: 6}",
            "self_distill.tokens_per_sequence must be at least 9 for 6 heads",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_refused(tmp_path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml line 1") as caught:
        resolved(tmp_path, text)
    assert expected in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_training({}, tmp_path / "no.yaml", {})
    (tmp_path / "c.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        resolve_training({}, tmp_path / "c.yaml", {})


def test_a_second_table_of_keys_does_not_touch_the_first() -> None:
    """The reader of YAML knows only the table it is given."""
    assert read_yaml("training: {steps: 3}", "c.yaml", TRAINING_TABLE).problems == ()
    assert "unknown section training" in read_yaml("training: {steps: 3}", "c.yaml").problems[0]
    assert {field.name for field in fields(TrainingConfig)} == set(TRAINING_TABLE.sections)
