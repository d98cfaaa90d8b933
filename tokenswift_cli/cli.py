"""The command line: parses, says errors in one sentence, sets the exit code.

Only typer is imported here. Commands, and with them everything heavy, are imported inside the
functions, so that ``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TextIO, TypeVar

import typer

from tokenswift_cli import __version__
from tokenswift_cli.bench.settings import DEFAULTS as BENCH
from tokenswift_cli.bench.settings import PEERS
from tokenswift_cli.engine.settings import METHODS
from tokenswift_cli.errors import TokenSwiftError, UsageError
from tokenswift_cli.flags import (
    BENCH_FLAGS,
    DISPLAY,
    DOCTOR_FLAGS,
    FLAGS,
    RESUME_FLAGS,
    RUN,
    Flag,
    given_values,
)
from tokenswift_cli.openmp import share_cores
from tokenswift_cli.training.flags import DATA, TRAINING_FLAGS, given_training_values

PROGRAM: Final = "tokenswift"


class _Interrupted(Exception):
    """Ctrl-C where no run catches it: while reading the prompt or loading libraries."""

    exit_code = 130


_Command = TypeVar("_Command", bound=Callable[..., int])

_NO_VALUE: Final = " "  # typer would show <bool> beside every switch
_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name=PROGRAM,
    help="Very long text from your own language model: fast, exact, and never lost.",
    epilog="Start with: tokenswift generate --prompt FILE --max-tokens 100k",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


def _with_flags(flags: Sequence[Flag], *, show_defaults: bool) -> Callable[[_Command], _Command]:
    """Give a command the flags of the table in the place of its ``**parameters``."""

    def decorate(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        # Arguments first, then the table, then the command's own switches: the order of the help.
        first = [parameter for parameter in arguments if parameter.default is parameter.empty]
        last = [parameter for parameter in arguments if parameter.default is not parameter.empty]
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*first, *(_parameter(flag, show_defaults) for flag in flags), *last]
        )
        return command

    return decorate


def _parameter(flag: Flag, show_default: bool) -> inspect.Parameter:
    # Values stay text: options.py reads them, so that all errors are shown together.
    kind: Any = list[str] | None if flag.repeatable else str | None
    names = flag.names
    if not flag.metavar:
        kind = bool | None
        names = (f"{flag.name}/--no-{flag.name.removeprefix('--')}",)
    option = typer.Option(
        *names,
        help=flag.help_with_default if show_default else flag.help,
        rich_help_panel=flag.panel,
        metavar=flag.metavar or _NO_VALUE,
        show_default=False,
    )
    return inspect.Parameter(
        flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _switch(*names: str, panel: str, help: str) -> Any:
    return typer.Option(*names, rich_help_panel=panel, metavar=_NO_VALUE, show_default=False, help=help)


_Config = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="YAML",
        rich_help_panel=RUN,
        show_default=False,
        help="Configuration file; flags and environment are stronger.",
    ),
]
_DryRun = Annotated[
    bool,
    _switch("--dry-run", panel=RUN, help="Check everything, say what the run would need, write nothing."),
]
_Json = Annotated[
    bool,
    _switch(
        "--json",
        panel=DISPLAY,
        help="Progress as JSON, and the result as one JSON object on standard output instead of the text.",
    ),
]
_Quiet = Annotated[
    bool, _switch("-q", "--quiet", panel=DISPLAY, help="No progress; the same as --progress none.")
]
_Verbose = Annotated[bool, _switch("-v", "--verbose", panel=DISPLAY, help="Say more.")]
_RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", show_default=False, help="The directory of the run.")
]


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


@app.command(
    help="Write a very long text from a prompt.\n\n"
    "The run is kept in a directory as it grows: Ctrl-C, a crash or a power cut loses at most the "
    "current chunk, and `tokenswift resume` goes on from there with the same text.",
    epilog="""Examples:

  tokenswift generate -p prompts/novel-opening.txt -n 100k -o runs/novel

  tokenswift generate -c configs/demo.yaml --seed 7

  tokenswift generate -m ./my-model -p prompt.txt -n 20k --temp 0.8 > text.txt

  cat notes.txt | tokenswift generate -p - -n 4096 --stop "THE END"
