"""How commands look on their help pages, beyond what typer does."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

NO_VALUE: Final = " "
"""Metavar of a switch: typer would show <bool> beside it."""

EXAMPLE_COLUMNS: Final = 78
"""What a terminal of 80 columns shows of a line between the margins of the page."""

_HEADING: Final = "Examples:"


def examples(*lines: str) -> str:
    """The end of a help page: command lines, each of at most EXAMPLE_COLUMNS characters."""
    return "\n  ".join((_HEADING, *lines))


def example_lines(epilog: str | None) -> tuple[str, ...]:
    """The command lines of what :func:`examples` made; none of anything else."""
    lines = [line.strip() for line in (epilog or "").splitlines() if line.strip()]
    return tuple(lines[1:]) if lines[:1] == [_HEADING] else ()


class Command(TyperCommand):
    """A command whose switches have no value on the help page, and whose arguments no braces and no type."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        parameters = _without_values(super().get_params(ctx))
        for parameter in parameters:
            if isinstance(parameter, TyperArgument):
                # Its name says what it is; typer would show the Python type beside it.
                parameter.display_type_rich = _no_type  # type: ignore[assignment]
        return parameters

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """The same for the program itself."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return _without_values(super().get_params(ctx))


def _without_values(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
            parameter.metavar = NO_VALUE
    return parameters


def _no_type(ctx: typer.Context) -> None:
    return None


class Application(typer.Typer):
    """A typer application whose commands are of :class:`Command`."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, **{"cls": Command, **settings})
