"""``tokenswift generate`` and ``tokenswift resume``: writing a text, and going on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokenswift_cli.cli.app import ConfigFile, app, interruptible, run_argument, switch, with_flags
from tokenswift_cli.cli.help_page import examples
from tokenswift_cli.config import Config
from tokenswift_cli.errors import UsageError
from tokenswift_cli.flags import DISPLAY, FLAGS, RESUME_FLAGS, RUN, given_values

_DryRun = Annotated[
    bool,
    switch("--dry-run", panel=RUN, help="Check everything, say what the run would need, write nothing."),
]
_Json = Annotated[
    bool,
    switch(
        "--json",
        panel=DISPLAY,
        help="Progress as JSON, and the result as one JSON object on standard output instead of the text.",
    ),
]
_Quiet = Annotated[
    bool, switch("-q", "--quiet", panel=DISPLAY, help="No progress; the same as --progress none.")
]
_Verbose = Annotated[bool, switch("-v", "--verbose", panel=DISPLAY, help="Say more.")]
_RunDirectory = Annotated[Path, run_argument("The directory of the run.")]


@app.command(
    help="Write a very long text from a prompt.\n\n"
    "The run is kept in a directory as it grows: Ctrl-C, a crash or a power cut loses at most the "
    "current chunk, and `tokenswift resume` goes on from there with the same text.",
    epilog=examples(
        "tokenswift generate -c demo --seed 7",
        "tokenswift generate -p opening.txt -n 100k -o runs/novel",
        "tokenswift generate -m ./my-model -p opening.txt -n 20k --temp 0.8 > text.txt",
        'cat notes.txt | tokenswift generate -p - -n 4096 --stop "THE END"',
    ),
)
@with_flags(FLAGS, defaults=Config())
def generate(
    *,
    config: ConfigFile = None,
    dry_run: _DryRun = False,
    json: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
    **parameters: object,
) -> int:
    """``tokenswift generate``."""
    verbosity = _verbosity(quiet, verbose)
    with interruptible():
        from tokenswift_cli.commands.generate import run_generate

        return run_generate(
            given_values(parameters), config, dry_run=dry_run, verbosity=verbosity, json_summary=json
        )


@app.command(
    help="Go on with a run after Ctrl-C, a crash or a power cut.\n\n"
    "A larger --max-tokens extends a finished run. Flags that are not given stay as the run has them. "
    "What decides the text (model, prompt, sampling) must be as it was, or the resume is refused with "
    "exit code 3; speed and display settings may change.",
    epilog=examples(
        "tokenswift resume runs/novel",
        "tokenswift resume runs/novel --max-tokens 200k",
        "tokenswift resume runs/novel --method autoregressive --threads 8",
    ),
)
@with_flags(RESUME_FLAGS)
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
    with interruptible():
        from tokenswift_cli.commands.resume import run_resume

        return run_resume(given_values(parameters), run_dir, verbosity=verbosity, json_summary=json)


def _verbosity(quiet: bool, verbose: bool) -> int:
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other; give one of them.")
    return -1 if quiet else int(verbose)
