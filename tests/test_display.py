"""Displays: what goes to which stream, what the dashboard shows, and how it leaves the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tokenswift_cli.display.base import LineWriter
from tokenswift_cli.display.choose import open_display
from tokenswift_cli.display.dashboard import Dashboard, closing_lines
from tokenswift_cli.display.frame import frame
from tokenswift_cli.display.jsonl import JsonDisplay
from tokenswift_cli.display.plain import PlainDisplay, progress_line
from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.text_sink import TextSink
from tokenswift_cli.display.text_tail import TextTail
from tokenswift_cli.display.wording import duration, size, summary, visible
from tokenswift_cli.errors import UsageError
from tokenswift_cli.events import (
    CheckpointSaved,
    DrafterShare,
    Event,
    Loading,
    LoopDetected,
    Notice,
    PrefillProgress,
    Progress,
    RunFinished,
    RunStarted,
    TextAppended,
)

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

STARTED = RunStarted("runs/novel", "smollm2-135m", "cpu", "float32", "lookup", 2048, 100_000, 0, 7)
PROGRESS = Progress(
    tokens=24_576,
    max_tokens=100_000,
    session_tokens=24_576,
    decode_seconds=401.0,
    tokens_per_second=58.9,
    recent_tokens_per_second=61.2,
    speedup=2.43,
    acceptance_rate=0.71,
    mean_acceptance_length=3.1,
    distinct=(0.21, 0.83, 0.95, 0.99),
    drafters={"suffix": DrafterShare(41_200, 32_136), "ngram": DrafterShare(9_310, 5_679)},
    kv_bytes=440 << 20,
    process_bytes=1650 << 20,
    eta_seconds=1231.0,
)
FINISHED = RunFinished(
    finish_reason="interrupted",
    run_dir="runs/novel",
    tokens=24_576,
    session_tokens=12_288,
    decode_seconds=401.0,
    tokens_per_second=58.9,
    acceptance_rate=0.71,
    mean_acceptance_length=3.1,
    distinct=(0.21, 0.83, 0.95, 0.99),
    peak_process_bytes=1700 << 20,
    resume_command="tokenswift resume runs/novel",
)
STORY = (
    "The harbour master put down his pen and looked at the two of them for a long while. "
    "Outside, a bell was ringing on the water.\n\n"
    '"You came by the north road," he said at last. "Nobody takes the north road in this season, '
    'not since the bridge went." He reached for the lamp.'
)


class Stream(io.StringIO):
    """A text stream that may claim to be a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def every_event(foreign: str) -> list[Event]:
    """One of each event, with text that came from somewhere else in every place it can be."""
    return [
        Loading(foreign),
        replace(STARTED, run_dir=foreign, model=foreign),
        PrefillProgress(512, 2048, 0.7),
        PrefillProgress(2048, 2048, 2.8),
        TextAppended(foreign),
        PROGRESS,
        CheckpointSaved(24_576, 24, 0.02),
        LoopDetected(24_576, 12, foreign),
        Notice(foreign, "warning"),
        replace(FINISHED, run_dir=foreign, resume_command=foreign),
    ]


# Wording ---------------------------------------------------------------------------------------


def test_durations_and_sizes() -> None:
    seconds = (0.4, 59.4, 59.7, 1231, 10_920, 187_200, None, float("inf"))
    assert [duration(value) for value in seconds] == [
        "0s",
        "59s",
        "1m00s",
        "20m31s",
        "3h02m",
        "2d04h",
        "-",
        "-",
    ]
    assert [size(value) for value in (0, 440 << 20, 3 << 30)] == ["-", "440 MiB", "3.00 GiB"]


