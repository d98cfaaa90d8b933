"""The prompt as the model will read it: whole, unchanged, or refused with the reason.

Nothing is trimmed, truncated or repaired. Line ends stay as they are (CRLF too); a leading UTF-8
byte order mark is dropped with a notice, because it is no part of the text.
"""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tokenswift_cli.config import PromptConfig
from tokenswift_cli.config_rules import not_model_text
from tokenswift_cli.errors import UsageError
from tokenswift_cli.shipped import PROMPTS, namesake

STANDARD_INPUT: Final = "-"

_HOW_TO_GIVE: Final = "--prompt FILE (- for standard input) or --prompt-text TEXT"


@dataclass(frozen=True)
class PromptText:
    """A prompt that was read.

    Attributes:
        text: what the tokenizer gets; never empty, no NUL, valid Unicode.
        raw: the bytes as they were read, byte order mark included.
        source: where it came from, for people: the file's path, "standard input", "--prompt-text".
        notices: what was done to get from ``raw`` to ``text``.
    """

    text: str
    raw: bytes
    source: str
    notices: tuple[str, ...] = ()


def read_prompt(prompt: PromptConfig, stdin: BinaryIO | None = None) -> PromptText:
    """Read the prompt that ``prompt`` names.

    Args:
        prompt: exactly one of ``file`` and ``text`` must be set.
        stdin: the bytes of standard input, read when ``file`` is "-"; the process's own by default.

    Raises:
        UsageError: no prompt or two, a file that cannot be read, or bytes that are not a text a
            model can read (with the offset of the first bad byte).
    """
    if prompt.file is not None and prompt.text is not None:
        raise UsageError(f"Two prompts were given; give exactly one of {_HOW_TO_GIVE}.")
    if prompt.file is not None:
        return _read_file(prompt.file, stdin)
    if prompt.text is not None:
        return _read_text(prompt.text)
    raise UsageError(f"No prompt was given; give {_HOW_TO_GIVE}.")


def _read_text(text: str) -> PromptText:
    why = not_model_text(text)
    if why:
        raise UsageError(f"The prompt text (--prompt-text) holds {why}; remove it, or use a UTF-8 file.")
    return _decoded(text.encode("utf-8"), "--prompt-text")


def _read_file(name: str, stdin: BinaryIO | None) -> PromptText:
    if name == STANDARD_INPUT:
        if stdin is None and sys.stdin is None:
            raise UsageError("The prompt was to come from standard input, which is closed; use a file.")
        return _decoded((stdin or sys.stdin.buffer).read(), "standard input")
    path = Path(name)
    try:
        return _decoded(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UsageError(
            f"The prompt file {path} does not exist; check the path, or give the text with --prompt-text."
            f"{namesake(PROMPTS, path)}"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"The prompt file {path} is a directory; give a text file.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"The prompt file {path} cannot be read: {reason}.") from None
    except ValueError as error:
        # A NUL in the name itself, which no file system has.
        raise UsageError(f"{name!r} is no file name: {error}.") from None


def _decoded(raw: bytes, source: str) -> PromptText:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"The prompt ({source}) is UTF-16; save it as UTF-8.")
    notices: tuple[str, ...] = ()
    body = raw
    if raw.startswith(codecs.BOM_UTF8):
        body = raw[len(codecs.BOM_UTF8) :]
        notices = (f"dropped the byte order mark at the start of the prompt ({source})",)
    skipped = len(raw) - len(body)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + skipped
        raise UsageError(
            f"The prompt ({source}) is not UTF-8: byte 0x{raw[at]:02x} at offset {at}. Save it as UTF-8."
        ) from None
    if not text:
        raise UsageError(f"The prompt ({source}) is empty; the model needs at least one character.")
    nul = body.find(b"\0")
    if nul >= 0:
        raise UsageError(f"The prompt ({source}) holds a NUL byte at offset {nul + skipped}; remove it.")
    return PromptText(text, raw, source, notices)
