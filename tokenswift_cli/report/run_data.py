"""Everything the page says about one run, read from its directory and from nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenswift_cli import durable, run_layout
from tokenswift_cli.config import Config
from tokenswift_cli.disk_errors import os_error_text
from tokenswift_cli.errors import ConfigError, ResumeRefusedError
from tokenswift_cli.kv_journal.stretches import size_of
from tokenswift_cli.loops import LoopDetector, LoopReport
from tokenswift_cli.manifest import Manifest
from tokenswift_cli.report.records import ChunkRecord, Records, read_records
from tokenswift_cli.report.sessions import Moment, Session, moments_of, sessions_of
from tokenswift_cli.report.stretch import Stretch, merged
from tokenswift_cli.run_snapshot import RunSnapshot
from tokenswift_cli.yaml_config import load_run_yaml

if TYPE_CHECKING:
    from tokenswift_cli.report.repetition import Integers, RepetitionMap

MAP_CELLS: Final = 80
# Those of Distinct-4 and of novelty; and passages that are copied word by word.
MAP_SIZES: Final = (4, 8)
DISTINCT_SIZES: Final = (1, 2, 3, 4)


@dataclass(frozen=True)
class AuditFinding:
    """What ``verify`` found, in lines of text, and whether all that it looked at is right."""

    verified: bool
    lines: tuple[str, ...]


@dataclass(frozen=True)
class RunData:
    """One run.

    Attributes:
        name: distinguishes it on the page.
        path: its directory.
        manifest: what is durable, and how far the page goes.
        prompt_tokens: before the generated ones.
        meta: meta.json, of any content.
        run_yaml: text of run.yaml.
        config: what it says; None where this version cannot read it.
        chunks: usable records, one per saved chunk.
        total: all of them together; None where there are none.
        sessions, moments: see sessions.py.
        distinct: Distinct-1..4 of tokens.bin; None below four tokens.
        maps: where its n-grams recur, for each of ``MAP_SIZES``.
        loops: repetitions that the detector notices in it.
        journal_bytes: of the key-value journal on the disk; None where it cannot be read.
        audit: what ``verify`` found; None where that was not given.
        notes: what is not as it should be, in sentences.
    """

    name: str
    path: Path
    manifest: Manifest
    prompt_tokens: int
    meta: Mapping[str, object]
    run_yaml: str
    config: Config | None
    chunks: tuple[ChunkRecord, ...]
    total: Stretch | None
    sessions: tuple[Session, ...]
    moments: tuple[Moment, ...]
    distinct: tuple[float, ...] | None
    maps: tuple[RepetitionMap, ...]
    loops: tuple[LoopReport, ...]
    journal_bytes: int | None
    audit: AuditFinding | None
    notes: tuple[str, ...]

    @property
    def stretches(self) -> list[Stretch]:
        """The chunks that hold tokens."""
        return [chunk.stretch for chunk in self.chunks if chunk.stretch.last > chunk.stretch.first]

    @property
    def resumes(self) -> list[Session]:
        """The sessions that went on with a text."""
        return [session for session in self.sessions if session.start and session.start.resumed_tokens]

    @property
    def working_seconds(self) -> float:
        """Of all sessions: getting ready and decoding."""
        return sum(session.working_seconds for session in self.sessions)


def collect(snapshot: RunSnapshot, name: str, audit: AuditFinding | None) -> RunData:
    """Read what the snapshot does not hold, and compute the rest from its tokens."""
    import numpy as np

    from tokenswift_cli.report.repetition import repetition_map

    manifest = snapshot.manifest
    notes = [f"{problem.message}." for problem in snapshot.problems]
    records = _records(snapshot)
    if records.unusable:
        were = "line" if records.unusable == 1 else "lines"
        notes.append(f"{records.unusable:,} {were} of metrics.jsonl could not be used.")
    config = None
    try:
        config = load_run_yaml(snapshot.contents.run_yaml)
    except ConfigError as error:
        notes.append(f"This version of tokenswift does not read run.yaml: {'; '.join(error.problems[:3])}.")
    journal_bytes = None
    try:
        journal_bytes = size_of(snapshot.path / run_layout.KV_JOURNAL)
    except ResumeRefusedError as error:
        notes.append(str(error))
    except OSError as error:
        notes.append(f"The key-value journal cannot be read: {os_error_text(error)}.")
    tokens = np.array(snapshot.tokens, dtype=np.int64)
    chunks = records.chunks
    return RunData(
        name=name,
        path=snapshot.path,
        manifest=manifest,
        prompt_tokens=snapshot.prompt_tokens,
        meta=snapshot.contents.meta,
        run_yaml=snapshot.contents.run_yaml,
        config=config,
        chunks=chunks,
        total=merged([chunk.stretch for chunk in chunks]) if chunks else None,
        sessions=tuple(sessions_of(chunks)),
        moments=tuple(moments_of(chunks)),
        distinct=distinct_of(tokens),
        maps=tuple(repetition_map(tokens, size, MAP_CELLS) for size in MAP_SIZES),
        loops=tuple(_loops(snapshot.tokens)),
        journal_bytes=journal_bytes,
        audit=audit,
        notes=tuple(notes),
    )


def distinct_of(tokens: Integers) -> tuple[float, ...] | None:
    """Distinct-1..4 of a text, [tokens]; None below four tokens, as in ``metrics.DistinctCounter``."""
    from tokenswift_cli.report.repetition import recurrences

    if len(tokens) < max(DISTINCT_SIZES):
        return None
    counts = ((size, len(tokens) - size + 1) for size in DISTINCT_SIZES)
    return tuple(1 - len(recurrences(tokens, size)[0]) / ngrams for size, ngrams in counts)


def names_of(paths: Sequence[Path]) -> list[str]:
    """What to call the runs: the names of their directories, with as much of the path as tells them apart."""
    names = [path.absolute().name or str(path.absolute()) for path in paths]
    if len(set(names)) == len(names):
        return names
    whole = [str(path.absolute()) for path in paths]
    common = os.path.commonpath(whole)
    return [os.path.relpath(path, common) for path in whole]


def _records(snapshot: RunSnapshot) -> Records:
    manifest = snapshot.manifest
    try:
        data = durable.read_file(
            snapshot.path / run_layout.METRICS, min(manifest.metrics_bytes, manifest.most_metrics_bytes)
        )
    except OSError:
        return Records()  # the snapshot says so among its problems
    return read_records(data, last_chunk=manifest.chunk, token_count=manifest.token_count)


def _loops(tokens: Sequence[int]) -> list[LoopReport]:
    detector = LoopDetector()
    reports = (detector.push(token) for token in tokens)
    return [report for report in reports if report is not None]