@settings(deadline=None)
@given(st.text())
def test_visible_text_holds_no_control_characters(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable() and not CONTROL.search(shown) and "\n" not in shown


def test_visible_text_keeps_what_can_be_read() -> None:
    assert visible("naïve 漢字 😀 [b]x[/b]\x1b[31m\r\n") == "naïve 漢字 😀 [b]x[/b]␛[31m␤"


# Plain -----------------------------------------------------------------------------------------


def test_progress_line_is_the_documented_one() -> None:
    expected = "tokens=24576/100000 tok/s=61.2 accept=0.71 len=3.1 distinct-2=0.83 eta=20m31s"
    assert progress_line(PROGRESS) == expected
    unknown = replace(
        PROGRESS,
        tokens_per_second=None,
        recent_tokens_per_second=None,
        acceptance_rate=None,
        mean_acceptance_length=None,
        distinct=None,
        eta_seconds=None,
    )
    assert progress_line(unknown) == "tokens=24576/100000 tok/s=- accept=- len=- distinct-2=- eta=-"


def test_plain_writes_a_progress_line_every_ten_seconds() -> None:
    stream, clock = Stream(), Clock()
    display = PlainDisplay(LineWriter(stream), clock=clock)
    display.handle(STARTED)
    for tenth in range(1, 350):
        clock.now = tenth / 10
        display.handle(PROGRESS)
    assert stream.getvalue().count("tok/s=") == 3


def test_plain_shows_prefill_every_ten_seconds_and_its_end_once() -> None:
    stream, clock = Stream(), Clock()
    display = PlainDisplay(LineWriter(stream), clock=clock)
    for second in range(26):
        clock.now = second
        display.handle(PrefillProgress(min(100, 4 * second), 100, second))
    display.handle(PrefillProgress(100, 100, 26))
    shown = [line.split()[0] for line in stream.getvalue().splitlines()]
    assert shown == ["prefill=40/100", "prefill=80/100", "prefill=100/100"]


def test_plain_ends_with_the_resume_command() -> None:
    stream = Stream()
    PlainDisplay(LineWriter(stream)).handle(FINISHED)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "Interrupted: everything so far is saved"
    assert "run directory: runs/novel" in lines
    assert lines[-1] == "resume with: tokenswift resume runs/novel"


@pytest.mark.parametrize(
    ("reason", "label", "command"),
    [
        ("length", "extend with", "tokenswift resume runs/novel --max-tokens 49152"),
        ("loop", "go on with", "tokenswift resume runs/novel --on-loop warn"),
        ("interrupted", "resume with", "tokenswift resume runs/novel"),
    ],
)
def test_the_last_line_is_the_command_as_the_run_gave_it(reason: str, label: str, command: str) -> None:
    finished = replace(FINISHED, finish_reason=reason, resume_command=command)
    assert summary(finished)[-1] == (label, command)
    stream = Stream()
    PlainDisplay(LineWriter(stream)).handle(finished)
    assert stream.getvalue().splitlines()[-1] == f"{label}: {command}"
    view = RunView(opened_at=0.0)
    view.apply(finished, 1.0)
    assert closing_lines(view, 80)[-1].plain == f"  {label:<15}{command}"


def test_a_text_at_its_end_has_no_command() -> None:
    for reason in ("eos", "stop"):
        finished = replace(FINISHED, finish_reason=reason, resume_command=None)
        assert not any(label.endswith("with") for label, _ in summary(finished))


@pytest.mark.parametrize("mode", ["plain", "none", "json", "auto"])
@pytest.mark.parametrize("run_dir", ["runs/novel", "my runs/a"])
def test_a_run_without_a_result_says_where_it_is_and_how_to_go_on(mode: str, run_dir: str) -> None:
    """A second Ctrl-C ends the run without its last event."""
    stderr = Stream(terminal=mode == "auto")
    options = {"stdout": Stream(), "stderr": stderr, "environ": {"TERM": "xterm-256color"}}
    display = open_display(mode, stream=False, **options)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), display:
        display.handle(replace(STARTED, run_dir=run_dir))
        raise KeyboardInterrupt
    quoted = f"'{run_dir}'" if " " in run_dir else run_dir
    last = stderr.getvalue().splitlines()[-2:]
    assert run_dir in " ".join(last)
    assert f"tokenswift resume {quoted}" in last[-1]
    shown = stderr.getvalue()
    display.close()
    assert stderr.getvalue() == shown


