"""The run directory: creation, appending, recovery from damage, refusals."""

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
from tokenswift_cli.errors import ResumeRefusedError, RunDirectoryError, TokenSwiftError, UsageError
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


# --- creation -----------------------------------------------------------------------------------


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


# --- recovery -----------------------------------------------------------------------------------


def append_garbage(path: Path) -> None:
    for name in ("tokens.bin", "output.txt", "metrics.jsonl"):
        with open(path / name, "ab") as file:
            file.write(b'{"chunk": 9}\n\xf0\x9f\x98')


def test_a_torn_tail_is_cut(run_path: Path) -> None:
    """Case 20: what a kill left behind the last checkpoint goes, and nothing else."""
    sizes = {name: (run_path / name).stat().st_size for name in ("tokens.bin", "output.txt", "metrics.jsonl")}
    append_garbage(run_path)
    recovery = samples.assert_whole(run_path, 8)
    assert recovery.lost_tokens == 0
    assert recovery.messages == ("dropped 4 tokens written after the last good checkpoint",)
    assert {name: (run_path / name).stat().st_size for name in sizes} == sizes
    assert samples.assert_whole(run_path, 8).messages == ()


def test_a_torn_newest_manifest_falls_back_to_the_one_before(run_path: Path) -> None:
    """Case 21: fall back to the previous good point, with a message."""
    newest = samples.newest_manifest(run_path)
    newest.write_bytes(newest.read_bytes()[:100])
    recovery = samples.assert_whole(run_path, 7)
    assert recovery.extra == {"chunk": 7}
    assert recovery.lost_tokens == samples.chunk_size(8)
    assert f"{newest.name} is damaged" in recovery.messages[0]
    assert len(list((run_path / "checkpoints").glob("*.json"))) == 2
    assert samples.assert_whole(run_path, 7).messages == ()
    samples.assert_continues(run_path)


def test_no_sound_manifest_is_refused(run_path: Path) -> None:
    """Case 21: and nothing is changed then."""
    for manifest in (run_path / "checkpoints").iterdir():
        manifest.write_bytes(b"[]")
    before = (run_path / "tokens.bin").read_bytes()
    with pytest.raises(ResumeRefusedError, match="No checkpoint in .* can be used") as caught:
        RunDirectory.open(run_path)
    assert caught.value.exit_code == 3
    assert (run_path / "tokens.bin").read_bytes() == before


@pytest.mark.parametrize(("damaged_chunk", "good_chunk"), [(1, 0), (3, 2), (6, 5), (8, 7)])
def test_a_flipped_bit_costs_only_the_chunks_from_there_on(
    run_path: Path, damaged_chunk: int, good_chunk: int
) -> None:
    """Case 21: fall back to the longest good chunk border, not to zero, and say how much is lost."""
    samples.flip_bit(run_path / "tokens.bin", 4 * samples.count_after(damaged_chunk) - 2, bit=5)
    total, kept = samples.count_after(8), samples.count_after(good_chunk)
    with RunDirectory.open(run_path) as run:
        recovery = run.recover()
        assert recovery.tokens == samples.tokens_up_to(kept)
        assert recovery.chunk == good_chunk
        assert recovery.lost_tokens == total - kept
        assert any(f"{total - kept} of {total} tokens are lost" in message for message in recovery.messages)
        if recovery.text_damaged:
            assert recovery.text == ""
            run.rewrite_text(samples.text_of(recovery.tokens))
        records = (run_path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["chunk"] for line in records] == list(range(1, good_chunk + 1))
    assert samples.assert_whole(run_path, good_chunk).messages == ()
    samples.assert_continues(run_path)


@pytest.mark.parametrize("name", ["output.txt", "metrics.jsonl"])
@pytest.mark.parametrize("change", ["flip", "truncate", "delete", "link", "directory"])
def test_damage_beside_the_tokens_costs_no_token(
    run_path: Path, tmp_path: Path, name: str, change: str
) -> None:
    """Case 21: output.txt and metrics.jsonl are derived; tokens.bin is the truth."""
    damaged = run_path / name
    outside = tmp_path / "outside"
    if change == "flip":
        samples.flip_bit(damaged, 60)
    elif change == "truncate":
        os.truncate(damaged, 50)
    else:
        damaged.rename(outside)
        if change == "link":
            damaged.symlink_to(outside)
        elif change == "directory":
            damaged.mkdir()
    before = outside.read_bytes() if outside.exists() else b""
    with RunDirectory.open(run_path) as run:
        if change == "directory" and name == "metrics.jsonl":
            with pytest.raises(RunDirectoryError, match="metrics.jsonl"):
                run.recover()
            return
        recovery = run.recover()
        assert recovery.tokens == samples.tokens_up_to(samples.count_after(8))
        assert recovery.lost_tokens == 0
        assert recovery.extra == {"chunk": 8}
        assert any(name in message for message in recovery.messages)
        assert recovery.text_damaged == (name == "output.txt")
        if recovery.text_damaged:
            with pytest.raises(RuntimeError, match="rewrite_text"):
                samples.append_next(run)
            if change == "directory":
                with pytest.raises(RunDirectoryError, match="output.txt"):
                    run.rewrite_text(samples.text_of(recovery.tokens))
                return
            run.rewrite_text(samples.text_of(recovery.tokens))
    assert (outside.read_bytes() if outside.exists() else b"") == before
    samples.assert_continues(run_path)


