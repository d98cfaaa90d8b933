"""Shell completion: what Tab offers, in the three shells' own forms, without loading anything heavy."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tokenswift_cli import cli
from tokenswift_cli.cli.completion import configurations, run_directories, several_of
from tokenswift_cli.config import LOOP_POLICIES, PROGRESS_MODES
from tokenswift_cli.engine.settings import METHODS
from tokenswift_cli.run_layout import RUN_YAML
from tokenswift_cli.shipped import configuration_names


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs in ``runs``, one beside it, and things that are none."""
    for name in ("runs/novel", "runs/essay", "runs/my novel", "alone", ".hidden/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / RUN_YAML).touch()
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "notes.txt").touch()
    (tmp_path / "rubbish").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complete(
    line: str, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the program prints for ``shell`` when Tab is pressed at the end of ``line``."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    monkeypatch.setenv("_TOKENSWIFT_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit) as left:
        cli.run([])
    assert left.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.strip()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tokenswift res", ["resume"]),
        ("tokenswift generate --method ", list(METHODS)),
        ("tokenswift generate --method=l", ["lookup"]),
        ("tokenswift resume x --method h", ["heads"]),
        ("tokenswift generate --on-loop ", list(LOOP_POLICIES)),
        ("tokenswift generate --progress ", list(PROGRESS_MODES)),
        ("tokenswift verify x --progress p", ["plain"]),
        ("tokenswift generate --device c", ["cpu", "cuda"]),
        ("tokenswift generate --kv-dtype f", ["float32", "float16"]),
        ("tokenswift train-heads --variant ", ["linear", "conditioned"]),
        ("tokenswift bench --peers transformers,l", ["transformers,llama.cpp"]),
        ("tokenswift generate --max-t", ["--max-tokens"]),
        ("tokenswift resume ", ["alone", "runs/essay", "runs/novel"]),
        ("tokenswift resume ru", ["runs/essay", "runs/novel"]),
        ("tokenswift verify runs/n", ["runs/novel"]),
        ("tokenswift bench --from-run al", ["alone"]),
        ("tokenswift generate -c demo-", ["demo-100k"]),
        # The shell's own completion of file names takes these.
        ("tokenswift generate -p ", []),
        ("tokenswift generate --heads r", []),
        ("tokenswift generate -c ", []),
    ],
)
def test_bash_gets_what_fits(
    line: str,
    expected: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert complete(line, "bash", monkeypatch, capsys).split() == expected


def test_zsh_and_fish_get_it_in_their_form(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "_files" in complete("tokenswift generate -p ", "zsh", monkeypatch, capsys)
    zsh = complete("tokenswift generate --on-loop ", "zsh", monkeypatch, capsys)
    assert all(f'"{word}"' in zsh for word in LOOP_POLICIES)
    fish = complete("tokenswift resume runs/", "fish", monkeypatch, capsys)
    assert fish.split() == ["runs/essay", "runs/novel"]


def test_runs_are_found_wherever_the_word_leads(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_directories(f"{place}/runs/e") == [f"{place}/runs/essay"]
    assert run_directories("./ru") == ["./runs/essay", "./runs/novel"]
    assert run_directories("runs/") == ["runs/essay", "runs/novel"]
    assert run_directories(".h") == [".hidden/x"]
    assert run_directories("nowhere/") == run_directories("rubbish/") == run_directories("zz") == []
    monkeypatch.setenv("HOME", str(place))
    assert run_directories("~/al") == ["~/alone"]


def test_a_file_here_comes_before_the_name_of_a_shipped_configuration(place: Path) -> None:
    assert configurations("de") == [name for name in configuration_names() if name.startswith("de")] != []
    (place / "deep.yaml").touch()
    assert configurations("de") == []
    assert configurations("") == []


def test_no_word_of_a_list_is_offered_twice() -> None:
    complete_list = several_of(("one", "two", "three"))
    assert complete_list("one,") == ["one,two", "one,three"]
    assert complete_list("one,t") == ["one,two", "one,three"]
    assert complete_list("two,t") == ["two,three"]


def test_completion_imports_nothing_heavy(place: Path) -> None:
    script = (
        "import sys\nfrom tokenswift_cli.cli import run\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        "sys.exit(sorted({'torch', 'transformers', 'numpy', 'yaml', 'huggingface_hub'} & set(sys.modules)))"
    )
    environment = {
        **os.environ,
        "_TOKENSWIFT_COMPLETE": "complete_bash",
        "COMP_WORDS": "tokenswift resume ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["alone", "runs/essay", "runs/novel"]
    assert done.stderr.strip() == "[]"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_bash_installs_and_uses_it(place: Path) -> None:
    """``--install-completion`` in a home of its own; then the function that bash calls on Tab."""
    programs = place / "bin"
    programs.mkdir()
    script = programs / "tokenswift"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tokenswift_cli "$@"\n')
    script.chmod(0o755)
    environment = {
        **os.environ, "HOME": str(place), "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(cli.__file__).parents[2]),
    }  # fmt: skip
    commands = """
        tokenswift --install-completion >/dev/null || exit 1
        . "$HOME/.bashrc"
        COMP_WORDS=(tokenswift verify runs/); COMP_CWORD=2
        _tokenswift_completion tokenswift
        echo "${COMPREPLY[@]}"
        complete -p tokenswift
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", commands],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "runs/essay runs/novel"
    # With nothing to offer bash goes on to file names.
    assert "-o default" in second
