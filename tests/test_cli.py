"""The command line: flags reach the configuration, errors are one sentence, streams stay apart."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tokenswift_cli import __version__, cli
from tokenswift_cli.config import Config
from tokenswift_cli.errors import PreflightError, ResumeRefusedError
from tokenswift_cli.events import Event, Notice, TextAppended
from tokenswift_cli.flags import FLAGS, RESUME_FLAGS
from tokenswift_cli.options import resolve
from tokenswift_cli.prompt_input import PromptText
from tokenswift_cli.yaml_config import dump_yaml, load_run_yaml


@dataclass
class Calls:
    """What the commands asked of the runner and the display."""

    config: Config | None = None
    stored: Config | None = None
    prompt: PromptText | None = None
    dry_run: object = None
    run_dir: object = None
    display: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    failure: BaseException | None = None
    exit_code: int = 0


class Outcome:
    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code

    def summary(self) -> Mapping[str, object]:
        return {"finish_reason": "length", "tokens": 3, "text": "é"}


class RecordingDisplay:
    """Writes text to standard output when it may, as the real displays do."""

    def __init__(self, calls: Calls, write_text: bool) -> None:
        self.calls, self.write_text = calls, write_text

    def __enter__(self) -> RecordingDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def handle(self, event: Event) -> None:
        self.calls.events.append(event)
        if isinstance(event, TextAppended) and self.write_text:
            sys.stdout.write(event.text)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """The commands with a recording runner and display in the place of the real ones."""
    calls = Calls()

    def finish(publish: Callable[[Event], None]) -> Outcome:
        if calls.failure is not None:
            raise calls.failure
        publish(TextAppended("the text"))
        return Outcome(calls.exit_code)

    def generate(
        config: Config, prompt: PromptText, *, publish: Callable[[Event], None], dry_run: bool
    ) -> Outcome:
        calls.config, calls.prompt, calls.dry_run = config, prompt, dry_run
        return finish(publish)

    def resume(
        run_dir: Path, stored: Config, requested: Config, *, publish: Callable[[Event], None]
    ) -> Outcome:
        calls.run_dir, calls.stored, calls.config = run_dir, stored, requested
        return finish(publish)

    def open_display(mode: str, *, stream: bool, verbosity: int, write_text: bool) -> RecordingDisplay:
        calls.display = {"mode": mode, "stream": stream, "verbosity": verbosity}
        return RecordingDisplay(calls, write_text)

    runner = types.ModuleType("tokenswift_cli.runner")
    runner.generate, runner.resume = generate, resume  # type: ignore[attr-defined]
    choose = types.ModuleType("tokenswift_cli.display.choose")
    choose.open_display = open_display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenswift_cli.runner", runner)
    monkeypatch.setitem(sys.modules, "tokenswift_cli.display.choose", choose)
    for name in list(os.environ):
        if name.startswith("TOKENSWIFT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    config = resolve({"prompt.text": "x", "sampling.seed": "7", "display.progress": "json"}, None, {}).config
    (folder / "run.yaml").write_text(dump_yaml(config), encoding="utf-8")
    return folder


SPELLED: dict[str, tuple[list[str], str, object]] = {
    flag: (words, path, value)
    for flag, words, path, value in [
        ("-p", ["-p", "p.txt"], "prompt.file", None),
        ("--prompt", ["--prompt", "p.txt"], "prompt.file", None),
        ("--prompt-text", ["--prompt-text", "-x"], "prompt.text", "-x"),
        ("--chat", ["--chat"], "prompt.chat", True),
        ("--no-chat", ["--no-chat"], "prompt.chat", False),
        ("--system", ["--chat", "--system", "S"], "prompt.system", "S"),
        ("-n", ["-n", "100k"], "generation.max_tokens", 100_000),
        ("--max-tokens", ["--max-tokens=7"], "generation.max_tokens", 7),
        ("--min-tokens", ["--min-tokens", "5"], "generation.min_tokens", 5),
        ("--ignore-eos", ["--ignore-eos"], "generation.ignore_eos", True),
        ("--no-ignore-eos", ["--no-ignore-eos"], "generation.ignore_eos", False),
        ("--stop", ["--stop", "A", "--stop", "B "], "generation.stop", ("A", "B ")),
        ("--on-loop", ["--on-loop", "stop"], "generation.on_loop", "stop"),
        ("--seed", ["--seed", "9"], "sampling.seed", 9),
        ("--temp", ["--temp", "0"], "sampling.temperature", 0.0),
        ("--temperature", ["--temperature", "1e-1"], "sampling.temperature", 0.1),
        ("--top-p", ["--top-p", ".9"], "sampling.top_p", 0.9),
        ("--top-k", ["--top-k", "40"], "sampling.top_k", 40),
        ("--min-p", ["--min-p", "0"], "sampling.min_p", 0.0),
        ("--eta", ["--eta", "3e-4"], "sampling.eta", 3e-4),
        ("--penalty", ["--penalty", "1.1"], "sampling.penalty", 1.1),
        ("--penalty-window", ["--penalty-window", "2k"], "sampling.penalty_window", 2000),
        ("--method", ["--method", "lookup"], "drafting.method", "lookup"),
        ("--heads", ["--heads", "/h"], "drafting.heads", "/h"),
        ("-m", ["-m", "M"], "model.name", "M"),
        ("--model", ["--model", "M"], "model.name", "M"),
        ("--device", ["--device", "cpu"], "model.device", "cpu"),
        ("--dtype", ["--dtype", "float32"], "model.dtype", "float32"),
        ("--kv-dtype", ["--kv-dtype", "float16"], "model.kv_dtype", "float16"),
        ("--rope-scaling", ["--rope-scaling", "yarn:4"], "model.rope_scaling", "yarn:4"),
        ("--threads", ["--threads", "2"], "model.threads", 2),
        ("--offline", ["--offline"], "model.offline", True),
        ("--no-offline", ["--no-offline"], "model.offline", False),
        ("--trust-code", ["--trust-code"], "model.trust_remote_code", True),
        ("--no-trust-code", ["--no-trust-code"], "model.trust_remote_code", False),
        ("--trust-pickle", ["--trust-pickle"], "model.trust_pickle", True),
        ("--no-trust-pickle", ["--no-trust-pickle"], "model.trust_pickle", False),
        ("-o", ["-o", "D"], "run.directory", "D"),
        ("--run-dir", ["--run-dir", "D"], "run.directory", "D"),
        ("--chunk-tokens", ["--chunk-tokens", "64"], "run.chunk_tokens", 64),
        ("--kv-journal", ["--kv-journal", "never"], "checkpoint.kv", "never"),
        ("--progress", ["--progress", "plain"], "display.progress", "plain"),
        ("--stream", ["--stream"], "display.stream", True),
        ("--no-stream", ["--no-stream"], "display.stream", False),
    ]
}


def test_the_spelling_table_is_complete() -> None:
    names = {name for flag in FLAGS for name in flag.names}
    names |= {f"--no-{flag.name[2:]}" for flag in FLAGS if not flag.metavar}
    assert set(SPELLED) == names


@pytest.mark.parametrize("flag", SPELLED)
def test_each_flag_reaches_its_key(flag: str, calls: Calls, tmp_path: Path) -> None:
    words, path, value = SPELLED[flag]
    (tmp_path / "p.txt").write_text("Once", encoding="utf-8")
    prompt = [] if path in ("prompt.file", "prompt.text") else ["--prompt-text", "Once"]
    assert cli.run(["generate", *words, *prompt]) == 0
    section, key = path.split(".")
    expected = str(tmp_path / "p.txt") if path == "prompt.file" else value
    assert getattr(getattr(calls.config, section), key) == expected
    assert calls.prompt is not None
    assert calls.prompt.text == (value if path == "prompt.text" else "Once")
    assert calls.dry_run is False


@pytest.mark.parametrize("flag", [flag for flag in RESUME_FLAGS if flag.metavar], ids=lambda flag: flag.name)
def test_each_resume_flag_changes_the_stored_configuration(flag: Any, calls: Calls, run_dir: Path) -> None:
    words, path, value = SPELLED[flag.name]
    assert cli.run(["resume", str(run_dir), *words]) == 0
    section, key = path.split(".")
    assert getattr(getattr(calls.config, section), key) == value
    assert calls.stored is not None and calls.stored.sampling.seed == 7
    assert calls.run_dir == run_dir


def test_resume_without_flags_asks_for_the_run_as_it_is(calls: Calls, run_dir: Path) -> None:
    assert cli.run(["resume", str(run_dir)]) == 0
    assert calls.config is not None and calls.stored is not None
    assert calls.config.sampling == calls.stored.sampling
    assert calls.config.generation == calls.stored.generation
    assert calls.display["mode"] == "auto"


def test_resume_has_no_prompt_flags(calls: Calls, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["resume", str(run_dir), "--prompt-text", "x"]) == 2
    assert "--prompt-text" in capsys.readouterr().err
    assert calls.config is None


def test_resume_needs_a_run_directory(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 22: the wrong folder is named."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.yaml").write_text("sampling: {seed: -1}\nfoo: 1\n", encoding="utf-8")
    for name, expected in [
        ("missing", "does not exist"),
        ("file", "no directory"),
        ("empty", "holds no run.yaml"),
        ("torn", "2 configuration errors"),
    ]:
        assert cli.run(["resume", name]) == 2
        message = capsys.readouterr().err
        assert expected in message and name in message
    assert calls.config is None


def test_help_version_and_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"tokenswift {__version__}\n"
    for words in (["--help"], ["-h"], []):
        assert cli.run(words) == 0
        out = capsys.readouterr().out
        assert "generate" in out and "resume" in out


@pytest.mark.parametrize(("command", "flags"), [("generate", FLAGS), ("resume", RESUME_FLAGS)])
def test_the_help_names_every_flag_and_shows_examples(
    command: str, flags: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([command, "--help"]) == 0
    out = capsys.readouterr().out
    for flag in flags:
        assert flag.name in out
    assert "Examples:" in out and f"tokenswift {command} " in out


def test_a_missing_prompt_file_is_an_error_and_never_the_prompt(
    calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 28 and PRODUCT.md: exit 2, and the name is not used as text."""
    assert cli.run(["generate", "--prompt", "Once upon a time"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: The prompt file ") and "does not exist" in captured.err
    assert calls.prompt is None


@pytest.mark.parametrize(
    "words", [["-n", "0"], ["-n", "-5"], ["-n-5"], ["--max-tokens=-100k"], ["-n", "1.5"]]
)
def test_a_length_that_is_no_positive_number_is_a_usage_error(
    words: list[str], calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 8."""
    assert cli.run(["generate", "--prompt-text", "x", *words]) == 2
    assert "--max-tokens" in capsys.readouterr().err
    assert calls.config is None


def test_all_errors_are_listed_and_only_on_standard_error(
    calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 26."""
    words = ["generate", "--prompt-text", "x", "--min-p", "7", "--seed", "x", "-c", "none.yaml"]
    assert cli.run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: 3 configuration errors:\n  - ")
    assert calls.config is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["generate", "--max-tokns", "3"], "--max-tokns"),
        (["genrate"], "genrate"),
        (["resume"], "RUN_DIR"),
        (["generate"], "--prompt FILE"),
        (["generate", "--prompt-text", "a", "-p", "b"], "exclude each other"),
        (["generate", "--prompt-text", "a", "-q", "-v"], "-q and -v"),
        (["generate", "--prompt-text", "a", "-q", "--progress", "rich"], "-q means --progress none"),
        (["generate", "--prompt-text", "a", "--json", "--stream"], "--stream"),
        (["generate", "--prompt-text", "a", "--dry-run", "-q"], "--dry-run"),
        (["generate", "--prompt-text", "a", "--dry-run", "--progress", "none"], "--progress none"),
        (["generate", "--prompt-text", "a", "--temp", "1e-5"], "0 for greedy decoding"),
    ],
)
def test_usage_errors_exit_with_2_and_name_the_word(
    words: list[str], expected: str, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: ") and expected in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("failure", "code"),
    [(PreflightError("too big"), 1), (ResumeRefusedError("other model"), 3), (KeyboardInterrupt(), 130),
     (ZeroDivisionError("x / 0"), 1)],
)  # fmt: skip
def test_failures_have_their_exit_code_and_no_traceback(
    failure: BaseException,
    code: int,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls.failure = failure
    assert cli.run(["generate", "--prompt-text", "x"]) == code
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert str(failure) in message and len(message.splitlines()) == 1
    if isinstance(failure, ZeroDivisionError):
        assert "unexpected error, ZeroDivisionError: x / 0" in message and "TOKENSWIFT_DEBUG=1" in message
    monkeypatch.setenv("TOKENSWIFT_DEBUG", "1")
    assert cli.run(["generate", "--prompt-text", "x"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_the_outcomes_exit_code_is_the_process_exit_code(calls: Calls) -> None:
    for code in (0, 1, 130, 143):
        calls.exit_code = code
        assert cli.run(["generate", "--prompt-text", "x"]) == code


def test_standard_output_is_the_text_alone(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 24."""
    assert cli.run(["generate", "--prompt-text", "x"]) == 0
    assert capsys.readouterr().out == "the text"


def test_json_puts_one_object_on_standard_output(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["generate", "--prompt-text", "x", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == {"finish_reason": "length", "tokens": 3, "text": "é"}
    assert out.count("\n") == 1
    assert calls.display == {"mode": "json", "stream": False, "verbosity": 0}


@pytest.mark.parametrize(
    ("words", "mode", "verbosity"),
    [([], "auto", 0), (["-q"], "none", -1), (["-q", "--json"], "none", -1), (["-v"], "auto", 1),
     (["--json", "--progress", "plain"], "plain", 0), (["--progress", "rich", "-v"], "rich", 1),
     (["-q", "--progress", "none"], "none", -1)],
)  # fmt: skip
def test_display_switches(words: list[str], mode: str, verbosity: int, calls: Calls) -> None:
    assert cli.run(["generate", "--prompt-text", "x", *words]) == 0
    assert (calls.display["mode"], calls.display["verbosity"]) == (mode, verbosity)


@pytest.mark.parametrize("words", [["--json"], ["-v"], ["--progress", "plain"]])
def test_a_dry_run_that_shows_something_is_allowed(words: list[str], calls: Calls) -> None:
    assert cli.run(["generate", "--prompt-text", "x", "--dry-run", *words]) == 0
    assert calls.dry_run is True


def test_notices_are_published(calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENSWIFT_SEDE", "1")
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfOnce")
    assert cli.run(["generate", "-p", "p.txt", "--dry-run"]) == 0
    notices = [event.message for event in calls.events if isinstance(event, Notice)]
    assert len(notices) == 1 and "TOKENSWIFT_SEDE" in notices[0]
    assert calls.prompt is not None and calls.prompt.text == "Once"
    assert "byte order mark" in calls.prompt.notices[0]
    assert calls.dry_run is True


def test_the_configuration_file_and_the_environment_are_heard(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("prompt: {text: hi}\nsampling: {seed: 3, top_k: 5}\n", encoding="utf-8")
    monkeypatch.setenv("TOKENSWIFT_SEED", "4")
    assert cli.run(["generate", "-c", "c.yaml", "--top-k", "6"]) == 0
    assert calls.config is not None
    assert (calls.config.sampling.seed, calls.config.sampling.top_k) == (4, 6)
    assert load_run_yaml(dump_yaml(calls.config)) == calls.config


def test_the_prompt_comes_from_standard_input(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped\r\n")))
    assert cli.run(["generate", "-p", "-"]) == 0
    assert calls.prompt is not None and calls.prompt.raw == b"piped\r\n"


def test_a_closed_standard_input_is_a_usage_error(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.run(["generate", "-p", "-"]) == 2


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    """A pipe closed before the help is written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tokenswift_cli", "--version"],
            stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1


ROOT = Path(cli.__file__).parents[2]
COMMAND = f"{shlex.quote(sys.executable)} -m tokenswift_cli"


def in_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--version >&-", 0),
        ("--help >&-", 0),
        ("--version >&- 2>&-", 0),
        ("--version <&- >&- 2>&-", 0),
        ("resume missing >&-", 2),
        ("resume missing 2>&-", 2),
        ("resume missing 2>/dev/full", 2),
        ("generate -p - <&-", 2),
        ("generate -p - <&- 2>&-", 2),
    ],
)
def test_closed_streams_change_neither_the_exit_code_nor_the_other_stream(
    line: str, code: int, tmp_path: Path
) -> None:
    """Case 24: with ``2>&-`` the error must not land in the text on standard output."""
    if "/dev/full" in line and not os.path.exists("/dev/full"):
        pytest.skip("has no /dev/full")
    done = in_shell(f"{COMMAND} {line}", tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    told = code == 2 and "2>" not in line
    assert done.stderr.startswith("Error: ") if told else done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_descriptor_of_a_closed_stream(closed: str, tmp_path: Path) -> None:
    """What a library prints to descriptor 2 would otherwise end up in the run directory."""
    script = (
        "from pathlib import Path; from tokenswift_cli import cli; "
        "cli.run = lambda: Path('number').write_text(str(open('other').fileno())) * 0; cli.main()"
    )
    (tmp_path / "other").write_text("x", encoding="utf-8")
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} {closed}"
    assert in_shell(line, tmp_path).returncode == 0
    assert int((tmp_path / "number").read_text(encoding="utf-8")) > 2


INTERRUPTED_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "WHICH":
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass
sys.meta_path.insert(0, Finder())
sys.argv = ["tokenswift", "--help"]
from MODULE import main
main()
"""


def console_script() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["tokenswift"].partition(":")
    assert function == "main"
    return str(module)


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to itself")
@pytest.mark.parametrize("which", ["typer", "tokenswift_cli.cli", "tokenswift_cli.flags"])
def test_ctrl_c_while_the_program_starts_is_silent(which: str) -> None:
    """Case 27: also before the command line is loaded."""
    script = INTERRUPTED_IMPORT.replace("WHICH", which).replace("MODULE", console_script())
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_console_script_imports_nothing_before_it_runs() -> None:
    script = f"import sys, {console_script()}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    own = {name for name in loaded if name.split(".")[0] == "tokenswift_cli"}
    assert own == {"tokenswift_cli", "tokenswift_cli.__main__"}
    assert not {"typer", "rich", "inspect"} & set(loaded)
