"""``tokenswift train-heads`` as a person runs it: phases, stops, refusals, conversion."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_model_directory import save_tiny_model

from tokenswift_cli import cli
from tokenswift_cli.config import ModelConfig
from tokenswift_cli.models.heads_directory import load_heads
from tokenswift_cli.models.loading import load_model

PROMPTS = "Once upon a time\nA history of\n"
CONFIG = """\
self_distill: {tokens: 1200, batch: 3, tokens_per_sequence: 100}
training: {epochs: 2, window_tokens: 40, batch_windows: 4, learning_rate: 1e-2,
           log_every: 4, checkpoint_every: 5}
heads: {draft_vocabulary: 100}
evaluation: {positions: 20, windows: 3, prompt_tokens: 20, tokens: 60, texts: 2}
data: {hold_out: 0.25, sequence_tokens: 200}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    (tmp_path / "book.jsonl").write_text(
        "".join(
            json.dumps({"text": f"Chapter {number}. " + "It was so. " * 30}) + "\n" for number in range(5)
        )
    )
    return tmp_path


def words(model: Path, *more: str) -> list[str]:
    return ["train-heads", "-c", "c.yaml", "-m", str(model), "--threads", "1", *more]


def weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")


DISTILL = ("--self-distill", "--prompts", "prompts.txt")


def test_text_training_measuring_and_heads(files, model, capsys) -> None:
    """The whole command, then the same again, then with other settings."""
    assert cli.run(words(model, *DISTILL, "-o", "heads")) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "acceptance" in captured.err and "\x1b" not in captured.err
    loaded = load_model(ModelConfig(name=str(model), device="cpu"), lambda message: None)
    heads = load_heads(files / "heads", loaded.identity, 64, 257)
    assert heads.shape.count == 3 and len(heads.draft_vocabulary) == 100
    training = json.loads((files / "heads" / "config.json").read_text())["training"]
    assert training["data"]["sequences"] == 9 and training["data"]["held_out_sequences"] == 3
    assert training["data"]["source"] == "written by the model itself"
    assert {row["noise"] for row in training["acceptance"]} == {"shared", "independent"}
    assert all(row["chains"] == 20 for row in training["acceptance"])
    assert training["held_out_loss"]["losses"]
    card = (files / "heads" / "README.md").read_text()
    assert f"| steps | {training['steps']} (" in card and "| 0-1K | shared | 20 |" in card
    assert (files / "heads.training" / "log.csv").read_text().startswith("step,split,loss,head1_loss")

    before = weights(files / "heads")
    assert cli.run(words(model, *DISTILL, "-o", "heads")) == 0
    assert "heads holds these heads already" in capsys.readouterr().err
    assert cli.run(words(model, *DISTILL, "-o", "heads", "--seed", "5")) == 2  # taken by other heads
    assert "--replace" in capsys.readouterr().err
    assert cli.run(words(model, *DISTILL, "-o", "heads", "--seed", "5", "--replace")) == 3
    assert "training.seed was 0, is now 5" in capsys.readouterr().err
    assert cli.run(words(model, *DISTILL, "-o", "heads", "--seed", "5", "--replace", "--restart", "-q")) == 0
    assert capsys.readouterr().err == ""
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(files / "heads").items())


def test_text_can_be_written_once_and_used_for_several_trainings(files, model, capsys) -> None:
    assert cli.run(words(model, *DISTILL[1:], "--self-distill-only", "--work-dir", "text")) == 0
    assert "text/self-distill" in capsys.readouterr().err
    for variant in ("linear", "conditioned"):
        assert cli.run(words(model, "--data", "text/self-distill", "--variant", variant, "-o", variant)) == 0
    assert "heads.0.mix.weight" in weights(files / "conditioned")
    assert "heads.0.mix.weight" not in weights(files / "linear")
    other = save_tiny_model(files / "other", hidden_size=32)
    capsys.readouterr()
    assert cli.run(words(other, "--data", "text/self-distill", "-o", "third")) == 2
    error = capsys.readouterr().err
    assert "was written by" in error and "not by other" in error


@pytest.mark.parametrize("cached", [False, True])
def test_text_files_are_measured_on_text_that_the_model_writes_on(files, model, capsys, cached: bool) -> None:
    text = CONFIG.replace("window_tokens: 40", "window_tokens: 0")
    (files / "c.yaml").write_text(text)
    if cached:
        (files / "c.yaml").write_text(CONFIG.replace("200}", "200, cache_hidden: true}"))
    assert cli.run(words(model, "--data", "book.jsonl", "-o", "heads", "--head-count", "2")) == 0
    training = json.loads((files / "heads" / "config.json").read_text())["training"]
    assert training["data"]["source"] == "from text files" and len(training["loss"]["losses"]) == 2
    assert [row["chains"] for row in training["acceptance"]] == [20, 20]
    stored = list((files / "heads.training").glob("hidden-*/batch-*.safetensors"))
    assert bool(stored) == cached and len(list((files / "heads.training").glob("evaluation-*"))) == 1


