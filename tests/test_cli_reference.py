"""docs/cli.md is what the application says, and says all of it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer
from command_lines import ROOT
from typer.core import TyperOption
from typer.testing import CliRunner

from tokenswift_cli import errors
from tokenswift_cli.cli.app import PROGRAM, Interrupted, app
from tokenswift_cli.cli.environment import MEANINGS
from tokenswift_cli.cli.exit_codes import EXIT_CODE_MEANINGS
from tokenswift_cli.cli.reference import reference
from tokenswift_cli.options import ENVIRONMENT, OTHER_VARIABLES
from tokenswift_cli.signals import EXIT_CODES as SIGNAL_CODES

PAGE = ROOT / "docs" / "cli.md"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "docs/cli.md is old: run `make cli-docs`"


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_page_does_not_depend_on_the_terminal(columns: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenswift_cli.cli.reference"],
        cwd=ROOT,
        env={"COLUMNS": columns, "FORCE_COLOR": "1", "TOKENSWIFT_SEED": "9", "LANG": "C", "TERM": "xterm"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == reference().encode("utf-8")
    assert b"\x1b" not in done.stdout and str(ROOT).encode() not in done.stdout


def test_every_option_argument_and_example_is_on_the_page() -> None:
    page = reference()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        section = page.split(f"\n## {PROGRAM} {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            words = parameter.opts if isinstance(parameter, TyperOption) else [parameter.metavar]
            assert all(f"`{word}`" in section for word in words), words
            assert not isinstance(parameter, TyperOption) or parameter.help
        assert "Examples:" in section and f"\n{PROGRAM} {name}" in section


def test_every_variable_is_explained_and_read_somewhere() -> None:
    page = reference()
    ours = {*ENVIRONMENT, *OTHER_VARIABLES}
    assert all(f"`{name}`" in page for name in ours)
    assert {name for name in MEANINGS if name.startswith("TOKENSWIFT_")} == set(OTHER_VARIABLES)
    assert set(re.findall(r"TOKENSWIFT_[A-Z]+", page)) == ours


def test_every_exit_code_is_explained() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = {cls.exit_code for cls in classes if issubclass(cls, errors.TokenSwiftError)}
    codes |= {0, Interrupted.exit_code, *SIGNAL_CODES.values()}
    assert codes == set(EXIT_CODE_MEANINGS)


def test_no_help_page_shows_a_type_of_python() -> None:
    """Not beside an argument either: its name and its help say what it is."""
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).output
        assert "Usage:" in shown and not re.search(r"<(list|path|str|int|bool)", shown, re.IGNORECASE), name
