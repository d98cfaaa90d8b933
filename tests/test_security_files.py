"""Who can read and write what is made here: the user's umask decides, and of compiled code nobody else."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from heads_in_memory import random_heads
from tiny_gguf import save_tiny_gguf

from tokenswift_cli import cli
from tokenswift_cli.models.heads import HeadsShape
from tokenswift_cli.models.heads_directory import save_heads
from tokenswift_cli.models.identity import ModelIdentity
from tokenswift_cli.native.build import BuildError, build


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The real kernel, from the user's cache."""
    try:
        return build()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def cache(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a compiler that takes no time."""
    script = tmp_path / "compiler"
    lines = [
        "#!/bin/sh",
        'for word; do test "$word" = --version && { echo "made up 1.0"; exit 0; }; output="$word"; done',
        f"echo run >> {shlex.quote(str(tmp_path / 'calls'))}",
        f'cp {shlex.quote(str(compiled))} "$output" && chmod 777 "$output"',
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("TOKENSWIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def times_compiled(cache: Path) -> int:
    return len((cache.parent / "calls").read_text().splitlines())


@pytest.fixture(params=[0o077, 0o002, 0o027], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_every_file_and_directory_has_the_users_umask(umask: int, cache: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    model = save_tiny_gguf(tmp_path / "tiny.gguf")
    words = ["-n", "40", "--chunk-tokens", "16", "--ignore-eos", "-q"]
    run_dir = made / "runs" / "one"
    assert cli.run(["generate", "-m", str(model), "--prompt-text", "Once", "-o", str(run_dir), *words]) == 0
    assert cli.run(["resume", str(run_dir), "-n", "60", "-q"]) == 0
    base = ModelIdentity("tiny", "LlamaForCausalLM", {}, "0" * 64, "float32", 300)
    save_heads(made / "heads" / "tiny", random_heads(HeadsShape(2, 8)), base, card="# Card", training={})
    build()
    paths = [*made.rglob("*"), *cache.rglob("*")]
    assert len(paths) > 20
    native = cache / "native"
    for path in paths:
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        if path == native or path.parent == native:
            wanted = 0o700
        assert stat.S_IMODE(path.lstat().st_mode) == wanted, f"{path} {path.lstat().st_mode:o}"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_no_library_is_loaded_from_a_directory_that_others_can_write(cache: Path, mode: int) -> None:
    """Also if the library itself is well protected: whoever can write the directory can replace it."""
    library = build()
    library.parent.chmod(mode)
    with pytest.raises(BuildError, match="can be written by anyone else"):
        build()
    library.parent.chmod(0o700)
    assert build() == library
    assert times_compiled(cache) == 1


def writable(library: Path) -> None:
    library.chmod(0o720)


def writable_by_all(library: Path) -> None:
    library.chmod(0o702)


def linked(library: Path) -> None:
    library.rename(library.parent.parent / "elsewhere.so")
    library.symlink_to(library.parent.parent / "elsewhere.so")


@pytest.mark.parametrize("spoil", [writable, writable_by_all, linked])
def test_a_library_that_others_may_have_changed_is_compiled_anew(cache: Path, spoil: object) -> None:
    assert callable(spoil)
    library = build()
    spoil(library)
    assert build() == library
    assert times_compiled(cache) == 2
    assert stat.S_ISREG(library.lstat().st_mode)
    assert stat.S_IMODE(library.lstat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_another_user_owns_is_not_loaded(cache: Path) -> None:
    library = build()
    os.chown(library, 12345, -1)
    build()
    assert times_compiled(cache) == 2
    os.chown(library.parent, 12345, -1)
    with pytest.raises(BuildError, match="belongs to another user"):
        build()
