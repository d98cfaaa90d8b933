"""GGUF headers that lie about counts, lengths and offsets: one error, little memory, no crash."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.gguf_file import ARRAY, SCALARS, STRING, open_gguf

GIB = 2**30
MOST_MEMORY = 100 * 2**20
HUGE = (2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


def header(tensors: int = 0, values: int = 0, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + body


def text(content: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if size is None else size) + content


def tensor(name: bytes, shape: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text(b"key") + struct.pack("<IIQ", ARRAY, kind, count) + content


def refused(path: Path, content: bytes, sparse: int = 0) -> None:
    path.write_bytes(content)
    if sparse:
        with path.open("r+b") as file:
            file.truncate(sparse)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="GGUF") as caught:
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("sparse", [0, GIB])
def test_huge_counts_and_lengths(tmp_path: Path, count: int, sparse: int) -> None:
    """In a short file, and in a huge one of zeros, which would go on for as long as one likes."""
    bodies = [
        header(tensors=count),
        header(values=count),
        header(values=1, body=text(b"key", count)),
        header(values=1, body=text(b"key") + struct.pack("<IQ", STRING, count)),
        header(values=2, body=array(STRING, 1, struct.pack("<Q", count))),
        header(tensors=1, body=tensor(b"t", (count,))),
        header(tensors=1, body=tensor(b"t", (count, count, count, count))),
        header(tensors=1, body=tensor(b"t", (2,), offset=count)),
        header(tensors=1, body=text(b"t") + struct.pack("<I", min(count, 2**32 - 1))),
        header(tensors=1, body=tensor(b"t", (2,), code=min(count, 2**32 - 1))),
        *(header(values=2, body=array(kind, count)) for kind in (0, 10, 12)),
    ]
    for content in bodies:
        refused(tmp_path / "hostile.gguf", content, sparse)


@pytest.mark.parametrize("tensors", [2**18, 2**24])
def test_zeros_are_not_taken_for_entries_without_end(tmp_path: Path, tensors: int) -> None:
    refused(tmp_path / "zeros.gguf", header(tensors=tensors), sparse=GIB)
    refused(tmp_path / "zeros.gguf", header(values=tensors), sparse=GIB)


def test_names_are_unique(tmp_path: Path) -> None:
    entry = tensor(b"t", (1,))
    refused(tmp_path / "twice.gguf", header(tensors=2, body=entry + entry + bytes(64)))
    value = text(b"key") + struct.pack("<IB", 0, 1)
    refused(tmp_path / "twice.gguf", header(values=2, body=value + value))


def test_arrays_in_arrays_end(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", ARRAY, 1) * 20_000
    refused(tmp_path / "deep.gguf", header(values=1, body=text(b"key") + struct.pack("<I", ARRAY) + nested))


@pytest.mark.parametrize("alignment", [0, 2**31, 2**32 - 1])
def test_absurd_alignments(tmp_path: Path, alignment: int) -> None:
    value = text(b"general.alignment") + struct.pack("<II", 4, alignment)
    refused(
        tmp_path / "aligned.gguf", header(tensors=1, values=1, body=value + tensor(b"t", (4,)) + bytes(64))
    )


@pytest.mark.parametrize("alignment", [b"", b"x", b"-1", b"9" * 5000, b"\xff"])
def test_an_alignment_that_is_a_text(tmp_path: Path, alignment: bytes) -> None:
    value = text(b"general.alignment") + struct.pack("<I", STRING) + text(alignment)
    refused(
        tmp_path / "aligned.gguf", header(tensors=1, values=1, body=value + tensor(b"t", (4,)) + bytes(64))
    )


COUNTS = st.sampled_from((0, 1, 2, 3, 5, *HUGE)) | st.integers(0, 2**64 - 1)
KINDS = st.sampled_from((*SCALARS, STRING, ARRAY, 13, 2**32 - 1))
PIECES = st.one_of(
    COUNTS.map(lambda count: struct.pack("<Q", count)),
    KINDS.map(lambda kind: struct.pack("<I", kind)),
    st.binary(max_size=8).map(text),
    st.builds(array, KINDS, COUNTS, st.binary(max_size=16)),
    st.builds(
        tensor,
        st.binary(max_size=3),
        st.lists(COUNTS, max_size=6).map(tuple),
        st.integers(0, 50),
        COUNTS,
    ),
)


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(COUNTS, COUNTS, st.lists(PIECES, max_size=12), st.integers(0, 200))
def test_any_header_is_read_or_refused(
    tmp_path: Path, tensors: int, values: int, pieces: list[bytes], zeros: int
) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(header(tensors, values, b"".join(pieces) + bytes(zeros)))
    tracemalloc.start()
    try:
        found = open_gguf(path)
        assert all(stored.data.nbytes <= path.stat().st_size for stored in found.tensors.values())
    except ModelError as error:
        assert "any.gguf" in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_MEMORY
