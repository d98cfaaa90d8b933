"""A run directory that somebody else prepared: refused in one sentence, nothing outside touched, nothing run.

Its author can sign everything anew: hashes and checksums are right wherever that makes the attack better.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_dir_samples import newest_manifest
from tiny_model_directory import save_tiny_model

from tokenswift_cli import cli
from tokenswift_cli.manifest import Manifest, decode_manifest, encode_manifest
from tokenswift_cli.run_contents import sha256

WRITTEN, WANTED = 40, 60
GIB = 2**30
HANG_SECONDS = 60
Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model and a run that can go on."""
    world = tmp_path_factory.mktemp("world")
    save_tiny_model(world / "tiny")
    run_dir = world / "run"
    words = ["generate", "-m", str(world / "tiny"), "--prompt-text", "Once", "-o", str(run_dir), "-q"]
    assert cli.run([*words, "-n", str(WRITTEN), "--chunk-tokens", "16", "--ignore-eos"]) == 0
    return world


@pytest.fixture
def run_dir(world: Path, tmp_path: Path) -> Path:
    shutil.copytree(world / "run", tmp_path / "run")
    (tmp_path / "treasure").write_bytes(b"must stay")
    return tmp_path / "run"


def manifests(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("*.json"))


def change_manifests(run_dir: Path, change: Callable[[Manifest], Manifest]) -> None:
    for path in manifests(run_dir):
        path.write_bytes(encode_manifest(change(decode_manifest(path.read_bytes(), str(path)))))


def change_raw_manifests(run_dir: Path, **fields: object) -> None:
    """Change fields to what a :class:`Manifest` cannot hold, and sign anew."""
    for path in manifests(run_dir):
        record = json.loads(path.read_bytes()) | fields
        del record["checksum"]
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps(record | {"checksum": sha256(canonical.encode())}))


def forge(run_dir: Path, name: str, data: bytes) -> None:
    """Replace a file whose hash the manifests record, and the hash."""
    (run_dir / name).write_bytes(data)
    change_manifests(
        run_dir,
        lambda manifest: replace(manifest, file_hashes={**manifest.file_hashes, name: (sha256(data),)}),
    )


def forge_settings(run_dir: Path, **changes: object) -> None:
    """Change values of run.yaml, given as ``section__key``."""
    document = yaml.safe_load((run_dir / "run.yaml").read_text(encoding="utf-8"))
    for name, value in changes.items():
        section, key = name.split("__")
        document[section][key] = value
    forge(run_dir, "run.yaml", yaml.safe_dump(document).encode())


def forge_meta(run_dir: Path, change: Callable[[dict[str, Any]], object]) -> None:
    meta = json.loads((run_dir / "meta.json").read_bytes())
    change(meta)
    forge(run_dir, "meta.json", json.dumps(meta).encode())


def forge_tokens(run_dir: Path, ids: list[int]) -> None:
    """One chunk of other tokens, with their text and metrics missing."""
    data = struct.pack(f"<{len(ids)}I", *ids)
    (run_dir / "tokens.bin").write_bytes(data)
    digest = sha256(data)

    def change(manifest: Manifest) -> Manifest:
        last = replace(manifest.borders[-1], tokens=len(ids), digest=digest[:16])
        borders = (manifest.borders[0], last)
        return replace(manifest, chunk=1, token_count=len(ids), tokens_sha256=digest, borders=borders)

    change_manifests(run_dir, change)