@pytest.mark.parametrize("mode", ["plain", "none", "json", "auto"])
def test_a_run_that_never_began_or_has_its_result_adds_nothing_at_the_end(mode: str) -> None:
    whole: list[Event] = [STARTED, replace(FINISHED, resume_command="THE COMMAND")]
    for events in ([Loading("model")], whole):
        stderr = Stream(terminal=mode == "auto")
        options = {"stdout": Stream(), "stderr": stderr, "environ": {"TERM": "xterm-256color"}}
        with open_display(mode, stream=False, **options) as display:  # type: ignore[arg-type]
            for event in events:
                display.handle(event)
        assert "tokenswift resume" not in stderr.getvalue()


def test_checkpoints_are_told_only_when_asked() -> None:
    for verbosity, expected in ((0, ""), (1, "checkpoint: tokens=9 chunk=1 seconds=0.02\n")):
        stream = Stream()
        PlainDisplay(LineWriter(stream), verbosity=verbosity).handle(CheckpointSaved(9, 1, 0.02))
        assert stream.getvalue() == expected


@pytest.mark.parametrize("mode", ["auto", "plain", "json", "none", "rich"])
@settings(deadline=None, max_examples=40)
@given(foreign=st.text(max_size=30))
def test_redirected_output_has_no_control_characters(mode: str, foreign: str) -> None:
    """Case 24: whatever the mode and the text, no escape sequence reaches a redirected stderr."""
    stdout, stderr = Stream(), Stream()
    environ = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "CLICOLOR_FORCE": "1"}
    with open_display(mode, stream=False, stdout=stdout, stderr=stderr, environ=environ) as display:
        for event in every_event(foreign):
            display.handle(event)
    assert not CONTROL.search(stderr.getvalue())
    assert stdout.getvalue() == foreign


# JSON ------------------------------------------------------------------------------------------


def test_json_writes_one_object_per_event() -> None:
    stream = Stream()
    display = JsonDisplay(LineWriter(stream), clock=Clock())
    events = every_event("two\nlines \x1b[0m é")
    for event in events:
        display.handle(event)
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["event"] for record in records] == [
        "loading",
        "run_started",
        "prefill_progress",
        "prefill_progress",
        "text_appended",
        "progress",
        "checkpoint_saved",
        "loop_detected",
        "notice",
        "run_finished",
    ]
    assert records[4]["text"] == "two\nlines \x1b[0m é"
    assert records[5]["drafters"]["suffix"] == {"drafted": 41_200, "accepted": 32_136}
    assert stream.getvalue().isascii()


def test_json_progress_comes_once_a_second_and_the_last_one_always() -> None:
    stream, clock = Stream(), Clock()
    display = JsonDisplay(LineWriter(stream), clock=clock)
    for tenth in range(26):
        clock.now = tenth / 10
        display.handle(replace(PROGRESS, tokens=tenth))
    display.handle(FINISHED)
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["tokens"] for record in records if record["event"] == "progress"] == [0, 10, 20, 25]
    assert records[-1]["event"] == "run_finished"


def test_json_has_no_number_that_json_does_not_know() -> None:
    stream = Stream()
    JsonDisplay(LineWriter(stream)).handle(replace(PROGRESS, eta_seconds=float("inf"), speedup=float("nan")))
    record = json.loads(stream.getvalue(), parse_constant=lambda name: pytest.fail(name))
    assert record["eta_seconds"] is None and record["speedup"] is None


# Streams and choice ----------------------------------------------------------------------------

TTY, FILE = True, False


