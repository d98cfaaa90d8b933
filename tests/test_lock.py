"""One writer per run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tokenswift_cli.errors import RunDirectoryError
from tokenswift_cli.lock import RunLock

HOLDER = """
import sys, time
from pathlib import Path
from tokenswift_cli.lock import RunLock
lock = RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """Case 33: two processes never write into one run directory; also, a kill -9 frees the lock."""
    path = tmp_path / ".lock"
    holder = start_holder(path)
    try:
        with pytest.raises(RunDirectoryError, match=rf"{tmp_path} is in use by process {holder.pid} on "):
            RunLock.acquire(path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert f"pid {holder.pid}\n" in path.read_text()  # stale, and no obstacle
    with RunLock.acquire(path) as lock:
        assert lock.held
        assert f"pid {os.getpid()}\n" in path.read_text()


def test_second_lock_in_the_same_process_is_refused_until_release(tmp_path: Path) -> None:
    first = RunLock.acquire(tmp_path / ".lock")
    with pytest.raises(RunDirectoryError, match=f"process {os.getpid()}"):
        RunLock.acquire(tmp_path / ".lock")
    first.release()
    first.release()
    assert not first.held
    RunLock.acquire(tmp_path / ".lock").release()


@pytest.mark.parametrize("text", [b"", b"pid -3\n", b"\xff\xfe", b"pid 1\x1b[2J\nhost x\n", b"x" * 100_000])
def test_text_of_a_strange_lock_file_is_never_shown(tmp_path: Path, text: bytes) -> None:
    first = RunLock.acquire(tmp_path / ".lock")
    (tmp_path / ".lock").write_bytes(text)
    with pytest.raises(RunDirectoryError, match="in use by another process"):
        RunLock.acquire(tmp_path / ".lock")
    first.release()
    with RunLock.acquire(tmp_path / ".lock"):
        assert (tmp_path / ".lock").read_text().startswith(f"pid {os.getpid()}\nhost ")


def test_a_removed_lock_file_is_noticed(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path / ".lock")
    os.unlink(tmp_path / ".lock")
    assert not lock.held
    with RunLock.acquire(tmp_path / ".lock") as second:
        assert second.held
        assert not lock.held
    lock.release()


def test_a_link_or_a_pipe_is_no_lock_file(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError):
            RunLock.acquire(tmp_path / name)
    assert (tmp_path / "outside").read_text() == "precious"


def test_descriptors_do_not_leak(tmp_path: Path) -> None:
    first = RunLock.acquire(tmp_path / ".lock")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(5):
        with pytest.raises(RunDirectoryError):
            RunLock.acquire(tmp_path / ".lock")
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert after == before
    first.release()
