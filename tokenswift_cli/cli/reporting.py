"""``tokenswift report``: a page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokenswift_cli.cli.app import app, interruptible, run_argument, switch, valued
from tokenswift_cli.cli.help_page import examples
from tokenswift_cli.flags import DISPLAY, RUN

_RunDirectories = Annotated[
    list[Path], run_argument("The directory of the run; several are shown side by side.")
]
_Page = Annotated[
    Path | None,
    valued(
        "-o",
        "--output",
        metavar="FILE",
        panel=RUN,
        help="Where the page goes (default: report.html in the run directory; for several runs, here).",
    ),
]
_Audits = Annotated[
    list[Path] | None,
    valued(
        "--audit",
        metavar="FILE",
        panel=RUN,
        help="What `tokenswift verify RUN_DIR --json` printed about one of the runs; repeatable.",
    ),
]
_Open = Annotated[bool, switch("--open", panel=DISPLAY, help="Show the page in the browser.")]


@app.command(
    help="Make one HTML page about a run, or about several side by side.\n\n"
    "Speed, acceptance, Distinct-n, time and memory against length, sessions, where the text repeats itself, "
    "settings and identity. The page needs no network and no script. Works while a run is being written. "
    "Prints where the page is.",
    epilog=examples(
        "tokenswift report runs/novel",
        "tokenswift report runs/a runs/b -o comparison.html",
        "tokenswift verify runs/novel --json > audit.json",
        "tokenswift report runs/novel --audit audit.json",
    ),
)
def report(
    *,
    run_dirs: _RunDirectories,
    output: _Page = None,
    audit: _Audits = None,
    open_page: _Open = False,
) -> int:
    """``tokenswift report``."""
    with interruptible():
        from tokenswift_cli.commands.report import run_report

        return run_report(run_dirs, output=output, audits=audit or (), open_page=open_page)
