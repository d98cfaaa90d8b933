"""Taking the files of a run back to the last good point after a crash, a full disk or damage.

tokens.bin decides: of the chunk borders that a sound manifest vouches for, the last one whose prefix has
the right hash is where the run goes on. output.txt can be rebuilt from the tokens and metrics.jsonl is only
a record, so damage to these costs no token.

Every step can be repeated: a kill in the middle of a recovery leaves a directory that recovers the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenswift_cli import durable, run_layout
from tokenswift_cli.growing_file import GrowingFile, decode_ids, whole_records
from tokenswift_cli.manifest import TOKEN_BYTES, Manifest
from tokenswift_cli.restart_point import RestartPoint, find_restart_point, matching_prefix


@dataclass(frozen=True)
class Recovery:
    """What a run directory holds after validation.

    Attributes:
        tokens: generated ids, whole chunks only.
        text: output.txt up to the same point; "" when ``text_damaged``.
        text_damaged: output.txt does not belong to ``tokens``; the caller must decode ``tokens`` and call
            ``RunDirectory.rewrite_text`` before it appends.
        finish_reason: why generation had ended, if it had.
        chunk: number of chunks held.
        extra: the runner's state stored with the last chunk; empty when that chunk's manifest is lost.
        lost_tokens: checkpointed tokens that damage has cost; 0 after a mere crash.
        messages: what a person should know, one line each; empty after a clean stop.
    """

    tokens: list[int]
    text: str
    text_damaged: bool
    finish_reason: str | None
    chunk: int
    extra: Mapping[str, object] = field(default_factory=dict)
    lost_tokens: int = 0
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Restored:
    """The outcome: the files as they are now, and whether the newest manifest on disk still says so."""

    recovery: Recovery
    manifest: Manifest
    tokens: GrowingFile
    text: GrowingFile
    metrics: GrowingFile
    manifest_outdated: bool


def restore(path: Path, manifests: Sequence[Manifest], problems: Sequence[str]) -> Restored:
    """Cut or rewrite the files in ``path`` so that they end at the restart point.

    Args:
        path: the run directory; the caller holds its lock.
        manifests: sound manifests, newest first, at least one.
        problems: what was wrong with newer ones, for the messages.

    Raises OSError when tokens.bin is unreadable or the disk refuses a change.
    """
    tokens_path = path / run_layout.TOKENS
    point = find_restart_point(tokens_path, manifests)
    manifest = point.manifest
    messages = list(problems)
    tokens = GrowingFile.holding(tokens_path, point.token_data)
    dropped = tokens.cut() // TOKEN_BYTES
    lost = max(manifests[0].token_count - manifest.token_count, 0)
    if lost or not point.exact:
        messages.append(
            f"tokens.bin is damaged after chunk {manifest.chunk}: {lost} of {manifest.token_count + lost} "
            "tokens are lost and have to be generated again"
        )
    elif dropped:
        messages.append(f"dropped {dropped} tokens written after the last good checkpoint")
        lost = dropped if problems else 0
    text, text_data = _restore_text(path / run_layout.TEXT, point, messages)
    metrics, metrics_rewritten = _restore_metrics(path / run_layout.METRICS, point, messages)
    _remove_leftovers(path)
    recovery = Recovery(
        tokens=decode_ids(point.token_data),
        text=(text_data or b"").decode("utf-8"),
        text_damaged=text_data is None,
        finish_reason=manifest.finish_reason,
        chunk=manifest.chunk,
        extra=manifest.extra,
        lost_tokens=lost,
        messages=tuple(messages),
    )
    outdated = bool(problems) or metrics_rewritten or manifest is not manifests[0]
    return Restored(recovery, manifest, tokens, text, metrics, outdated)


def _restore_text(path: Path, point: RestartPoint, messages: list[str]) -> tuple[GrowingFile, bytes | None]:
    """Cut output.txt to what the manifest vouches for; None for the data when it is not there."""
    data, manifest = None, point.manifest
    if point.exact and manifest.text_bytes <= manifest.most_text_bytes:
        data = matching_prefix(path, manifest.text_bytes, manifest.text_sha256)
        if data is not None and not _is_text(data):  # the right hash does not say that it is
            data = None
    restored = GrowingFile.holding(path, data or b"")
    if data is None:
        # Untouched until rewrite_text replaces it: a person may still want to read it.
        messages.append("output.txt does not match the tokens and has to be rebuilt from them")
    else:
        restored.cut()
    return restored, data


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _restore_metrics(path: Path, point: RestartPoint, messages: list[str]) -> tuple[GrowingFile, bool]:
    """Cut metrics.jsonl to what the manifest vouches for, or else keep the records that are whole."""
    manifest = point.manifest
    if point.exact and manifest.metrics_bytes <= manifest.most_metrics_bytes:
        data = matching_prefix(path, manifest.metrics_bytes, manifest.metrics_sha256)
        if data is not None:
            restored = GrowingFile.holding(path, data)
            restored.cut()
            return restored, False
    try:
        found = durable.read_file(path, manifest.most_metrics_bytes)
    except OSError:
        found = b""
    kept = whole_records(found, manifest.chunk)
    count = kept.count(b"\n")
    if point.exact or count < manifest.chunk:
        messages.append(f"metrics.jsonl is damaged: kept {count} whole records of {manifest.chunk}")
    durable.atomic_write(path, kept)
    return GrowingFile.holding(path, kept), True


def _remove_leftovers(path: Path) -> None:
    for name in run_layout.REPLACED:
        # They are never read, so one that cannot be removed does no harm.
        with contextlib.suppress(OSError):
            durable.remove_if_present(path / (name + durable.TEMPORARY_SUFFIX))
