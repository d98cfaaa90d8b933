"""``tokenswift verify``: auditing a text that was written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Final

from tokenswift_cli.cli.app import (
    NoProgress,
    app,
    interruptible,
    run_argument,
    switch,
    valued,
    with_flags,
)
from tokenswift_cli.cli.help_page import examples
from tokenswift_cli.flags import DISPLAY, RESUME_FLAGS, given_values

# Where the model lies and runs, and the display: nothing that decides the text can be given.
VERIFY_FLAGS: Final = tuple(
    flag
    for flag in RESUME_FLAGS
    if (flag.path.startswith("model.") and flag.path != "model.kv_dtype") or flag.path == "display.progress"
)

_checked: Final = partial(valued, panel="What is checked")

_RunDirectory = Annotated[Path, run_argument("The directory of the run; only read.")]
_Range = Annotated[
    str | None,
    _checked(
        "--range",
        metavar="A:B",
        help="Generated tokens A to B-1, counted from 0; 20k: is from there on, :500 the first 500.",
    ),
]
_Sample = Annotated[
    str | None,
    _checked(
        "--sample",
        metavar="N",
        help="N tokens drawn evenly from the text or the range, all if there are fewer.",
    ),
]
_SampleSeed = Annotated[
    str | None,
    _checked("--sample-seed", metavar="N", help="Which tokens are drawn; the same seed, the same ones."),
]
_FromJournal = Annotated[
    bool,
    switch(
        "--from-journal",
        panel="What is checked",
        help="Take the cache before the checked tokens from the run's key-value journal: seconds instead of "
        "a reading of the text, and what it holds is trusted.",
    ),
]
_JsonResult = Annotated[
    bool,
    switch(
        "--json",
        panel=DISPLAY,
        help="Progress as JSON, and the report as one JSON object on standard output.",
    ),
]


@app.command(
    help="Check that a text is what its model chooses, token by token.\n\n"
    "Reads the text with the model of the run and makes every choice again, from what stands before it and "
    "the seed. Also checks the files of the run against its checkpoint. Changes nothing, and works while the "
    "run is being written. Exit code 0: all match. 1: a token or file does not. 3: not the model of the run.",
    epilog=examples(
        "tokenswift verify runs/novel",
        "tokenswift verify runs/novel --range 20k:30k",
        "tokenswift verify runs/novel --sample 500 --sample-seed 7 --from-journal",
        "tokenswift verify runs/novel -m ./my-model --json",
    ),
)
@with_flags(VERIFY_FLAGS)
def verify(
    *,
    run_dir: _RunDirectory,
    range: _Range = None,
    sample: _Sample = None,
    sample_seed: _SampleSeed = None,
    from_journal: _FromJournal = False,
    json: _JsonResult = False,
    quiet: NoProgress = False,
    **parameters: object,
) -> int:
    """``tokenswift verify``."""
    with interruptible():
        from tokenswift_cli.commands.verify import VerifyOptions, run_verify

        options = VerifyOptions(
            span=range,
            sample=sample,
            sample_seed=sample_seed,
            from_journal=from_journal,
            json=json,
            quiet=quiet,
        )
        return run_verify(given_values(parameters), run_dir, options)
