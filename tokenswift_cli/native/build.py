"""Compile the kernel's source with the system's compiler, once, into the cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from tokenswift_cli.cache_dir import cache_directory

SOURCE_DIRECTORY = Path(__file__).resolve().parent
MAIN_SOURCE = "native.cpp"

# Tried in this order unless CXX names one.
COMPILERS = ("c++", "g++", "clang++")

# Rounding is part of the contract: no contraction into fused operations that the source does not spell out,
# and no -ffast-math. Instruction sets are chosen when the program runs, so no -march either.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-w",
)

_SECONDS_AT_MOST = 300
_MESSAGE_AT_MOST = 300


class BuildError(Exception):
    """The kernel cannot be built here; the message is one sentence that says why."""


def source_files() -> list[Path]:
    """The kernel's source files, sorted; they are part of the package."""
    return sorted(path for path in SOURCE_DIRECTORY.iterdir() if path.suffix in (".cpp", ".h"))


def find_compiler() -> list[str]:
    """The compiler's command with its arguments: ``$CXX`` if set, else the first of ``COMPILERS`` found.

    Raises:
        BuildError: there is none.
    """
    chosen = os.environ.get("CXX", "").strip()
    if not chosen:
        for name in COMPILERS:
            if path := shutil.which(name):
                return [path]
        raise BuildError(f"no C++ compiler was found (looked for {', '.join(COMPILERS)})")
    try:
        command = shlex.split(chosen)
    except ValueError as error:
        raise BuildError(f"CXX={chosen!r} cannot be read as a command ({error})") from None
    path = shutil.which(command[0])
    if path is None:
        raise BuildError(f"the compiler that CXX names, {command[0]!r}, was not found")
    return [path, *command[1:]]


def build(*, anew: bool = False) -> Path:
    """The compiled kernel, from the cache if source, compiler, flags and processor are the same.

    Safe in any number of processes at once: each compiles to a file of its own and renames it.

    Args:
        anew: compile even if it is there.

    Raises:
        BuildError: no compiler, a compiler that fails, or a cache that cannot be written or trusted.
    """
    compiler = find_compiler()
    directory = cache_directory() / "native"
    target = directory / _file_name(compiler)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(directory.stat()):
            raise BuildError(f"{directory} belongs to another user or can be written by anyone else")
        if not anew and _is_own_file(target):
            return target
        descriptor, name = tempfile.mkstemp(prefix=target.stem, suffix=".tmp", dir=directory)
        os.close(descriptor)
        try:
            _compile(compiler, name)
            os.chmod(name, 0o700)  # the linker has given it what the umask allows
            os.replace(name, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise BuildError(f"the cache {directory} cannot be used ({error.strerror or error})") from error
    return target


def needs_compiling() -> bool:
    """Whether :func:`build` would take its time: there is a compiler, and the cache has nothing of it."""
    try:
        return not _is_own_file(cache_directory() / "native" / _file_name(find_compiler()))
    except BuildError:
        return False


def _file_name(compiler: list[str]) -> str:
    return f"kernels-{_key(compiler)}.so"


def _compile(compiler: list[str], output: str) -> None:
    done = _run([*compiler, *FLAGS, str(SOURCE_DIRECTORY / MAIN_SOURCE), "-o", output])
    if done.returncode != 0 or os.path.getsize(output) == 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise BuildError(f"{compiler[0]} failed to compile the kernel: {said.strip()[:_MESSAGE_AT_MOST]}")


def _key(compiler: list[str]) -> str:
    """Hash of all that decides what the compiled file is."""
    version = _run([*compiler, "--version"])
    if version.returncode != 0:
        raise BuildError(f"{compiler[0]} --version failed, so it is not usable")
    parts = [shlex.join(compiler), version.stdout, shlex.join(FLAGS), platform.machine(), _processor_flags()]
    digest = hashlib.sha256()
    for data in [*(part.encode() for part in parts), *(path.read_bytes() for path in source_files())]:
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:20]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # Messages in one language, whatever the user's, to find the one that says what is wrong.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
            timeout=_SECONDS_AT_MOST,
        )
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run ({error.strerror or error})") from error
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} did not finish within {_SECONDS_AT_MOST} seconds") from None


def _processor_flags() -> str:
    """What the first processor can do, where the system tells (Linux)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def _is_own_file(path: Path) -> bool:
    """Whether ``path`` is a file, not a link to one, that nobody else can have changed."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and _is_own(status)


def _is_own(status: os.stat_result) -> bool:
    """What gets loaded into this process must not be somebody else's to write."""
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
