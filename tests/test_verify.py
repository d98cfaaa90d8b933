"""``tokenswift verify`` on real runs of a tiny model: clean ones pass, and one altered token is found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_model_directory import END_ID, save_tiny_model

from tokenswift_cli import cli
from tokenswift_cli.audit.positions import Selection, selected_positions
from tokenswift_cli.checkpoints import CheckpointStore
from tokenswift_cli.config import (
    CheckpointConfig,
    Config,
    GenerationConfig,
    ModelConfig,
    PromptConfig,
    RunConfig,
)
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.growing_file import decode_ids, encode_ids
from tokenswift_cli.models.target import Target
from tokenswift_cli.prompt_input import PromptText
from tokenswift_cli.runner import generate, resume
from tokenswift_cli.yaml_config import load_run_yaml

COUNT, CHUNK = 300, 50
PROMPT = PromptText("Once upon a time, é 😀", "Once upon a time, é 😀".encode(), "test")
SAMPLING = SamplingSettings(seed=11, min_p=0.05, penalty=1.1, penalty_window=50)


def config_of(model: Path, directory: Path, **changes: Any) -> Config:
    config = Config(
        model=ModelConfig(name=str(model)),
        sampling=SAMPLING,
        generation=GenerationConfig(max_tokens=COUNT, ignore_eos=True),
        drafting=DraftingSettings(method="lookup"),
        run=RunConfig(directory=str(directory), chunk_tokens=CHUNK),
    )
    return replace(config, **changes)


def write(config: Config) -> str:
    return generate(config, PROMPT, publish=lambda event: None).finish_reason


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def clean(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; never changed."""
    directory = tmp_path_factory.mktemp("clean") / "run"
    assert write(config_of(model, directory)) == "length"
    return directory


@pytest.fixture
def run(clean: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(clean, tmp_path / "run"))


def tokens_of(run: Path) -> list[int]:
    return decode_ids((run / "tokens.bin").read_bytes())


def alter(run: Path, position: int, token: int | None = None) -> int:
    """Change one token; returns the one that stood there."""
    tokens = tokens_of(run)
    before = tokens[position]
    tokens[position] = before ^ 1 if token is None else token
    (run / "tokens.bin").write_bytes(encode_ids(tokens))
    return before