def test_whole_records_survive_damage_of_one(run_path: Path) -> None:
    lines = (run_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b"\xff" + lines[3]
    lines[5:5] = [b'{"chunk": 99}\n', b"[]\n", b'{"chunk": true}\n', b'{"chunk": 2}\n']
    (run_path / "metrics.jsonl").write_bytes(b"".join(lines) + b'{"chunk": 8')
    assert "metrics.jsonl is damaged: kept 7 whole records of 8" in samples.recovered(run_path).messages
    records = [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["chunk"] for record in records] == [1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["run.yaml", "meta.json", "prompt.ids"])
@pytest.mark.parametrize("change", ["flip", "truncate", "delete", "link"])
def test_a_changed_contract_file_is_refused_by_name(
    run_path: Path, tmp_path: Path, name: str, change: str
) -> None:
    """Case 22: what the text depends on must be what it was; the refusal names the file."""
    path = run_path / name
    if change == "flip":
        samples.flip_bit(path, 3)
    elif change == "truncate":
        os.truncate(path, 2)
    else:
        path.rename(tmp_path / "outside")
        if change == "link":
            path.symlink_to(tmp_path / "outside")
    with pytest.raises(ResumeRefusedError, match=str(path)) as caught:
        RunDirectory.open(run_path)
    assert caught.value.exit_code == 3
    # The refusal gives the lock back.
    with pytest.raises(ResumeRefusedError):
        RunDirectory.open(run_path)


def test_a_changed_prompt_text_is_reported_only(run_path: Path) -> None:
    (run_path / "prompt.txt").write_text("other")
    assert samples.assert_whole(run_path, 8).messages[0].startswith("prompt.txt is not what it was")


@pytest.mark.parametrize("name", ["tokens.bin", "checkpoints", ".lock"])
def test_links_out_of_the_directory_are_not_followed(run_path: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (run_path / name).rename(outside)
    (run_path / name).symlink_to(outside)
    append_to = outside if outside.is_file() else samples.newest_manifest(run_path)
    with open(append_to, "ab") as file:
        file.write(b" \n \n")
    before = append_to.read_bytes()
    with pytest.raises(TokenSwiftError) as caught:
        samples.recovered(run_path)
    assert name in str(caught.value)
    assert append_to.read_bytes() == before


def test_a_linked_manifest_is_passed_over(run_path: Path, tmp_path: Path) -> None:
    newest = samples.newest_manifest(run_path)
    newest.rename(tmp_path / "outside.json")
    newest.symlink_to(tmp_path / "outside.json")
    samples.assert_whole(run_path, 7)
    assert (tmp_path / "outside.json").exists()


def test_a_missing_token_file_is_named_and_the_text_is_kept(run_path: Path, tmp_path: Path) -> None:
    (run_path / "tokens.bin").rename(tmp_path / "moved")
    before = (run_path / "output.txt").read_bytes()
    with pytest.raises(RunDirectoryError, match=r"tokens\.bin: it is missing\. Put it back"):
        samples.recovered(run_path)
    assert (run_path / "output.txt").read_bytes() == before
    (tmp_path / "moved").rename(run_path / "tokens.bin")
    samples.assert_whole(run_path, 8)


def test_a_manifest_under_another_name_is_passed_over(run_path: Path) -> None:
    newest = samples.newest_manifest(run_path)
    (run_path / "checkpoints" / "99999999.json").write_bytes(newest.read_bytes())
    recovery = samples.assert_whole(run_path, 8)
    assert "99999999.json is damaged" in recovery.messages[0]
    samples.assert_continues(run_path)
    assert sorted(each.name for each in (run_path / "checkpoints").iterdir())[0] == "100000001.json"


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
    with pytest.raises(ResumeRefusedError, match="run.yaml"):
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
    monkeypatch.setattr(os, "write", lambda fd, data: (written.append(len(data)), real(fd, data))[1])
    costs: list[int] = []
    with samples.create(tmp_path / "run") as run:
        for _ in range(40):
            written.clear()
            run.append_chunk(list(range(512)), "x" * 2048, {"rate": 0.5})
            costs.append(sum(written))
    assert costs[-1] - costs[0] < 40 * 32
