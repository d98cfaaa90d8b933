"""The command line as one Markdown page: ``python -m tokenswift_cli.cli.reference > docs/cli.md``.

Everything is read off the application that parses, in its order; nothing depends on terminal or machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tokenswift_cli.cli.app import PROGRAM, app
from tokenswift_cli.cli.environment import MEANINGS, variable_of
from tokenswift_cli.cli.exit_codes import EXIT_CODE_MEANINGS
from tokenswift_cli.cli.help_page import example_lines
from tokenswift_cli.flags import flag_name
from tokenswift_cli.options import ENVIRONMENT

_OPTIONS: Final = "Options"
# What is special in Markdown and stands in our help, outside of code.
_SPECIAL: Final = re.compile(r"([*<\[\]\\])")
# These go on with or read a run that exists: of the environment they take how progress is shown.
_OF_A_RUN: Final = frozenset({"resume", "verify", "report"})

_INTRODUCTION: Final = (
    f"<!-- What `{PROGRAM} --help` says, written by `make cli-docs`. Edit the help, not this page. -->",
    "Options may stand in any order, before and after arguments. Token counts may be written `100k` or "
    "`1.5M`. Of an option that is given twice the last one counts, unless it may be repeated. Options are "
    "stronger than the [environment](#environment), which is stronger than the file of `--config`; what none "
    "of them says has its default.",
)


def reference() -> str:
    """The page, with a line break at its end."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    with group.make_context(PROGRAM, [], resilient_parsing=True) as context:
        names = group.list_commands(context)
        blocks = [f"# {PROGRAM}: command line", *_INTRODUCTION, *_command(group, context, level="##")]
        blocks.append("\n".join(_contents(group, names)))
        for name in names:
            command = group.commands[name]
            assert isinstance(command, TyperCommand)
            with command.make_context(name, [], parent=context, resilient_parsing=True) as inner:
                blocks += [f"## {PROGRAM} {name}", *_command(command, inner, level="###")]
    blocks += ["## Environment", *_environment(), "## Exit codes", "\n".join(_exit_codes())]
    return "\n\n".join(blocks) + "\n"


def _contents(group: TyperGroup, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        first = (group.commands[name].help or "").partition("\n\n")[0]
        yield f"- [`{name}`](#{PROGRAM}-{name}): {_text(first)}"


def _command(command: Any, context: Any, *, level: str) -> Iterator[str]:
    for paragraph in (command.help or "").split("\n\n"):
        yield _text(paragraph)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield _code([usage])
    lines = example_lines(command.epilog)
    if lines:
        yield "Examples:"
        yield _code(lines)
    parameters = command.get_params(context)
    arguments = [parameter for parameter in parameters if isinstance(parameter, TyperArgument)]
    if arguments:
        yield f"{level} Arguments of {context.info_name}"
        yield "\n".join(f"- `{argument.metavar}`: {_text(argument.help or '')}" for argument in arguments)
    panels: dict[str, list[TyperOption]] = {}
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and not parameter.hidden:
            panels.setdefault(parameter.rich_help_panel or _OPTIONS, []).append(parameter)
    general = panels.pop(_OPTIONS, [])  # --help and its like come last
    if panels or general:
        yield f"{level} Options of {context.info_name}"
    for title, options in [*panels.items(), ("Other", general)] if panels else [("", general)]:
        if options:
            yield from [f"**{title}**"] if title else []
            yield "\n".join(_option(option, context.info_name) for option in options)


def _option(option: TyperOption, command: str) -> str:
    # The names of --help are a set in typer: of no order.
    names = ", ".join(f"`{name}`" for name in [*sorted(option.opts, key=len), *option.secondary_opts])
    value = (option.metavar or "").strip()
    path = (option.name or "").replace("__", ".")
    variable = variable_of(path)
    if variable is not None and (command not in _OF_A_RUN or path.startswith("display.")):
        after = f" Environment: `{variable}`."
    else:
        after = ""
    return f"- {names}{f' `{value}`' if value else ''}: {_text(option.help or '')}{after}"


def _environment() -> Iterator[str]:
    yield "Variables that stand for an option. An empty one counts as not set."
    yield "\n".join(f"- `{name}`: `{flag_name(path)}`" for name, path in ENVIRONMENT.items())
    yield (
        "Commands that read or go on with a run that exists (`resume`, `verify`) take only "
        "`TOKENSWIFT_PROGRESS` of these. An unknown `TOKENSWIFT_*` variable is named in a warning."
    )
    yield "Others:"
    yield "\n".join(f"- `{name}`: {meaning}" for name, meaning in MEANINGS.items())


def _exit_codes() -> Iterator[str]:
    yield "| code | means |"
    yield "|---|---|"
    for code, meaning in EXIT_CODE_MEANINGS.items():
        yield f"| {code} | {meaning} |"


def _code(lines: Sequence[str]) -> str:
    return "\n".join(("```", *lines, "```"))


def _text(text: str) -> str:
    """One paragraph on one line, with what Markdown would take for its own escaped; code stays as it is."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(piece if piece[:1] == "`" else _SPECIAL.sub(r"\\\1", piece) for piece in pieces)


if __name__ == "__main__":
    sys.stdout.buffer.write(reference().encode("utf-8"))
