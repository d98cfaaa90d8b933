"""Compiling the kernel: once, safely, and with a reason where it cannot be."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokenswift_cli.native import attention
from tokenswift_cli.native.attention import load
from tokenswift_cli.native.build import COMPILERS, MAIN_SOURCE, BuildError, build, find_compiler, source_files
from tokenswift_cli.native.threads import find_team

LOAD_ANEW = load.__wrapped__


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The real kernel, from the user's cache."""
    try:
        return build()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def empty_cache(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache for each test, once the real kernel was found in the user's."""
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(attention.SWITCH, raising=False)
    yield tmp_path / "cache" / "native"


def script(directory: Path, body: str) -> str:
    """A compiler made of shell lines; ``$output`` is the file it is asked for."""
    path = directory / "compiler"
    lines = [
        "#!/bin/sh",
        'for word; do test "$word" = --version && { echo "made up 1.0"; exit 0; }; output="$word"; done',
        f"echo run >> {shlex.quote(str(directory / 'calls'))}",
        body,
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def calls(directory: Path) -> int:
    path = directory / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def copying(compiled: Path) -> str:
    return f'cp {shlex.quote(str(compiled))} "$output"'


def test_the_sources_are_in_the_package() -> None:
    names = {path.name for path in source_files()}
    assert {MAIN_SOURCE, "attention_job.h", "attention_kernel.h"} < names


def test_switched_off(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setenv(attention.SWITCH, "0")
    loaded = LOAD_ANEW()
    assert loaded.kernel is None
    assert loaded.description == "off (TOKENSWIFT_NATIVE=0)"
    assert not empty_cache.exists()


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    loaded = LOAD_ANEW()
    assert loaded.kernel is None
    assert loaded.description == f"no C++ compiler was found (looked for {', '.join(COMPILERS)})"


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("no-such-compiler -O2", "the compiler that CXX names, 'no-such-compiler', was not found"),
        ("'unclosed", "cannot be read as a command"),
        ("/bin/false", "--version failed"),
    ],
)
def test_an_unusable_compiler_is_named(monkeypatch: pytest.MonkeyPatch, compiler: str, said: str) -> None:
    """CXX is what the user wants: another compiler is not taken instead."""
    monkeypatch.setenv("CXX", compiler)
    loaded = LOAD_ANEW()
    assert loaded.kernel is None
    assert said in loaded.description


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "echo noise >&2; echo 'attention.cpp:1:2: error: no such thing' >&2; exit 1",
            "error: no such thing",
        ),
        ("exit 1", "no message"),
        ("exit 0", "failed to compile"),
        ('echo "not a library" > "$output"', "cannot be loaded"),
    ],
)
def test_a_compiler_that_fails_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path, body: str, said: str
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, body))
    loaded = LOAD_ANEW()
    assert loaded.kernel is None
    assert said in loaded.description
    assert not list(empty_cache.glob("*.tmp"))


def test_a_library_of_something_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "other.cpp"
    source.write_text('extern "C" int tokenswift_attention_interface() { return -1; }\n')
    real = shlex.join(find_compiler())
    monkeypatch.setenv("CXX", script(tmp_path, f'{real} -shared -fPIC {source} -o "$output"'))
    assert "another interface" in LOAD_ANEW().description


def test_compiled_once_and_anew_for_another_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: Path, empty_cache: Path
) -> None:
    command = script(tmp_path, copying(compiled))
    monkeypatch.setenv("CXX", command)
    first = build()
    assert build() == first and calls(tmp_path) == 1
    monkeypatch.setenv("CXX", f"{command} -DOTHER")
    assert build() != first and calls(tmp_path) == 2
    assert len(list(empty_cache.iterdir())) == 2
    assert LOAD_ANEW().kernel is not None


@pytest.mark.parametrize("broken", [b"", b"\x7fELF cut short"])
def test_a_broken_file_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: Path, broken: bytes
) -> None:
    """A power cut can leave a file without its contents."""
    monkeypatch.setenv("CXX", script(tmp_path, copying(compiled)))
    build().write_bytes(broken)
    loaded = LOAD_ANEW()
    assert loaded.kernel is not None
    assert calls(tmp_path) == 2


def test_builds_at_the_same_time_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: Path, empty_cache: Path
) -> None:
    # Written in two halves, so that a file that is loaded too early would be seen.
    size = compiled.stat().st_size // 2
    source = shlex.quote(str(compiled))
    body = f'head -c {size} {source} > "$output"; sleep 0.3; tail -c +{size + 1} {source} >> "$output"'
    monkeypatch.setenv("CXX", script(tmp_path, body))
    check = (
        "from tokenswift_cli.native.build import build; import ctypes; print(ctypes.CDLL(str(build()))._name)"
    )

    def start(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(start, range(4)))
    assert all(one.returncode == 0 for one in done), done
    assert len({one.stdout for one in done}) == 1
    assert [path.suffix for path in empty_cache.iterdir()] == [".so"]


def test_a_cache_that_anyone_can_write_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: Path, empty_cache: Path
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, copying(compiled)))
    library = build()
    assert stat.S_IMODE(empty_cache.stat().st_mode) == 0o700
    empty_cache.chmod(0o777)
    library.unlink()
    with pytest.raises(BuildError, match="can be written by anyone"):
        build()


def test_a_cache_that_cannot_be_made_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "file"))
    loaded = LOAD_ANEW()
    assert loaded.kernel is None and "cannot be used" in loaded.description


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere torch has another OpenMP")
def test_torch_s_threads_do_the_work_and_no_second_openmp_is_loaded(compiled: Path) -> None:
    team = find_team()
    assert team is not None
    program = (
        "import torch; from pathlib import Path; from tokenswift_cli.native.attention import load; "
        "torch.ones(9).sum(); runtimes = lambda: {line.split()[-1] for line in "
        "Path('/proc/self/maps').read_text().splitlines() if 'libgomp' in line or 'libomp' in line}; "
        "before = runtimes(); loaded = load(); assert loaded.kernel, loaded; assert runtimes() == before; "
        "print(loaded.description)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TOKENSWIFT_CACHE"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=environment | {"TOKENSWIFT_CACHE": str(compiled.parent.parent)},
    )  # fmt: skip
    assert done.stdout.strip().endswith(f"threads of {team.library}")


def test_whether_it_will_take_its_time_is_known_before(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So that nobody looks at a silent terminal for half a minute."""
    monkeypatch.setenv("CXX", script(tmp_path, copying(compiled)))
    assert attention.will_compile()
    monkeypatch.setenv(attention.SWITCH, "0")
    assert not attention.will_compile()
    monkeypatch.delenv(attention.SWITCH)
    build()
    assert not attention.will_compile()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not attention.will_compile()
