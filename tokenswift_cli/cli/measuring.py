"""``tokenswift bench`` and ``tokenswift doctor``: what this machine does, and what it has."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Final

from tokenswift_cli.bench.settings import DEFAULTS as BENCH
from tokenswift_cli.bench.settings import PEERS
from tokenswift_cli.cli.app import ConfigFile, NoProgress, app, interruptible, switch, valued, with_flags
from tokenswift_cli.cli.completion import run_directories, several_of
from tokenswift_cli.cli.help_page import examples
from tokenswift_cli.config import Config
from tokenswift_cli.engine.settings import METHODS
from tokenswift_cli.flags import BENCH_FLAGS, DISPLAY, DOCTOR_FLAGS, RUN, given_values

_measured: Final = partial(valued, panel="What is measured")

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
    _measured(
        "--methods",
        metavar="LIST",
        completion=several_of(METHODS),
        help=f"Of {', '.join(METHODS)} (default all that can run).",
    ),
]
_Peers = Annotated[
    str | None,
    _measured(
        "--peers",
        metavar="LIST|all|none",
        completion=several_of((*PEERS, "all", "none")),
        help=f"Of {', '.join(PEERS)} (default all).",
    ),
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
_FromRun = Annotated[
    Path | None,
    _measured(
        "--from-run",
        metavar="RUN_DIR",
        completion=run_directories,
        help="Continue this run's text with its settings, from the rows of its key-value journal.",
    ),
]
_TableFile = Annotated[
    Path | None,
    valued("-o", "--output", metavar="FILE", panel=RUN, help="Also write the table as Markdown."),
]
_JsonResult = Annotated[
    bool, switch("--json", panel=DISPLAY, help="One JSON object on standard output instead of the table.")
]


@app.command(
    help="Measure how fast each method continues a text on this machine, and what else would do it.\n\n"
    "All methods and peers continue the same text with the same settings and take turns; decoding only. "
    "Our methods must write the same text, or the exit code is 1. Without --prompt the text is Python's "
    "language reference. llama.cpp takes part where llama-cpp-python is installed, for .gguf models.",
    epilog=examples(
        "tokenswift bench",
        "tokenswift bench -p book.txt --prefix-tokens 2k,8k,32k -n 128 -o bench.md",
        "tokenswift bench -m ./my-model --heads heads/my-model --peers none --json",
        "tokenswift bench --from-run runs/novel --prefix-tokens 20k,60k",
    ),
)
@with_flags(BENCH_FLAGS, defaults=Config())
def bench(
    *,
    prefix_tokens: _PrefixTokens = None,
    tokens: _Tokens = None,
    methods: _Methods = None,
    peers: _Peers = None,
    repeats: _Repeats = None,
    warm_up: _WarmUp = None,
    peer_tokens: _PeerTokens = None,
    from_run: _FromRun = None,
    config: ConfigFile = None,
    output: _TableFile = None,
    json: _JsonResult = False,
    quiet: NoProgress = False,
    **parameters: object,
) -> int:
    """``tokenswift bench``."""
    with interruptible():
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
            run=from_run,
            output=output,
            json=json,
            quiet=quiet,
        )
        return run_bench(given_values(parameters), options)


_JsonFindings = Annotated[
    bool, switch("--json", panel=DISPLAY, help="One JSON object on standard output instead of the sections.")
]


@app.command(
    help="Say what this machine has, what is active, and what a run would need.\n\n"
    "Processor, memory and disk, versions, devices, compiled kernels, caches and models; with -m also what "
    "the model takes and whether a run of --max-tokens (default 100k) fits. Nothing is downloaded. The exit "
    "code is 0 if a run could start, and 1 if something is missing, with what to do about it.",
    epilog=examples(
        "tokenswift doctor",
        "tokenswift doctor -m ./my-model --max-tokens 200k",
        "tokenswift doctor -m smollm2-135m --json",
    ),
)
@with_flags(DOCTOR_FLAGS)
def doctor(*, json: _JsonFindings = False, quiet: NoProgress = False, **parameters: object) -> int:
    """``tokenswift doctor``."""
    with interruptible():
        from tokenswift_cli.commands.doctor import run_doctor

        return run_doctor(given_values(parameters), json_result=json, quiet=quiet)
