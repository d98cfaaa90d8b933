"""The headline numbers of a run in words: cards for one, rows of a table for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tokenswift_cli.display.wording import duration, number, size, speed
from tokenswift_cli.report.run_data import RunData
from tokenswift_cli.report.stretch import Stretch

NONE = "-"


@dataclass(frozen=True)
class Measure:
    """A number's name, its value, and a remark (or none)."""

    name: str
    value: str
    remark: str = ""


def measures(run: RunData) -> list[Measure]:
    """All of them, in the same order for every run."""
    total = run.total or Stretch(0, 0, chunks=0)
    return [
        _tokens(run),
        Measure("finish reason", run.manifest.finish_reason or "not finished", _last_saved(run)),
        _speed(total),
        _time(run, total),
        Measure(
            "mean acceptance length",
            number(total.mean_acceptance_length, 2),
            f"tokens per verification; {total.verifications:,} of them" if total.verifications else "",
        ),
        Measure(
            "acceptance rate",
            number(total.acceptance.rate, 3),
            f"of {total.acceptance.drafted:,} drafted positions" if total.acceptance.drafted else "",
        ),
        Measure(
            "Distinct-1, 2, 3, 4",
            " ".join(number(share, 2) for share in run.distinct) if run.distinct else NONE,
            "distinct n-grams / all n-grams",
        ),
        Measure(
            "peak memory",
            size(total.peak_process_bytes or 0),
            f"key-value cache {size(total.kv_bytes)}" if total.kv_bytes else "",
        ),
        _resumes(run),
        Measure("key-value journal", size(run.journal_bytes or 0), "on the disk now"),
        _repetitions(run),
        Measure("audit", "not audited" if run.audit is None else _verdict(run.audit.verified)),
    ]


def when(moment: datetime | None) -> str:
    """Date and time of day, with the offset from UTC."""
    return NONE if moment is None else moment.isoformat(sep=" ", timespec="minutes")


def session_rows(run: RunData, most: int) -> tuple[Sequence[str], list[list[str]], int]:
    """The sessions as a table: titles of the columns, rows, and how many sessions are left out at the end."""
    head = (
        "session", "began", "from token", "tokens", "work", "pause before", "cache rows restored",
        "cache rows computed", "ready after",
    )  # fmt: skip
    rows: list[list[str]] = []
    for count, session in enumerate(run.sessions[:most], start=1):
        start, stretch = session.start, session.stretch
        rows.append(
            [
                str(count),
                when(session.began),
                f"{stretch.first:,}",
                f"{stretch.last - stretch.first:,}",
                duration(session.working_seconds),
                duration(session.pause_seconds),
                *(
                    (NONE, NONE, NONE)
                    if start is None
                    else (
                        f"{start.restored_rows:,}",
                        f"{start.computed_rows:,}",
                        f"{number(start.start_seconds, 1)} s",
                    )
                ),
            ]
        )
    return head, rows, max(0, len(run.sessions) - most)


def _tokens(run: RunData) -> Measure:
    wanted = f"of {run.config.generation.max_tokens:,}, " if run.config else ""
    return Measure(
        "tokens", f"{run.manifest.token_count:,}", f"{wanted}after a prompt of {run.prompt_tokens:,}"
    )


def _last_saved(run: RunData) -> str:
    saved = run.chunks[-1].saved if run.chunks else None
    return f"last checkpoint {when(saved)}" if saved else ""


def _speed(total: Stretch) -> Measure:
    rate = total.decoding.tokens_per_second
    beside = "" if total.speedup is None else f"{total.speedup:.2f} times plain decoding, as estimated"
    return Measure("speed", NONE if rate is None else f"{speed(rate)} tokens/s", beside)


def _time(run: RunData, total: Stretch) -> Measure:
    if not total.decoding.seconds:
        return Measure("time", NONE)
    pauses = sum(session.pause_seconds or 0.0 for session in run.sessions)
    ready = run.working_seconds - total.decoding.seconds
    remark = f"of decoding; getting ready {duration(ready)}"
    return Measure(
        "time", duration(total.decoding.seconds), remark + (f", pauses {duration(pauses)}" * (pauses >= 1))
    )


def _resumes(run: RunData) -> Measure:
    sessions = len(run.sessions)
    wrote = "" if not sessions else f"{sessions:,} {'session' if sessions == 1 else 'sessions'} wrote"
    known = any(session.start for session in run.sessions)
    return Measure("resumes", f"{len(run.resumes):,}" if known else NONE, wrote if known else "not recorded")


def _repetitions(run: RunData) -> Measure:
    if not run.loops:
        return Measure("repetitions", "none", "noticed by the loop detector")
    return Measure("repetitions", f"{len(run.loops):,}", f"the first since token {run.loops[0].start:,}")


def _verdict(verified: bool) -> str:
    return "verified" if verified else "not verified"
