"""metrics.jsonl read as what anybody may have written: each value is checked, and left out if it cannot be.

Records of older versions lack fields; a record that says nothing of its place in the text is dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tokenswift_cli.growing_file import whole_records
from tokenswift_cli.report.stretch import Stretch, Timed, Tried

_MOST = 2.0**60
_MOST_DRAFTERS = 16
_MOST_DEPTHS = 256
_MOST_NAME = 40
_MOST_TIME = 40


@dataclass(frozen=True)
class SessionStart:
    """How the session began that wrote a chunk first.

    Attributes:
        resumed_tokens: generated before it.
        restored_rows: of the key-value cache, read from the journal.
        restore_seconds: that took.
        computed_rows: of the cache, computed.
        start_seconds: until the first new token could be written.
    """

    resumed_tokens: int
    restored_rows: int = 0
    restore_seconds: float = 0.0
    computed_rows: int = 0
    start_seconds: float = 0.0


@dataclass(frozen=True)
class ChunkRecord:
    """One line: what the chunk cost, when it was saved, and how the session began whose first it is."""

    stretch: Stretch
    saved: datetime | None = None
    session: SessionStart | None = None


@dataclass(frozen=True)
class Records:
    """The usable records in order, and how many lines were not usable."""

    chunks: tuple[ChunkRecord, ...] = ()
    unusable: int = 0


def read_records(data: bytes, *, last_chunk: int, token_count: int) -> Records:
    """The records in ``data``, the counted bytes of metrics.jsonl.

    Args:
        data: of any content.
        last_chunk: number of the last chunk of the run.
        token_count: generated tokens of the run; no record may reach beyond.
    """
    # Not splitlines: a carriage return is space within a record.
    lines = whole_records(data, last_chunk).split(b"\n")[:-1]
    chunks: list[ChunkRecord] = []
    before = 0
    for line in lines:
        chunk = _chunk(json.loads(line), before, token_count)
        if chunk is not None:
            chunks.append(chunk)
            before = chunk.stretch.last
    return Records(tuple(chunks), data.count(b"\n") - len(chunks))


def _chunk(record: Mapping[str, object], before: int, token_count: int) -> ChunkRecord | None:
    last, tokens = _count(record, "tokens"), _count(record, "chunk_tokens")
    if last is None or tokens is None or not before <= last - tokens <= last <= token_count:
        return None
    plain_seconds = _number(record, "plain_step_seconds")
    decoding = _timed(record, "decode_seconds", tokens)
    with_plain = plain_seconds is not None and decoding.seconds > 0
    depths = _depths(record.get("depths"))
    verifications = depths[0].drafted if depths else 0
    length = _number(record, "mean_acceptance_length")
    stretch = Stretch(
        first=last - tokens,
        last=last,
        steps=_count(record, "steps"),
        decoding=decoding,
        drafting=_timed(record, "draft_seconds", tokens),
        verifying=_timed(record, "verify_seconds", tokens),
        hosting=_timed(record, "host_seconds", tokens),
        plain=Timed(tokens, plain_seconds * tokens) if plain_seconds is not None and with_plain else Timed(),
        beside_plain=decoding if with_plain else Timed(),
        verifications=verifications if length is not None else 0,
        verified_tokens=length * verifications if length is not None else 0.0,
        drafters=_drafters(record.get("drafters")),
        depths=depths,
        distinct=_distinct(record.get("distinct")),
        novelty=_share(record.get("novelty")),
        kv_bytes=_count(record, "kv_bytes"),
        process_bytes=_count(record, "process_bytes"),
        peak_process_bytes=_count(record, "peak_process_bytes"),
        journal_bytes=_count(record, "journal_bytes"),
    )
    return ChunkRecord(stretch, _time(record.get("time")), _session(record.get("session"), last - tokens))


def _session(value: object, tokens: int) -> SessionStart | None:
    if not isinstance(value, dict):
        return None
    resumed = _count(value, "resumed_tokens")
    return SessionStart(
        resumed_tokens=tokens if resumed is None else min(resumed, tokens),
        restored_rows=_count(value, "restored_rows") or 0,
        restore_seconds=_number(value, "restore_seconds") or 0.0,
        computed_rows=_count(value, "computed_rows") or 0,
        start_seconds=_number(value, "start_seconds") or 0.0,
    )


def _number(record: Mapping[str, object], name: str) -> float | None:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number in JSON can be larger than any float.
    return float(value) if 0 <= value <= _MOST and math.isfinite(value) else None


def _count(record: Mapping[str, object], name: str) -> int | None:
    value = record.get(name)
    return value if type(value) is int and 0 <= value <= _MOST else None


def _timed(record: Mapping[str, object], name: str, tokens: int) -> Timed:
    seconds = _number(record, name)
    return Timed() if seconds is None else Timed(tokens, seconds)


def _share(value: object) -> float | None:
    share = _number({"": value}, "")
    return share if share is not None and share <= 1 else None


def _tried(drafted: object, accepted: object) -> Tried | None:
    numbers = {"drafted": drafted, "accepted": accepted}
    tried, kept = _count(numbers, "drafted"), _count(numbers, "accepted")
    return None if tried is None or kept is None or kept > tried else Tried(tried, kept)


def _drafters(value: object) -> dict[str, Tried]:
    if not isinstance(value, dict) or len(value) > _MOST_DRAFTERS:
        return {}
    found: dict[str, Tried] = {}
    for name, share in value.items():
        tried = _tried(share.get("drafted"), share.get("accepted")) if isinstance(share, dict) else None
        if tried is not None and len(name) <= _MOST_NAME:
            found[name] = tried
    return found


def _depths(value: object) -> tuple[Tried, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DEPTHS:
        return ()
    found: list[Tried] = []
    for pair in value:
        tried = _tried(*pair) if isinstance(pair, list) and len(pair) == 2 else None
        if tried is None:
            return ()
        found.append(tried)
    return tuple(found)


def _distinct(value: object) -> tuple[float, float, float, float] | None:
    if not isinstance(value, list) or len(value) != 4:
        return None
    one, two, three, four = (_share(share) for share in value)
    if one is None or two is None or three is None or four is None:
        return None
    return one, two, three, four


def _time(value: object) -> datetime | None:
    if not isinstance(value, str) or len(value) > _MOST_TIME:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None  # without a zone two of them cannot be compared
