"""What a run was told and what it was made with: settings and identity, as rows of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tokenswift_cli.config import Config
from tokenswift_cli.config_keys import KEYS, flatten
from tokenswift_cli.report.markup import shortened
from tokenswift_cli.report.run_data import RunData

_MOST_CHARACTERS = 200
_MOST_ROWS = 100
_MOST_DEPTH = 4
# Differences in these say nothing about the text or its speed.
_WHERE = ("run.directory", "display.")


def settings_rows(config: Config) -> dict[str, list[tuple[str, str]]]:
    """Names and values of run.yaml by section; a value that is not the default has a mark."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for path, value in flatten(config).items():
        key = KEYS[path]
        mark = "" if value == key.default else " *"
        sections.setdefault(key.section, []).append((key.name, _worded(value) + mark))
    return sections


def differing_settings(runs: Sequence[RunData]) -> list[list[str]]:
    """Rows of settings in which the runs differ: the key, and each run's value."""
    known = [{} if run.config is None else flatten(run.config) for run in runs]
    rows: list[list[str]] = []
    for path in KEYS:
        if path.startswith(_WHERE):
            continue
        values = [_worded(settings[path]) if settings else "?" for settings in known]
        if len(set(values)) > 1:
            rows.append([path, *values])
    return rows


def identity_rows(run: RunData) -> list[tuple[str, str]]:
    """meta.json as names and values, whatever it holds, and what the checkpoint adds."""
    rows = list(_flat(run.meta, ""))
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:] = [("and more", f"{len(rows) - _MOST_ROWS:,} values of meta.json")]
    manifest = run.manifest
    return [
        *rows,
        ("directory", str(run.path.absolute())),
        ("tokens.bin, SHA-256", manifest.tokens_sha256),
        ("checkpoint", f"{manifest.sequence:,}, after {manifest.chunk:,} chunks"),
    ]


def _flat(values: Mapping[str, object], prefix: str, depth: int = 1) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and depth < _MOST_DEPTH:
            yield from _flat(value, f"{path}.", depth + 1)
        else:
            yield shortened(path, _MOST_CHARACTERS), _worded(value)


def _worded(value: object) -> str:
    if isinstance(value, tuple | list):
        text = ", ".join(map(str, value))
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = "" if value is None else str(value)
    return shortened(text, _MOST_CHARACTERS) or "-"
