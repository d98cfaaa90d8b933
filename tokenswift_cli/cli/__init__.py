"""The command line: parses, says errors in one sentence, sets the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO

import typer

# Each module brings its commands into the application, in the order of the help.
from tokenswift_cli.cli import texts as texts  # isort: skip
from tokenswift_cli.cli import auditing as auditing  # isort: skip
from tokenswift_cli.cli import reporting as reporting  # isort: skip
from tokenswift_cli.cli import training as training  # isort: skip
from tokenswift_cli.cli import measuring as measuring  # isort: skip
from tokenswift_cli.cli.app import PROGRAM, Interrupted, app
from tokenswift_cli.display.wording import visible
from tokenswift_cli.errors import TokenSwiftError
from tokenswift_cli.openmp import share_cores


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code.

    All that a user is told about an error goes to standard error; a traceback only with
    ``TOKENSWIFT_DEBUG=1``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(args=words or ["--help"], prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except Interrupted as error:
        _say("Interrupted.")
        return error.exit_code
    except TokenSwiftError as error:
        _say(f"Error: {error}")
        return error.exit_code
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else PROGRAM
        _say(f"Error: {error.format_message()}\nTry '{command} --help'.")
        return error.exit_code
    except BrokenPipeError:
        _detach_stdout()
        return 1
    except Exception as error:
        _say(f"Error: {_unexpected(error)}")
        return 1


def _say(message: str) -> None:
    if _debugging():
        traceback.print_exc()
    # Standard error may be gone (closed terminal, full disk); the exit code still tells.
    with contextlib.suppress(OSError, ValueError):
        # Names in it may come from files of anybody, and must not reach the terminal as escape sequences.
        print(visible(message, line_end="\n"), file=sys.stderr, flush=True)


def _debugging() -> bool:
    return os.environ.get("TOKENSWIFT_DEBUG", "").strip().lower() in {"1", "true", "yes", "on"}


def _unexpected(error: Exception) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if _debugging():
        return f"unexpected error, {what}"
    return f"unexpected error, {what}. Set TOKENSWIFT_DEBUG=1 for the traceback."


def _detach_stdout() -> None:
    # The reader is gone; the interpreter's own flush at exit must not complain about it again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_closed_streams() -> None:
    """Let streams that the caller closed (``>&-``) lead nowhere.

    Otherwise an error would be printed to the other stream, and the next file opened would get the
    free descriptor, so that a library's message could end up in it.
    """
    # The lowest free descriptor comes first, so each file takes the place of its stream.
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)  # stays None: a prompt cannot be read from it
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def main() -> None:
    """Run the process's own command line and exit; ``__main__`` is the console script."""
    _fill_closed_streams()
    share_cores()
    sys.exit(run())