""",
)
@_with_flags(FLAGS, show_defaults=True)
def generate(
    *,
    config: _Config = None,
    dry_run: _DryRun = False,
    json: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
    **parameters: object,
) -> int:
    """``tokenswift generate``."""
    verbosity = _verbosity(quiet, verbose)
    with _interruptible():
        from tokenswift_cli.commands.generate import run_generate

        return run_generate(
            given_values(parameters), config, dry_run=dry_run, verbosity=verbosity, json_summary=json
        )


@app.command(
    help="Go on with a run after Ctrl-C, a crash or a power cut.\n\n"
    "A larger --max-tokens extends a finished run. Flags that are not given stay as the run has them. "
    "What decides the text (model, prompt, sampling) must be as it was, or the resume is refused with "
    "exit code 3; speed and display settings may change.",
    epilog="""Examples:

  tokenswift resume runs/novel

  tokenswift resume runs/novel --max-tokens 200k

  tokenswift resume runs/novel --method autoregressive --threads 8
""",
)
@_with_flags(RESUME_FLAGS, show_defaults=False)
def resume(
    *,
    run_dir: _RunDirectory,
    json: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
    **parameters: object,
) -> int:
    """``tokenswift resume``."""
    verbosity = _verbosity(quiet, verbose)
    with _interruptible():
        from tokenswift_cli.commands.resume import run_resume

        return run_resume(given_values(parameters), run_dir, verbosity=verbosity, json_summary=json)


def _directory(*names: str, panel: str, help: str, metavar: str = "DIR") -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, show_default=False, help=help)


_Silent = Annotated[bool, _switch("-q", "--quiet", panel=DISPLAY, help="No progress, messages and table.")]
_HeadsOutput = Annotated[
    Path | None, _directory("-o", "--output", panel=RUN, help="The heads directory to write.")
]
_WorkDirectory = Annotated[
    Path | None,
    _directory(
        "--work-dir", panel=RUN, help="Where text, checkpoints and log are kept (default OUTPUT.training)."
    ),
]
_Published = Annotated[
    Path | None,
    _directory(
        "--convert",
        metavar="CHECKPOINT_DIR",
        panel=RUN,
        help="Take the heads out of a published TokenSwift checkpoint instead of training.",
    ),
]
_SelfDistill = Annotated[
    bool, _switch("--self-distill", panel=DATA, help="Let the model write training text from prompts.")
]
_SelfDistillOnly = Annotated[
    bool, _switch("--self-distill-only", panel=DATA, help="Write that text, and train nothing.")
]
_Resume = Annotated[
    bool, _switch("--resume", panel=RUN, help="Only go on: refuse where there is no checkpoint.")
]
_Restart = Annotated[
    bool, _switch("--restart", panel=RUN, help="Forget the checkpoints and train anew; text is kept.")
]
_Replace = Annotated[
    bool, _switch("--replace", panel=RUN, help="Put the new heads in the place of older ones.")
]


@app.command(
    name="train-heads",
    help="Train drafting heads for a model: small layers that guess its next tokens, to write faster.\n\n"
    "The model itself stays as it is. It can write its own training text (--self-distill). Text, checkpoints "
    "and log are kept in OUTPUT.training, and the same command again goes on where it stopped.",
    epilog="""Examples:

  tokenswift train-heads -m ./my-model --data book.txt -o heads/my-model

  tokenswift train-heads -c configs/train-heads-demo.yaml --self-distill -o heads/demo

  tokenswift train-heads --self-distill-only --prompts prompts.txt --work-dir text

  tokenswift train-heads --data text/self-distill --variant linear -o heads/linear

  tokenswift train-heads --convert ./published-checkpoint -o heads/published
