"""``tokenswift bench``: a model and a text in, a table of speeds out."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tokenswift_cli.bench.contexts import BenchText, bench_text, beyond_limit, contexts_of, head_of
from tokenswift_cli.bench.settings import BenchSettings, read_bench_settings
from tokenswift_cli.commands.resume import read_stored_config
from tokenswift_cli.config import Config
from tokenswift_cli.display.choose import dashboard_obstacle, is_terminal
from tokenswift_cli.engine.settings import NO_HEADS
from tokenswift_cli.errors import TokenSwiftError, UsageError
from tokenswift_cli.options import Resolved, resolve, resolve_resume
from tokenswift_cli.signals import EXIT_CODES, StopRequests

if TYPE_CHECKING:
    from tokenswift_cli.bench.line_up import Launch
    from tokenswift_cli.bench.progress import BenchProgress
    from tokenswift_cli.bench.table import Report


@dataclass(frozen=True)
class BenchOptions:
    """What the command line gives beside configuration keys.

    Attributes:
        measured: text of the bench's own flags, by field of :class:`BenchSettings`.
        config: the YAML file of ``--config``.
        run: a run directory: its text is continued, with its settings.
        output: where the table goes as Markdown, beside standard output.
        json: one JSON object on standard output instead of the table.
        quiet: no progress.
    """

    measured: Mapping[str, str | None] = field(default_factory=dict)
    config: Path | None = None
    run: Path | None = None
    output: Path | None = None
    json: bool = False
    quiet: bool = False


def run_bench(cli_values: Mapping[str, object], options: BenchOptions, launch: Launch | None = None) -> int:
    """Measure, and show the result.

    Args:
        cli_values: the flags given that set a configuration key, by key.
        options: the others.
        launch: starts the contestants; in processes of their own by default.

    Returns:
        The exit code: 1 if own methods wrote different texts or a peer failed, 130 after Ctrl-C; after
        other signals likewise 128 + number.

    Raises:
        TokenSwiftError: usage, configuration, text, model or heads, each with its exit code.
    """
    resolved = _resolved(cli_values, options)
    config = resolved.config
    with_heads = config.drafting.heads not in (None, NO_HEADS)
    settings = read_bench_settings(options.measured, with_heads=with_heads, run=options.run)
    _require_writable(options.output)
    text = bench_text(config.prompt) if options.run is None else BenchText("", f"the run in {options.run}")

    from tokenswift_cli.bench.progress import BenchProgress
    from tokenswift_cli.bench.worker import Worker

    animated = dashboard_obstacle(sys.stderr, os.environ, text_to_terminal=False) is None
    with BenchProgress(sys.stderr, animated=animated, quiet=options.quiet) as progress:
        for notice in resolved.notices:
            progress.notice(f"warning: {notice}")
        report, error = _measured(config, settings, text, launch or Worker, progress)
    if report is None:
        assert error is not None
        raise error
    _show(report, options)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_CODES[signal.SIGINT]
    if error is not None:
        raise error
    return 0 if report.exact and not any(row.failure for row in report.rows) else 1


def _resolved(cli_values: Mapping[str, object], options: BenchOptions) -> Resolved:
    if options.run is None:
        return resolve(cli_values, options.config)
    if options.config is not None or "prompt.file" in cli_values:
        raise UsageError("--from-run brings its own text and settings; leave --prompt and --config out.")
    return resolve_resume(cli_values, read_stored_config(options.run))


def _measured(
    config: Config, settings: BenchSettings, text: BenchText, launch: Launch, progress: BenchProgress
) -> tuple[Report | None, BaseException | None]:
    """What was measured until the end or until an error, and that error."""
    from tokenswift_cli.bench.line_up import line_up, start_own, usable_peers
    from tokenswift_cli.bench.rows import rows_of
    from tokenswift_cli.bench.run_source import run_ids
    from tokenswift_cli.bench.schedule import Measurements, measure, turns
    from tokenswift_cli.bench.table import Report
    from tokenswift_cli.machine import machine_facts

    results = Measurements()
    machine: dict[str, object] = {}
    error: BaseException | None = None
    peers, notices = usable_peers(config, settings)
    for notice in notices:
        progress.notice(notice)
    with StopRequests(), ExitStack() as stack:
        try:
            own = start_own(config, settings, launch, stack, progress.detail)
            limit = own.facts()["position_limit"]
            for notice in beyond_limit(settings, limit if isinstance(limit, int) else None):
                notices.append(notice)
                progress.notice(notice)
            if settings.run is None:
                ids = own.call("encode", head_of(text.text, max(settings.prefix_tokens)))
            else:
                ids = run_ids(settings.run)
            contexts = contexts_of(ids, settings, text.source)
            lined_up = line_up(own, peers, config, settings, launch, stack, progress.detail)
            machine = machine_facts() | lined_up.facts
            results.failures.update(
                {(context, name): why for context in contexts for name, why in lined_up.failed.items()}
            )
            progress.expect(turns(lined_up.entries, len(contexts), settings.repeats))
            measure(lined_up.entries, contexts, settings.repeats, results, progress)
        except (KeyboardInterrupt, SystemExit, TokenSwiftError) as stopped:
            error = stopped
    if not results.trials:
        return None, error
    report = Report(
        rows=rows_of(results),
        machine=machine,
        settings=settings,
        config=config,
        source=text.source,
        notices=tuple(notices),
        interrupted=error is not None,
    )
    return report, error


def _show(report: Report, options: BenchOptions) -> None:
    from tokenswift_cli.bench.table import markdown, notes, rich_table

    if options.json:
        print(json.dumps(report.to_json(), ensure_ascii=False), flush=True)
    elif is_terminal(sys.stdout):
        from rich.console import Console

        console = Console(file=sys.stdout)
        table, left_out = rich_table(report, console.width)
        console.print(table)
        narrow = [f"Not shown, as the terminal is narrow: {', '.join(left_out)}."] if left_out else []
        for note in (*notes(report), *narrow):
            console.print(note, markup=False, highlight=False)
    else:
        print(markdown(report), end="", flush=True)
    if options.output is not None:
        try:
            options.output.write_text(markdown(report), encoding="utf-8")
        except OSError as error:
            raise TokenSwiftError(
                f"The table cannot be written to {options.output}: {error.strerror or error}. "
                "It is on standard output."
            ) from error


def _require_writable(output: Path | None) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if output is None:
        return
    if output.is_dir():
        raise UsageError(f"--output {output} is a directory; give the name of a file.")
    if not output.absolute().parent.is_dir():
        raise UsageError(
            f"--output {output}: there is no directory {output.absolute().parent}; make it first."
        )
