"""The Typer application, and what all commands share: flags from the table, switches, interrupts.

Only typer is imported here. Commands, and with them everything heavy, are imported inside the functions, so
that ``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from tokenswift_cli import __version__
from tokenswift_cli.cli.completion import Completion, configurations, one_of, run_directories
from tokenswift_cli.cli.help_page import NO_VALUE, Application, Group, examples
from tokenswift_cli.flags import DISPLAY, RUN, Flag

PROGRAM: Final = "tokenswift"


class Interrupted(Exception):
    """Ctrl-C where no run catches it: while reading the prompt or loading libraries."""

    exit_code = 130


_Command = TypeVar("_Command", bound=Callable[..., int])

_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

app = Application(
    name=PROGRAM,
    cls=Group,
    help="Very long text from your own language model: fast, exact, and never lost.",
    epilog=examples(
        "tokenswift generate -c demo",
        "tokenswift generate --prompt opening.txt --max-tokens 100k -o runs/novel",
        "tokenswift resume runs/novel",
        "tokenswift generate --help",
    ),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


def with_flags(flags: Sequence[Flag], *, defaults: object = None) -> Callable[[_Command], _Command]:
    """Give a command the flags of the table in the place of its ``**parameters``.

    Args:
        flags: in the order of the help.
        defaults: the configuration whose values the help shows; None shows none.
    """

    def decorate(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        # Arguments first, then the table, then the command's own switches: the order of the help.
        first = [parameter for parameter in arguments if parameter.default is parameter.empty]
        last = [parameter for parameter in arguments if parameter.default is not parameter.empty]
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*first, *(_parameter(flag, defaults) for flag in flags), *last]
        )
        return command

    return decorate


def _parameter(flag: Flag, defaults: object) -> inspect.Parameter:
    # Values stay text: options.py reads them, so that all errors are shown together.
    kind: Any = list[str] | None if flag.repeatable else str | None
    names = flag.names
    if not flag.metavar:
        kind = bool | None
        names = (f"{flag.name}/--no-{flag.name.removeprefix('--')}",)
    option = typer.Option(
        *names,
        help=flag.help if defaults is None else flag.help_with_default(defaults),
        rich_help_panel=flag.panel,
        metavar=flag.metavar or NO_VALUE,
        autocompletion=one_of(flag.values) if flag.values else None,
        show_default=False,
    )
    return inspect.Parameter(
        flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def switch(*names: str, panel: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(*names, rich_help_panel=panel, metavar=NO_VALUE, show_default=False, help=help)


def valued(
    *names: str, panel: str, help: str, metavar: str = "DIR", completion: Completion | None = None
) -> Any:
    """An option with a value; without ``completion`` the shell offers file names."""
    return typer.Option(
        *names,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
        help=help,
        autocompletion=completion,
    )


def run_argument(help: str, **settings: Any) -> Any:
    """The argument RUN_DIR."""
    return typer.Argument(
        metavar="RUN_DIR", show_default=False, help=help, autocompletion=run_directories, **settings
    )


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C inside is an :class:`Interrupted`: typer would turn it into a silent exit."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


ConfigFile = Annotated[
    Path | None,
    valued(
        "-c",
        "--config",
        metavar="YAML",
        panel=RUN,
        completion=configurations,
        help="Configuration file, or the name of a shipped one; flags and environment are stronger.",
    ),
]
NoProgress = Annotated[bool, switch("-q", "--quiet", panel=DISPLAY, help="No progress.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit(0)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