def sparse(path: Path, size: int = GIB) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def linked_out(path: Path) -> None:
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def directory_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def state_of(directory: Path, without: Path) -> dict[Path, tuple[int, int, bytes | None]]:
    """Everything in ``directory`` except what lies in ``without``."""
    found = {}
    for path in directory.rglob("*"):
        if path == without or without in path.parents:
            continue
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[path] = (status.st_mode, status.st_mtime_ns, content)
    return found


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Not more than a GiB of memory beyond what is in use, and no hang."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)

    def hangs(*_: object) -> None:
        pytest.fail("the command hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GIB, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def resume(run_dir: Path, *more: str) -> int:
    before = state_of(run_dir.parent, run_dir)
    with bounded():
        code = cli.run(["resume", str(run_dir), "-n", str(WANTED), "-q", *more])
    assert state_of(run_dir.parent, run_dir) == before, "something outside the run directory was touched"
    return code


def refusal(run_dir: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The one sentence (or list) with which the resume is refused."""
    capsys.readouterr()
    code = resume(run_dir, *more)
    out, error = capsys.readouterr()
    assert out == ""
    assert "unexpected" not in error and "Traceback" not in error
    assert code in (2, 3), error
    assert error.startswith("Error: ")
    if "configuration error" not in error:
        assert error.count("\n") == 1
    assert len(error) < 1500
    return error


def test_the_run_itself_goes_on(run_dir: Path) -> None:
    assert resume(run_dir) == 0
    assert (run_dir / "tokens.bin").stat().st_size == WANTED * 4


TRACKED = ("run.yaml", "meta.json", "prompt.ids")


@pytest.mark.parametrize("spoil", [linked_out, fifo, endless, directory_instead, sparse])
@pytest.mark.parametrize("name", [*TRACKED, "tokens.bin", ".lock"])
def test_files_that_are_none_are_refused(
    run_dir: Path, name: str, spoil: Spoil, capsys: pytest.CaptureFixture[str]
) -> None:
    if (name, spoil) in ((".lock", sparse), ("tokens.bin", sparse)):
        pytest.skip("what the lock file holds does not matter, and tokens that do not match are cut off")
    spoil(run_dir / name)
    assert name in refusal(run_dir, capsys)


@pytest.mark.parametrize("spoil", [linked_out, fifo, endless, directory_instead, sparse])
@pytest.mark.parametrize("name", ["prompt.txt", "output.txt", "metrics.jsonl"])
def test_files_that_do_not_decide_are_replaced_or_left_alone(
    run_dir: Path, name: str, spoil: Spoil, capsys: pytest.CaptureFixture[str]
) -> None:
    """The link goes, not what it points to."""
    spoil(run_dir / name)
    code = resume(run_dir)
    error = capsys.readouterr().err
    said = [line for line in error.splitlines() if not line.startswith("warning: ")]
    assert "unexpected" not in error and len(said) <= 1
    assert code == 0 or (code in (2, 3) and name in said[0])


@pytest.mark.parametrize("spoil", [linked_out, fifo, endless, directory_instead, sparse])
def test_manifests_that_are_no_files_are_refused(
    run_dir: Path, spoil: Spoil, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in manifests(run_dir):
        path.rename(run_dir / path.name)
        spoil(run_dir / path.name)
        (run_dir / path.name).rename(path)
    assert "checkpoints" in refusal(run_dir, capsys)


@pytest.mark.parametrize("name", ["checkpoints", "kv"])
def test_directories_that_lead_elsewhere_are_refused(
    run_dir: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = run_dir.parent / "elsewhere"
    if (run_dir / name).exists():
        (run_dir / name).rename(outside)
    else:
        outside.mkdir()
    (outside / "treasure").write_bytes(b"must stay")
    (run_dir / name).symlink_to(outside)
    refusal(run_dir, capsys)


@pytest.mark.parametrize(
    "fields",
    [
        {"token_count": 2**60},
        {"token_count": -1},
        {"token_count": True},
        {"token_count": 40.0},
        {"chunk": 2**60},
        {"text_bytes": 2**60},
        {"text_bytes": -5},
        {"metrics_bytes": 1e300},
        {"sequence": 2**60},
        {"borders": [[2**60, "0" * 16]]},
        {"file_hashes": {"../treasure": ["0" * 64]}},
        {"file_hashes": {"run.yaml": ["0" * 64], "meta.json": 7}},
        {"finish_reason": ["eos"]},
        {"extra": "x"},
    ],
    ids=str,
)
def test_absurd_manifests_are_refused(
    run_dir: Path, fields: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    change_raw_manifests(run_dir, **fields)
    refusal(run_dir, capsys)


DEEP = ("[" * 10_000, '{"a":' * 10_000, "[" * 10_000 + "]" * 10_000, "9" * 10_000)


@pytest.mark.parametrize("text", [*DEEP, "", "null", "[]", "\x00" * 100], ids=lambda text: repr(text[:6]))
def test_manifests_of_any_json_are_refused(
    run_dir: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in manifests(run_dir):
        path.write_text(text)
    refusal(run_dir, capsys)


def test_a_flood_of_manifests_is_told_in_one_short_sentence(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in manifests(run_dir):
        path.unlink()
    for number in range(3000):
        (run_dir / "checkpoints" / f"{number:08d}.json").write_bytes(b"{}")
    refusal(run_dir, capsys)


@pytest.mark.parametrize(
    "name", ["00000001.json/../../../treasure", "-1.json", "1e9.json", "000000000000000000000001.json"]
)
def test_other_names_among_the_manifests_are_left_alone(run_dir: Path, name: str) -> None:
    (run_dir / "checkpoints" / name.replace("/", "\u2215")).write_bytes(b"{}")
    assert resume(run_dir) == 0


@pytest.mark.parametrize(
    "text",
    [
        *DEEP,
        "null",
        "[]",
        "{}",
        '{"model": 7}',
        '{"model": {"files": 3}}',
        '{"model": null, "seed": {}}',
        "\ufeff{}",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_absurd_facts_about_the_model_are_refused(
    run_dir: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(run_dir, "meta.json", text.encode())
    assert "meta.json" in refusal(run_dir, capsys)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 2**60),
        ("vocab_size", -1),
        ("vocab_size", True),
        ("vocab_size", 257.0),
        ("dtype", "../../treasure"),
        ("dtype", "float8"),
        ("dtype", 7),
        ("dtype", "__class__"),
        ("files", {"../../treasure": "0" * 64}),
        ("files", ["config.json"]),
        ("architecture", "os.system"),
        ("name", None),
    ],
)
def test_an_absurd_identity_is_refused(
    run_dir: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    forge_meta(run_dir, lambda meta: meta["model"].update({key: value}))
    refusal(run_dir, capsys)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x00\x00\x00\x00\x01",
        struct.pack("<I", 257),
        struct.pack("<I", 2**31),
        struct.pack("<2I", 3, 2**32 - 1),
    ],
)
def test_a_prompt_of_ids_that_are_none_is_refused(
    run_dir: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(run_dir, "prompt.ids", data)
    assert "prompt.ids" in refusal(run_dir, capsys)


@pytest.mark.parametrize("ids", [[257], [1, 2**31], [2**32 - 1] * 20])
def test_tokens_beyond_the_vocabulary_are_refused(
    run_dir: Path, ids: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    forge_tokens(run_dir, ids)
    assert "tokens.bin" in refusal(run_dir, capsys)


@pytest.mark.parametrize("name", ["tokens.bin", "output.txt", "metrics.jsonl"])
def test_a_huge_file_that_a_manifest_vouches_for_takes_no_huge_memory(
    run_dir: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hash of so many zeros is easily had, so it is claimed; what is refused is the size."""
    sparse(run_dir / name, 8 * GIB)
    fields: dict[str, dict[str, object]] = {
        "output.txt": {"text_bytes": 8 * GIB},
        "metrics.jsonl": {"metrics_bytes": 8 * GIB},
        "tokens.bin": {
            "token_count": 2 * GIB,
            "tokens_sha256": "0" * 64,
            "chunk": 1,
            "borders": [[0, sha256(b"")[:16]], [2 * GIB, "0" * 16]],
        },
    }
    change_raw_manifests(run_dir, **fields[name])
    if name == "tokens.bin":
        refusal(run_dir, capsys)
    else:
        assert resume(run_dir) == 0
        assert (run_dir / name).stat().st_size < 2**20


def test_a_text_that_is_none_is_rebuilt(run_dir: Path) -> None:
    before = (run_dir / "output.txt").read_bytes()
    data = b"\xff\xfe" * 10
    (run_dir / "output.txt").write_bytes(data)
    change_manifests(
        run_dir, lambda manifest: replace(manifest, text_bytes=len(data), text_sha256=sha256(data))
    )
    assert resume(run_dir) == 0
    assert (run_dir / "output.txt").read_bytes().startswith(before)


@pytest.mark.parametrize(
    "text",
    [
        "model: !!python/object/apply:os.system ['touch treasure2']",
        "model:\n  name: !!python/name:os.system ''",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "model: &m\n  name: x\n  self: *m",
        *("[" * 10_000, "{a: " * 10_000, "- " * 10_000),
        "[" + "a," * 400_000 + "]",
        "model: {name: 7",
        "\x00",
        "- 1",
        "7",
        "model: {unknown: 1}",
    ],
    ids=lambda text: repr(text[:24]),
)
def test_an_absurd_run_yaml_is_refused(run_dir: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    forge(run_dir, "run.yaml", text.encode())
    refusal(run_dir, capsys)
    assert not list(run_dir.parent.glob("treasure2"))


def test_an_undecodable_run_yaml_is_refused(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge(run_dir, "run.yaml", b"\xff\xfe")
    assert "run.yaml" in refusal(run_dir, capsys)


HUGE = 2**60


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("generation__max_tokens", HUGE),
        ("generation__min_tokens", HUGE),
        ("run__chunk_tokens", HUGE),
        ("sampling__penalty_window", HUGE),
        ("sampling__top_k", HUGE),
        ("sampling__suppress_ids", [HUGE]),
        ("sampling__suppress_ids", [300]),
        ("drafting__ngram_size", HUGE),
        ("drafting__ngram_candidates", HUGE),
        ("drafting__suffix_max_draft", HUGE),
        ("drafting__self_depth", HUGE),
        ("drafting__partial_cache", HUGE),
        ("drafting__max_nodes", HUGE),
        ("drafting__prefill_chunk", HUGE),
        ("drafting__head_widths", [64] * 64),
        ("drafting__method", "tokenswift"),
        ("drafting__heads", "../../treasure"),
        ("model__threads", 16),
        ("model__threads", HUGE),
        ("model__device", "cuda:99"),
        ("model__name", "../treasure"),
        ("model__name", "organisation/" + "x" * 5000),
        ("generation__stop", ["x"] * 20_000),
    ],
    ids=str,
)
def test_absurd_settings_are_refused_or_harmless(
    run_dir: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    forge_settings(run_dir, **{key: value})
    code = resume(run_dir)
    error = capsys.readouterr().err
    assert "unexpected" not in error and "Traceback" not in error
    if code:
        assert error.startswith("Error: ")
        assert len(error) < 8000


@pytest.mark.parametrize(
    ("name", "flag"), [("trust_remote_code", "--trust-code"), ("trust_pickle", "--trust-pickle")]
)
def test_run_yaml_cannot_turn_on_what_runs_code(
    world: Path, run_dir: Path, name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even with a model in the run directory itself that brings code and pickles along."""
    model = run_dir / "model"
    shutil.copytree(world / "tiny", model)
    mark = run_dir.parent / "ran"
    code = f"open({str(mark)!r}, 'w')\n"
    (model / "own.py").write_text(code)
    config = json.loads((model / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(mark))
    forge_settings(run_dir, **{"model__name": str(model), f"model__{name}": True})
    error = refusal(run_dir, capsys)
    assert flag in error and "run.yaml" in error
    assert not mark.exists()


def test_the_output_goes_nowhere_else(run_dir: Path) -> None:
    elsewhere = str(run_dir.parent / "elsewhere")
    prompt = str(run_dir.parent / "treasure")
    forge_settings(
        run_dir, run__directory=elsewhere, prompt__file=prompt, prompt__text=None, display__progress="rich"
    )
    assert resume(run_dir) == 0
    assert (run_dir / "tokens.bin").stat().st_size == WANTED * 4


def test_pickles_in_the_directory_are_never_loaded(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("something was unpickled")

    for name in ("extra.pkl", "state.pt", "checkpoints/00000009.pt", "pytorch_model.bin", "kv/0.bin"):
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_bytes(pickle.dumps({}))
    newest_manifest(run_dir).write_bytes(pickle.dumps({}))
    for name in ("pickle.load", "pickle.loads", "torch.load"):
        monkeypatch.setattr(name, refuse)
    assert resume(run_dir) == 0


def test_escape_sequences_of_a_run_do_not_reach_the_terminal(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge_settings(run_dir, model__name="./\x1b]0;title\x07\x1b[2J")
    capsys.readouterr()
    assert resume(run_dir) != 0
    error = capsys.readouterr().err
    assert error[:-1].isprintable()
