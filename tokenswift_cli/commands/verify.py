"""``tokenswift verify``: a run directory in, whether its text is what the model chooses out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenswift_cli.audit.positions import read_selection, selected_positions
from tokenswift_cli.commands.session import with_display_switches
from tokenswift_cli.display.base import LineWriter
from tokenswift_cli.display.choose import dashboard_obstacle
from tokenswift_cli.events import Notice
from tokenswift_cli.options import resolve_resume
from tokenswift_cli.run_layout import RUN_YAML
from tokenswift_cli.run_snapshot import read_snapshot
from tokenswift_cli.yaml_config import load_run_yaml


@dataclass(frozen=True)
class VerifyOptions:
    """What the command line gives beside configuration keys, as text.

    Attributes:
        span: value of ``--range``.
        sample: value of ``--sample``.
        sample_seed: value of ``--sample-seed``.
        from_journal: trust the rows of the run's journal before the audited tokens.
        json: one JSON object on standard output instead of the report.
        quiet: no progress.
    """

    span: str | None = None
    sample: str | None = None
    sample_seed: str | None = None
    from_journal: bool = False
    json: bool = False
    quiet: bool = False


def run_verify(cli_values: Mapping[str, object], run_dir: Path, options: VerifyOptions) -> int:
    """Audit the run in ``run_dir``, and show the report on standard output.

    Args:
        cli_values: the flags given, by configuration key: model, device and display.
        run_dir: the directory that ``tokenswift generate`` made; only read.
        options: the others.

    Returns:
        The exit code: 0 if all is as it should be, 1 after a mismatch or damage, 130 after Ctrl-C.

    Raises:
        UsageError: flags are wrong, or ``run_dir`` is no run directory.
        TokenSwiftError: what is refused or failed, each with its exit code.
    """
    selection = read_selection(options.span, options.sample, options.sample_seed)
    values = with_display_switches(
        cli_values, verbosity=-1 if options.quiet else 0, json_summary=options.json
    )
    snapshot = read_snapshot(run_dir)
    stored = load_run_yaml(snapshot.contents.run_yaml, str(run_dir / RUN_YAML))
    resolved = resolve_resume(values, stored)
    selected_positions(selection, snapshot.manifest.token_count)

    # All that can be checked is checked first: importing torch takes seconds.
    from tokenswift_cli.audit.audit import audit_run
    from tokenswift_cli.commands.verify_display import open_verify_display

    with open_verify_display(resolved.config.display.progress) as display:
        for notice in resolved.notices:
            display.handle(Notice(notice, "warning"))
        report = audit_run(
            snapshot, resolved.config, selection, display.handle, from_journal=options.from_journal
        )
    if options.json:
        print(json.dumps(report.to_json(), allow_nan=False), flush=True)
    else:
        from rich.console import Console

        from tokenswift_cli.commands.verify_text import report_text

        text = report_text(report)
        if dashboard_obstacle(sys.stdout, os.environ, text_to_terminal=False) is None:
            Console(file=sys.stdout, highlight=False).print(text)
        else:
            LineWriter(sys.stdout).raw(f"{text.plain}\n")
    return report.exit_code
