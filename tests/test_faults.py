"""The fault tests, a few rounds of each kind; ``make faults`` does all of them."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest
import run_dir_samples as samples
from faults import __main__ as command
from faults import clock, damage, disk, expected_damage, harm, killing, run_files, signals, writers
from faults.outcomes import SAME_TEXT, Case, FaultFailedError, Outcome, require, require_in_time, table
from faults.subject import Reference, Subject, make_subject, measure_reference


def test_rounds_of_one_fault_share_a_row_and_losses_are_a_range() -> None:
    outcomes = [
        Outcome("full | disk", "exit 1"),
        Outcome("kill", SAME_TEXT, 3),
        Outcome("kill", SAME_TEXT, 21),
        Outcome("kill", "begun anew", 0),
    ]
    assert table(outcomes).splitlines() == [
        "| fault | rounds | outcome | tokens written again |",
        "| --- | --- | --- | --- |",
        r"| full \| disk | 1 | exit 1 | - |",
        f"| kill | 3 | {SAME_TEXT} (2); begun anew (1) | 0 to 21 |",
    ]


def test_what_was_skipped_counts_as_no_round() -> None:
    assert "| disk | 0 | skipped: needs root | - |" in table(
        [Outcome("disk", "skipped: needs root", state="skipped")]
    )


def test_a_fault_with_another_end_fails_and_so_does_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> list[Outcome]:
        require(False, "another text")
        raise AssertionError("not reached")

    case = Case("kill", work)
    assert case.outcomes() == [Outcome("kill", "**failed**: another text", state="failed")]
    with pytest.raises(FaultFailedError):
        work()
    monkeypatch.setattr(command, "KINDS", {"kill": lambda *_: [case]})
    monkeypatch.setattr(command, "make_subject", lambda *_: None)
    monkeypatch.setattr(command, "measure_reference", lambda _: None)
    assert command.main(["--jobs", "1"]) == 1
    assert "another text" in capsys.readouterr().out


def test_a_missed_moment_is_tried_again_and_a_failure_is_not() -> None:
    tries: list[int] = []

    def work() -> list[Outcome]:
        tries.append(1)
        require_in_time(len(tries) > 2, "over")
        return [Outcome("kill", SAME_TEXT)]

    assert Case("kill", work).outcomes() == [Outcome("kill", SAME_TEXT)]
    assert len(tries) == 3
    tries.clear()

    def fails() -> list[Outcome]:
        tries.append(1)
        require(False, "another text")
        return []

    assert Case("kill", fails).outcomes()[0].state == "failed" and len(tries) == 1


@pytest.mark.parametrize("name", harm.FILE_HARMS)
def test_every_harm_changes_the_file(name: str, tmp_path: Path) -> None:
    for seed in range(20):
        run_dir, outside = tmp_path / f"run{seed}", tmp_path / f"outside{seed}"
        run_dir.mkdir()
        outside.mkdir()
        file = run_dir / "tokens.bin"
        file.write_bytes(bytes(range(100)))
        before = run_files.fingerprint(run_dir)
        harm.FILE_HARMS[name](file, outside, random.Random(seed))
        assert run_files.fingerprint(run_dir) != before
        assert (outside / "tokens.bin").exists() == (name == harm.LINKED)


def test_every_file_of_a_run_is_damaged(tmp_path: Path) -> None:
    """A kind of file that the table of expectations does not know makes the damage to it fail."""
    samples.make_run(tmp_path / "run", 3)
    kinds = run_files.file_kinds(tmp_path / "run")
    assert set(kinds) <= set(expected_damage.EXPECTED)
    damaged = {path for paths in kinds.values() for path in paths}
    assert set((tmp_path / "run").rglob("*")) == damaged


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return make_subject(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def reference(subject: Subject) -> Reference:
    return measure_reference(subject)


def assert_passed(found: list[Case]) -> list[Outcome]:
    outcomes = [outcome for case in found for outcome in case.outcomes()]
    assert outcomes and all(outcome.state != "failed" for outcome in outcomes), table(outcomes)
    return outcomes


def chosen(found: list[Case], *faults: str) -> list[Case]:
    """The cases of these rows, one of each."""
    first = {case.fault: case for case in reversed(found)}
    return [first[fault] for fault in faults]


@pytest.mark.slow
def test_kills(subject: Subject, reference: Reference) -> None:
    """One text, killed while it is written, in a checkpoint and while the model loads again."""
    assert len(assert_passed(killing.cases(subject, reference, 3, random.Random(1)))) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (signals, ["SIGINT in a checkpoint", "SIGTERM while the model loads"]),
        (disk, [disk.FULL_AMID]),
        (writers, [writers.SECOND_GENERATE, writers.SAME_SECOND]),
        (clock, ["clock set back by a day in decoding"]),
        (damage, ["`tokens.bin`: cut short, bit flipped", "`.lock`: link, other kind"]),
    ],
    ids=["signals", "disk", "writers", "clock", "damage"],
)
def test_other_faults(kind: ModuleType, faults: list[str], subject: Subject, reference: Reference) -> None:
    cases = chosen(kind.cases(subject, reference, 1, random.Random(2)), *faults)
    if all(outcome.state == "skipped" for outcome in assert_passed(cases)):
        pytest.skip("no file system can be mounted here")
