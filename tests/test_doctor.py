"""``tokenswift doctor``: true facts, what is wrong with what to do, and nothing downloaded or hidden."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_model_directory import END, END_ID, save_tiny_model

from tokenswift_cli import __version__, cli
from tokenswift_cli.commands.doctor_text import Section, _converted, plain, rich_view
from tokenswift_cli.doctor import storage
from tokenswift_cli.doctor.kernels import Kernels, forward_paths
from tokenswift_cli.doctor.model import EndOfText, ModelFacts, run_need
from tokenswift_cli.doctor.packages import unmet
from tokenswift_cli.doctor.storage import ShippedFiles, cache_entries, hub_cache, place, shipped_files
from tokenswift_cli.models import decoder
from tokenswift_cli.native import attention
from tokenswift_cli.native.attention import Loaded, load

LOAD_ANEW = load.__wrapped__
LIMIT = 512
GIB = 1 << 30

COMPILED = Kernels(True, "AVX2", "AVX2", "libgomp.so.1", "c++", None, None)
ABSENT = Kernels(False, "no C++ compiler was found", None, None, None, "no C++ compiler was found", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=LIMIT)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the user's, and a Hub cache of the test's own."""
    for name in list(os.environ):
        if name.startswith("TOKENSWIFT_") and name != "TOKENSWIFT_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def doctor_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = cli.run(["doctor", "--json", "-q", *words])
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.count("\n") == 1
    return code, json.loads(captured.out)


def test_the_machine_as_one_json_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = doctor_json(capsys)
    assert code == 0 and found["ready"] is True and found["problems"] == []
    assert found["machine"]["tokenswift"] == __version__
    assert found["machine"]["memory_bytes"] > found["free_memory_bytes"] > 0
    assert found["usable_cores"] >= 1
    assert found["packages"]["required"]["torch"] == torch.__version__
    assert {package["name"] for package in found["packages"]["optional"]} == {
        "llama-cpp-python",
        "tensorboard",
    }
    assert found["devices"]["threads"] == torch.get_num_threads()
    assert found["kernels"]["active"] is (load().kernel is not None)
    assert found["kernels"]["description"] == load().description
    assert found["run_place"]["path"] == str(tmp_path / "runs") and found["run_place"]["free_bytes"] > 0
    assert found["hub"]["models"] == [] and found["model"] is None and found["run"] is None