@pytest.mark.parametrize(
    ("mode", "out", "err", "stream", "environ", "kind", "text"),
    [
        ("auto", TTY, TTY, False, {}, "dashboard", False),
        ("auto", FILE, TTY, False, {}, "dashboard", True),
        ("auto", TTY, TTY, True, {}, "plain", True),
        ("auto", TTY, FILE, False, {}, "plain", False),
        ("auto", FILE, FILE, False, {"FORCE_COLOR": "1"}, "plain", True),
        ("auto", TTY, TTY, False, {"TERM": "dumb"}, "plain", False),
        ("auto", TTY, TTY, False, {"NO_COLOR": "1"}, "dashboard", False),
        ("plain", TTY, TTY, False, {}, "plain", False),
        ("rich", TTY, FILE, False, {}, "plain", False),
        ("json", FILE, TTY, False, {}, "json", True),
        ("none", FILE, TTY, False, {}, "quiet", True),
        ("none", TTY, TTY, True, {}, "quiet", True),
    ],
)
def test_choice_of_display_and_stream(
    mode: str, out: bool, err: bool, stream: bool, environ: dict[str, str], kind: str, text: bool
) -> None:
    """Case 24: the text alone goes to stdout, and the display is chosen from isatty()."""
    stdout, stderr = Stream(terminal=out), Stream(terminal=err)
    environ = {"TERM": "xterm-256color", **environ}
    with open_display(mode, stream=stream, stdout=stdout, stderr=stderr, environ=environ) as display:
        display.handle(STARTED)
        display.handle(TextAppended("Once upon a time.\n"))
        display.handle(replace(FINISHED, finish_reason="length"))
    assert stdout.getvalue() == ("Once upon a time.\n" if text else "")
    errors = stderr.getvalue()
    assert ("\x1b[" in errors) == (kind == "dashboard")
    assert errors.startswith("{") == (kind == "json")
    assert (errors == "") == (kind == "quiet")
    assert ("start: model=" in errors) == (kind == "plain")
    assert ("No dashboard: standard error is not a terminal" in errors) == (mode == "rich")


def test_text_can_be_kept_off_stdout() -> None:
    stdout = Stream()
    with open_display("none", stream=True, stdout=stdout, stderr=Stream(), write_text=False) as display:
        display.handle(TextAppended("text"))
    assert stdout.getvalue() == ""


def test_an_unknown_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="auto, rich, plain, json, none"):
        open_display("fancy", stream=False)


def test_quiet_keeps_warnings_and_the_resume_command() -> None:
    stderr = Stream()
    with open_display("none", stream=False, stdout=Stream(terminal=True), stderr=stderr) as display:
        display.handle(PROGRESS)
        display.handle(Notice("by the way"))
        display.handle(Notice("the disk is nearly full", "warning"))
        display.handle(FINISHED)
    lines = stderr.getvalue().splitlines()
    assert lines[0] == "warning: the disk is nearly full"
    assert lines[-1] == "resume with: tokenswift resume runs/novel" and len(lines) == 3


def test_no_color_leaves_no_colour() -> None:
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        stderr = Stream(terminal=True)
        environ = {"TERM": "xterm-256color", **environ}
        stdout = Stream(terminal=True)
        with open_display("auto", stream=False, stdout=stdout, stderr=stderr, environ=environ) as display:
            display.handle(STARTED)
            display.handle(Notice("draws the picture"))
        assert ("\x1b[36m" in stderr.getvalue()) == coloured


def test_text_in_a_file_is_exact_utf8() -> None:
    raw = io.BytesIO()
    sink = TextSink(io.TextIOWrapper(raw, encoding="ascii", newline="\r\n"), terminal=False)
    assert sink.write("é\r\n\x1b😀\n") is None
    assert raw.getvalue() == "é\r\n\x1b😀\n".encode()


def test_text_on_a_terminal_cannot_control_it() -> None:
    stream = Stream(terminal=True)
    TextSink(stream, terminal=True).write("one\n\x1b[2Jtwo\x07")
    assert stream.getvalue() == "one\n␛[2Jtwo␇"


