"""Recovery from torn tails and damaged files, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import run_dir_samples as samples

from tokenswift_cli.errors import ResumeRefusedError, RunDirectoryError, TokenSwiftError
from tokenswift_cli.run_dir import RunDirectory


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run of 8 chunks (the seventh is empty), closed."""
    samples.make_run(tmp_path / "run", 8)
    return tmp_path / "run"


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
    with pytest.raises(ResumeRefusedError, match=r"No checkpoint in .* can be used") as caught:
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
            with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl"):
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
                with pytest.raises(RunDirectoryError, match=r"output\.txt"):
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
