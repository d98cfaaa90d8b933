"""Command lines out of documents, and what the command line makes of them without running any."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from tokenswift_cli.bench.settings import FLAG_NAMES, read_bench_settings
from tokenswift_cli.cli.app import PROGRAM, app
from tokenswift_cli.config import Config
from tokenswift_cli.flags import given_values
from tokenswift_cli.options import resolve, resolve_resume
from tokenswift_cli.shipped import configuration_file
from tokenswift_cli.training.configuration import resolve_training
from tokenswift_cli.training.flags import given_training_values

ROOT: Final = Path(__file__).resolve().parent.parent

_PROGRAMS: Final = (PROGRAM, "make", "python", "python3")
_CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_OPERATORS: Final = frozenset({"|", "||", "&&", ";", "&", "(", ")"})
_REDIRECTIONS: Final = frozenset({">", ">>", "<", ">&"})
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# They act on this machine as soon as they are parsed.
_AT_ONCE: Final = frozenset({"--install-completion", "--show-completion"})


@dataclass(frozen=True)
class Line:
    """One command line: where it is written, and whether to be run as it is (``fenced``) or only named."""

    where: str
    text: str
    fenced: bool

    def commands(self) -> list[list[str]]:
        """The programs that we know with their arguments, one list each; ours and python's without a path."""
        found = []
        for words in _split(self.text):
            while words and _ASSIGNMENT.fullmatch(words[0]):
                words = words[1:]
            if words and words[0].removeprefix(".venv/bin/") in _PROGRAMS:
                found.append([words[0].removeprefix(".venv/bin/"), *words[1:]])
        return found


def documents() -> list[Path]:
    """All that people read commands in."""
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "prompts/README.md")]
    found = [*named, *ROOT.glob("docs/*.md"), *ROOT.glob("heads/*/README.md"), *ROOT.glob("configs/*.yaml")]
    return sorted(path for path in found if path.is_file())


def lines_of(path: Path) -> list[Line]:
    """The command lines in ``path`` that hold a program we know; a synopsis is none."""
    text = path.read_text(encoding="utf-8")
    reader = _lines_of_yaml if path.suffix == ".yaml" else _lines_of_markdown
    found = reader(path.relative_to(ROOT).as_posix(), text)
    return [line for line in found if line.commands() and "[OPTIONS]" not in line.text]


def _lines_of_markdown(where: str, text: str) -> Iterator[Line]:
    prose: list[str] = []
    block: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            if block is not None:
                for command in "\n".join(block).replace("\\\n", " ").splitlines():
                    yield Line(f"{where} above line {number}", command.strip(), True)
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        else:
            prose.append(line)
    for code in _CODE.findall("\n".join(prose)):
        yield Line(where, " ".join(code.split()), False)


def _lines_of_yaml(where: str, text: str) -> Iterator[Line]:
    for line in text.splitlines():
        if line.startswith("#"):
            found = re.search(rf"(?:^#|: )\s*((?:{PROGRAM}|make) .*)", line)
            if found:
                yield Line(where, found[1], True)


def _split(text: str) -> list[list[str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    programs: list[list[str]] = [[]]
    try:
        words = list(lexer)
    except ValueError:  # an open quotation mark: prose
        return []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _OPERATORS:
            programs.append([])
        elif word in _REDIRECTIONS:
            skip = True
        else:
            programs[-1].append(word)
    return programs


@functools.cache
def _group() -> Any:
    return typer.main.get_command(app)


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Parse the words after ``tokenswift``; no command is run.

    Returns:
        The command's name and the values of its parameters; ("", {}) where a page is shown instead.

    Raises:
        typer.TyperException: the words are wrong.
    """
    group = _group()
    if _AT_ONCE & set(arguments):
        known = {name for option in group.params for name in option.opts}
        assert set(arguments) <= known, f"{PROGRAM} has no {set(arguments) - known}"
        return "", {}
    try:
        with group.make_context(PROGRAM, list(arguments)) as context:
            rest = [*context._protected_args, *context.args]
            if not rest:
                return "", {}
            name, command, rest = group.resolve_command(context, rest)
            with command.make_context(name, rest, parent=context) as inner:
                return name, dict(inner.params)
    except typer.Exit:  # --help and --version
        return "", {}


def check_values(command: str, values: dict[str, Any]) -> None:
    """Read the parsed values as the command would before it loads anything.

    Raises:
        TokenSwiftError: a value is wrong.
    """
    given = values.get("config")
    # What a document calls my.yaml is the reader's own.
    config = given if given is not None and configuration_file(given).is_file() else None
    if command in ("generate", "doctor"):
        resolve(given_values(values), config, {})
    elif command == "bench":
        config_read = resolve(given_values(values), config, {}).config
        measured = {name: values[name] for name in FLAG_NAMES}
        read_bench_settings(measured, with_heads=config_read.drafting.uses_heads, run=values["from_run"])
    elif command in ("resume", "verify"):
        resolve_resume(given_values(values), Config(), {})
    elif command == "train-heads":
        resolve_training(given_training_values(values), config, {})