def test_a_status_line_never_starts_within_streamed_text() -> None:
    shared = Stream(terminal=True)
    environ = {"TERM": "xterm"}
    with open_display("auto", stream=True, stdout=shared, stderr=shared, environ=environ) as display:
        display.handle(TextAppended("half a line"))
        display.handle(Notice("something"))
        display.handle(TextAppended(" and on"))
    assert shared.getvalue() == "half a line\ninfo: something\n and on\n"


def test_a_closed_pipe_gives_one_notice_and_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stderr = Stream()
    stdout = os.fdopen(write_end, "w", encoding="utf-8")
    with open_display("plain", stream=False, stdout=stdout, stderr=stderr) as display:
        for _ in range(3):
            display.handle(TextAppended("text nobody reads"))
        display.handle(FINISHED)
    stdout.close()  # what is left in its buffer must not fail any more
    assert stderr.getvalue().count("standard output is gone") == 1
    assert "resume with: tokenswift resume runs/novel" in stderr.getvalue()


def test_a_lost_stderr_does_not_stop_the_run() -> None:
    for mode in ("plain", "json", "none"):
        stderr = Stream()
        display = open_display(mode, stream=False, stdout=Stream(), stderr=stderr)
        stderr.close()
        for event in every_event("text"):
            display.handle(event)
        display.close()


# The dashboard ---------------------------------------------------------------------------------

GOLDEN = """\
╭─ tokenswift · smollm2-135m ──────────────────────────────── lookup · seed 7 ─╮
│ Writing ━━━━━━━━━━━──────────────────────────────────  24,576 / 100,000  24% │
│ elapsed 6m41s · left about 21m                                               │
├─ speed ───────────────────────────────┬─ drafting ───────────────────────────┤
│ now          61.2 tok/s               │ acceptance   0.71 · mean length 3.1  │
│ overall      58.9 tok/s               │ suffix       0.78 · 85% of accepted  │
│ speed-up     2.43x plain decoding     │ ngram        0.61 · 15% of accepted  │
│ last 2 min   ████████████████████████ │                                      │
│ session      24,576 tokens            │                                      │
├─ text ────────────────────────────────┼─ machine ────────────────────────────┤
│ distinct 1-4 0.21  0.83  0.95  0.99   │ device       cpu · float32           │
│ repetition   none                     │ KV cache     440 MiB                 │
│ saved        24,576 · 12s ago         │ process      1.61 GiB                │
├─ latest ──────────────────────────────┴──────────────────────────────────────┤
│ while. Outside, a bell was ringing on the water.                             │
│                                                                              │
│ "You came by the north road," he said at last. "Nobody takes the north road  │
│ in this season, not since the bridge went." He reached for the lamp.         │
│                                                                              │
╰─ runs/novel ──────────────────────────────────────── Ctrl-C saves and stops ─╯"""


def writing_view(text: str = STORY) -> RunView:
    view = RunView(opened_at=0.0)
    view.apply(STARTED, 1.0)
    view.apply(PrefillProgress(2048, 2048, 2.8), 4.0)
    view.apply(TextAppended(text), 5.0)
    view.apply(PROGRESS, 390.0)
    view.apply(CheckpointSaved(24_576, 24, 0.02), 390.0)
    return view


def plain_frame(view: RunView, columns: int, lines: int, now: float = 402.0) -> list[str]:
    return [line.plain for line in frame(view, columns, lines, now)]


def test_dashboard_picture_at_80_by_24() -> None:
    assert "\n".join(plain_frame(writing_view(STORY + "\n"), 80, 24)) == GOLDEN


@settings(deadline=None, max_examples=80)
@given(st.integers(10, 200), st.integers(3, 60), st.text(max_size=300))
def test_every_picture_fits_and_has_one_height(columns: int, lines: int, text: str) -> None:
    phases = [RunView(opened_at=0.0), RunView(opened_at=0.0), RunView(opened_at=0.0), writing_view(text)]
    phases[1].apply(replace(STARTED, run_dir=text * 3, model=text), 1.0)
    phases[2].apply(STARTED, 1.0)
    phases[2].apply(PrefillProgress(0, 2048, 0.0), 1.0)
    phases[3].apply(LoopDetected(24_000, 0, text), 3.0)
    pictures = [plain_frame(view, columns, lines) for view in phases]
    assert len({len(picture) for picture in pictures}) == 1
    assert 1 <= len(pictures[0]) <= max(1, lines - 1)
    for line in (line for picture in pictures for line in picture):
        assert cell_len(line) <= columns
        assert line.isprintable()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (40, 15)])
