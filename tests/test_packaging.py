"""An installed wheel stands alone: outside the repository its configurations, prompts and heads are found."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from command_lines import ROOT

from tokenswift_cli import __version__, shipped
from tokenswift_cli.bench.contexts import bench_text
from tokenswift_cli.config import PromptConfig
from tokenswift_cli.errors import ConfigError, UsageError
from tokenswift_cli.models.demo import demo_gguf_path
from tokenswift_cli.options import resolve
from tokenswift_cli.prompt_input import read_prompt
from tokenswift_cli.training.configuration import resolve_training

FOLDERS = ("configs", "prompts", "heads/smollm2-135m")


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="needs the development tools of `make setup`")
    directory = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(directory), ".")
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a directory of its own; what it needs comes from the environment of the tests."""
    directory = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", str(directory), str(wheel))
    return directory


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENSWIFT_S")}
    environment["PYTHONPATH"] = str(installed)
    return subprocess.run(
        [sys.executable, "-m", "tokenswift_cli", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_wheel_holds_what_the_program_needs_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name for name in names if ".dist-info/" not in name}
    assert all(name.startswith("tokenswift_cli/") for name in package)
    # From the working tree: what is not in version control yet is looked at, too.
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tokenswift_cli").rglob("*")
        if path.suffix in (".py", ".cpp", ".h", ".typed")
    }
    shipped_sources = {
        f"tokenswift_cli/shipped_files/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    assert sources | shipped_sources <= package
    assert not any("test" in name.split("/")[-1] for name in package - sources - shipped_sources)
    assert f"tokenswift-{__version__}.dist-info/licenses/LICENSE" in names


def test_what_is_installed_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"tokenswift {__version__}\n")
    where = "import tokenswift_cli; print(tokenswift_cli.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(installed)


def test_a_repositorys_path_is_answered_with_where_the_file_is(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "generate", "-p", "prompts/chronicle.txt")
    assert done.returncode == 2
    assert str(installed / "tokenswift_cli/shipped_files/prompts/chronicle.txt") in done.stderr
    done = run(installed, tmp_path, "generate", "-c", "configs/demo.yaml")
    assert done.returncode == 2
    assert "demo-100k" in done.stderr


@pytest.mark.demo
def test_the_demo_starts_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    """The configuration by its name, and with it the prompt and the heads."""
    try:
        demo_gguf_path()
    except Exception as error:
        pytest.skip(str(error))
    words = ("-n", "8", "-o", "run", "--threads", "1", "--progress", "plain")
    done = run(installed, tmp_path, "generate", "-c", "demo", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    # A dry run reads them as a run does.
    assert str(installed / "tokenswift_cli/shipped_files/heads/smollm2-135m") in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_source_distribution_holds_what_the_wheel_is_built_from() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    targets = build["targets"]
    assert set(targets["wheel"]["include"]) <= set(targets["sdist"]["include"])
    assert {f"/{folder}" for folder in FOLDERS} <= set(targets["wheel"]["include"])


def test_shipped_configurations_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "demo.yaml"):
        config = resolve({}, Path(name), {}).config
        assert config.prompt.file == str(ROOT / "prompts" / "novel-opening.txt")
        assert config.drafting.heads == str(ROOT / "heads" / "smollm2-135m")
    training = resolve_training({}, Path("train-heads-demo"), {})
    assert training.self_distill.prompts == str(ROOT / "prompts" / "training" / "openings.txt")


def test_every_shipped_configuration_is_valid() -> None:
    for name in shipped.configuration_names():
        if name.startswith("train-heads"):
            resolve_training({}, Path(name), {})
        else:
            # Settings of the paper need heads, which are the user's.
            given = {"drafting.heads": "heads"} if name == "paper" else {}
            resolve(given, Path(name), {})


def test_a_file_of_that_name_is_meant_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # a run of that name, and no configuration
    assert resolve({}, Path("demo"), {}).config.sampling.seed == 7
    (tmp_path / "demo").rmdir()
    (tmp_path / "demo").write_text("sampling: {seed: 123}\n", encoding="utf-8")
    assert resolve({}, Path("demo"), {}).config.sampling.seed == 123
    with pytest.raises(ConfigError, match=r"--config: missing does not exist.*demo-100k"):
        resolve({}, Path("missing"), {})
    with pytest.raises(ConfigError, match="does not exist"):
        resolve({}, Path("elsewhere/demo"), {})


def test_without_shipped_files_messages_say_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory of packages, ``configs`` beside ours is somebody else's."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "demo.yaml").touch()
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "tokenswift_cli")
    assert shipped.configuration_names() == ()
    assert shipped.configuration_file(Path("demo")) == Path("demo")
    with pytest.raises(UsageError) as caught:
        read_prompt(PromptConfig(file=str(tmp_path / "chronicle.txt")))
    assert "comes with" not in str(caught.value)


def test_names_of_missing_files_are_no_patterns() -> None:
    assert shipped.namesake(shipped.PROMPTS, Path("x/*.txt")) == ""
    assert shipped.namesake(shipped.PROMPTS, Path("/")) == ""
    assert str(ROOT / "prompts/training/openings.txt") in shipped.namesake("prompts", Path("openings.txt"))


def test_a_python_without_its_documentation_asks_bench_for_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UsageError, match=r"without pydoc_data.*--prompt FILE"):
        bench_text(PromptConfig())


def test_the_stated_python_is_the_one_that_is_tested() -> None:
    """Classifiers and README name the versions that the tests run on, and no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = [text.rpartition(" ")[2] for text in project["classifiers"] if "Python :: 3." in text]
    assert stated == ["3.11"]
    assert project["requires-python"] == f">={stated[0]}"