""",
)
@_with_flags(TRAINING_FLAGS, show_defaults=False)
def train_heads(
    *,
    self_distill: _SelfDistill = False,
    self_distill_only: _SelfDistillOnly = False,
    output: _HeadsOutput = None,
    work_dir: _WorkDirectory = None,
    config: _Config = None,
    resume: _Resume = False,
    restart: _Restart = False,
    replace: _Replace = False,
    convert: _Published = None,
    quiet: _Silent = False,
    **parameters: object,
) -> int:
    """``tokenswift train-heads``."""
    with _interruptible():
        from tokenswift_cli.commands.train_heads import TrainHeadsOptions, run_train_heads

        options = TrainHeadsOptions(
            config=config,
            output=output,
            work_dir=work_dir,
            convert=convert,
            self_distill=self_distill,
            self_distill_only=self_distill_only,
            resume=resume,
            restart=restart,
            replace=replace,
            quiet=quiet,
        )
        return run_train_heads(given_training_values(parameters), options)


_MEASURED: Final = "What is measured"


def _measured(*names: str, help: str, metavar: str) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=_MEASURED, show_default=False, help=help)


_PrefixTokens = Annotated[
    str | None,
    _measured(
        "--prefix-tokens",
        metavar="LIST",
        help=f"Contexts: 2k,8k,32768 (default {','.join(map(str, BENCH.prefix_tokens))}).",
    ),
]
_Tokens = Annotated[
    str | None,
    _measured("-n", "--tokens", metavar="N", help=f"Tokens timed per turn (default {BENCH.tokens})."),
]
_Methods = Annotated[
    str | None,
    _measured("--methods", metavar="LIST", help=f"Of {','.join(METHODS)} (default: all that can run)."),
]
_Peers = Annotated[
    str | None, _measured("--peers", metavar="LIST|all|none", help=f"Of {','.join(PEERS)} (default all).")
]
_Repeats = Annotated[
    str | None,
    _measured(
        "--repeats", metavar="N", help=f"Turns of each method; medians are shown (default {BENCH.repeats})."
    ),
]
_WarmUp = Annotated[
    str | None,
    _measured("--warm-up", metavar="N", help=f"Tokens before the timed ones (default {BENCH.warm_up})."),
]
_PeerTokens = Annotated[
    str | None,
    _measured(
        "--peer-tokens",
        metavar="N",
        help=f"Most tokens timed per turn of a peer (default {BENCH.peer_tokens}).",
    ),
]
_TableFile = Annotated[
    Path | None,
    _directory("-o", "--output", metavar="FILE", panel=RUN, help="Also write the table as Markdown."),
]
_JsonResult = Annotated[
    bool, _switch("--json", panel=DISPLAY, help="One JSON object on standard output instead of the table.")
]
_NoProgress = Annotated[bool, _switch("-q", "--quiet", panel=DISPLAY, help="No progress.")]


@app.command(
    help="Measure how fast each method continues a text on this machine, and what else would do it.\n\n"
    "All methods and peers continue the same text with the same settings and take turns; decoding only. "
    "Our methods must write the same text, or the exit code is 1. Without --prompt the text is Python's "
    "language reference. llama.cpp takes part where llama-cpp-python is installed, for .gguf models.",
    epilog="""Examples:

  tokenswift bench

  tokenswift bench -p book.txt --prefix-tokens 2k,8k,32k --tokens 128 -o bench.md

  tokenswift bench -m ./my-model --heads heads/my-model --peers none --json
""",
)
@_with_flags(BENCH_FLAGS, show_defaults=True)
def bench(
    *,
    prefix_tokens: _PrefixTokens = None,
    tokens: _Tokens = None,
    methods: _Methods = None,
    peers: _Peers = None,
    repeats: _Repeats = None,
    warm_up: _WarmUp = None,
    peer_tokens: _PeerTokens = None,
    config: _Config = None,
    output: _TableFile = None,
    json: _JsonResult = False,
    quiet: _NoProgress = False,
    **parameters: object,
) -> int:
    """``tokenswift bench``."""
    with _interruptible():
        from tokenswift_cli.commands.bench import BenchOptions, run_bench

        options = BenchOptions(
            measured={
                "prefix_tokens": prefix_tokens,
                "tokens": tokens,
                "methods": methods,
                "peers": peers,
                "repeats": repeats,
                "warm_up": warm_up,
                "peer_tokens": peer_tokens,
            },
            config=config,
            output=output,
            json=json,
            quiet=quiet,
        )
        return run_bench(given_values(parameters), options)


_JsonFindings = Annotated[
    bool, _switch("--json", panel=DISPLAY, help="One JSON object on standard output instead of the sections.")
]


@app.command(
    help="Say what this machine has, what is active, and what a run would need.\n\n"
    "Processor, memory and disk, versions, devices, compiled kernels, caches and models; with -m also what "
    "the model takes and whether a run of --max-tokens (default 100k) fits. Nothing is downloaded. The exit "
    "code is 0 if a run could start, and 1 if something is missing, with what to do about it.",
    epilog="""Examples:

  tokenswift doctor

  tokenswift doctor -m ./my-model --max-tokens 200k

  tokenswift doctor -m smollm2-135m --json
""",
)
@_with_flags(DOCTOR_FLAGS, show_defaults=False)
def doctor(*, json: _JsonFindings = False, quiet: _NoProgress = False, **parameters: object) -> int:
    """``tokenswift doctor``."""
    with _interruptible():
        from tokenswift_cli.commands.doctor import run_doctor

        return run_doctor(given_values(parameters), json_result=json, quiet=quiet)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    # Typer would turn the interrupt into a silent exit.
    try:
        yield
    except KeyboardInterrupt:
        raise _Interrupted from None


def _verbosity(quiet: bool, verbose: bool) -> int:
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other; give one of them.")
    return -1 if quiet else int(verbose)


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
    except _Interrupted as error:
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
        print(message, file=sys.stderr, flush=True)


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
