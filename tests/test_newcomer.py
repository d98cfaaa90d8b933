"""The README's path from the first token to trained heads, command by command, with small numbers.

Each command is looked up in the README; what follows it here makes it short. The later of two options counts:
all documented words are parsed and used.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from command_lines import ROOT, Line, lines_of
from tiny_model_directory import save_tiny_model

from tokenswift_cli import cli
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.demo import demo_gguf_path

README = [line.text for line in lines_of(ROOT / "README.md")]

SMALL_TRAINING = """\
self_distill: {tokens: 1200, batch: 4, tokens_per_sequence: 150}
training: {window_tokens: 40, batch_windows: 4}
heads: {draft_vocabulary: 100}
evaluation: {positions: 20, windows: 2}
data: {hold_out: 0.25}
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a clone, with a model and texts of the reader's own."""
    place = tmp_path_factory.mktemp("clone")
    for name in ("prompts", "configs"):
        (place / name).symlink_to(ROOT / name)
    (place / "heads").mkdir()
    (place / "heads" / "smollm2-135m").symlink_to(ROOT / "heads" / "smollm2-135m")
    save_tiny_model(place / "my-model")
    (place / "my-prompt.txt").write_text("It was a dark night.\n", encoding="utf-8")
    (place / "small.yaml").write_text(SMALL_TRAINING, encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def in_clone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    for name in ("TOKENSWIFT_MODEL", "TOKENSWIFT_SEED", "TOKENSWIFT_METHOD"):
        monkeypatch.delenv(name, raising=False)


def give(documented: str, *more: str, **changed: str) -> int:
    """Run the command that the README shows, with words of it ``changed`` and ``more`` after them.

    ``documented`` is the whole line, or the beginning of just one.
    """
    shown = [line for line in README if line == documented] or [
        line for line in README if line.startswith(f"{documented} ")
    ]
    assert len(shown) == 1, f"README.md no longer shows, or not once: {documented}"

    words = Line("README.md", shown[0], True).commands()[0][1:]
    return cli.run([*(changed.get(word, word) for word in words), *more, "--threads", "1"])


def tokens(run: str) -> list[int]:
    found: list[int] = np.fromfile(Path(run) / "tokens.bin", dtype="<u4").tolist()
    return found


@pytest.fixture
def demo() -> None:
    try:
        demo_gguf_path()
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.demo
def test_first_token_and_going_on(demo: None) -> None:
    """`make demo`, then both kinds of resume."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "tokenswift generate -c configs/demo.yaml\n" in makefile and "make demo" in README
    assert cli.run(["generate", "-c", "configs/demo.yaml", "-n", "16", "-o", "runs/first", "-q"]) == 0
    begun = tokens("runs/first")
    again = "{}tokenswift resume runs/DATE-TIME{}"
    run = {"runs/DATE-TIME": "runs/first"}
    assert give(again.format(".venv/bin/", ""), "-q", **run) == 0
    assert tokens("runs/first") == begun and len(begun) == 16
    assert give(again.format(".venv/bin/", " --max-tokens 4k"), "-n", "24", "-q", **run) == 0
    assert tokens("runs/first")[:16] == begun and len(tokens("runs/first")) == 24


@pytest.mark.demo
def test_the_same_text_with_any_method(demo: None) -> None:
    """The README's two runs to compare; one without a directory of its own; the long one looked at before."""
    same = "tokenswift generate -p prompts/chronicle.txt -n 600 --seed 5 --ignore-eos -o runs/"
    assert give(f"{same}a --method autoregressive", "-n", "40", "-q") == 0
    assert give(f"{same}b --method lookup --chunk-tokens 40", "-n", "40", "--chunk-tokens", "16", "-q") == 0
    assert tokens("runs/a") == tokens("runs/b") and len(tokens("runs/a")) == 40
    before = set(Path("runs").iterdir())
    short = ("-n", "4", "-q")
    assert give("tokenswift generate --prompt prompts/chronicle.txt --max-tokens 2k", *short) == 0
    (new,) = set(Path("runs").iterdir()) - before
    assert len(tokens(str(new))) <= 4
    long = "tokenswift generate -c configs/demo-100k.yaml -o runs/100k"
    assert give(long, "-n", "16", "--dry-run") == 0 and not Path("runs/100k").exists()


def test_an_own_model_and_prompt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes, a run of it, and the audit of that run."""
    assert give("tokenswift doctor -m ./my-model --max-tokens 100k", "-n", "200") == 0
    assert "Ready: a run can start." in capsys.readouterr().out
    own = "tokenswift generate -m ./my-model -p my-prompt.txt -n 100k -o runs/my-novel"
    assert give(own, "-n", "120", "--ignore-eos", "--kv-journal", "always", "-q") == 0
    run = {"runs/100k": "runs/my-novel"}
    assert give("tokenswift verify runs/100k --range 20k:30k", "--range", "20:60", "-q", **run) == 0
    sample = "tokenswift verify runs/100k --sample 500 --from-journal"
    assert give(sample, "--sample", "10", "-q", **run) == 0
    assert give("tokenswift resume runs/100k", "-q", **run) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Notes.\n")))
    piped = 'cat notes.txt | tokenswift generate -p - -n 4096 --stop "THE END" > text.txt'
    assert give(piped, "-m", "my-model", "-n", "30", "-o", "runs/piped", "-q") == 0
    text = (Path("runs/piped") / "output.txt").read_text(encoding="utf-8")
    assert text and capsys.readouterr().out == text


def test_heads_for_an_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    train = (
        "tokenswift train-heads -m ./my-model --self-distill --prompts prompts/training/openings.txt "
        "-o heads/my-model"
    )
    assert give(train, "-c", "small.yaml", "--steps", "4", "-q") == 0
    use = "tokenswift generate -m ./my-model --heads heads/my-model -p my-prompt.txt -n 100k"
    short = ("-n", "60", "--ignore-eos", "-q")
    assert give(use, *short, "--method", "heads", "-o", "runs/heads") == 0
    assert give(use, *short, "--method", "autoregressive", "-o", "runs/plain") == 0
    assert tokens("runs/heads") == tokens("runs/plain") and len(tokens("runs/plain")) == 60
    (record,) = (Path("runs/heads") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"heads"' in record
