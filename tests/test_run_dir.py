"""The run directory: creation, appending, extension, refusals."""

from __future__ import annotations

import array
import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import run_dir_samples as samples

from tokenswift_cli import run_dir
from tokenswift_cli.errors import ResumeRefusedError, RunDirectoryError, UsageError
from tokenswift_cli.run_dir import RunDirectory, default_run_path


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run of 8 chunks (the seventh is empty), closed."""
    samples.make_run(tmp_path / "run", 8)
    return tmp_path / "run"


def test_layout_on_disk(run_path: Path) -> None:
    tokens = samples.tokens_up_to(samples.count_after(8))
    names = {"run.yaml", "meta.json", "prompt.txt", "prompt.ids", "tokens.bin", "output.txt", "metrics.jsonl"}
    assert set(os.listdir(run_path)) == names | {"checkpoints", ".lock"}
    assert (run_path / "prompt.txt").read_bytes() == b"A\r\n\x00B"
    assert (run_path / "prompt.ids").read_bytes() == bytes.fromhex("01000000 70110100 ffffffff")
    words = array.array("I", (run_path / "tokens.bin").read_bytes())
    if sys.byteorder == "big":
        words.byteswap()
    assert words.tolist() == tokens
    assert (run_path / "output.txt").read_bytes().decode() == samples.text_of(tokens)
    records = [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    assert records == [{"chunk": chunk, "acceptance": chunk / 100} for chunk in range(1, 9)]
    assert json.loads((run_path / "meta.json").read_text()) == {"seed": 7, "model": "tiny"}
    assert len(list((run_path / "checkpoints").iterdir())) == 2


def test_open_gives_back_what_was_stored(run_path: Path) -> None:
    """Case 19: a clean stop comes back whole, with the runner's own state, and nothing to report."""
    with RunDirectory.open(run_path) as run:
        assert run.run_yaml == samples.RUN_YAML
        assert run.meta == {"seed": 7, "model": "tiny"}
        assert run.prompt_text == b"A\r\n\x00B"
        assert run.prompt_ids == samples.PROMPT_IDS
        recovery = run.recover()
    assert recovery.extra == {"chunk": 8}
    assert recovery.finish_reason is None
    assert recovery.messages == ()
    assert recovery.lost_tokens == 0
    samples.assert_whole(run_path, 8)


def test_a_run_is_resumable_right_after_creation(tmp_path: Path) -> None:
    samples.make_run(tmp_path / "deep" / "er" / "run", 0)
    assert samples.assert_whole(tmp_path / "deep" / "er" / "run", 0).extra == {}


def test_finish_record_without_tokens_keeps_the_stored_state(run_path: Path) -> None:
    with RunDirectory.open(run_path) as run:
        run.recover()
        manifest = run.append_chunk([], "", {}, finish_reason="length")
        assert manifest == run.manifest
        assert manifest.finish_reason == "length"
    recovery = samples.recovered(run_path)
    assert (recovery.finish_reason, recovery.chunk, recovery.extra) == ("length", 9, {"chunk": 8})


@pytest.mark.parametrize("tokens", [[-1], [2**32], ["a"], [1.5]])
def test_ids_that_do_not_fit_change_nothing(run_path: Path, tokens: list[int]) -> None:
    with RunDirectory.open(run_path) as run:
        run.recover()
        with pytest.raises(ValueError, match="token ids"):
            run.append_chunk(tokens, "", {})
        with pytest.raises(ValueError):
            run.append_chunk([1], "\ud800", {})
        with pytest.raises(ValueError):
            run.append_chunk([1], "", {"loss": float("nan")})
        with pytest.raises(TypeError):
            run.append_chunk([1], "", {}, extra={"x": object()})
    samples.assert_whole(run_path, 8)


def test_calls_in_the_wrong_order_are_programming_errors(run_path: Path) -> None:
    with RunDirectory.open(run_path) as run:
        with pytest.raises(RuntimeError, match="recover"):
            run.append_chunk([1], "a", {})
        run.recover()
    with pytest.raises(RuntimeError, match="closed"):
        run.append_chunk([1], "a", {})


def test_second_opener_is_refused_while_the_first_is_open(run_path: Path) -> None:
    """Case 33: two processes never write into one run directory."""
    with RunDirectory.open(run_path), pytest.raises(RunDirectoryError, match=f"process {os.getpid()}"):
        RunDirectory.open(run_path)
    RunDirectory.open(run_path).close()


def test_a_removed_lock_file_stops_the_writer(run_path: Path) -> None:
    """Case 33: also when the lock file itself is deleted under a running writer."""
    with RunDirectory.open(run_path) as run:
        run.recover()
        os.unlink(run_path / ".lock")
        with RunDirectory.open(run_path) as second:
            second.recover()
            with pytest.raises(RunDirectoryError, match="removed or replaced"):
                samples.append_next(run)
            samples.append_next(second)
    samples.assert_whole(run_path, 9)


def test_create_refuses_occupied_paths(run_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"holds a run already.*tokenswift resume {run_path}"):
        samples.create(run_path)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        samples.create(foreign)
    assert os.listdir(foreign) == ["thesis.tex"]
    with pytest.raises(UsageError, match="is not a directory"):
        samples.create(foreign / "thesis.tex")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not a directory"):
        samples.create(tmp_path / "dangling")
    samples.assert_whole(run_path, 8)


def test_create_accepts_an_empty_directory(tmp_path: Path) -> None:
    samples.make_run(tmp_path, 1)
    samples.assert_whole(tmp_path, 1)


