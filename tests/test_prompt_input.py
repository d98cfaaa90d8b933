"""Case 28: a prompt is read whole and unchanged, or refused with the reason."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.config import PromptConfig
from tokenswift_cli.errors import UsageError
from tokenswift_cli.prompt_input import PromptText, read_prompt


def read_bytes(raw: bytes) -> PromptText:
    return read_prompt(PromptConfig(file="-"), io.BytesIO(raw))


@settings(deadline=None)
@given(text=st.text(min_size=1).filter(lambda text: "\0" not in text and not text.startswith("\ufeff")))
def test_every_valid_text_arrives_unchanged(text: str) -> None:
    """Case 28: never truncated, trimmed or normalised; CRLF stays CRLF."""
    raw = text.encode("utf-8")
    prompt = read_bytes(raw)
    assert (prompt.text, prompt.raw, prompt.notices) == (text, raw, ())
    assert read_prompt(PromptConfig(text=text)).text == text


@settings(deadline=None)
@given(raw=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        assert read_bytes(raw).text.encode("utf-8") == raw.removeprefix(b"\xef\xbb\xbf")
    except UsageError as error:
        assert error.exit_code == 2


def test_crlf_is_preserved_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\r\ntwo\rthree\n")
    prompt = read_prompt(PromptConfig(file=str(file)))
    assert prompt.text == "one\r\ntwo\rthree\n"
    assert prompt.source == str(file)


def test_a_long_prompt_is_not_cut() -> None:
    assert len(read_bytes(b"word " * 400_000).text) == 2_000_000


def test_a_byte_order_mark_is_dropped_with_a_notice() -> None:
    prompt = read_bytes(b"\xef\xbb\xbfHello")
    assert prompt.text == "Hello"
    assert prompt.raw == b"\xef\xbb\xbfHello"
    assert "byte order mark" in prompt.notices[0]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"ab\0c", "NUL byte at offset 2"),
        (b"\xef\xbb\xbfab\0c", "NUL byte at offset 5"),
        (b"abc\xffd", "byte 0xff at offset 3"),
        (b"\xef\xbb\xbfabc\xffd", "byte 0xff at offset 6"),
        ("café".encode("latin-1"), "byte 0xe9 at offset 3"),
        (b"caf\xc3", "byte 0xc3 at offset 3"),
        ("Hello".encode("utf-16"), "is UTF-16"),
    ],
)
def test_what_cannot_be_a_prompt_is_refused_with_the_offset(raw: bytes, expected: str) -> None:
    """Case 28: empty prompt, NUL, other encodings."""
    with pytest.raises(UsageError, match=expected):
        read_bytes(raw)


def test_a_file_that_is_not_there_is_never_the_prompt(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.txt does not exist") as caught:
        read_prompt(PromptConfig(file=str(tmp_path / "missing.txt")))
    assert caught.value.exit_code == 2


def test_a_directory_or_an_impossible_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        read_prompt(PromptConfig(file=str(tmp_path)))
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompt(PromptConfig(file=str(tmp_path / ("x" * 4000))))
    with pytest.raises(UsageError, match="no file name"):
        read_prompt(PromptConfig(file="a\0b"))


@pytest.mark.parametrize("prompt", [PromptConfig(), PromptConfig(file="a", text="b")])
def test_exactly_one_prompt(prompt: PromptConfig) -> None:
    with pytest.raises(UsageError, match=r"--prompt FILE .* --prompt-text"):
        read_prompt(prompt)


@pytest.mark.parametrize(("text", "expected"), [("", "empty"), ("a\0", "NUL"), ("\udcff", "Unicode")])
def test_prompt_text_is_checked_too(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read_prompt(PromptConfig(text=text))