def fingerprint(run: Path) -> dict[str, tuple[str, int]]:
    """Content and time of every file, and the time of every directory."""
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in [run, *run.rglob("*")]
    }


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; returns its exit code and report."""

    def call(run: Path, *words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = cli.run(["verify", str(run), "--json", "-q", *words])
        captured = capsys.readouterr()
        assert captured.out.count("\n") == 1, captured.err
        return code, json.loads(captured.out)

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command where it reports nothing; returns its exit code and what it says."""

    def call(run: Path, *words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(["verify", str(run), "--json", "-q", *words])
        captured = capsys.readouterr()
        assert captured.out == ""
        return code, captured.err

    return call


def test_a_clean_run_is_verified_and_nothing_in_it_changes(clean: Path, verify: Any) -> None:
    before = fingerprint(clean)
    code, report = verify(clean)
    assert code == 0 and report["verified"] is True and report["interrupted"] is False
    assert report["files"] == {"sound": True, "problems": []}
    assert report["tokens"] == COUNT and report["finish_reason"] == "length"
    choices = report["choices"]
    assert choices.pop("tokens_per_second") > 0
    assert choices.pop("read_seconds") > 0 and choices.pop("check_seconds") > 0
    assert choices == {
        "range": [0, COUNT],
        "sample": None,
        "sample_seed": None,
        "requested": COUNT,
        "checked": COUNT,
        "matches": COUNT,
        "mismatches": 0,
        "rows_from_journal": 0,
        "first_mismatch": None,
        "first_mismatches": [],
        "unreadable": None,
    }
    assert fingerprint(clean) == before


@pytest.mark.parametrize("position", [0, 1, 127, 128, 155, COUNT - 1])
def test_one_altered_token_is_found_where_it_is(run: Path, verify: Any, position: int) -> None:
    before = alter(run, position)
    code, report = verify(run)
    assert code == 1 and report["verified"] is False
    found = report["choices"]["first_mismatch"]
    assert (found["position"], found["token"], found["chosen"]) == (position, before ^ 1, before)
    assert found["rank"] is None or found["rank"] > 1
    assert found["near"] is False
    assert report["choices"]["checked"] == COUNT
    assert report["choices"]["mismatches"] == COUNT - report["choices"]["matches"] >= 1
    problem = next(one for one in report["files"]["problems"] if one["file"] == "tokens.bin")
    borders = CheckpointStore(run / "checkpoints").load().sound[0].borders
    chunk = next(number for number, border in enumerate(borders) if border.tokens > position)
    assert problem["positions"] == [borders[chunk - 1].tokens, borders[chunk].tokens]
    assert f"is {chunk} (positions {borders[chunk - 1].tokens}-" in problem["message"]


def test_the_text_is_held_against_the_tokens(run: Path, verify: Any) -> None:
    """Both are as the manifest says on their own; together they do not fit."""
    other = run.parent / "other"
    shutil.copytree(run, other)
    alter(run, 200, ord("A") - 33)
    code, report = verify(run)
    names = [problem["file"] for problem in report["files"]["problems"]]
    assert code == 1 and names == ["tokens.bin", "output.txt"]
    data = bytearray((other / "output.txt").read_bytes())
    data[5] ^= 1
    (other / "output.txt").write_bytes(data)
    code, report = verify(other)
    assert code == 1 and report["choices"]["mismatches"] == 0
    messages = [problem["message"] for problem in report["files"]["problems"]]
    assert messages == [
        "output.txt is not what was written: its SHA-256 differs",
        "output.txt is not the text of tokens.bin: other from byte 5 on",
    ]


def test_a_range_covers_its_positions_and_no_other(run: Path, verify: Any) -> None:
    alter(run, 200)
    for span, found in (
        ("20:200", None), ("20:201", 200), ("200:", 200), ("200:201", 200), (":200", None),
    ):  # fmt: skip
        code, report = verify(run, "--range", span)
        choices = report["choices"]
        first, _, end = span.partition(":")
        asked = [int(first or 0), int(end or COUNT)]
        assert choices["range"] == asked
        assert choices["requested"] == choices["checked"] == asked[1] - asked[0]
        assert (choices["first_mismatch"] or {}).get("position") == found
        assert code == 1  # the files say so, whatever the range


def test_a_sample_checks_what_it_draws(run: Path, verify: Any) -> None:
    drawn = list(selected_positions(Selection(100, 250, 12, seed=7), COUNT))
    words = ("--range", "100:250", "--sample", "12", "--sample-seed", "7")
    code, report = verify(run, *words)
    choices = report["choices"]
    assert code == 0
    assert (choices["requested"], choices["checked"], choices["sample"]) == (12, 12, 12)
    assert (choices["range"], choices["sample_seed"]) == ([100, 250], 7)
    alter(run, drawn[-1] + 1)
    assert verify(run, *words)[1]["choices"]["mismatches"] == 0
    alter(run, drawn[-1])
    choices = verify(run, *words)[1]["choices"]
    assert [one["position"] for one in choices["first_mismatches"]] == [drawn[-1]]
    assert verify(run, "--sample", "5k")[1]["choices"]["checked"] == COUNT


def test_the_journal_stands_for_what_comes_before(model: Path, tmp_path: Path, verify: Any) -> None:
    run = tmp_path / "run"
    kept = CheckpointConfig(kv="always")
    assert write(config_of(model, run, checkpoint=kept)) == "length"
    code, report = verify(run, "--range", "200:", "--from-journal")
    assert code == 0 and report["choices"]["checked"] == COUNT - 200
    assert report["choices"]["rows_from_journal"] == report["prompt_tokens"] + 199
    alter(run, 100)
    # The rows of what follows an altered token are none of this text, so they are computed.
    code, report = verify(run, "--range", "99:", "--from-journal")
    assert code == 1 and report["choices"]["first_mismatch"]["position"] == 100
    code, report = verify(run, "--range", "200:", "--from-journal")
    assert 0 < report["choices"]["rows_from_journal"] < report["prompt_tokens"] + 100


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--range", "7"), "two positions"),
        (("--range", "9:3"), "holds no position"),
        (("--range", "0:301"), "holds 300 tokens, the last position is 299"),
        (("--sample", "0"), "--sample must be 1 or more"),
        (("--sample-seed", "3"), "give --sample N too"),
        (("--progress", "plain"), "drop one"),
    ],
)
def test_wrong_flags_are_usage_errors(clean: Path, refused: Any, words: tuple[str, ...], says: str) -> None:
    code, said = refused(clean, *words)
    assert code == 2 and says in said


