"""Every command in README, docs, configurations and help pages is one that can be given."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from command_lines import ROOT, Line, check_values, documents, lines_of, parse

from tokenswift_cli.cli.app import PROGRAM, app
from tokenswift_cli.cli.help_page import EXAMPLE_COLUMNS, example_lines
from tokenswift_cli.errors import TokenSwiftError
from tokenswift_cli.shipped import configuration_names

LINES = [line for path in documents() for line in lines_of(path)]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# Folders whose files a command that stands in a document names as they are in the repository.
OURS = re.compile(r"(?:prompts|configs|benchmarks|docs|tests)/[\w./-]+|heads/smollm2[\w.-]*")


def ids(line: Line) -> str:
    return f"{line.where}: {line.text}"[:90]


def require_files(words: list[str]) -> None:
    for word in words:
        for part in re.split("[,=]", word):
            if OURS.fullmatch(part):
                assert (ROOT / part).exists(), f"{part} does not exist"


def check_tokenswift(words: list[str], *, fenced: bool) -> None:
    try:
        command, values = parse(words)
    except typer.TyperException as error:
        # In a sentence the name of a command or option stands for itself: `tokenswift resume`.
        lacks_value = type(error).__name__ == "MissingParameter" or "requires an argument" in str(error)
        if fenced or not lacks_value or words[0] not in COMMANDS:
            raise
        return
    if values.get("config") is not None and len(values["config"].parts) == 1:
        name = values["config"].name
        assert name in configuration_names() or name.endswith(".yaml"), f"no configuration {name} is shipped"
    if "..." not in words:
        check_values(command, values)


def check_make(words: list[str]) -> None:
    for word in words:
        name, assigned, _ = word.partition("=")
        pattern = rf"^{re.escape(name)} [?:]?=" if assigned else rf"^{re.escape(name)}:.*## "
        assert word.startswith("-") or re.search(pattern, MAKEFILE, re.MULTILINE), f"make has no {word}"


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        path = ROOT / words[1].replace(".", "/")
        ours = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        assert ours or importlib.util.find_spec(words[1]) is not None, f"there is no module {words[1]}"
    elif words[0].endswith(".py"):
        source = "".join((ROOT / name).read_text() for name in (words[0], "benchmarks/common.py"))
        for option in words[1:]:
            if option.startswith("--"):
                assert f'"{option.partition("=")[0]}"' in source, f"{words[0]} has no {option}"


def check(words: list[str], *, fenced: bool) -> None:
    program, *rest = words
    if program == PROGRAM:
        check_tokenswift(rest, fenced=fenced)
    elif program == "make":
        check_make(rest)
    elif rest:
        check_python(rest)
    require_files(rest)


def test_the_documents_hold_commands_of_every_kind() -> None:
    """Else nothing below would tell anything."""
    programs = {words[0] for line in LINES for words in line.commands()}
    assert {PROGRAM, "make", "python"} <= programs
    named = {words[1] for line in LINES for words in line.commands() if words[0] == PROGRAM and words[1:]}
    assert set(COMMANDS) <= named
    assert any("configs/" in line.where for line in LINES)


@pytest.mark.parametrize("line", LINES, ids=ids)
def test_a_documented_command_can_be_given(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    for words in line.commands():
        check(words, fenced=line.fenced)


@pytest.mark.parametrize(
    ("text", "fenced"),
    [
        (f"{PROGRAM} genrate", True),
        (f"{PROGRAM} generate --promt x", True),
        (f"{PROGRAM} generate --promt x", False),
        (f"{PROGRAM} resume", True),
        (f"{PROGRAM} generate -p prompts/no-such.txt", True),
        (f"{PROGRAM} generate -c no-such", True),
        (f"{PROGRAM} generate -p x --method fastest", True),
        (f"{PROGRAM} bench --peers none,some", True),
        (f"{PROGRAM} train-heads --steps many", True),
        (f"cat x | {PROGRAM} generate -p - --stop", True),
        ("make everything", False),
        ("make bench BOKS=a.txt", False),
        ("python -m tests.no_such", True),
        (".venv/bin/python benchmarks/step.py --no-such 1", True),
    ],
)
def test_a_wrong_command_is_found(text: str, fenced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (words,) = Line("here", text, fenced).commands()
    with pytest.raises((AssertionError, typer.TyperException, TokenSwiftError)):
        check(words, fenced=fenced)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_examples_on_a_help_page_can_be_given_and_fit_a_terminal(
    name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    command = typer.main.get_command(app) if name is None else COMMANDS[name]
    examples = example_lines(command.epilog)
    assert 2 <= len(examples) <= 4
    for example in examples:
        assert len(example) <= EXAMPLE_COLUMNS
        found = Line("help", example, True).commands()
        assert [words[0] for words in found] == [PROGRAM]
        check(found[0], fenced=True)
    assert name is None or examples[0].split(f"{PROGRAM} ")[1].split()[0] == name


def test_each_example_is_one_line_of_the_help_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenswift_cli import cli

    monkeypatch.setenv("COLUMNS", "80")
    for name, command in COMMANDS.items():
        assert cli.run([name, "--help"]) == 0
        shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert set(example_lines(command.epilog)) <= set(shown)
        # Nothing on the page is cut off.
        assert not any("…" in line for line in shown)


@pytest.mark.parametrize(
    "arguments", [["demo"], ["bench", "BOOKS=a.txt,b.txt", "HELD_OUT=text"], ["cli-docs"]]
)
def test_what_make_runs_can_be_given(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    monkeypatch.chdir(ROOT)
    for variable in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        monkeypatch.delenv(variable, raising=False)
    done = subprocess.run(["make", "--dry-run", *arguments], capture_output=True, text=True, check=True)
    lines = done.stdout.replace("\\\n", " ").splitlines()
    found = [words for text in lines for words in Line("make", text, True).commands()]
    ours = [words for words in found if words[0] == PROGRAM or ("pip" not in words and "-c" not in words[:2])]
    assert ours
    for words in ours:
        check([Path(words[0]).name, *words[1:]], fenced=True)
