"""Atomic writes, appends and cuts: order of operations, partial writes, links."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenswift_cli import durable


def test_atomic_write_flushes_before_it_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def recording(*arguments: Any, _name: str = name, _real: Callable[..., Any] = real) -> Any:
            calls.append(_name)
            return _real(*arguments)

        monkeypatch.setattr(os, name, recording)
    durable.atomic_write(tmp_path / "a", b"data")
    assert calls == ["write", "fsync", "replace", "fsync"]
    assert (tmp_path / "a").read_bytes() == b"data"


def test_a_failed_atomic_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError) as caught:
        durable.atomic_write(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "replace"])
def test_errors_name_the_file_and_not_its_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Nobody knows of the temporary file, so a message that names it helps nobody."""

    def full(*arguments: Any, **keywords: Any) -> Any:
        name = os.fspath(arguments[0]) if operation in ("open", "replace") else None
        raise OSError(errno.ENOSPC, "No space left on device", name)

    monkeypatch.setattr(os, operation, full)
    with pytest.raises(OSError) as caught, durable.replacing(tmp_path / "a") as descriptor:
        durable.write_all(descriptor, b"data")
    assert caught.value.filename == str(tmp_path / "a")


def test_writes_that_take_only_a_part_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    durable.create_file(tmp_path / "a", b"0123456789")
    durable.append_at(tmp_path / "a", 10, b"abcdefg")
    assert (tmp_path / "a").read_bytes() == b"0123456789abcdefg"


def test_append_drops_a_torn_tail_and_refuses_a_shortened_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"durable-torn")
    durable.append_at(path, 7, b"+new")
    assert path.read_bytes() == b"durable+new"
    with pytest.raises(OSError) as caught:
        durable.append_at(path, 12, b"x")
    assert caught.value.errno == errno.ESTALE
    assert path.read_bytes() == b"durable+new"


def test_cut_tells_how_much_it_cut(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert durable.cut(path, 4) == 6
    assert durable.cut(path, 4) == 0
    assert durable.cut(path, 9) == 0
    assert path.read_bytes() == b"0123"


def test_read_file_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert durable.read_file(path) == b"0123456789"
    assert durable.read_file(path, 4) == b"0123"
    assert durable.read_file(path, 2**60) == b"0123456789"


def test_links_are_not_followed_and_pipes_do_not_block(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    link = tmp_path / "link"
    link.symlink_to(outside)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(OSError):
            durable.read_file(path)
        with pytest.raises(OSError):
            durable.append_at(path, 0, b"x")
        with pytest.raises(OSError):
            durable.cut(path, 0)
    durable.atomic_write(link, b"new")
    assert outside.read_bytes() == b"precious"
    assert not link.is_symlink() and link.read_bytes() == b"new"


def test_a_stale_temporary_that_is_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    (tmp_path / "a.tmp").symlink_to(outside)
    durable.atomic_write(tmp_path / "a", b"new")
    assert outside.read_bytes() == b"precious"
    assert (tmp_path / "a").read_bytes() == b"new"


def test_make_directory_makes_the_parents_and_names_them(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    assert durable.make_directory(path) == (path, path.parent, path.parent.parent)
    assert path.is_dir()
    assert durable.make_directory(path) == ()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_file_systems_that_cannot_flush_directories_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    durable.sync_directory(tmp_path)


def test_other_failures_to_flush_a_directory_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) as caught:
        durable.sync_directory(tmp_path)
    assert caught.value.filename == str(tmp_path)
