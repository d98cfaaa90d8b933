"""The page: one HTML document that needs nothing else, no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from tokenswift_cli import __version__
from tokenswift_cli.disk_errors import resume_command
from tokenswift_cli.report import comparing_plots as comparing
from tokenswift_cli.report import run_plots as alone
from tokenswift_cli.report.identity import differing_settings, identity_rows, settings_rows
from tokenswift_cli.report.markup import bullets, escape, facts, paragraph, shortened, table
from tokenswift_cli.report.measures import Measure, measures, session_rows
from tokenswift_cli.report.page_figures import figures
from tokenswift_cli.report.plot import Absent, Plot
from tokenswift_cli.report.run_data import RunData

_STYLE_SHEET: Final = "page.css"
_MOST_SESSIONS = 50
_MOST_LOOPS = 20
_MOST_YAML = 20_000
# Whatever got past escaping could neither run nor load anything.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def report_page(runs: Sequence[RunData]) -> str:
    """The document about one run, or about several side by side (as many as there are colours)."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    style = files("tokenswift_cli.report").joinpath(_STYLE_SHEET).read_text(encoding="utf-8")
    body = _one(runs[0]) if len(runs) == 1 else _several(runs)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} · tokenswift report</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>\n{_subtitle(runs)}</header>\n<main>\n{body}</main>\n"
        f"<footer><p>tokenswift {escape(__version__)}, <code>tokenswift report</code></p></footer>\n"
        "</body>\n</html>\n"
    )


def _subtitle(runs: Sequence[RunData]) -> str:
    models = [run.config.model.name if run.config else "unknown model" for run in runs]
    methods = [run.config.drafting.method if run.config else "unknown" for run in runs]
    words = [" / ".join(dict.fromkeys(shortened(model, 80) for model in models))]
    words.append("method " + " / ".join(dict.fromkeys(methods)))
    if len(runs) == 1 and runs[0].config:
        words.append(f"seed {runs[0].config.sampling.seed}")
    return paragraph(" · ".join(words), "subtitle")


def _one(run: RunData) -> str:
    plots = [
        comparing.speed([run]),
        comparing.time_line([run]),
        comparing.accepted_length([run]),
        alone.time_split(run),
        alone.drafters(run),
        alone.depths(run),
        alone.repetitiveness(run),
        comparing.memory([run]),
        *(alone.repetition(run, found) for found in run.maps),
    ]
    return f'<section id="run-0">\n{_headline(run)}{_details(run, plots, "run-0")}</section>\n'


def _several(runs: Sequence[RunData]) -> str:
    plots = [
        comparing.speed(runs),
        comparing.time_line(runs),
        comparing.accepted_length(runs),
        comparing.acceptance(runs),
        comparing.distinct(runs, 2),
        comparing.distinct(runs, 4),
        comparing.novelty(runs),
        comparing.memory(runs),
    ]
    parts = [f'<section id="all">\n<h2>Side by side</h2>\n{_comparison(runs)}']
    parts.append(f"{figures(plots, 'all')}</section>\n")
    for index, run in enumerate(runs):
        own = [
            alone.drafters(run),
            alone.depths(run),
            alone.repetitiveness(run),
            alone.time_split(run),
            *(alone.repetition(run, found) for found in run.maps),
        ]
        name = f"run-{index}"
        parts.append(
            f'<section id="{name}">\n<h2>{escape(run.name)}</h2>\n{_headline(run)}'
            f"{_details(run, own, name)}</section>\n"
        )
    return "".join(parts)


def _comparison(runs: Sequence[RunData]) -> str:
    columns = [measures(run) for run in runs]
    rows = [[row[0].name, *(measure.value for measure in row)] for row in zip(*columns, strict=True)]
    head = ["", *(shortened(run.name, 80) for run in runs)]
    settings = differing_settings(runs)
    differing = f"<h3>Settings that differ</h3>\n{table(head, settings)}" if settings else ""
    return table(head, rows) + differing


def _headline(run: RunData) -> str:
    def item(measure: Measure) -> tuple[str, str, str]:
        return measure.name, measure.value, measure.remark

    return _state(run) + facts(item(measure) for measure in measures(run))


def _state(run: RunData) -> str:
    """What one has to know before the numbers."""
    lines = list(run.notes)
    if run.manifest.finish_reason is None:
        lines.insert(
            0,
            "Not finished: it is being written, or its process ended without a last checkpoint. The page "
            "shows what the newest checkpoint vouches for.",
        )
    elif run.manifest.finish_reason == "interrupted":
        lines.insert(0, f"Interrupted. Continue with {resume_command(run.path)}")
    return bullets(lines, "notes") if lines else ""


def _details(run: RunData, plots: Sequence[Plot | Absent], name: str) -> str:
    drawn = (
        figures(plots, name)
        if run.manifest.token_count
        else paragraph("No chunk was saved yet, so there is nothing to draw.")
    )
    return f"{drawn}{_sessions(run)}{_loops(run)}{_audit(run)}{_settings(run)}{_identity(run)}"


def _sessions(run: RunData) -> str:
    if not run.sessions:
        return ""
    head, rows, left_out = session_rows(run, _MOST_SESSIONS)
    more = paragraph(f"And {left_out:,} more sessions.") if left_out else ""
    return f"<h3>Sessions</h3>\n{table(head, rows)}{more}"


def _loops(run: RunData) -> str:
    messages = [
        # The message about a cycle says where it begins.
        report.message if report.period else f"From token {report.start:,}: {report.message}"
        for report in run.loops[:_MOST_LOOPS]
    ]
    if not messages:
        return ""
    if len(run.loops) > _MOST_LOOPS:
        messages.append(f"And {len(run.loops) - _MOST_LOOPS:,} more.")
    return f"<h3>Repetitions</h3>\n{bullets(messages)}"


def _audit(run: RunData) -> str:
    if run.audit is None:
        command = f"tokenswift verify {resume_command(run.path).removeprefix('tokenswift resume ')}"
        return (
            f"<h3>Audit</h3>\n<p>Not audited: run <code>{escape(command)}</code>, and give what it prints "
            "with <code>--json</code> to <code>tokenswift report --audit</code>.</p>\n"
        )
    kind = "good" if run.audit.verified else "bad"
    verdict = "Verified." if run.audit.verified else "Not verified."
    return f"<h3>Audit</h3>\n{paragraph(verdict, kind)}{bullets(run.audit.lines)}"


def _settings(run: RunData) -> str:
    if run.config is None:
        text = escape_lines(shortened(run.run_yaml, _MOST_YAML))
        return f'<h3>Settings</h3>\n<pre class="scroll" tabindex="0">{text}</pre>\n'
    groups = "".join(
        f'<div class="group"><h4>{escape(section)}</h4>\n{table((), rows)}</div>\n'
        for section, rows in settings_rows(run.config).items()
    )
    return f'<h3>Settings</h3>\n<p>* not the default</p>\n<div class="groups">\n{groups}</div>\n'


def _identity(run: RunData) -> str:
    return f"<h3>Identity</h3>\n{table((), identity_rows(run))}"


def escape_lines(text: str) -> str:
    """:func:`escape`, keeping the ends of lines."""
    return "\n".join(escape(line) for line in text.split("\n"))