def test_cached_hidden_states_train_like_computed_ones(files, model) -> None:
    """Whole sequences, float16 on disk against the model's own: nearly the same weights."""
    whole = CONFIG.replace("window_tokens: 40", "window_tokens: 0").replace("positions: 20", "positions: 0")
    for name, text in (("live", whole), ("stored", whole.replace("200}", "200, cache_hidden: true}"))):
        (files / "c.yaml").write_text(text)
        assert cli.run(words(model, "--data", "book.jsonl", "-o", name, "--steps", "3", "-q")) == 0
    live, stored = weights(files / "live"), weights(files / "stored")
    assert all(torch.allclose(live[name].float(), stored[name].float(), atol=0.02) for name in live)


LONGER = (
    CONFIG.replace("epochs: 2", "epochs: 10")
    .replace("positions: 20", "positions: 0")
    .replace("tokens: 1200", "tokens: 2400")
)


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory) -> dict[str, torch.Tensor]:
    """Heads that nobody stopped the making of."""
    directory = tmp_path_factory.mktemp("undisturbed")
    (directory / "c.yaml").write_text(LONGER)
    (directory / "prompts.txt").write_text(PROMPTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert cli.run(words(model, *DISTILL, "-o", "heads", "-q")) == 0
    return weights(directory / "heads")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "phase"), [(signal.SIGINT, "text"), (signal.SIGTERM, "training")])
def test_a_stop_in_any_phase_goes_on_to_the_same_heads(
    files, model, undisturbed, capsys, number: signal.Signals, phase: str
) -> None:
    """Case 27: Ctrl-C keeps the work, says how to go on, and exits 130 (143 after SIGTERM)."""
    (files / "c.yaml").write_text(LONGER)
    command = [sys.executable, "-m", "tokenswift_cli", *words(model, *DISTILL)]
    process = subprocess.Popen([*command, "-o", "heads"], stderr=subprocess.PIPE, text=True)
    reached = {
        "text": "self-distill/batch-000000.safetensors",
        "training": "checkpoints/step-000000005.safetensors",
    }
    deadline = time.monotonic() + 60
    while not (files / "heads.training" / reached[phase]).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error and not (files / "heads").exists()
    again = error.splitlines()[-1].partition("Go on with: ")[2]
    assert again.startswith("tokenswift train-heads --config c.yaml --output heads")
    assert cli.run(again.split()[1:]) == 0
    assert ("Going on from step" in capsys.readouterr().err) == (phase == "training")
    heads = weights(files / "heads")
    assert heads.keys() == undisturbed.keys()
    assert all(torch.equal(tensor, undisturbed[name]) for name, tensor in heads.items())


def test_a_second_writer_is_refused(files, model, capsys) -> None:
    """Case 33."""
    from tokenswift_cli.lock import RunLock

    (files / "heads.training").mkdir()
    with RunLock.acquire(files / "heads.training" / ".lock"):
        assert cli.run(words(model, *DISTILL, "-o", "heads")) == 1
    assert "is in use by process" in capsys.readouterr().err


def test_sequences_longer_than_the_model_allows_are_refused(files, tmp_path_factory, capsys) -> None:
    """Case 15."""
    short = save_tiny_model(tmp_path_factory.mktemp("short"), max_position_embeddings=64)
    assert cli.run(words(short, *DISTILL, "-o", "heads")) == 2
    assert "at most 64 tokens, and each text would have 100" in capsys.readouterr().err
    (files / "c.yaml").write_text(CONFIG.replace("window_tokens: 40", "window_tokens: 0"))
    assert cli.run(words(short, "--data", "book.jsonl", "-o", "heads")) == 2
    assert "at most 64 tokens, and a sequence of the text would have 200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--output DIR"),
        (["-o", "h"], "nothing to learn from"),
        (["--self-distill-only", "--prompts", "prompts.txt"], "--work-dir DIR"),
        (["-o", "h", "--data", "no.txt"], "no.txt does not exist"),
        (["-o", "h", "--data", "book.jsonl", "--resume"], "nothing to resume in h.training"),
        (["-o", "h", "--data", "book.jsonl", "--head-count", "99"], "--head-count must be between 1 and 16"),
        (["--convert", "x"], "--output DIR"),
        (["--convert", "x", "-o", "h", "--steps", "3", "--restart"], "--steps, --restart cannot be given"),
    ],
)
def test_usage_errors_come_before_the_model(files, capsys, arguments: list[str], expected: str) -> None:
    assert cli.run(["train-heads", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert sorted(path.name for path in files.iterdir()) == ["book.jsonl", "c.yaml", "prompts.txt"]


def test_convert_hands_on_to_the_reader_of_published_heads(files, capsys, monkeypatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        "tokenswift_cli.models.published_heads.convert_published",
        lambda source, target, *, replace: calls.append((source, target, replace)),
    )
    assert cli.run(["train-heads", "--convert", "published", "-o", "heads", "--replace"]) == 0
    assert calls == [(Path("published"), Path("heads"), True)]
    assert "are in heads" in capsys.readouterr().err
