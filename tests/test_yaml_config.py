"""YAML in and out: lines, duplicates, typed values, exact round trips, and the shipped configs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.config import Config
from tokenswift_cli.config_keys import KEYS, SECTIONS, build_config, flatten
from tokenswift_cli.config_rules import broken_rule, rule_for
from tokenswift_cli.errors import ConfigError
from tokenswift_cli.options import resolve
from tokenswift_cli.prompt_input import read_prompt
from tokenswift_cli.yaml_config import dump_yaml, load_run_yaml, read_yaml

PROJECT = Path(__file__).parent.parent
# Those of `tokenswift train-heads` have keys of their own: see test_training_configuration.py.
CONFIGS = sorted(
    path for path in (PROJECT / "configs").glob("*.yaml") if not path.name.startswith("train-heads")
)


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_run_yaml(text, "c.yaml")
    return caught.value.problems


def test_numbers_are_numbers_and_words_are_words() -> None:
    """Case 26: ``2e-5`` is a number; ``no``, ``010`` and ``1:30`` get no YAML 1.1 surprises."""
    config = load_run_yaml(
        """\
model: {name: 123, threads: 010, offline: Yes}
prompt: {text: no, chat: true, system: 2020-01-01}
sampling: {min_p: 2e-5, temperature: 1, top_k: 3.0, seed: 1_000, suppress_ids: [1, 2]}
generation: {max_tokens: 100k, min_tokens: "20", stop: ["yes", 1:30, <<, =]}
"""
    )
    assert (config.model.name, config.model.threads, config.model.offline) == ("123", 10, True)
    assert (config.prompt.text, config.prompt.system) == ("no", "2020-01-01")
    assert (config.sampling.min_p, config.sampling.seed, config.sampling.top_k) == (2e-5, 1000, 3)
    assert isinstance(config.sampling.temperature, float) and isinstance(config.sampling.top_k, int)
    assert config.sampling.suppress_ids == (1, 2)
    assert (config.generation.max_tokens, config.generation.min_tokens) == (100_000, 20)
    assert config.generation.stop == ("yes", "1:30", "<<", "=")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sampling: {seed: true}", "line 1: sampling.seed must be a whole number, got 'true'"),
        ("model: {offline: 1}", "line 1: model.offline must be true or false, got 1"),
        ("sampling:\n  temperature: .nan", "line 2: sampling.temperature must be a finite number"),
        ("sampling:\n  tempratur: 1", "line 2: unknown key sampling.tempratur; did you mean sampling.temp"),
        (
            "sampling:\n  max_tokens: 1",
            "line 2: unknown key sampling.max_tokens; did you mean generation.max",
        ),
        ("sampling:\n  min_tokens: 1", "unknown key sampling.min_tokens; did you mean generation.min_tokens"),
        ("sampling:\n  eos_ids: [1]", "unknown key sampling.eos_ids"),
        ("run:\n  zzzzqq: 1", "unknown key run.zzzzqq; run has directory, chunk_tokens"),
        ("samplin: {}", "unknown section samplin; did you mean sampling?"),
        ("max-tokens: 5", "did you mean the key generation.max_tokens?"),
        ("qqqq: 5", "the sections are model, prompt, sampling"),
        (
            "sampling:\n  seed: 1\n  top_k: 0\n  seed: 2",
            "line 4: sampling.seed is given twice, first on line 2",
        ),
        ("run: {}\nrun: {}", "line 2: run is given twice, first on line 1"),
        ("sampling: 3", "section sampling must be a mapping"),
        ("- a", "must be a mapping with the sections"),
        ("just text", "must be a mapping with the sections"),
        ("sampling: {seed: [1]}", "must be a whole number, got a list"),
        ("sampling: {seed: {a: 1}}", "must be a single value, got a mapping"),
        ("generation: {stop: [[a]]}", "must be a single value, got a list inside a list"),
        ("generation: {stop: [a, null]}", "has an empty item in its list"),
        ("generation: {stop: [a, '']}", "must not be empty"),
        ("prompt: {text: !!binary aGk=}", "has the tag"),
        ("prompt: {text: !!python/name:os.system x}", "has the tag"),
        ("prompt: {? [a, b] : c}", "a key must be a plain word"),
        ("sampling: &a {seed: *a}", "must be a single value, got a mapping"),
        ("<<: {seed: 1}", "unknown section <<"),
        ("a: b: c", "line 1, column 5: not valid YAML"),
        ("run:\n\tx: 1", "line 2, column 1: not valid YAML"),
        ("model: {}\n---\nmodel: {}", "not valid YAML"),
        ("model: {}\nrun: \x00", "line 2: character 0x0000 is not allowed"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_faults_are_named_with_their_line(text: str, expected: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("c.yaml") and expected in problem


def test_all_faults_of_a_file_are_listed() -> None:
    assert len(problems_of("sampling: {seed: x, min_p: 2, nope_key: 1}\nrun: {chunk_tokens: 0}")) == 4


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "null", "---\n", "sampling:\n", "sampling: {seed: null}", "{}"]
)
def test_nothing_means_the_defaults(text: str) -> None:
    assert load_run_yaml(text) == Config()


def test_a_byte_order_mark_and_crlf_are_fine() -> None:
    text = b"\xef\xbb\xbfsampling:\r\n  seed: 5\r\n".decode()
    assert load_run_yaml(text).sampling.seed == 5
    assert read_yaml(text, "c.yaml").values[0].origin == "c.yaml line 2"


TEXT = st.text(max_size=40)
MODEL_TEXT = TEXT.filter(lambda text: "\0" not in text)


def _values(path: str) -> st.SearchStrategy[object]:
    """Any value the rule of ``path`` allows."""
    rule, kind = rule_for(path), KEYS[path].kind
    if rule.choices:
        choice = st.sampled_from(rule.choices)
        return st.lists(choice, max_size=4).map(tuple) if kind == "texts" else choice
    if kind == "bool":
        return st.booleans()
    if kind in ("int", "count", "ints"):
        whole = st.integers(int(rule.low or 0), int(rule.high) if rule.high is not None else 2**70)
        if rule.least_positive:
            whole = whole.filter(lambda number: number == 0 or number >= rule.least_positive)
        return st.lists(whole, max_size=4).map(tuple) if kind == "ints" else whole
    if kind == "float":
        return st.floats(
            rule.low, rule.high, exclude_min=rule.low_open, exclude_max=rule.high_open, allow_infinity=False,
            allow_nan=False,
        ).filter(lambda number: broken_rule(rule, number) is None)  # fmt: skip
    if rule.pattern:
        return st.sampled_from(["auto", "cpu", "cuda:3"])
    text = MODEL_TEXT if rule.unicode else TEXT
    text = text.filter(bool) if rule.filled else text
    if kind == "texts":
        return st.lists(text, max_size=4).map(tuple)
    return st.none() | text if KEYS[path].default is None else text


CONFIG = st.fixed_dictionaries({path: _values(path) for path in KEYS}).map(build_config)


@settings(deadline=None, max_examples=80)
@given(config=CONFIG)
def test_the_written_configuration_reads_back_exactly(config: Config) -> None:
    text = dump_yaml(config)
    text.encode("utf-8")
    assert load_run_yaml(text) == config


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60) | st.text(alphabet="{}[]:,-?&*!|>'\"%@ \n\tab1", max_size=40))
def test_any_text_is_a_configuration_or_a_list_of_problems(text: str) -> None:
    try:
        load_run_yaml(text)
    except ConfigError as error:
        assert error.problems


@pytest.mark.parametrize(
    "text", ["\r\n", " lead", "trail ", "\x85\u2028", "null", "~", "1e5", "- a", "\ud83d", "😀", "\x07"]
)
def test_awkward_texts_survive(text: str) -> None:
    config = build_config({"run.directory": text})
    assert load_run_yaml(dump_yaml(config)).run.directory == text


def test_default_yaml_holds_every_key_with_its_default_and_a_comment() -> None:
    """``configs/default.yaml`` and the dataclasses say the same, both ways."""
    path = PROJECT / "configs" / "default.yaml"
    text = path.read_text(encoding="utf-8")
    assert load_run_yaml(text) == Config()
    written, section = [], ""
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _, rest = line.strip().partition(":")
        if not line.startswith(" "):
            section = name
        else:
            written.append(f"{section}.{name}")
            assert "  # " in line, f"{name} has no comment"
            default = KEYS[f"{section}.{name}"].default
            if default is None:
                assert rest.split("#")[0].strip() == "null"
    assert written == list(KEYS)
    reading = read_yaml(text, "default.yaml")
    shown = {value.path for value in reading.values}
    assert shown == {key for key, value in flatten(Config()).items() if value is not None}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configurations_load(path: Path) -> None:
    # The paper's method needs heads, which are the user's own.
    config = resolve({"drafting.heads": "heads"} if path.name == "paper.yaml" else {}, path, {}).config
    if config.prompt.file is not None:
        assert read_prompt(config.prompt).text


def test_paper_yaml_has_the_papers_sampling() -> None:
    config = resolve({"drafting.heads": "heads"}, PROJECT / "configs" / "paper.yaml", {}).config
    sampling, drafting = config.sampling, config.drafting
    assert (sampling.temperature, sampling.min_p) == (1.0, 0.1)
    assert (sampling.penalty, sampling.penalty_window) == (1.2, 1024)
    assert (drafting.ngram_size, drafting.ngram_candidates) == (4, 20)
    assert config.generation.max_tokens == 100_000


def test_every_section_has_keys() -> None:
    assert {key.section for key in KEYS.values()} == set(SECTIONS)


def test_shipped_prompts_are_listed_and_readable() -> None:
    files = sorted((PROJECT / "prompts").glob("*.txt"))
    listed = (PROJECT / "prompts" / "README.md").read_text(encoding="utf-8")
    assert len(files) >= 6
    for file in files:
        assert f"`{file.name}`" in listed
        words = read_prompt(resolve({"prompt.file": str(file)}, None, {}).config.prompt).text.split()
        assert 80 <= len(words) <= 300