def test_a_model_and_a_run_that_fits(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor_json(capsys, "-m", str(model), "-n", "500", "--device", "cpu")
    facts, run = found["model"], found["run"]
    assert code == 0 and found["ready"] is True
    assert facts["architecture"] == "LlamaForCausalLM" and facts["dtype"] == "float32"
    assert facts["position_limit"] == LIMIT and facts["end_of_text"] == [{"id": END_ID, "text": END}]
    # 2 layers of 2 key-value heads of size 16, keys and values.
    assert facts["kv_bytes_per_token"] == {"auto": 512, "float32": 512, "float16": 256}
    assert 0 < facts["pass_bytes"] <= facts["weight_bytes"]
    assert facts["path"].startswith("native" if load().kernel is not None else "generic")
    assert run["needs"]["max_tokens"] == 500 and run["needs"]["kv_bytes"] == 500 * 512
    assert run["refusal"] is None and len(run["lines"]) == 3


def test_the_kv_dtype_decides_what_a_run_needs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", str(model), "-n", "500", "--kv-dtype", "float16", "--device", "cpu"]
    _, found = doctor_json(capsys, *words)
    assert found["run"]["needs"]["kv_bytes"] == 500 * 256


def test_a_length_asked_for_that_does_not_fit_is_a_problem(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = doctor_json(capsys, "-m", str(model), "-n", "600")
    assert code == 1 and found["ready"] is False
    assert len(found["problems"]) == 1 and "Use --max-tokens 512 or less" in found["problems"][0]


def test_by_default_100k_is_judged_and_a_shorter_run_could_start(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["doctor", "-m", str(model), "-q"]) == 0
    out = capsys.readouterr().out
    assert "A run of 100,000 tokens" in out and "made for 512" in out
    assert out.endswith("Ready: a run can start, but not one of 100,000 tokens.\n")


def test_plain_lines_are_aligned_and_without_control_characters(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "run\x1b[31m"
    assert cli.run(["doctor", "-m", str(model), "-o", str(odd)]) == 0
    captured = capsys.readouterr()
    assert "Loading" in captured.err
    for line in captured.out.splitlines():
        assert line.isprintable() and line == line.rstrip()
    titles = [line for line in captured.out.splitlines() if line and not line.startswith(" ")]
    assert titles[:6] == ["Machine", "Software", "Devices", "Speed", "Cache", "Models"]


def test_an_encoding_without_the_characters_gets_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert cli.run(["doctor", "-q", "-o", str(tmp_path / "größe")]) == 0
    assert b"gr\\xf6\\xdfe" in raw.getvalue()


def test_a_terminal_gets_panels() -> None:
    found = [Section("Machine", (("processor", "one [red]x[/red]"),)), Section("Problems", (("", "p" * 90),))]
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    console.print(rich_view(found, "Not ready", ready=False))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "one [red]x[/red]" in shown and "╭" in shown and shown.count("p") >= 90
    assert max(map(len, shown.splitlines())) == 60
    assert plain(found, "Not ready") == (
        "Machine\n  processor  one [red]x[/red]\n\nProblems\n  " + "p" * 90 + "\n\nNot ready\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "5"], "--max-tokens can be judged for a model only"),
        (["--dtype", "float32", "--kv-dtype", "float16"], "--dtype, --kv-dtype"),
        (["-m", "x", "-n", "0"], "--max-tokens"),
        (["extra"], "extra"),
        (["--offline"], "--offline"),
    ],
)
def test_usage_errors(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and expected in captured.err


@pytest.mark.parametrize(
    "words", [["--help"], ["-n", "5"], ["--threads", "x"]], ids=["help", "no model", "no number"]
)
def test_help_and_usage_errors_import_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys; from tokenswift_cli.cli import run; run(['doctor', *sys.argv[1:]]); "
        "sys.exit(str(sorted({'torch', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_model_that_is_not_there_is_a_problem_and_the_machine_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = doctor_json(capsys, "-m", "./none")
    assert code == 1 and "There is no model directory ./none" in found["problems"][0]
    assert found["machine"]["cpu"] and found["model"] is None


def test_a_hub_model_is_looked_for_on_this_machine_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    code, found = doctor_json(capsys, "-m", "some-organisation/some-model")
    assert code == 1 and "not (or not completely) in the local Hub cache" in found["problems"][0]


def test_without_a_compiler(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(attention, "load", lambda: LOAD_ANEW())
    code, found = doctor_json(capsys, "-m", str(model), "-n", "500", "--device", "cpu")
    assert code == 0
    kernels = found["kernels"]
    assert not kernels["active"] and kernels["compiler"] is None
    assert kernels["description"].startswith("no C++ compiler was found")
    assert found["paths"]["llama_family"] == "lean" and found["paths"]["others"] == "generic"
    assert any("Install g++ or clang++" in note for note in found["notes"])
    # The tiny model is too small for the lean way, and the reasons of both are told.
    assert found["model"]["path"].startswith("generic")
    assert "native: no C++ compiler was found" in found["model"]["path"]
    assert "lean: the model is so small" in found["model"]["path"]


def test_the_switches_are_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attention.SWITCH, "0")
    monkeypatch.setenv(decoder.SWITCH, "generic")
    monkeypatch.setattr(attention, "load", lambda: LOAD_ANEW())
    assert cli.run(["doctor", "-q", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "TOKENSWIFT_NATIVE=0" in out and "TOKENSWIFT_PATH=generic" in out
    assert "off (TOKENSWIFT_NATIVE=0)" in out and "Install g++" not in out


@pytest.mark.parametrize(
    ("value", "expected"), [("fast", "Use one of native, lean"), ("native", "cannot be had")]
)
def test_a_path_that_cannot_be_had_is_a_problem(
    value: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(decoder.SWITCH, value)
    monkeypatch.setattr(attention, "load", lambda: Loaded(None, "off"))
    code, found = doctor_json(capsys, "--device", "cpu")
    assert code == 1 and [expected in problem for problem in found["problems"]] == [True]


def test_a_device_that_is_not_here_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("has CUDA")
    code, found = doctor_json(capsys, "--device", "cuda")
    assert code == 1 and "finds no CUDA device" in found["problems"][0]
    assert found["devices"]["chosen"] is None


@pytest.mark.parametrize(
    ("kernels", "device", "threads", "wanted", "llama_family", "others", "slower"),
    [
        (COMPILED, "cpu", 2, None, "native", "generic", set()),
        (COMPILED, "cpu", 2, " ", "native", "generic", set()),
        (replace(COMPILED, openmp=None), "cpu", 2, None, "lean", "generic", {"native"}),
        (replace(COMPILED, openmp=None), "cpu", 1, None, "native", "generic", set()),
        (ABSENT, "cpu", 2, None, "lean", "generic", {"native"}),
        (COMPILED, "cuda", 2, None, "generic", "generic", {"native", "lean"}),
        (COMPILED, "cpu", 2, "lean", "lean", None, set()),
        (COMPILED, "cpu", 2, "generic", "generic", "generic", set()),
        (ABSENT, "cpu", 2, "native", None, None, {"native"}),
        (COMPILED, "mps", 2, "lean", None, None, {"native", "lean"}),
        (COMPILED, "cpu", 2, "fast", None, None, set()),
    ],
)
def test_forward_paths(
    kernels: Kernels,
    device: str,
    threads: int,
    wanted: str | None,
    llama_family: str | None,
    others: str | None,
    slower: set[str],
) -> None:
    paths = forward_paths(kernels, device, threads, wanted)
    assert (paths.llama_family, paths.others, set(paths.reasons)) == (llama_family, others, slower)
    assert (paths.problem is None) is (llama_family is not None)


@pytest.mark.skipif(load().kernel is None, reason="no compiled kernels")
def test_the_path_foretold_is_the_one_a_model_gets(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = doctor_json(capsys, "-m", str(model), "--device", "cpu")
    assert found["model"]["path"].startswith(found["paths"]["llama_family"])


def facts(**changes: Any) -> ModelFacts:
    known = ModelFacts("m", "A", "cpu", "float32", "generic", False, 8 * GIB, 8 * GIB, "auto",
                       {"auto": 1 << 17, "float32": 1 << 17, "float16": 1 << 16}, None, 256,
                       (EndOfText(2, "</s>"),))  # fmt: skip
    return replace(known, **changes)


def test_what_a_run_needs_is_in_proportion_to_its_length() -> None:
    need = run_need(facts(), 100_000, 20 * GIB, 100 * GIB)
    assert need.needs.kv_bytes == 100_000 << 17 and need.needs.free_bytes == 20 * GIB
    assert need.refusal is None and not need.smallest_refused
    assert run_need(facts(kv_dtype="float16"), 100_000, 20 * GIB, 100 * GIB).needs.kv_bytes == 100_000 << 16


@pytest.mark.parametrize(
    ("free", "disk", "expected", "smallest"),
    [(4 * GIB, GIB, "float16", False), (GIB // 4, GIB, "a smaller model", True), (None, 1000, "disk", True)],
)
def test_a_run_that_would_be_refused(free: int | None, disk: int, expected: str, smallest: bool) -> None:
    need = run_need(facts(), 100_000, free, disk)
    assert need.refusal is not None and expected in need.refusal
    assert need.smallest_refused is smallest


def test_no_room_even_for_one_token_is_a_problem(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenswift_cli.models.target.free_memory", lambda device: GIB // 4)
    code, found = doctor_json(capsys, "-m", str(model), "--device", "cpu")
    assert code == 1 and "would be refused" in found["problems"][0]


def test_requirements_that_are_not_met() -> None:
    installed: Mapping[str, str] = {"torch": "2.5.1", "rich": "15.0.0", "numpy": "2.1.0rc1"}
    found = unmet(
        ["torch>=2.6", "rich>=13.7", "numpy>=2.0", "gguf>=0.17", 'pytest; extra == "dev"',
         'winthing; sys_platform == "none"'],
        installed.get,
    )  # fmt: skip
    assert len(found) == 2
    assert "torch is 2.5.1, but torch>=2.6 is needed" in found[0] and "pip install" in found[0]
    assert "gguf is not installed" in found[1]


def test_a_broken_torch_is_a_problem_and_the_rest_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, found = doctor_json(capsys)
    assert code == 1 and found["problems"][0].startswith("torch cannot be imported")
    assert found["devices"] is None and found["machine"]["cpu"]
    assert cli.run(["doctor", "-q"]) == 1
    assert "Not ready: 1 problem to solve first." in capsys.readouterr().out


def test_the_cache_is_listed_by_kind(tmp_path: Path) -> None:
    from tokenswift_cli.models.gguf import _entry_directory

    cache = tmp_path / "cache"
    converted = cache / _entry_directory(Path("m.gguf"), "0" * 64, "float32").parent.name / "m-float32"
    (converted / "inner").mkdir(parents=True)
    (converted / "model.safetensors").write_bytes(bytes(1000))
    (converted / "inner" / "x").write_bytes(bytes(24))
    (converted.parent / "m-float32.lock").touch()
    (converted.parent / ".m-float32.abcd").mkdir()
    for name in ("native/kernels-1.so", "native/kernels-2.tmp", "linear-plans/p.json", "hashes.json"):
        (cache / name).parent.mkdir(exist_ok=True)
        (cache / name).write_bytes(bytes(10))
    (cache / "hashes.json").chmod(0)
    assert [(entry.kind, entry.name, entry.bytes) for entry in cache_entries(cache)] == [
        ("converted model", "m-float32", 1024),
        ("compiled kernels", "kernels-1.so", 10),
        ("linear plan", "p.json", 10),
        ("other", ".m-float32.abcd", 0),
        ("other", "hashes.json", 10),
        ("other", "kernels-2.tmp", 10),
    ]
    assert cache_entries(tmp_path / "none") == ()


def hub_model(cache: Path, name: str, *files: str) -> None:
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    for file in files:
        (snapshot / file).write_bytes(bytes(100))


def test_models_in_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(cache))
    assert hub_cache().models == ()
    hub_model(cache, "some/whole", "config.json", "model.safetensors")
    hub_model(cache, "some/pickle", "config.json", "pytorch_model.bin")
    (cache / "models--damaged").mkdir()
    found = hub_cache()
    assert found.problem is None
    assert [(model.name, model.bytes, model.loadable) for model in found.models] == [
        ("some/pickle", 200, False),
        ("some/whole", 200, True),
    ]


def test_a_hub_cache_that_cannot_be_read_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("huggingface_hub.scan_cache_dir", fail)
    code, found = doctor_json(capsys)
    assert code == 0 and "Permission denied" in found["hub"]["problem"]


def test_without_the_demo_model(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenswift_cli.models.demo.PACKAGE", "a_package_that_is_not_there")
    assert cli.run(["doctor", "-q"]) == 0
    out = capsys.readouterr().out
    assert "make demo-model" in out and "Ready: a run can start with -m MODEL" in out
    assert cli.run(["doctor", "-q", "-m", str(model)]) == 0
    assert capsys.readouterr().out.endswith("Ready: a run can start, but not one of 100,000 tokens.\n")
    code, found = doctor_json(capsys, "-m", "demo")
    assert code == 1 and "is not installed" in found["problems"][0]


def test_the_model_of_the_environment_is_told_and_not_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENSWIFT_MODEL", "./mine")
    code, found = doctor_json(capsys)
    assert code == 0 and found["default_model"] == "./mine (TOKENSWIFT_MODEL)" and found["model"] is None


def test_the_run_directory_asked_for_must_be_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    code, found = doctor_json(capsys, "-o", "file")
    assert code == 1 and "not a directory" in found["problems"][0]
    code, found = doctor_json(capsys, "-o", "deep/new")
    assert code == 0 and found["run_place"]["writable"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, found = doctor_json(capsys, "-o", "deep/new")
    assert code == 1 and "cannot be written" in found["problems"][0]
    assert any("TOKENSWIFT_CACHE" in note for note in found["notes"])


def test_a_full_disk_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_disk", lambda path: 1000)
    code, found = doctor_json(capsys)
    assert code == 1 and "is full" in found["problems"][0]


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not place(tmp_path / "file" / "inner").writable
    assert place(tmp_path / "a" / "b").writable


def test_accelerators_and_what_torch_complains_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def memory(index: int) -> tuple[int, int]:
        if index == 1:
            raise RuntimeError("busy")
        return 60 * GIB, 80 * GIB

    def available() -> bool:
        warnings.warn("the driver is old", stacklevel=1)
        return True

    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Card {index}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    code, found = doctor_json(capsys)
    assert code == 0 and found["notes"] == ["the driver is old"]
    devices = found["devices"]
    assert devices["chosen"] == "cuda" and found["paths"]["llama_family"] == "generic"
    assert [(card["name"], card["free_bytes"]) for card in devices["accelerators"]] == [
        ("cuda:0", 60 * GIB),
        ("cuda:1", None),
    ]
    assert cli.run(["doctor", "-q"]) == 0
    out = capsys.readouterr().out
    assert "Card 0, 80.00 GiB, 60.00 GiB free" in out and "Card 1\n" in out


def test_converted_models_are_named_by_file_type_and_version() -> None:
    assert _converted("a-b.Q4_1-0123456789abcdef-float16-transformers5.24.0-v1") == (
        "a-b.Q4_1 in float16, for transformers 5.24.0"
    )
    assert _converted("something else") == "something else"


def test_what_came_with_tokenswift_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = shipped_files()
    assert "demo" in found.configurations and str(found.prompts).endswith("prompts")
    assert any(path.endswith("smollm2-135m") for path in found.heads)
    monkeypatch.setattr("tokenswift_cli.shipped._PACKAGE", tmp_path / "tokenswift_cli")
    assert shipped_files() == ShippedFiles((), None, ())
