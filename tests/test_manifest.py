"""The manifest's file format: round trip, damage, nonsense, newer formats."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenswift_cli.errors import ResumeRefusedError
from tokenswift_cli.manifest import (
    EMPTY_BORDER,
    TRACKED_FILES,
    Border,
    InvalidManifestError,
    Manifest,
    decode_manifest,
    encode_manifest,
    plain_json,
)

digests = st.text("0123456789abcdef", min_size=64, max_size=64)
counts = st.integers(0, 2**48)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    ends = sorted(draw(st.lists(st.integers(1, 2**40), max_size=5)))
    tokens_sha256 = draw(digests)
    borders = [EMPTY_BORDER, *(Border(end, draw(digests)[:16]) for end in ends)]
    if ends:
        borders[-1] = Border(ends[-1], tokens_sha256[:16])
    else:
        tokens_sha256 = hashlib.sha256(b"").hexdigest()
    return Manifest(
        sequence=draw(counts),
        file_hashes={name: tuple(draw(st.lists(digests, min_size=1, max_size=2))) for name in TRACKED_FILES},
        chunk=len(ends),
        token_count=borders[-1].tokens,
        tokens_sha256=tokens_sha256,
        text_bytes=draw(counts),
        text_sha256=draw(digests),
        metrics_bytes=draw(counts),
        metrics_sha256=draw(digests),
        finish_reason=draw(st.none() | st.text()),
        extra=draw(st.dictionaries(st.text(), json_values, max_size=3)),
        borders=tuple(borders),
    )


FIRST = Manifest(sequence=0, file_hashes={name: ("0" * 64,) for name in TRACKED_FILES})


def signed(**changes: Any) -> bytes:
    """A manifest file with changed fields and a checksum that is right."""
    record = json.loads(encode_manifest(FIRST)) | changes
    del record["checksum"]
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    record["checksum"] = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps(record).encode()


@settings(deadline=None, derandomize=True)
@given(manifests())
def test_round_trip(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest), "m") == manifest


@settings(deadline=None, derandomize=True, max_examples=60)
@given(manifests(), st.data())
def test_a_truncated_manifest_is_invalid(manifest: Manifest, data: st.DataObject) -> None:
    """Case 21: a torn manifest is recognised wherever it was torn."""
    encoded = encode_manifest(manifest)
    # The last byte is the newline, which carries nothing.
    size = data.draw(st.integers(0, len(encoded) - 2))
    with pytest.raises(InvalidManifestError):
        decode_manifest(encoded[:size], "m")


@settings(deadline=None, derandomize=True, max_examples=200)
@given(manifests(), st.data())
def test_a_flipped_bit_is_recognised_or_changes_nothing(manifest: Manifest, data: st.DataObject) -> None:
    """Case 21: no single flipped bit gives another manifest (it may fall on white space)."""
    encoded = bytearray(encode_manifest(manifest))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(InvalidManifestError):
        assert decode_manifest(bytes(encoded), "m") == manifest


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b"1" * 100_000)
@example(b'{"a":' * 50_000)
@example(b'{"format":NaN}')
@example(b'{"checksum":null,"x":1e999}')
@example(b"\xff\xfe{}")
def test_nonsense_is_invalid(data: bytes) -> None:
    with pytest.raises(InvalidManifestError):
        decode_manifest(data, "m")


@pytest.mark.parametrize(
    "changes",
    [
        {"token_count": 10**30},
        {"token_count": -1},
        {"token_count": True},
        {"token_count": 5},
        {"chunk": 1},
        {"chunk": 2**48},
        {"text_bytes": 1.0},
        {"metrics_bytes": "7"},
        {"tokens_sha256": "G" * 64},
        {"text_sha256": None},
        {"finish_reason": 3},
        {"extra": []},
        {"borders": []},
        {"borders": [[0]]},
        {"borders": [[0, "0" * 16]]},
        {"borders": {"0": 1}},
        {"chunk": 2, "borders": [[0, EMPTY_BORDER.digest], [5, "0" * 16], [0, EMPTY_BORDER.digest]]},
        {"file_hashes": {}},
        {"file_hashes": {name: [] for name in TRACKED_FILES}},
        {"file_hashes": {name: ["0" * 63] for name in TRACKED_FILES}},
        {"file_hashes": {**{name: ["0" * 64] for name in TRACKED_FILES}, "../../etc/passwd": ["0" * 64]}},
        {"unknown": 1},
        {"format": 0},
        {"format": None},
    ],
)
def test_absurd_fields_are_invalid_even_with_a_right_checksum(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidManifestError):
        decode_manifest(signed(**changes), "m")


def test_a_newer_format_is_refused_by_name_and_not_taken_for_damage() -> None:
    with pytest.raises(
        ResumeRefusedError, match=r"runs/x/1\.json was written by a newer tokenswift \(format 9"
    ):
        decode_manifest(signed(format=9, something_new=[1]), "runs/x/1.json")
    damaged = encode_manifest(FIRST).replace(b'"format":1', b'"format":9')
    with pytest.raises(InvalidManifestError):
        decode_manifest(damaged, "m")


def test_state_that_json_cannot_hold_is_an_error_and_the_rest_becomes_plain() -> None:
    for value in (float("nan"), float("inf"), object(), {1, 2}):
        with pytest.raises((ValueError, TypeError)):
            plain_json({"value": value})
    assert plain_json({"pair": (1, 2), "by": {1: "a"}}) == {"pair": [1, 2], "by": {"1": "a"}}
    manifest = replace(FIRST, extra={"b": {10: 1, 9: 2}})
    assert decode_manifest(encode_manifest(manifest), "m").extra == {"b": {"10": 1, "9": 2}}


def test_a_border_costs_few_bytes() -> None:
    borders = (EMPTY_BORDER, *(Border(1024 * chunk, f"{chunk:016x}") for chunk in range(1, 101)))
    many = replace(
        FIRST, chunk=100, token_count=102_400, tokens_sha256=f"{100:016x}" + "0" * 48, borders=borders
    )
    assert decode_manifest(encode_manifest(many), "m") == many
    assert len(encode_manifest(many)) - len(encode_manifest(FIRST)) < 100 * 32
