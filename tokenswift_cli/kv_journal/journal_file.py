"""One file of the journal: the rows of a stretch of tokens, in every layer, and what they belong to.

Layout: magic, length of the header, the header (JSON, ASCII), its SHA-256, zeros up to a multiple of 4096;
then the rows, for each layer its keys [heads, tokens, key size] and its values [heads, tokens, value size].
The header names the first and last token, the SHA-256 of all token ids up to the last one, what else decides
the rows, their layout, and the SHA-256 of the rows. So a file vouches for itself, and one that a run wrote
can be told from any other: rows are a function of model, settings and tokens.

Version 1.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from tokenswift_cli import durable
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.models.kv_layout import KeyValueLayout

_MAGIC = b"TSWKVROW"
_VERSION = 1
_PAGE = 4096
_MOST_HEADER = 1 << 20
_DIGEST_BYTES = 32
_NO_DIGEST = "0" * 64


class UnusableRowsError(ValueError):
    """The file is damaged, or belongs to something else; the text says which. Not for the user as it is."""


@dataclass(frozen=True)
class Stretch:
    """Tokens ``first`` .. ``last`` - 1 of a text, prompt included, and what their rows depend on.

    Attributes:
        tokens_sha256: of the ids of the tokens 0 .. ``last`` - 1, little-endian uint32.
        origin: fingerprint of model and settings.
    """

    first: int
    last: int
    tokens_sha256: str
    origin: str

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.last - self.first


@dataclass(frozen=True)
class MappedRows:
    """The rows of a file that was found sound. They stay valid while this object lives."""

    stretch: Stretch
    _layout: KeyValueLayout
    _memory: mmap.mmap
    _offset: int

    def append_to(self, cache: KeyValueCache, limit: int) -> int:
        """Put those from ``cache.length`` up to ``limit`` behind the rows of ``cache``; returns how many.

        ``cache.length`` and ``limit`` must lie in the stretch.
        """
        payload = torch.frombuffer(self._memory, dtype=torch.uint8, offset=self._offset)
        rows = slice(cache.length - self.stretch.first, limit - self.stretch.first)
        assert 0 <= rows.start <= rows.stop <= self.stretch.length
        for index, keys, values in _views(payload, self._layout, self.stretch.length):
            cache.write(index, keys[:, rows], values[:, rows])
        cache.accept(rows.stop - rows.start)
        return rows.stop - rows.start


def write_rows(path: Path, stretch: Stretch, cache: KeyValueCache) -> int:
    """Write committed rows durably; returns the size of the file in bytes.

    Safe while other rows are being added to ``cache``: committed ones never change.

    Raises OSError when the disk refuses; nothing is left behind then.
    """
    layout = cache.layout
    assert layout is not None and cache.length >= stretch.last
    start = _payload_start(stretch, layout)
    rows = slice(stretch.first, stretch.last)
    digest = hashlib.sha256()
    with torch.inference_mode(), durable.replacing(path) as descriptor:
        durable.write_all(descriptor, bytes(start))
        # One store at a time: the memory for it does not grow with the model's depth.
        for layer in layout.layers:
            for store in (cache.keys(layer.index), cache.values(layer.index)):
                copied = store[:, rows].to("cpu", copy=True).contiguous()
                data = copied.view(torch.uint8).numpy().data.cast("B")
                digest.update(data)
                durable.write_all(descriptor, data)
        os.pwrite(descriptor, _head(stretch, layout, digest.hexdigest()), 0)
    return start + layout.bytes_per_token * stretch.length


def map_rows(path: Path, stretch: Stretch, layout: KeyValueLayout) -> MappedRows:
    """Map a file and check every byte of it.

    Raises:
        UnusableRowsError: it is torn, damaged or of another origin, text or layout.
        OSError: it cannot be read.
    """
    start = _payload_start(stretch, layout)
    size = start + layout.bytes_per_token * stretch.length
    with durable.opened(path, os.O_RDONLY) as descriptor:
        if os.fstat(descriptor).st_size != size:
            _unusable(f"it has {os.fstat(descriptor).st_size} bytes instead of {size}")
        # Private: torch wants memory that could be written to; nothing is.
        memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    digest = hashlib.sha256(memoryview(memory)[start:]).hexdigest()
    head = _head(stretch, layout, digest)
    if memory[: len(head)] != head:
        _unusable(_difference(memory, head))
    return MappedRows(stretch, layout, memory, start)


def _head(stretch: Stretch, layout: KeyValueLayout, payload_sha256: str) -> bytes:
    """Everything before the rows. One stretch, layout and digest have one head, to the byte."""
    header = json.dumps(
        {
            "version": _VERSION,
            "first": stretch.first,
            "last": stretch.last,
            "tokens_sha256": stretch.tokens_sha256,
            "origin": stretch.origin,
            "dtype": str(layout.dtype).removeprefix("torch."),
            "layers": [astuple(layer) for layer in layout.layers],
            "rows_sha256": payload_sha256,
        },
        separators=(",", ":"),
    ).encode("ascii")
    head = _MAGIC + len(header).to_bytes(4, "little") + header
    head += hashlib.sha256(head).digest()
    return head.ljust(-(-len(head) // _PAGE) * _PAGE, b"\0")


def _payload_start(stretch: Stretch, layout: KeyValueLayout) -> int:
    return len(_head(stretch, layout, _NO_DIGEST))


def _difference(memory: mmap.mmap, expected: bytes) -> str:
    """Why a head is not the expected one, in words."""
    if memory[: len(_MAGIC)] != _MAGIC:
        return "it is no file of a key-value journal"
    length = int.from_bytes(memory[len(_MAGIC) : len(_MAGIC) + 4], "little")
    end = len(_MAGIC) + 4 + length
    if length > _MOST_HEADER or end + _DIGEST_BYTES > len(memory):
        return "its header is damaged"
    if hashlib.sha256(memory[:end]).digest() != memory[end : end + _DIGEST_BYTES]:
        return "its header is damaged"
    try:
        found = json.loads(memory[len(_MAGIC) + 4 : end])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return "its header is damaged"
    wanted = json.loads(expected[len(_MAGIC) + 4 : expected.index(b"}") + 1])
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if not differing:
        return "what follows its header is damaged"
    if differing == ["rows_sha256"]:
        return "its rows are damaged"
    return f"it belongs to something else ({', '.join(differing)})"


def _views(payload: Tensor, layout: KeyValueLayout, tokens: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Index, keys [heads, tokens, key size] and values likewise of each layer, as views of ``payload``."""
    elements = payload.view(layout.dtype)
    offset = 0
    for layer in layout.layers:
        parts = []
        for size in (layer.key_size, layer.value_size):
            count = layer.heads * tokens * size
            parts.append(elements[offset : offset + count].view(layer.heads, tokens, size))
            offset += count
        yield layer.index, parts[0], parts[1]


def _unusable(why: str) -> NoReturn:
    raise UnusableRowsError(why)
