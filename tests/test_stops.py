"""The streaming stop-string matcher against str.find on the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.errors import UsageError
from tokenswift_cli.stops import StopMatcher

letters = st.text(alphabet="ab<é", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab<é", min_size=1, max_size=5), max_size=4)
cut_lists = st.lists(st.integers(0, 40), max_size=12)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


def by_find(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Completed first wins, of equal ends the longest: written with str.find alone."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, negative_length, stop = min(found)
    return text[: end + negative_length], stop


@settings(deadline=None, max_examples=400)
@given(letters, stop_lists, cut_lists)
def test_any_split_equals_find_on_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    """Case 11: a stop string split over any borders is found, and nothing else is lost."""
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece).text for piece in pieces_of(text, cuts))
    assert (shown + matcher.flush(), matcher.matched) == by_find(text, stops)


@settings(deadline=None, max_examples=200)
@given(letters, stop_lists)
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    for character in text:
        matcher.push(character)
        held = matcher.held
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_the_stop_is_reported_by_the_push_that_completes_it() -> None:
    """Case 11: the runner can cut right behind the completing token."""
    matcher = StopMatcher(["</end>"])
    stops = [matcher.push(piece).stop for piece in ("text <", "/e", "nd", "> and more", "later")]
    assert stops == [None, None, None, "</end>", "</end>"]


def test_a_false_start_is_released() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello\n\nUs").text == "Hello"
    assert matcher.push("eful").text == "\n\nUseful"


def test_overlapping_beginnings_are_not_missed() -> None:
    matcher = StopMatcher(["aab"])
    assert "".join(matcher.push(character).text for character in "aaab") == "a"
    assert matcher.matched == "aab"


def test_of_stops_with_one_end_the_longest_wins() -> None:
    matcher = StopMatcher(["END", "THE END"])
    result = matcher.push("This is THE END")
    assert (result.text, result.stop) == ("This is ", "THE END")


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    matcher.push("abxcd")
    assert matcher.push("more").text == "" and matcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        StopMatcher(["ok", ""])
