"""A run whose tokens, text and chunk sizes are functions of the position, so that any part can be checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tokenswift_cli.run_dir import Recovery, RunDirectory

RUN_YAML = "generation:\n  max_tokens: 100\n"
NEW_YAML = "generation:\n  max_tokens: 200\n"
PROMPT_IDS = [1, 70000, 2**32 - 1]


def token(position: int) -> int:
    """A scrambled id below 2**32."""
    return (position * 2654435761 + 12345) % 2**32


def tokens_up_to(count: int) -> list[int]:
    return [token(position) for position in range(count)]


def text_of(tokens: list[int]) -> str:
    """Text with characters of one to four bytes."""
    return "".join("aé中😀"[value % 4] for value in tokens)


def chunk_size(chunk: int) -> int:
    """Tokens in chunk 1, 2, ...: 3, 4, 5, 6, 7, 3, ... and now and then an empty one."""
    return 0 if chunk % 7 == 0 else 3 + (chunk - 1) % 5


def count_after(chunk: int) -> int:
    return sum(chunk_size(each) for each in range(1, chunk + 1))


def create(path: Path) -> RunDirectory:
    return RunDirectory.create(
        path,
        run_yaml=RUN_YAML,
        meta={"seed": 7, "model": "tiny"},
        prompt_text=b"A\r\n\x00B",
        prompt_ids=PROMPT_IDS,
    )


def append_next(run: RunDirectory) -> int:
    """Append the chunk that follows; returns its number."""
    chunk = run.manifest.chunk + 1
    start = run.manifest.token_count
    tokens = [token(position) for position in range(start, start + chunk_size(chunk))]
    run.append_chunk(tokens, text_of(tokens), {"acceptance": chunk / 100}, extra={"chunk": chunk})
    return chunk


def make_run(path: Path, chunks: int) -> None:
    with create(path) as run:
        for _ in range(chunks):
            append_next(run)


def recovered(path: Path) -> Recovery:
    with RunDirectory.open(path) as run:
        return run.recover()


def assert_whole(path: Path, chunk: int) -> Recovery:
    """The run in ``path`` holds exactly ``chunk`` chunks, with nothing to complain about."""
    recovery = recovered(path)
    assert recovery.chunk == chunk
    assert recovery.tokens == tokens_up_to(count_after(chunk))
    assert not recovery.text_damaged
    assert recovery.text == text_of(recovery.tokens)
    return recovery


def assert_continues(path: Path) -> None:
    """What can be recovered is a prefix at a chunk border, and the run goes on from there and reads back."""
    with RunDirectory.open(path) as run:
        recovery = run.recover()
        assert recovery.tokens == tokens_up_to(count_after(recovery.chunk))
        if recovery.text_damaged:
            run.rewrite_text(text_of(recovery.tokens))
        else:
            assert recovery.text == text_of(recovery.tokens)
        append_next(run)
        chunk = append_next(run)
    messages = assert_whole(path, chunk).messages
    assert all(message.startswith("prompt.txt") for message in messages)  # the only lasting remark


def copied(source: Path, target: Path, change: Callable[[Path], None]) -> Path:
    """A changed copy of a run."""
    shutil.copytree(source, target, symlinks=True)
    change(target)
    return target


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)


def newest_manifest(path: Path) -> Path:
    return max((path / "checkpoints").glob("*.json"))


CHANGING_CALLS = ("write", "fsync", "replace", "unlink", "ftruncate", "mkdir")


@contextmanager
def calls_replaced(before: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``before(name, arguments)`` ahead of every system call that changes the disk."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING_CALLS:
            real = getattr(os, name)

            def call(*arguments: Any, _name: str = name, _real: Callable[..., Any] = real) -> Any:
                before(_name, arguments)
                return _real(*arguments)

            patch.setattr(os, name, call)
        yield