def test_no_run_directory_is_a_usage_error(tmp_path: Path, refused: Any) -> None:
    assert refused(tmp_path / "nothing")[0] == 2
    (tmp_path / "notes.txt").write_text("x")
    code, said = refused(tmp_path)
    assert code == 2 and "not a run directory" in said


def test_usage_errors_come_without_heavy_libraries(clean: Path) -> None:
    script = (
        "import sys; from tokenswift_cli.cli import run; code = run(sys.argv[1:]); "
        "heavy = sorted({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)); "
        "sys.exit(f'heavy: {heavy}') if heavy else sys.exit(code)"
    )
    for words, code in ((["--help"], 0), ([str(clean), "--range", "999:"], 2)):
        done = subprocess.run(
            [sys.executable, "-c", script, "verify", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr


def test_a_run_that_is_being_written_can_be_audited(run: Path, verify: Any) -> None:
    """Another process holds the lock, and what it has not vouched for yet stands behind the rest."""
    for name, tail in (("tokens.bin", b"\1\0\0\0\2"), ("output.txt", b"\xc3"), ("metrics.jsonl", b'{"ch')):
        with (run / name).open("ab") as file:
            file.write(tail)
    script = (
        "import sys; from pathlib import Path; from tokenswift_cli.lock import RunLock; "
        "lock = RunLock.acquire(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(run / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"locked\n"
        before = fingerprint(run)
        code, report = verify(run)
        assert fingerprint(run) == before
    assert code == 0 and report["choices"]["checked"] == COUNT


def test_a_file_that_is_replaced_meanwhile_is_read_again(
    run: Path, verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run has rewritten output.txt and writes the manifest for it a moment later."""
    whole = (run / "output.txt").read_bytes()
    (run / "output.txt").write_bytes(b"?" + whole[1:])
    newest = max((run / "checkpoints").glob("*.json"))
    kept = newest.read_bytes()
    newest.unlink()

    def writer_goes_on(seconds: float) -> None:
        newest.write_bytes(kept)
        (run / "output.txt").write_bytes(whole)

    monkeypatch.setattr("tokenswift_cli.run_snapshot.time.sleep", writer_goes_on)
    code, report = verify(run)
    assert code == 0 and report["tokens"] == COUNT


def test_a_read_only_run_can_be_audited(clean: Path, verify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def open_read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).startswith(str(clean)) and flags & writing:
            raise OSError(errno.EROFS, "read-only", str(path))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", open_read_only)
    modes = {path: path.stat().st_mode for path in [clean, *clean.rglob("*")]}
    try:
        for path in modes:
            path.chmod(0o555 if path.is_dir() else 0o444)
        assert verify(clean, "--range", ":50")[0] == 0
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


ENDING = replace(
    SAMPLING, suppress_ids=tuple(range(250)), penalty=1.0, min_p=0.0, temperature=3.0
)  # chooses the end soon


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingSettings(temperature=0.0, penalty=1.0)},
        {"sampling": SamplingSettings(temperature=0.0, penalty=1.3, penalty_window=30)},
        {"sampling": replace(SAMPLING, top_k=30, top_p=0.8, min_p=0.0, temperature=0.7)},
        {"sampling": replace(SAMPLING, eta=0.02, min_p=0.0, suppress_ids=(7, 8, 9))},
        {"sampling": ENDING, "generation": GenerationConfig(max_tokens=COUNT)},
        {"sampling": ENDING, "generation": GenerationConfig(max_tokens=COUNT, min_tokens=40)},
        {"sampling": ENDING, "generation": GenerationConfig(max_tokens=60, ignore_eos=True)},
        {"prompt": PromptConfig(chat=True, system="be brief")},
        {"drafting": DraftingSettings(method="auto", prefill_chunk=7)},
    ],
    ids=[
        "greedy", "greedy with penalty", "top-k and top-p", "eta and suppressed ids", "end of text",
        "min-tokens", "ignore-eos", "chat", "short prefill",
    ],
)  # fmt: skip
def test_runs_of_all_settings_verify(
    model: Path, tmp_path: Path, verify: Any, changes: dict[str, Any]
) -> None:
    config = config_of(model, tmp_path / "run", **changes)
    reason = write(config)
    code, report = verify(tmp_path / "run")
    assert code == 0 and report["choices"]["checked"] == len(tokens_of(tmp_path / "run"))
    assert report["finish_reason"] == reason
    if config.generation.max_tokens == COUNT and not config.generation.ignore_eos:
        assert reason == "eos" and tokens_of(tmp_path / "run")[-1] == END_ID
        assert report["choices"]["checked"] > config.generation.min_tokens


def test_a_float16_cache_is_audited_as_it_was_written(model: Path, tmp_path: Path, verify: Any) -> None:
    run = tmp_path / "run"
    config = config_of(model, run)
    write(replace(config, model=replace(config.model, kv_dtype="float16")))
    assert verify(run)[0] == 0


def test_stop_strings_and_extended_runs_verify(clean: Path, model: Path, tmp_path: Path, verify: Any) -> None:
    """The text of a run that goes on lacks what may become a stop string; that of an ended one does not."""
    text = (clean / "output.txt").read_text(encoding="utf-8")
    place = len(text) // 2
    stop = text[place : place + 4]
    generation = GenerationConfig(max_tokens=90, ignore_eos=True, stop=(stop, text[-1] + "never"))
    run = tmp_path / "run"
    assert write(config_of(model, run, generation=generation)) == "length"
    assert verify(run)[0] == 0
    stored = load_run_yaml((run / "run.yaml").read_text())
    longer = replace(stored, generation=replace(stored.generation, max_tokens=COUNT))
    assert resume(run, stored, longer, publish=lambda event: None).finish_reason == "stop"
    code, report = verify(run)
    assert code == 0 and report["finish_reason"] == "stop"
    tokens = tokens_of(run)
    assert report["tokens"] == report["choices"]["checked"] == len(tokens) > 90


@pytest.mark.parametrize("name", ["prompt.ids", "run.yaml", "meta.json"])
def test_files_that_decide_the_text_must_be_the_runs_own(run: Path, refused: Any, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run / name).write_bytes(data)
    code, said = refused(run)
    assert code == 3 and name in said


def test_another_prompt_text_is_told_and_changes_no_choice(run: Path, verify: Any) -> None:
    (run / "prompt.txt").write_bytes(b"another")
    code, report = verify(run)
    assert code == 1 and [problem["file"] for problem in report["files"]["problems"]] == ["prompt.txt"]
    assert report["choices"]["matches"] == COUNT


def test_the_model_must_be_the_runs_own(
    model: Path, clean: Path, tmp_path: Path, verify: Any, refused: Any
) -> None:
    moved = Path(shutil.copytree(model, tmp_path / "moved"))
    assert verify(clean, "-m", str(moved))[0] == 0
    other = save_tiny_model(tmp_path / "other", rms_norm_eps=1e-3)
    code, said = refused(clean, "-m", str(other))
    assert code == 3 and "Verification refused" in said and "config.json" in said and "--model" in said
    code, said = refused(clean, "-m", str(tmp_path / "gone"))
    assert code == 1 and str(tmp_path / "gone") in said


def test_a_token_that_the_model_does_not_know_ends_the_audit_there(run: Path, verify: Any) -> None:
    alter(run, 100, 70_000)
    code, report = verify(run)
    choices = report["choices"]
    assert code == 1 and choices["checked"] == 101 and choices["requested"] == COUNT
    assert choices["unreadable"].startswith("token 70000 at position 100")
    found = choices["first_mismatch"]
    assert (found["position"], found["margin"], found["rank"], found["token_text"]) == (100, None, None, None)
    choices = verify(run, "--range", "200:")[1]["choices"]
    assert choices["checked"] == 0 and choices["unreadable"]


@pytest.mark.parametrize("keep", [0, 1, 120])
def test_a_short_token_file_is_audited_as_far_as_it_goes(run: Path, verify: Any, keep: int) -> None:
    data = (run / "tokens.bin").read_bytes()
    (run / "tokens.bin").write_bytes(data[: 4 * keep + 3])
    code, report = verify(run)
    assert code == 1 and report["choices"]["checked"] == report["choices"]["matches"] == keep
    assert f"tokens.bin ends after {keep} tokens" in report["choices"]["unreadable"]
    assert f"holds {keep} of 300 tokens" in report["files"]["problems"][0]["message"]


def test_missing_files_are_named(run: Path, verify: Any) -> None:
    (run / "tokens.bin").unlink()
    (run / "output.txt").unlink()
    code, report = verify(run)
    messages = [problem["message"] for problem in report["files"]["problems"]]
    assert code == 1 and messages == [
        "tokens.bin cannot be read: it is missing",
        "output.txt cannot be read: it is missing",
    ]


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(
    run: Path, verify: Any, refused: Any
) -> None:
    newest, older = sorted((run / "checkpoints").glob("*.json"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:50])
    code, report = verify(run)
    assert code == 1 and report["choices"]["mismatches"] == 0 and report["tokens"] < COUNT
    assert newest.name in report["files"]["problems"][0]["message"]
    older.write_bytes(b"{}")
    code, said = refused(run)
    assert code == 3 and "nothing vouches" in said


def test_an_interrupted_audit_reports_what_it_checked(
    clean: Path, verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Target.verify, []

    def interrupted(self: Target, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *given)

    monkeypatch.setattr(Target, "verify", interrupted)
    code, report = verify(clean)
    assert code == 130 and report["interrupted"] is True and report["verified"] is False
    assert report["choices"]["checked"] == report["choices"]["matches"] == 128


def test_too_little_memory_is_refused_with_numbers(
    clean: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "free_bytes", lambda self: 1 << 20)
    code, said = refused(clean)
    assert code == 1 and "GiB" in said and "--range" in said


def test_an_empty_run_has_nothing_to_check(
    model: Path, tmp_path: Path, verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before the first token."""
    from tokenswift_cli.events import PrefillProgress

    def publish(event: object) -> None:
        if isinstance(event, PrefillProgress) and not event.done_tokens:
            os.kill(os.getpid(), signal.SIGINT)

    run = tmp_path / "run"
    assert generate(config_of(model, run), PROMPT, publish=publish).tokens == 0
    code, report = verify(run)
    assert code == 0 and report["choices"]["requested"] == 0 and report["tokens"] == 0


def test_the_report_in_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(run)]) == 0
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first.startswith("300 of 300 tokens are what the model chooses (positions 0-299), ")
    assert first.endswith(" tokens/s.") and second == "Files: sound."
    assert "loading: " in captured.err and "\x1b" not in captured.out + captured.err
    alter(run, 200)
    assert cli.run(["verify", str(run), "-q"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert " are not (positions 0-299), " in lines[0] or " is not (positions 0-299), " in lines[0]
    assert lines[1].startswith("First mismatch: position 200 holds token ")
    assert "Files: damaged." in lines