def test_the_numbers_are_in_the_picture(columns: int, lines: int) -> None:
    view = writing_view()
    view.apply(LoopDetected(23_104, 12, "The text repeats a cycle of 12 tokens."), 5.0)
    picture = "\n".join(plain_frame(view, columns, lines))
    parts = [
        "24,576",
        "100,000",
        "24%",
        "6m41s",
        "about 21m",
        "61.2",
        "58.9",
        "2.43x",
        "0.71",
        "3.1",
        "440 MiB",
    ]
    parts += ["0.21  0.83  0.95  0.99", "cycle of 12 at 23,104", "1.61 GiB", "last ", "████████████"]
    assert [part for part in parts if part not in picture] == []
    assert re.search(r"suffix +0\.78\D+85%", picture) and re.search(r"ngram +0\.61\D+15%", picture)
    assert "in this season" in picture and "reached for the lamp." in picture


def test_loading_and_prefill_are_shown() -> None:
    view = RunView(opened_at=0.0)
    view.apply(Loading("Loading smollm2-135m"), 0.0)
    first, later = (plain_frame(view, 80, 24, now)[1] for now in (0.0, 0.25))
    assert "Loading smollm2-135m" in first and first != later  # the spinner turns
    view.apply(STARTED, 1.0)
    view.apply(PrefillProgress(512, 2048, 2.0), 3.0)
    picture = plain_frame(view, 80, 24, 3.0)
    assert "Reading" in picture[1] and "512 / 2,048" in picture[1] and "25%" in picture[1]
    assert "left about 6s · 256 tok/s" in picture[2]


def test_lines_already_shown_do_not_dance() -> None:
    tail, words = TextTail(), STORY.split(" ")
    before: list[str] = []
    for word in words:
        tail.append(word + " ")
        lines = tail.lines(30, 50)
        assert lines[: max(0, len(before) - 1)] == before[:-1]
        before = lines
    assert all(cell_len(line) <= 30 for line in before)
    joined = " ".join(line.strip() for line in before if line).split()
    assert joined == STORY.split()


@settings(deadline=None)
@given(st.text(alphabet="ab é漢😀\n\u0301", max_size=200), st.integers(2, 40))
def test_tail_does_not_depend_on_how_the_text_came(text: str, width: int) -> None:
    at_once, piecewise = TextTail(), TextTail()
    at_once.append(text)
    for character in text:
        piecewise.append(character)
        piecewise.lines(width, 5)
    assert piecewise.lines(width, 64) == at_once.lines(width, 64)
    assert all(cell_len(line) <= width for line in at_once.lines(width, 64))


