"""The JSON that ``tokenswift verify --json`` printed, read back; anybody may have written it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenswift_cli.audit.mismatch import Mismatch
from tokenswift_cli.audit.positions import DEFAULT_SEED
from tokenswift_cli.audit.report import AuditedToken, AuditReport, Choices
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.durable import read_whole
from tokenswift_cli.errors import UsageError
from tokenswift_cli.run_files import FileProblem

_MOST_BYTES = 16 * 2**20
_MOST_COUNT = 2**63
_INTERRUPTED = 130  # the JSON tells that a signal came, not which


@dataclass(frozen=True)
class GivenAudit:
    """A report, and the file it was read from."""

    source: Path
    report: AuditReport


def read_audit(path: Path) -> GivenAudit:
    """Read one file.

    Raises:
        UsageError: it is missing, or no such JSON.
    """
    try:
        data = read_whole(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"--audit {path} cannot be read: {os_error_text(error)}.") from None
    try:
        return GivenAudit(path, _report(_object(json.loads(data))))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(
            f"--audit {path} does not hold what `tokenswift verify RUN_DIR --json` prints; write that to a "
            "file and name it here."
        ) from None


def audits_by_run(
    audits: Sequence[GivenAudit], paths: Sequence[Path], lengths: Sequence[tuple[int, int]]
) -> list[AuditReport | None]:
    """For each run its audit, or None.

    Args:
        audits: given.
        paths: of the runs.
        lengths: of the runs: prompt tokens and generated tokens.

    Raises:
        UsageError: an audit belongs to none of the runs, or two belong to one.
    """
    found: list[AuditReport | None] = [None] * len(paths)
    for audit in audits:
        report = audit.report
        index = _index(Path(report.run_dir), paths)
        if index is None:
            raise UsageError(
                f"--audit {audit.source} is about the run {report.run_dir}, which is not among those given."
            )
        prompt_tokens, tokens = lengths[index]
        if report.prompt_tokens != prompt_tokens or report.tokens > tokens:
            counted = f"{report.prompt_tokens:,} + {report.tokens:,} tokens"
            raise UsageError(
                f"--audit {audit.source} is about another run than the one in {paths[index]}: it counts "
                f"{counted}, the run {prompt_tokens:,} + {tokens:,}."
            )
        if found[index] is not None:
            raise UsageError(f"Two --audit files are about the run in {paths[index]}; give one.")
        found[index] = report
    return found


def _index(run_dir: Path, paths: Sequence[Path]) -> int | None:
    """Which run it is: the same directory, else the only one of that name (it may have been copied)."""
    for index, path in enumerate(paths):
        if path.absolute() == run_dir.absolute():
            return index
    named = [index for index, path in enumerate(paths) if path.absolute().name == run_dir.absolute().name]
    return named[0] if len(named) == 1 else None


def _report(record: Mapping[str, object]) -> AuditReport:
    problems = [_object(problem) for problem in _list(_object(record["files"])["problems"])]
    reason = record["finish_reason"]
    return AuditReport(
        run_dir=_text(record["run_dir"]),
        tokens=_count(record["tokens"]),
        prompt_tokens=_count(record["prompt_tokens"]),
        finish_reason=None if reason is None else _text(reason),
        model=_text(record["model"]),
        device=_text(record["device"]),
        path=_text(record["path"]),
        row_invariant=_flag(record["row_invariant"]),
        written_on=_text(record["written_on"]),
        problems=tuple(FileProblem(_text(one["file"]), _text(one["message"])) for one in problems),
        choices=_choices(_object(record["choices"])),
        interrupted_code=_INTERRUPTED if _flag(record["interrupted"]) else 0,
    )


def _choices(record: Mapping[str, object]) -> Choices:
    first, end = _list(record["range"])
    sample, seed, unreadable = record["sample"], record["sample_seed"], record["unreadable"]
    return Choices(
        first=_count(first),
        end=_count(end),
        drawn=None if sample is None else _count(sample),
        seed=DEFAULT_SEED if seed is None else _count(seed),
        requested=_count(record["requested"]),
        checked=_count(record["checked"]),
        mismatches=_count(record["mismatches"]),
        measured=tuple(_measured(_object(one)) for one in _list(record["first_mismatches"])),
        unreadable=None if unreadable is None else _text(unreadable),
        restored=_count(record["rows_from_journal"]),
        read_seconds=_real(record["read_seconds"]),
        check_seconds=_real(record["check_seconds"]),
    )


def _measured(record: Mapping[str, object]) -> AuditedToken:
    margin, rank, token_text = record["margin"], record["rank"], record["token_text"]
    mismatch = Mismatch(
        position=_count(record["position"]),
        token=_count(record["token"]),
        chosen=_count(record["chosen"]),
        margin=None if margin is None else _real(margin),
        rank=None if rank is None else _count(rank),
        candidates=_count(record["candidates"]),
        near=_flag(record["near"]),
    )
    return AuditedToken(
        mismatch, None if token_text is None else _text(token_text), _text(record["chosen_text"])
    )


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("no truth value")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_COUNT:
        raise ValueError("no count")
    return value


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST_COUNT:
        raise ValueError("no number")
    return float(value)
