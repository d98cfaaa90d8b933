"""The files that grow, held against the manifest that vouches for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tokenswift_cli import run_layout
from tokenswift_cli.manifest import BORDER_DIGITS, TOKEN_BYTES, Manifest
from tokenswift_cli.run_contents import sha256


@dataclass(frozen=True)
class FileProblem:
    """Something in a run directory that is not as its checkpoint says.

    Attributes:
        file: its name in the run directory.
        message: what is wrong, without a full stop.
        positions: for tokens.bin the half-open range of tokens of the first chunk that differs, else None.
    """

    file: str
    message: str
    positions: tuple[int, int] | None = None


def check_files(manifest: Manifest, files: Mapping[str, bytes]) -> list[FileProblem]:
    """What differs in the part of each file that ``manifest`` counts.

    Args:
        manifest: of the run.
        files: by name, the bytes that are there, at most those that are counted; one that cannot be read
            is missing here.
    """
    problems: list[FileProblem] = []
    if run_layout.TOKENS in files:
        problems += _check_tokens(manifest, files[run_layout.TOKENS])
    for name, size, digest in (
        (run_layout.TEXT, manifest.text_bytes, manifest.text_sha256),
        (run_layout.METRICS, manifest.metrics_bytes, manifest.metrics_sha256),
    ):
        data = files.get(name)
        if data is None:
            continue
        if len(data) < size:
            problems.append(FileProblem(name, f"{name} holds {len(data):,} of {size:,} bytes"))
        elif sha256(data) != digest:
            problems.append(FileProblem(name, f"{name} is not what was written: its SHA-256 differs"))
    return problems


def _check_tokens(manifest: Manifest, data: bytes) -> list[FileProblem]:
    name = run_layout.TOKENS
    chunk = _first_different_chunk(manifest, data)
    if chunk is None and sha256(data) == manifest.tokens_sha256:
        return []
    if chunk is None:  # only all digits together tell: the borders keep a part of theirs
        return [FileProblem(name, f"{name} is not what was written: its SHA-256 differs")]
    positions = (manifest.borders[chunk - 1].tokens, manifest.borders[chunk].tokens)
    missing = len(data) < manifest.token_count * TOKEN_BYTES
    what = (
        f"holds {len(data) // TOKEN_BYTES:,} of {manifest.token_count:,} tokens"
        if missing
        else "is not what was written"
    )
    return [
        FileProblem(
            name,
            f"{name} {what}: the first chunk that differs is {chunk} "
            f"(positions {positions[0]:,}-{positions[1] - 1:,})",
            positions,
        )
    ]


def _first_different_chunk(manifest: Manifest, data: bytes) -> int | None:
    """Number of the first chunk (from 1) at whose end the hash so far is another, or None."""
    running_hash = hashlib.sha256()
    hashed = 0
    for chunk, border in enumerate(manifest.borders):
        end = border.tokens * TOKEN_BYTES
        running_hash.update(data[hashed:end])
        hashed = end
        if end > len(data) or running_hash.hexdigest()[:BORDER_DIGITS] != border.digest:
            return chunk
    return None