class Screen:
    """The few terminal functions the dashboard uses; anything else is a test failure."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.columns, self.rows_high = columns, lines
        self.rows: list[str] = [""]
        self.row = self.column = 0

    def feed(self, data: str) -> None:
        for token in re.findall(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|[\s\S]", data):
            if token.startswith("\x1b["):
                self._control(token)
            elif token == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif token == "\r":
                self.column = 0
            else:
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + token + line[self.column + 1 :]
                self.column += 1

    def _control(self, token: str) -> None:
        kind, argument = token[-1], token[2:-1]
        if kind == "A":
            self.row -= int(argument)
            assert self.row >= 0
        elif kind == "G":
            self.column = int(argument) - 1
        elif token == "\x1b[K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif token == "\x1b[J":
            self.rows[self.row] = self.rows[self.row][: self.column]
            del self.rows[self.row + 1 :]
        else:
            assert kind == "m", f"unexpected control sequence {token!r}"

    def text(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


@pytest.fixture
def drawn() -> Iterator[tuple[Dashboard, Callable[[], Screen], Clock, list[int]]]:
    """A dashboard without a thread, its screen, its clock, and its size as [columns, lines]."""
    stream, clock, dimensions = Stream(terminal=True), Clock(), [80, 24]
    dashboard = Dashboard(
        stream, redraws_per_second=0, clock=clock, size=lambda: (dimensions[0], dimensions[1])
    )

    def screen() -> Screen:
        result = Screen()
        result.feed(stream.getvalue())
        return result

    yield dashboard, screen, clock, dimensions
    dashboard.close()


Drawn = tuple[Dashboard, Callable[[], Screen], Clock, list[int]]


def test_redrawing_leaves_exactly_one_picture(drawn: Drawn) -> None:
    dashboard, screen, clock, _ = drawn
    for event in every_event("text")[:-1]:
        clock.now += 1
        dashboard.handle(event)
        dashboard.draw()
    rows = screen().text()
    assert sum("tokenswift ·" in row for row in rows) == 1
    assert rows[:2] == ["warning: text", "warning: text"]
    assert rows[2].startswith("╭─ tokenswift") and rows[-2].startswith("╰─") and rows[-1] == ""


def test_a_resize_leaves_one_picture(drawn: Drawn) -> None:
    dashboard, screen, _, dimensions = drawn
    dashboard.handle(STARTED)
    dashboard.draw()
    dimensions[:] = [120, 40]
    dashboard.draw()
    rows = screen().text()
    assert sum("tokenswift ·" in row for row in rows) == 1
    assert cell_len(rows[0]) == 110 and len(rows) == 24


def test_closing_leaves_the_summary_and_the_terminal_in_order(drawn: Drawn) -> None:
    """Case 27: the picture is gone, the result stays; a second close changes nothing."""
    dashboard, screen, _, _ = drawn
    dashboard.handle(STARTED)
    dashboard.handle(PROGRESS)
    dashboard.draw()
    dashboard.handle(FINISHED)
    dashboard.close()
    dashboard.close()
    dashboard.draw()
    assert screen().text() == [
        "Interrupted: everything so far is saved",
        "  run directory  runs/novel",
        "  tokens         24,576 (12,288 in this session)",
        "  speed          58.9 tok/s over 6m41s",
        "  acceptance     0.71, 3.1 tokens per verification",
        "  distinct-1..4  0.21  0.83  0.95  0.99",
        "  peak memory    1.66 GiB",
        "  report         tokenswift report runs/novel",
        "  resume with    tokenswift resume runs/novel",
        "",
    ]


def test_an_error_leaves_the_run_directory_on_the_terminal() -> None:
    """Case 27: also when the run ends by an exception."""
    stream = Stream(terminal=True)
    with pytest.raises(RuntimeError), Dashboard(stream, redraws_per_second=0) as dashboard:
        dashboard.handle(STARTED)
        dashboard.handle(Notice("draw"))
        raise RuntimeError
    screen = Screen()
    screen.feed(stream.getvalue())
    assert screen.text() == [
        "info: draw",
        "run directory  runs/novel",
        "resume with    tokenswift resume runs/novel",
        "",
    ]


@pytest.mark.parametrize("columns", [10, 20, 39])
def test_a_narrow_terminal_gets_the_closing_lines_whole_and_without_a_table(columns: int) -> None:
    """A label in front would push the path over the edge, and nothing could be copied in one piece."""
    long = "runs/" + "long-name-" * 6
    view = RunView(opened_at=0.0)
    view.apply(replace(STARTED, run_dir=long), 1.0)
    command = f"tokenswift resume {long}"
    assert [line.plain for line in closing_lines(view, columns)] == [long, command]
    view.apply(replace(FINISHED, run_dir=long, resume_command=f"{command} --on-loop warn"), 2.0)
    assert [line.plain for line in closing_lines(view, columns)] == [
        "Interrupted: everything so far is saved",
        long,
        f"tokenswift report {long}",
        f"{command} --on-loop warn",
    ]
    view.apply(replace(FINISHED, finish_reason="eos", run_dir=long, resume_command=None), 3.0)
    shown = ["Done: the model ended the text", long, f"tokenswift report {long}"]
    assert [line.plain for line in closing_lines(view, columns)] == shown
    assert len(closing_lines(view, 40)) > 3


def test_the_dashboard_closes_for_the_width_it_has_then(drawn: Drawn) -> None:
    dashboard, screen, _, dimensions = drawn
    dashboard.handle(STARTED)
    dashboard.handle(FINISHED)
    dimensions[:] = [30, 24]
    dashboard.close()
    shown = [FINISHED.run_dir, "tokenswift report runs/novel", FINISHED.resume_command, ""]
    assert screen().text() == ["Interrupted: everything so far is saved", *shown]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=80))
def test_foreign_text_cannot_control_the_terminal(foreign: str) -> None:
    stream = Stream(terminal=True)
    with Dashboard(stream, redraws_per_second=0) as dashboard:
        for event in every_event(foreign + "[bold]\x1b[2J\x1b]0;title\x07"):
            dashboard.handle(event)
            dashboard.draw()
    Screen(lines=200).feed(stream.getvalue())  # fails on any sequence that is not the dashboard's
    assert "[bold]" in stream.getvalue() and "\x1b]" not in stream.getvalue()


def test_the_dashboard_leaves_stdout_alone_and_its_thread_ends() -> None:
    """Case 24: Rich's Live would have replaced sys.stdout."""
    before = sys.stdout, sys.stderr
    stream = Stream(terminal=True)
    with Dashboard(stream, redraws_per_second=50) as dashboard:
        dashboard.handle(STARTED)
        deadline = time.monotonic() + 5
        while "tokenswift" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (sys.stdout, sys.stderr) == before
        thread = dashboard._thread
    assert thread is not None and not thread.is_alive()
    assert "tokenswift" in stream.getvalue()


