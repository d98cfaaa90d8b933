"""Progress on a terminal and into a file, and TensorBoard where it is installed."""

from __future__ import annotations

import io
import sys
import types

import pytest

from tokenswift_cli.training.log import Row, TrainingLog
from tokenswift_cli.training.measures import Measures
from tokenswift_cli.training.progress import Progress, say


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_one_plain_line_every_ten_seconds() -> None:
    """Case 24: no control characters in redirected output."""
    stream, clock = io.StringIO(), Clock()
    with Progress("training", 200, "steps", done=100, stream=stream, clock=clock) as progress:
        for step in range(101, 151):
            clock.now += 1
            progress.to(step, f"loss={step}")
    assert stream.getvalue().splitlines() == [
        f"training: steps={done}/200 rate=1.0/s loss={done} eta={eta}"
        for done, eta in ((110, "1m30s"), (120, "1m20s"), (130, "1m10s"), (140, "1m00s"), (150, "50s"))
    ]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Progress("training", 10, "steps", done=4, stream=stream) as progress:
        progress.to(10, "loss=1.5")
    last = stream.getvalue().split("\r")[-1]
    assert "training: 100%" in last and "10/10" in last and "loss=1.5" in last


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_shows_nothing_and_a_dumb_terminal_no_bar(monkeypatch, quiet: bool) -> None:
    monkeypatch.setenv("TERM", "xterm" if quiet else "dumb")
    stream = Terminal()
    with Progress("training", 10, "steps", stream=stream, quiet=quiet) as progress:
        progress.to(10)
    assert stream.getvalue() == ""


def test_a_closed_stream_ends_no_training() -> None:
    stream, clock = io.StringIO(), Clock()
    stream.close()
    with Progress("training", 10, "steps", stream=stream, clock=clock) as progress:
        clock.now += 11
        progress.to(5)
    say("lost", stream)


def test_tensorboard_gets_the_same_figures_where_it_is_installed(tmp_path, monkeypatch) -> None:
    calls: list[tuple[object, ...]] = []

    class SummaryWriter:
        def __init__(self, directory: str, purge_step: int | None) -> None:
            calls.append(("open", directory, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def close(self) -> None:
            calls.append(("close",))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    log = TrainingLog(tmp_path, 1, 5)
    log.write(Row(6, "train", Measures([4.0], [2], [1], [2]), 1e-3, 0.5, 9.0))
    log.close()
    assert calls[0] == ("open", str(tmp_path / "tensorboard"), 6) and calls[-1] == ("close",)
    assert ("train/loss", 2.0, 6) in calls and ("train/head1/top1", 0.5, 6) in calls
    assert (tmp_path / "log.csv").read_text().splitlines()[1].startswith("6,train,2.000000,2.000000,0.500000")
