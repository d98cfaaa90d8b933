"""``tokenswift report``: run directories in, one page about them out."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenswift_cli.audit.report import AuditReport
from tokenswift_cli.commands.verify_text import report_text
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.durable import atomic_write
from tokenswift_cli.errors import UsageError
from tokenswift_cli.report.audit_file import audits_by_run, read_audit
from tokenswift_cli.report.plot import SERIES
from tokenswift_cli.report.run_data import AuditFinding, RunData, collect, names_of
from tokenswift_cli.run_snapshot import RunSnapshot, read_snapshot

PAGE: Final = "report.html"


def run_report(
    run_dirs: Sequence[Path], *, output: Path | None, audits: Sequence[Path], open_page: bool = False
) -> int:
    """Write the page and print where it is.

    Args:
        run_dirs: directories that ``tokenswift generate`` made; read, and not locked.
        output: the file; by default ``report.html`` in the only run's directory, else in the current one.
        audits: files with what ``tokenswift verify --json`` printed.
        open_page: show it in the browser.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: a directory is no run, an audit belongs to none, or the file cannot be written.
        TokenSwiftError: a run is damaged or cannot be read, each with its exit code.
    """
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise UsageError("The same run directory is given twice; give each once.")
    if len(run_dirs) > SERIES:
        raise UsageError(f"{len(run_dirs)} runs cannot be told apart in one figure; give at most {SERIES}.")
    given = [read_audit(path) for path in audits]
    snapshots = [read_snapshot(path) for path in run_dirs]
    lengths = [(one.prompt_tokens, one.manifest.token_count) for one in snapshots]
    found = audits_by_run(given, run_dirs, lengths)

    # All that can be refused is refused first: numpy and matplotlib take a second.
    from tokenswift_cli.report.page import report_page

    page = report_page(_collected(snapshots, names_of(run_dirs), found))
    path = output or (run_dirs[0] / PAGE if len(run_dirs) == 1 else Path(PAGE))
    _write(path, page)
    print(path, flush=True)
    if open_page:
        webbrowser.open(path.absolute().as_uri())
    return 0


def _collected(
    snapshots: Sequence[RunSnapshot], names: Sequence[str], audits: Sequence[AuditReport | None]
) -> list[RunData]:
    return [
        collect(snapshot, name, None if audit is None else _finding(audit))
        for snapshot, name, audit in zip(snapshots, names, audits, strict=True)
    ]


def _finding(audit: AuditReport) -> AuditFinding:
    return AuditFinding(audit.exit_code == 0, tuple(report_text(audit).plain.split("\n")))


def _write(path: Path, page: str) -> None:
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no directory {path.absolute().parent}.")
    try:
        atomic_write(path, page.encode("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {os_error_text(error)}. Name another file with --output."
        ) from error
