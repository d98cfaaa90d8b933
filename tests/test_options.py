"""Precedence, origins and all errors at once: what ``options.resolve`` promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.coerce import CoercionError, Kind, coerce
from tokenswift_cli.config import Config
from tokenswift_cli.config_keys import KEYS, build_config, flatten
from tokenswift_cli.config_rules import RULES, rule_for
from tokenswift_cli.errors import ConfigError
from tokenswift_cli.flags import FLAGS, flag_name
from tokenswift_cli.options import ENVIRONMENT, resolve, resolve_resume

# For each flag's key: its value on the command line, in the environment and in YAML, as written,
# and what the first and the last of them mean. No value here is the default.
WRITTEN: dict[str, tuple[str | bool | list[str], str | None, str, object, object]] = {
    "prompt.file": ("/given/cli.txt", None, "/given/yaml.txt", "/given/cli.txt", "/given/yaml.txt"),
    "prompt.text": ("from cli", None, "from yaml", "from cli", "from yaml"),
    "prompt.chat": (False, None, "true", False, True),
    "prompt.system": ("cli", None, "yaml\n  chat: true", "cli", "yaml"),
    "generation.max_tokens": ("100k", None, "1.5M", 100_000, 1_500_000),
    "generation.min_tokens": ("3", None, "4", 3, 4),
    "generation.ignore_eos": (False, None, "yes", False, True),
    "generation.stop": (["a", "b"], None, "[c]", ("a", "b"), ("c",)),
    "generation.on_loop": ("stop", None, "ignore", "stop", "ignore"),
    "sampling.seed": ("1", "2", "3", 1, 3),
    "sampling.temperature": ("0", None, "1e-1", 0.0, 0.1),
    "sampling.top_p": ("0.9", None, "0.8", 0.9, 0.8),
    "sampling.top_k": ("50", None, "40.0", 50, 40),
    "sampling.min_p": ("0.05", None, "2e-5", 0.05, 2e-5),
    "sampling.eta": ("3e-4", None, "1e-4", 3e-4, 1e-4),
    "sampling.penalty": ("1", None, "1.3", 1.0, 1.3),
    "sampling.penalty_window": ("2k", None, "512", 2000, 512),
    "drafting.method": ("lookup", "lookup", "autoregressive", "lookup", "autoregressive"),
    "drafting.heads": ("/cli/heads", None, "/yaml/heads", "/cli/heads", "/yaml/heads"),
    "model.name": ("cli-model", "env-model", "yaml-model", "cli-model", "yaml-model"),
    "model.device": ("cpu", "cuda", "cuda:1", "cpu", "cuda:1"),
    "model.dtype": ("float32", None, "bfloat16", "float32", "bfloat16"),
    "model.kv_dtype": ("float16", None, "float32", "float16", "float32"),
    "model.rope_scaling": ("yarn:2", None, "yarn:8", "yarn:2", "yarn:8"),
    "model.threads": ("1", "2", "3", 1, 3),
    "model.offline": (False, None, "on", False, True),
    "model.trust_remote_code": (False, None, "on", False, True),
    "model.trust_pickle": (True, None, "off", True, False),
    "run.directory": ("cli-run", None, "yaml-run", "cli-run", "yaml-run"),
    "run.chunk_tokens": ("64", None, "128", 64, 128),
    "checkpoint.kv": ("always", None, "never", "always", "never"),
    "display.progress": ("plain", "json", "none", "plain", "none"),
    "display.stream": (False, None, "true", False, True),
}


def write_yaml(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def value_of(config: Config, path: str) -> object:
    return flatten(config)[path]


def problems_of(cli: dict[str, object], path: Path | None, environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolve(cli, path, environ)
    return caught.value.problems


def test_the_precedence_table_has_every_flag_and_every_variable() -> None:
    assert set(WRITTEN) == {flag.path for flag in FLAGS}
    assert {path for path, row in WRITTEN.items() if row[1]} == set(ENVIRONMENT.values())


@pytest.mark.parametrize("path", WRITTEN)
def test_command_line_beats_environment_beats_yaml_beats_default(path: str, tmp_path: Path) -> None:
    """Case 26: parser defaults beat the file. A flag that is not given must not be heard."""
    on_cli, in_environment, in_yaml, cli_value, yaml_value = WRITTEN[path]
    section, key = path.split(".")
    file = write_yaml(tmp_path, f"{section}:\n  {key}: {in_yaml}\n")
    variable = next((name for name, target in ENVIRONMENT.items() if target == path), None)
    environ = {variable: in_environment} if variable and in_environment else {}
    silent: dict[str, object] = {flag.path: None for flag in FLAGS}
    loud: dict[str, object] = {**silent, path: on_cli}
    if path == "prompt.system":
        loud["prompt.chat"] = True

    default = resolve(silent, None, {})
    from_yaml = resolve(silent, file, {})
    from_environment = resolve(silent, file, environ)
    from_cli = resolve(loud, file, environ)

    assert value_of(default.config, path) == KEYS[path].default
    assert default.origins[path] == "default"
    assert value_of(from_yaml.config, path) == yaml_value
    assert from_yaml.origins[path] == f"{file} line 2"
    if environ:
        assert value_of(from_environment.config, path) == coerce(in_environment, KEYS[path].kind)
        assert from_environment.origins[path] == variable
    assert value_of(from_cli.config, path) == cli_value
    assert from_cli.origins[path] == flag_name(path)


def test_all_errors_at_once_each_with_its_origin(tmp_path: Path) -> None:
    """Case 26: every fault in every place is listed, with the place, in one message."""
    file = write_yaml(tmp_path, "sampling:\n  min_p: 1.5\n  tempratur: 1\ngeneration:\n  on_loop: explode\n")
    problems = problems_of(
        {"sampling.top_p": "0", "run.chunk_tokens": "many"}, file, {"TOKENSWIFT_SEED": "x"}
    )
    text = "\n".join(problems)
    assert len(problems) == 6
    assert f"{file} line 2: sampling.min_p must be between 0 and 1, got 1.5" in text
    assert f"{file} line 3: unknown key sampling.tempratur; did you mean sampling.temperature?" in text
    assert f"{file} line 5: generation.on_loop must be one of warn, stop, ignore" in text
    assert "TOKENSWIFT_SEED must be a whole number, got 'x'" in text
    assert "--top-p must be greater than 0 and at most 1, got 0" in text
    assert "--chunk-tokens must be a whole number such as 2048, 100k or 1.5M, got 'many'" in text


def test_a_wrong_value_is_reported_even_if_it_is_overridden(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, "sampling:\n  seed: -1\n")
    assert len(problems_of({"sampling.seed": "3"}, file, {})) == 1


@pytest.mark.parametrize("value", ["0", "-1", "-100k", "0k", "-0.0", "0.5", "", "nan"])
def test_a_count_of_tokens_below_one_is_a_usage_error(value: str) -> None:
    """Case 8: any non-positive --max-tokens is a usage error (exit 2)."""
    with pytest.raises(ConfigError, match="--max-tokens") as caught:
        resolve({"generation.max_tokens": value}, None, {})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("path", "bad", "good"),
    [
        (
            "sampling.temperature",
            ["-0.1", "nan", "inf", "1e999", "true", "9e-5", "1e-320"],
            ["0", "1e-4", "2"],
        ),
        ("sampling.top_p", ["0", "1.1", "-1", "nan"], ["1", "1e-9"]),
        ("sampling.min_p", ["-0.1", "1.01", "inf"], ["0", "1"]),
        ("sampling.eta", ["1", "-1e-9"], ["0", "0.999"]),
        ("sampling.penalty", ["0", "-1"], ["0.5", "1", "1.2"]),
        ("sampling.penalty_window", ["0"], ["1", "1M"]),
        ("sampling.seed", ["-1", str(2**63), "1e30", "1e999999999", "0.5"], ["0", str(2**63 - 1)]),
        ("sampling.top_k", ["-1", "2.5", "yes"], ["0", "3.0"]),
        ("run.chunk_tokens", ["0"], ["1"]),
        ("drafting.ngram_size", ["1"], ["2"]),
        ("drafting.method", ["Lookup", "heads", ""], ["auto"]),
        ("model.threads", ["-1"], ["0"]),
        ("model.device", ["", "gpu 0", "cuda:x"], ["cpu", "cuda:0", "mps"]),
        ("model.kv_dtype", ["", "bfloat16", "half", "Float16"], ["auto", "float32", "float16"]),
        ("model.name", [""], ["org/name"]),
        ("generation.stop", [[""], ["a", ""], ["\ud800"]], [["\n\n"], []]),
    ],
)
def test_ranges(path: str, bad: list[object], good: list[object]) -> None:
    for value in bad:
        assert len(problems_of({path: value}, None, {})) == 1, value
    for value in good:
        resolve({path: value}, None, {})


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("sampling.temperature", "1e7", "--temperature must be at most 1e+06, got 1e7"),
        ("sampling.penalty", "1e-4", "--penalty must be between 0.001 and 1000, got 1e-4"),
        ("sampling.penalty", "1e4", "--penalty must be between 0.001 and 1000, got 1e4"),
    ],
)
def test_what_float32_could_not_hold_is_refused(path: str, value: str, says: str) -> None:
    assert problems_of({path: value}, None, {}) == (says,)


@pytest.mark.parametrize("value", ["0.00001", "-1"])
def test_a_temperature_next_to_zero_is_refused_with_the_way_to_greedy(value: str) -> None:
    (problem,) = problems_of({"sampling.temperature": value}, None, {})
    assert problem.startswith("--temperature must be 0 for greedy decoding or at least 0.0001, got ")


def test_every_number_has_a_range_and_every_rule_a_key() -> None:
    assert set(RULES) <= set(KEYS)
    for path, key in KEYS.items():
        if key.kind in ("int", "count", "float", "ints"):
            assert rule_for(path).low is not None, path


def test_defaults_pass_their_own_rules() -> None:
    given_defaults = {path: value for path, value in flatten(Config()).items() if value is not None}
    del given_defaults["prompt.chat"]
    assert resolve(given_defaults, None, {}).config == Config()


def test_min_tokens_above_max_tokens_names_both_places(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, "generation:\n  min_tokens: 500\n")
    (problem,) = problems_of({"generation.max_tokens": "100"}, file, {})
    expected = f"{file} line 2: generation.min_tokens (with --max-tokens) must not exceed"
    assert problem.startswith(expected)
    assert "(100), got 500" in problem


def test_a_prompt_of_a_stronger_place_replaces_the_other_kind_of_a_weaker_place(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, "prompt:\n  file: opening.txt\n")
    prompt = resolve({"prompt.text": "Once"}, file, {}).config.prompt
    assert (prompt.file, prompt.text) == (None, "Once")


def test_two_prompts_in_one_place_are_an_error_naming_both() -> None:
    (problem,) = problems_of({"prompt.text": "a", "prompt.file": "b"}, None, {})
    assert "--prompt" in problem and "--prompt-text" in problem


def test_prompt_file_is_relative_to_the_place_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    file = write_yaml(tmp_path, "prompt:\n  file: texts/a.txt\n")
    assert resolve({}, file, {}).config.prompt.file == str(tmp_path / "texts" / "a.txt")
    assert resolve({"prompt.file": "a.txt"}, file, {}).config.prompt.file == str(tmp_path / "here" / "a.txt")
    assert resolve({"prompt.file": "-"}, file, {}).config.prompt.file == "-"


def test_a_heads_directory_is_relative_to_the_place_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    file = write_yaml(tmp_path / "configs", "drafting:\n  heads: ../heads/mine\n")
    assert resolve({}, file, {}).config.drafting.heads == str(tmp_path / "heads" / "mine")
    assert resolve({"drafting.heads": "mine"}, file, {}).config.drafting.heads == str(tmp_path / "mine")
    assert not resolve({"drafting.heads": "none"}, file, {}).config.drafting.uses_heads


def test_methods_that_need_heads_are_refused_without(tmp_path: Path) -> None:
    for method in ("heads", "tokenswift"):
        (problem,) = problems_of({"drafting.method": method}, None, {})
        assert problem.startswith("--method ") and "--heads" in problem
        (problem,) = problems_of({"drafting.method": method, "drafting.heads": "none"}, None, {})


def test_system_message_needs_chat(tmp_path: Path) -> None:
    (problem,) = problems_of({"prompt.system": "Be brief."}, None, {})
    assert problem.startswith("--system ") and "--chat" in problem
    file = write_yaml(tmp_path, "prompt: {chat: true, system: Be brief.}\n")
    assert resolve({"prompt.chat": False}, file, {}).config.prompt.system is None


def test_unknown_variables_are_noticed_with_the_nearest_name() -> None:
    notices = resolve({}, None, {"TOKENSWIFT_SEEED": "1", "TOKENSWIFT_CACHE": "/x", "HOME": "/"}).notices
    assert len(notices) == 1
    assert "TOKENSWIFT_SEEED" in notices[0] and "TOKENSWIFT_SEED?" in notices[0]


def test_an_empty_variable_is_not_set() -> None:
    assert resolve({}, None, {"TOKENSWIFT_SEED": ""}).origins["sampling.seed"] == "default"


def test_a_missing_or_undecodable_configuration_file_is_an_error(tmp_path: Path) -> None:
    (problem,) = problems_of({}, tmp_path / "none.yaml", {})
    assert "does not exist" in problem and "--config" in problem
    (problem,) = problems_of({}, tmp_path, {})
    assert "cannot be read" in problem
    (tmp_path / "latin.yaml").write_bytes(b"prompt:\n  text: caf\xe9\n")
    (problem,) = problems_of({}, tmp_path / "latin.yaml", {})
    assert "byte 19" in problem


def test_resume_takes_the_stored_run_and_changes_only_what_flags_say() -> None:
    stored = resolve(
        {"sampling.seed": "7", "model.device": "cpu", "display.progress": "json", "prompt.text": "x"},
        None,
        {},
    ).config
    environ = {"TOKENSWIFT_SEED": "9", "TOKENSWIFT_DEVICE": "cuda", "TOKENSWIFT_PROGRESS": "plain"}
    resumed = resolve_resume({"generation.max_tokens": "3k"}, stored, environ)
    assert resumed.config.sampling == stored.sampling
    assert resumed.config.model == stored.model
    assert resumed.config.prompt == stored.prompt
    assert resumed.config.generation.max_tokens == 3000
    assert resumed.config.display.progress == "plain"
    assert resumed.origins["sampling.seed"] == "run.yaml"
    assert resumed.origins["generation.max_tokens"] == "--max-tokens"


def test_flatten_and_build_are_inverse() -> None:
    config = resolve({"sampling.seed": "5", "generation.stop": ["x"]}, None, {}).config
    assert build_config(flatten(config)) == config


@settings(deadline=None)
@given(number=st.integers(-(10**12), 10**12))
def test_whole_numbers_read_back_however_they_are_written(number: int) -> None:
    for text in (str(number), f"{number}.0", f"{number:_}", f"{number}.000e0", f" {number} "):
        assert coerce(text, "int") == number
    assert coerce(f"{number}k", "count") == number * 1000


@settings(deadline=None)
@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_read_back_exactly(number: float) -> None:
    assert coerce(repr(number), "float") == number


@settings(deadline=None)
@given(text=st.text(max_size=80), kind=st.sampled_from(["bool", "int", "count", "float", "ints"]))
def test_any_text_is_read_or_refused_and_nothing_else(text: str, kind: Kind) -> None:
    try:
        coerce(text, kind)
    except CoercionError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("100k", 100_000), ("1.5M", 1_500_000), ("100K", 100_000), ("0.5k", 500), ("1e5", 100_000), ("3.0", 3),
     ("100_000", 100_000), ("010", 10), ("0e99999999999", 0)],
)  # fmt: skip
def test_counts(text: str, meaning: int) -> None:
    assert coerce(text, "count") == meaning


@pytest.mark.parametrize(
    "value",
    ["k", "1.5", "0.0001k", "1,000", "0x10", "1k5", "1 000", "٣", "1e-999999999", "9" * 99, True, None, 2.5],
)
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(CoercionError):
        coerce(value, "count")


@pytest.mark.parametrize("value", ["1", "0", "y", "", 1, 0, None])
def test_numbers_are_no_booleans(value: object) -> None:
    with pytest.raises(CoercionError):
        coerce(value, "bool")
