"""The checkpoint manifest: what a run directory holds at one moment, as a small checked JSON file.

Format 1, one JSON object. ``checksum`` is the SHA-256 of the object without it, written with sorted
keys and no spaces; this rule holds for every future format, so that a newer format can be told from a
damaged file. ``borders[k]`` is [tokens, first 16 hex digits of SHA-256 of tokens.bin up to there] after
chunk k, so that a damaged late chunk does not cost the earlier ones.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from tokenswift_cli.errors import ResumeRefusedError

FORMAT = 1
TOKEN_BYTES = 4
BORDER_DIGITS = 16
TRACKED_FILES = ("run.yaml", "meta.json", "prompt.txt", "prompt.ids")
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

_MAXIMUM_COUNT = 2**48
_TEXT_BYTES_PER_TOKEN = 1024
_METRICS_BYTES_PER_CHUNK = 2**16
_BYTES_IN_ANY_CASE = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNTS = ("sequence", "chunk", "token_count", "text_bytes", "metrics_bytes")
_HASHES = ("tokens_sha256", "text_sha256", "metrics_sha256")
_KEYS = frozenset(
    {"format", "checksum", "file_hashes", "finish_reason", "extra", "borders", *_COUNTS, *_HASHES}
)


class InvalidManifestError(ValueError):
    """The bytes are no valid manifest; the text says why. Never reaches the user on its own."""


@dataclass(frozen=True)
class Border:
    """The end of a chunk: tokens up to it and the start of the hash of tokens.bin up to it."""

    tokens: int
    digest: str


EMPTY_BORDER = Border(0, EMPTY_SHA256[:BORDER_DIGITS])


@dataclass(frozen=True)
class Manifest:
    """What is durable.

    Attributes:
        sequence: number of this manifest; it is also the file's name. Grows with every manifest.
        file_hashes: for each of TRACKED_FILES the accepted SHA-256 values (two while one is replaced).
        chunk: number of chunks appended so far; 0 right after creation.
        token_count: generated tokens; tokens.bin counts ``token_count * TOKEN_BYTES`` bytes.
        text_bytes, metrics_bytes: valid bytes of output.txt and metrics.jsonl.
        finish_reason: why generation ended, or None while it goes on.
        extra: JSON state of the runner, opaque here.
        borders: ``chunk + 1`` entries, the first one empty.
    """

    sequence: int
    file_hashes: Mapping[str, tuple[str, ...]]
    chunk: int = 0
    token_count: int = 0
    tokens_sha256: str = EMPTY_SHA256
    text_bytes: int = 0
    text_sha256: str = EMPTY_SHA256
    metrics_bytes: int = 0
    metrics_sha256: str = EMPTY_SHA256
    finish_reason: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    borders: tuple[Border, ...] = (EMPTY_BORDER,)

    @property
    def most_text_bytes(self) -> int:
        """More text than so many tokens can have is damage, and is not even read."""
        return self.token_count * _TEXT_BYTES_PER_TOKEN + _BYTES_IN_ANY_CASE

    @property
    def most_metrics_bytes(self) -> int:
        """Likewise of the records of so many chunks."""
        return self.chunk * _METRICS_BYTES_PER_CHUNK + _BYTES_IN_ANY_CASE


def plain_json(value: Mapping[str, object]) -> dict[str, object]:
    """A copy as JSON would give it back (string keys, lists for tuples).

    Raises ValueError or TypeError for what JSON cannot hold, NaN and infinities included.
    """
    copy: dict[str, object] = json.loads(json.dumps(dict(value), allow_nan=False))
    return copy


def encode_manifest(manifest: Manifest) -> bytes:
    """The file's bytes, ASCII, ending in a newline."""
    record: dict[str, object] = {
        "format": FORMAT,
        **{name: getattr(manifest, name) for name in (*_COUNTS, *_HASHES)},
        "file_hashes": {name: list(hashes) for name, hashes in manifest.file_hashes.items()},
        "finish_reason": manifest.finish_reason,
        "extra": plain_json(manifest.extra),
        "borders": [[border.tokens, border.digest] for border in manifest.borders],
    }
    record["checksum"] = _checksum(record)
    return (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def decode_manifest(data: bytes, source: str) -> Manifest:
    """The manifest in ``data``; ``source`` names the file in messages.

    Raises:
        InvalidManifestError: torn, damaged or inconsistent bytes.
        ResumeRefusedError: sound bytes of a newer format.
    """
    record = _parse(data)
    checksum = record.get("checksum")
    if checksum != _checksum({name: value for name, value in record.items() if name != "checksum"}):
        _invalid("its checksum does not match")
    version = record.get("format")
    if type(version) is int and version > FORMAT:
        raise ResumeRefusedError(
            f"{source} was written by a newer tokenswift (format {version}; this one reads format {FORMAT}). "
            "Update tokenswift, then resume."
        )
    if version != FORMAT or set(record) != _KEYS:
        _invalid("it has not the fields of format 1")
    manifest = Manifest(
        sequence=_count(record, "sequence"),
        chunk=_count(record, "chunk"),
        token_count=_count(record, "token_count"),
        tokens_sha256=_sha256(record["tokens_sha256"], "tokens_sha256"),
        text_bytes=_count(record, "text_bytes"),
        text_sha256=_sha256(record["text_sha256"], "text_sha256"),
        metrics_bytes=_count(record, "metrics_bytes"),
        metrics_sha256=_sha256(record["metrics_sha256"], "metrics_sha256"),
        file_hashes=_file_hashes(record["file_hashes"]),
        finish_reason=_finish_reason(record["finish_reason"]),
        extra=_object(record["extra"], "extra"),
        borders=_borders(record["borders"]),
    )
    _check_borders(manifest)
    return manifest


def _parse(data: bytes) -> dict[str, object]:
    try:
        record = json.loads(data.decode("ascii"), parse_constant=_invalid)
    except InvalidManifestError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidManifestError(f"it is not whole JSON ({type(error).__name__})") from error
    return _object(record, "the file")


def _checksum(record: Mapping[str, object]) -> str:
    try:
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidManifestError(f"it cannot be written as JSON ({error})") from error
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _invalid(problem: str) -> NoReturn:
    raise InvalidManifestError(problem)


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        _invalid(f"{name} is not a JSON object")
    return value


def _count(record: Mapping[str, object], name: str) -> int:
    value = record[name]
    # `type is int`: True is an int in Python and no count.
    if type(value) is not int or not 0 <= value <= _MAXIMUM_COUNT:
        _invalid(f"{name} is not a plausible count")
    return value


def _sha256(value: object, name: str) -> str:
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        _invalid(f"{name} is not a SHA-256")
    return value


def _finish_reason(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        _invalid("finish_reason is not a text")
    return value


def _file_hashes(value: object) -> dict[str, tuple[str, ...]]:
    hashes = _object(value, "file_hashes")
    if set(hashes) != set(TRACKED_FILES):
        _invalid("file_hashes does not name the files of a run")
    checked: dict[str, tuple[str, ...]] = {}
    for name, accepted in hashes.items():
        if not isinstance(accepted, list) or not 1 <= len(accepted) <= 2:
            _invalid(f"file_hashes of {name} is not a list of one or two")
        checked[name] = tuple(_sha256(digest, name) for digest in accepted)
    return checked


def _borders(value: object) -> tuple[Border, ...]:
    if not isinstance(value, list):
        _invalid("borders is not a list")
    borders: list[Border] = []
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 2:
            _invalid("a border is not a pair")
        tokens, digest = entry
        if type(tokens) is not int or not isinstance(digest, str) or len(digest) != BORDER_DIGITS:
            _invalid("a border is not [tokens, digest]")
        borders.append(Border(tokens, digest))
    return tuple(borders)


def _check_borders(manifest: Manifest) -> None:
    borders = manifest.borders
    if len(borders) != manifest.chunk + 1 or borders[0] != EMPTY_BORDER:
        _invalid("there is not one border per chunk")
    if any(after.tokens < before.tokens for before, after in itertools.pairwise(borders)):
        _invalid("the borders do not ascend")
    if borders[-1] != Border(manifest.token_count, manifest.tokens_sha256[:BORDER_DIGITS]):
        _invalid("the last border is not the end of the tokens")