@pytest.mark.parametrize("kept", [["run.yaml"], ["run.yaml", "meta.json", "tokens.bin"], ["checkpoints"]])
def test_a_torn_creation_is_told_apart(tmp_path: Path, kept: list[str]) -> None:
    """Case 20: a kill while the directory is made leaves something that is named for what it is."""
    path = tmp_path / "run"
    samples.make_run(path, 0)
    (path / "checkpoints" / "00000000.json").rename(path / "checkpoints" / "00000000.json.tmp")
    for name in set(os.listdir(path)) - {".lock", "checkpoints", *kept}:
        os.unlink(path / name)
    with pytest.raises(ResumeRefusedError, match="interrupted while its directory was being created"):
        RunDirectory.open(path)
    with pytest.raises(UsageError, match="creation was interrupted before any text"):
        samples.create(path)


def test_open_refuses_what_is_no_run_and_names_it(tmp_path: Path) -> None:
    """Case 22: resume in the wrong folder is a usage error that names the folder."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "checkpoints").mkdir()
    (tmp_path / "trainer" / "run.yaml").write_text("x")
    for name, problem in (("missing", "exist"), ("file", "not a directory"), ("empty", "not a run directory"),
                          ("trainer", "not a run directory")):  # fmt: skip
        with pytest.raises(UsageError, match=problem) as caught:
            RunDirectory.open(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert caught.value.exit_code == 2
    assert os.listdir(tmp_path / "empty") == []
    assert ".lock" not in os.listdir(tmp_path / "trainer")


def test_missing_checkpoints_are_no_reason_to_advise_deletion(run_path: Path) -> None:
    for manifest in (run_path / "checkpoints").iterdir():
        manifest.unlink()
    with pytest.raises(ResumeRefusedError, match="tokens but no checkpoint"):
        RunDirectory.open(run_path)
    with pytest.raises(UsageError):
        samples.create(run_path)


def test_default_path_avoids_collisions(tmp_path: Path) -> None:
    now = datetime(2026, 1, 31, 14, 22, 33)
    for name in ("2026-01-31-142233", "2026-01-31-142233-2", "2026-01-31-142233-3"):
        path = default_run_path(tmp_path / "runs", now)
        assert path == tmp_path / "runs" / name
        path.mkdir(parents=True)


def test_public_names() -> None:
    assert set(run_dir.__all__) == {"Recovery", "RunDirectory", "default_run_path"}


def test_other_files_in_the_directory_are_tolerated(run_path: Path) -> None:
    (run_path / "kv").mkdir()
    (run_path / "kv" / "00000001.bin").write_bytes(b"x")
    (run_path / "report.html").write_text("x")
    (run_path / "checkpoints" / "notes.json").write_text("mine")
    (run_path / "output.txt.tmp").write_text("left over")
    samples.assert_continues(run_path)
    assert (run_path / "checkpoints" / "notes.json").read_text() == "mine"
    assert (run_path / "kv" / "00000001.bin").exists()
    assert not (run_path / "output.txt.tmp").exists()


def test_a_run_can_be_moved(run_path: Path, tmp_path: Path) -> None:
    run_path.rename(tmp_path / "with space")
    samples.assert_continues(tmp_path / "with space")
    with pytest.raises(UsageError, match=r"tokenswift resume '.*with space'"):
        samples.create(tmp_path / "with space")


def test_run_yaml_can_be_replaced_for_an_extended_run(run_path: Path) -> None:
    with RunDirectory.open(run_path) as run:
        run.recover()
        run.update_run_yaml("generation:\n  max_tokens: 200\n")
        assert run.run_yaml == "generation:\n  max_tokens: 200\n"
        samples.append_next(run)
    with RunDirectory.open(run_path) as run:
        assert run.run_yaml == "generation:\n  max_tokens: 200\n"
    samples.assert_whole(run_path, 9)


def test_after_an_update_even_a_damaged_newest_manifest_accepts_the_new_run_yaml(run_path: Path) -> None:
    with RunDirectory.open(run_path) as run:
        run.recover()
        run.update_run_yaml("new\n")
    samples.newest_manifest(run_path).write_bytes(b"")
    samples.assert_whole(run_path, 8)
    # An old version put back later is not accepted any more.
    with RunDirectory.open(run_path) as run:
        run.recover()
        run.update_run_yaml("newer\n")
        samples.append_next(run)
        samples.append_next(run)
    (run_path / "run.yaml").write_text("new\n")
    with pytest.raises(ResumeRefusedError, match=r"run\.yaml"):
        RunDirectory.open(run_path)


@pytest.mark.parametrize("name", ["tokens.bin", "output.txt", "metrics.jsonl"])
def test_another_program_shortening_a_file_is_noticed_at_the_next_chunk(run_path: Path, name: str) -> None:
    with RunDirectory.open(run_path) as run:
        run.recover()
        os.truncate(run_path / name, 10)
        with pytest.raises(RunDirectoryError, match=f"{name}: another program shortened it"):
            samples.append_next(run)
    samples.assert_continues(run_path)


def test_cost_of_a_chunk_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 20: saving the state is proportional to the chunk (bytes written are counted, not time)."""
    written: list[int] = []
    real: Callable[[int, bytes], int] = os.write

    def counting(descriptor: int, data: bytes) -> int:
        written.append(len(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", counting)
    costs: list[int] = []
    with samples.create(tmp_path / "run") as run:
        for _ in range(40):
            written.clear()
            run.append_chunk(list(range(512)), "x" * 2048, {"rate": 0.5})
            costs.append(sum(written))
    assert costs[-1] - costs[0] < 40 * 32
