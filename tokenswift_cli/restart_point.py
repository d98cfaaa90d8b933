"""Where a run can go on: the longest part of the token file that a manifest vouches for. Reads only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenswift_cli import durable
from tokenswift_cli.manifest import BORDER_DIGITS, TOKEN_BYTES, Manifest


@dataclass(frozen=True)
class RestartPoint:
    """A chunk border whose tokens are intact. ``manifest`` ends exactly there when ``exact``; else it is
    a later manifest taken back to that border, with no text, metrics or runner state of its own."""

    manifest: Manifest
    token_data: bytes
    exact: bool


def find_restart_point(tokens_path: Path, manifests: Sequence[Manifest]) -> RestartPoint:
    """The restart point with most tokens; among equals a manifest of its own, then the newest.

    ``manifests`` are sound ones, newest first, at least one. Raises OSError if the file is unreadable.
    """
    data = durable.read_file(tokens_path, max(manifest.token_count for manifest in manifests) * TOKEN_BYTES)
    points: list[RestartPoint] = []
    for manifest in manifests:
        point = _restart_point(data, manifest)
        if point.exact and not points:
            return point
        points.append(point)
    return max(points, key=lambda point: (point.manifest.token_count, point.exact))


def matching_prefix(path: Path, size: int, digest: str) -> bytes | None:
    """The first ``size`` bytes of ``path`` if they are there and have that SHA-256, else None."""
    try:
        data = durable.read_file(path, size)
    except OSError:
        return None
    return data if len(data) == size and hashlib.sha256(data).hexdigest() == digest else None


def _restart_point(data: bytes, manifest: Manifest) -> RestartPoint:
    running_hash = hashlib.sha256()
    good_chunk = 0
    hashed = 0
    for chunk, border in enumerate(manifest.borders):
        end = border.tokens * TOKEN_BYTES
        running_hash.update(data[hashed:end])
        hashed = end
        if end > len(data) or running_hash.hexdigest()[:BORDER_DIGITS] != border.digest:
            break
        good_chunk = chunk
    held = data[: manifest.borders[good_chunk].tokens * TOKEN_BYTES]
    digest = hashlib.sha256(held).hexdigest()
    if good_chunk == manifest.chunk and digest == manifest.tokens_sha256:
        return RestartPoint(manifest, held, exact=True)
    taken_back = replace(
        manifest,
        chunk=good_chunk,
        token_count=len(held) // TOKEN_BYTES,
        tokens_sha256=digest,
        borders=manifest.borders[: good_chunk + 1],
        finish_reason=None,
        extra={},
    )
    return RestartPoint(taken_back, held, exact=False)