def test_a_terminal_that_went_away_does_not_stop_the_run() -> None:
    stream = Stream(terminal=True)
    dashboard = Dashboard(stream, redraws_per_second=0)
    dashboard.handle(STARTED)
    stream.close()
    for event in every_event("text"):
        dashboard.handle(event)
        dashboard.draw()
    dashboard.close()


SCRIPT = """
import sys, time
from tokenswift_cli.display.choose import open_display
from tokenswift_cli.events import Notice, RunStarted, TextAppended
with open_display("auto", stream=False) as display:
    display.handle(RunStarted("runs/novel", "m", "cpu", "float32", "lookup", 1, 9, 0, 7))
    display.handle(TextAppended("text for the pipe"))
    display.handle(Notice("running"))
    time.sleep(30)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_real_terminal_is_in_order_after_any_end(ending: signal.Signals) -> None:
    """Case 27: modes unchanged and the cursor never hidden, after Ctrl-C and even after kill -9."""
    import pty
    import termios

    controller, terminal = pty.openpty()
    modes = termios.tcgetattr(terminal)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    shown = b""
    try:
        while b"running" not in shown or "╰".encode() not in shown:
            shown += os.read(controller, 65536)
        process.send_signal(ending)
        process.wait(timeout=20)
        if ending == signal.SIGINT:
            while b"KeyboardInterrupt" not in shown:
                shown += os.read(controller, 65536)
        assert termios.tcgetattr(terminal) == modes
    finally:
        process.kill()
        os.close(terminal)
        os.close(controller)
    output = process.stdout.read() if process.stdout is not None else b""
    assert output == b"text for the pipe"
    assert b"\x1b[?" not in shown  # no mode was ever switched: hidden cursor, other screen, mouse
    if ending == signal.SIGINT:
        assert b"run directory" in shown.rpartition("╯".encode())[2]
