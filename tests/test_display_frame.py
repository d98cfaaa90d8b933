"""The picture at every size and with any text: one height, no line too wide, no number cut."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text
from test_display import FINISHED, PROGRESS, STARTED, STORY, Stream, plain_frame, writing_view

from tokenswift_cli.display.base import LineWriter
from tokenswift_cli.display.cells import character_cells, text_cells
from tokenswift_cli.display.choose import open_display
from tokenswift_cli.display.dashboard import Dashboard, closing_lines
from tokenswift_cli.display.frame import MOST_COLUMNS, WIDE_COLUMNS, WIDE_LINES, frame
from tokenswift_cli.display.glyphs import PLAIN_GLYPHS
from tokenswift_cli.display.lines import shortened_path, wrapped
from tokenswift_cli.display.region import TerminalRegion
from tokenswift_cli.display.rows import drafter_mix
from tokenswift_cli.display.run_view import RunView
from tokenswift_cli.display.wording import about, speed, visible
from tokenswift_cli.events import DrafterShare, LoopDetected, Notice, PrefillProgress, TextAppended

FOREIGN = (
    "港の役人はペンを置いた。😀👍🏽 👩\u200d🚀 🇩🇪 ❤\ufe0f e\u0301 한국어 हिन्दी عربي "
    "[bold]x[/bold]\x1b[2J\t\r\n\u202e"
)
TEXTS = st.text(alphabet=st.one_of(st.sampled_from(FOREIGN), st.characters()), max_size=400)
MANY = {
    name: DrafterShare(1000 * n, 900 * n - 7)
    for n, name in enumerate(("heads", "ngram", "self", "suffix"), 1)
}


def states(text: str) -> list[RunView]:
    """A run that loads, reads, and writes, with ``text`` wherever foreign text can be."""
    loading, reading, writing = (RunView(opened_at=0.0) for _ in range(3))
    for view in (reading, writing):
        view.apply(replace(STARTED, run_dir=text, model=text, resumed_tokens=18_131), 1.0)
    reading.apply(PrefillProgress(100, 2048, 1.0), 2.0)
    writing.apply(TextAppended(text), 3.0)
    writing.apply(replace(PROGRESS, drafters=MANY, tokens=1_024_576, max_tokens=2_000_000), 400.0)
    writing.apply(LoopDetected(1_023_104, 12_345, text), 400.0)
    return [loading, reading, writing]


@settings(deadline=None, max_examples=60)
@given(st.integers(20, 200), st.integers(5, 60), TEXTS)
def test_every_picture_has_the_height_of_its_size_and_fits(columns: int, lines: int, text: str) -> None:
    pictures = [plain_frame(view, columns, lines) for view in states(text)]
    if columns >= WIDE_COLUMNS and lines >= WIDE_LINES:
        expected = 15 + max(2, min(8, lines - 19))
    else:
        room = lines - 1 - (lines >= 12)
        expected = min(room, 13 + 8)
    assert [len(picture) for picture in pictures] == [expected] * 3
    assert expected <= lines - 1
    for line in (line for picture in pictures for line in picture):
        assert text_cells(line) <= columns
        assert line.isprintable()


@settings(deadline=None, max_examples=25)
@given(st.integers(WIDE_COLUMNS, 140), st.integers(WIDE_LINES, 40), TEXTS)
def test_the_box_is_closed_on_every_line(columns: int, lines: int, text: str) -> None:
    width = min(columns, MOST_COLUMNS)
    for view in states(text):
        for line in plain_frame(view, columns, lines):
            assert text_cells(line) == width and line[0] in "╭│├╰" and line[-1] in "╮│┤╯"


@pytest.mark.parametrize("columns", range(20, 121))
def test_no_number_is_cut(columns: int) -> None:
    """What does not fit is left out whole: an ellipsis stands in no row of numbers."""
    view = writing_view("")
    view.apply(replace(STARTED, run_dir="r", model="m", resumed_tokens=18_131), 1.0)
    view.apply(replace(PROGRESS, drafters=MANY, tokens=1_024_576, max_tokens=2_000_000), 400.0)
    view.apply(LoopDetected(1_023_104, 12_345, "again"), 400.0)
    for lines in (15, 24):
        picture = plain_frame(view, columns, lines)
        assert [line for line in picture if "…" in line] == []
        assert any("51%" in line for line in picture)


def test_a_short_terminal_keeps_progress_time_speed_and_text() -> None:
    picture = plain_frame(writing_view(), 40, 7)
    assert len(picture) == 6
    assert "24%" in picture[0] and "left about" in picture[1] and "tok/s" in picture[2]
    assert "lamp." in picture[-1]


def test_a_long_path_keeps_its_end() -> None:
    assert shortened_path("/home/someone/books/runs/novel", 13) == "…s/runs/novel"
    assert shortened_path("runs/港の役人", 6) == "…役人"
    assert [shortened_path("abc", cells) for cells in (3, 2, 1, 0)] == ["abc", "…c", "", ""]


def test_the_mix_is_the_share_of_the_accepted_tokens() -> None:
    mix = drafter_mix(PROGRESS, 4)
    assert [(name, round(part, 3)) for name, _, part in mix] == [("suffix", 0.85), ("ngram", 0.15)]
    many = {f"d{n}": DrafterShare(10 * n, 5 * n) for n in range(1, 7)}
    mix = drafter_mix(replace(PROGRESS, drafters=many), 4)
    assert [name for name, _, _ in mix] == ["d6", "d5", "d4", "3 others"]
    assert sum(part for _, _, part in mix) == pytest.approx(1.0)
    nothing = drafter_mix(
        replace(PROGRESS, drafters={"ngram": DrafterShare(9, 0), "self": DrafterShare()}), 4
    )
    assert [(name, part) for name, _, part in nothing] == [("ngram", 0.0)]


# Width of characters ---------------------------------------------------------------------------


def test_characters_count_what_the_most_generous_terminal_gives() -> None:
    assert [character_cells(c) for c in "aé漢😀\u0301\u200d"] == [1, 1, 2, 2, 0, 0]
    assert character_cells("\u093f") == 1  # a vowel sign that some terminals draw into its consonant
    assert text_cells("e\u0301漢 a") == 5


def test_a_border_after_uncertain_characters_is_put_in_its_column() -> None:
    stream = io.StringIO()
    region = TerminalRegion(LineWriter(stream).raw, lambda: (80, 24), no_color=True)
    view = writing_view("हिन्दी 漢字\n")
    region.paint(frame(view, 80, 24, 402.0))
    line = next(line for line in stream.getvalue().split("\n") if "漢字" in line)
    assert re.search(r"\x1b\[K\x1b\[79G(\x1b\[\d*m)? │(\x1b\[0m)?$", line)
    plain = next(line for line in stream.getvalue().split("\n") if "acceptance" in line)
    assert "G" not in re.sub(r"[^\x1b]*(\x1b\[[\d;]*[A-Za-z])?", r"\1", plain)


def test_a_skin_tone_and_a_picture_form_do_not_reach_the_text_pane() -> None:
    picture = "\n".join(plain_frame(writing_view("👍🏽 ❤\ufe0f!"), 80, 24))
    assert "👍 ❤!" in picture


# Above and after the picture -------------------------------------------------------------------


def test_a_warning_is_broken_between_words() -> None:
    stream = Stream(terminal=True)
    with Dashboard(stream, redraws_per_second=0, size=lambda: (40, 15)) as dashboard:
        dashboard.handle(
            Notice("Little new text: only 9% of the 4-grams in the last 2,048 tokens are new.", "warning")
        )
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).split("\n")
    assert shown[:3] == [
        "\rwarning: Little new text: only 9% of the",
        "  4-grams in the last 2,048 tokens are",
        "  new.",
    ]


@settings(deadline=None)
@given(TEXTS, st.integers(4, 60))
def test_wrapping_loses_no_word_and_breaks_none(text: str, cells: int) -> None:
    text = visible(text)
    lines = wrapped(text, cells)
    assert " ".join(lines).split() == text.split()
    assert all(text_cells(line) <= cells or len(line.split()) <= 1 for line in lines)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_last_screen_names_the_run_and_both_commands_whole(columns: int) -> None:
    view = RunView(opened_at=0.0)
    directory = "runs/2026-11-30-210818"
    view.apply(replace(FINISHED, run_dir=directory, resume_command=f"tokenswift resume {directory}"), 1.0)
    lines = [line.plain for line in closing_lines(view, columns)]
    assert all(text_cells(line) <= columns for line in lines)
    for wanted in (directory, f"tokenswift report {directory}", f"tokenswift resume {directory}"):
        assert any(line.endswith(wanted) for line in lines)
    assert lines[-1].endswith(f"tokenswift resume {directory}")
    assert len(lines) <= 14  # with the shell's prompt on 15 lines


def test_a_command_wider_than_the_terminal_stands_alone_on_its_line() -> None:
    view = RunView(opened_at=0.0)
    command = "tokenswift resume 'my runs/a long name of a run' --max-tokens 2048"
    view.apply(replace(FINISHED, run_dir="my runs/a long name of a run", resume_command=command), 1.0)
    assert [line.plain for line in closing_lines(view, 40)][-2:] == ["  resume with", command]


def test_a_run_without_a_token_has_no_report() -> None:
    view = RunView(opened_at=0.0)
    view.apply(replace(FINISHED, tokens=0, session_tokens=0), 1.0)
    for columns in (30, 80):
        assert not any("report" in line.plain for line in closing_lines(view, columns))


# Terminals that show less ----------------------------------------------------------------------


def test_the_console_gets_plain_characters_only() -> None:
    stderr = Stream(terminal=True)
    environ = {"TERM": "linux"}
    with open_display(
        "auto", stream=False, stdout=Stream(terminal=True), stderr=stderr, environ=environ
    ) as display:
        display.handle(replace(STARTED, run_dir="runs/" + "long/" * 20))
        display.handle(TextAppended(STORY))
        display.handle(PROGRESS)
        display.handle(Notice("draws the picture"))
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stderr.getvalue())
    assert "+- tokenswift - smollm2-135m -" in shown and shown.isascii()
    assert all(character_cells(chr(glyph)) == len(plain) == 1 for glyph, plain in PLAIN_GLYPHS.items())


def test_a_terminal_that_is_not_utf8_gets_plain_lines() -> None:
    raw = io.BytesIO()

    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    stderr = Terminal(raw, encoding="latin-1", write_through=True)
    environ = {"TERM": "xterm"}
    with open_display(
        "auto", stream=False, stdout=Stream(terminal=True), stderr=stderr, environ=environ
    ) as display:
        display.handle(STARTED)
    assert raw.getvalue().startswith(b"start: model=smollm2-135m") and b"\x1b" not in raw.getvalue()


def test_a_picture_is_written_over_the_last_one_without_erasing_it_first() -> None:
    """Erased lines would flicker: nothing is erased before the new characters are there."""
    stream = io.StringIO()
    region = TerminalRegion(LineWriter(stream).raw, lambda: (20, 10), no_color=True)
    region.paint([Text("one"), Text("x" * 20)])
    assert stream.getvalue() == "\rone\x1b[K\n" + "x" * 20 + "\n\x1b[J"
    stream.truncate(0)
    stream.seek(0)
    region.paint([Text("two"), Text("y" * 20)])
    assert stream.getvalue() == "\r\x1b[2Atwo\x1b[K\n" + "y" * 20 + "\n\x1b[J"


def test_estimates_are_told_no_finer_than_they_are_known() -> None:
    seconds = (0.4, 59.4, 203, 599, 1231, 3580, 11_000, 187_200, None, float("nan"), -1)
    expected = ["0s", "59s", "3m20s", "10m00s", "21m", "1h00m", "3h05m", "2d04h", "-", "-", "-"]
    assert [about(value) for value in seconds] == expected
    assert [speed(value) for value in (61.24, 1.0, 0.349, None)] == ["61.2", "1.0", "0.35", "-"]
