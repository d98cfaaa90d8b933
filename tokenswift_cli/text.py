"""Token ids to text, a few tokens at a time, equal to decoding all of them at once.

A tokenizer may split one character over several tokens (byte-level BPE: the bytes of an emoji)
and may treat the first token of what it decodes specially (SentencePiece: no leading space).
So text is taken from the decoding of a short window of recent tokens, as the part beyond what
was already given out, and a torn last character is held back until it is whole.

Needs of the tokenizer only ``decode``; ``convert_ids_to_tokens``, if there, reveals
SentencePiece byte tokens such as ``<0x0A>``.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenswift_cli.stops import StopMatcher

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# A window keeps at least this many tokens: a UTF-8 character has at most 4 bytes, and the first
# token of a window may lose its leading space. It is cut back when it is three times as long.
KEEP_TOKENS = 8
WINDOW_TOKENS = 24

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SILENT, _TEXT = -2, -1


class TextStream:
    """Incremental detokenizer.

    The concatenation of all pushes, for any split of the ids, equals
    ``tokenizer.decode(ids, skip_special_tokens=..., clean_up_tokenization_spaces=False)`` without
    the text still pending: a torn last character, or an unfinished run of byte tokens. (Byte
    tokens are decoded by the tokenizer as one run, all of it text or all of it U+FFFD, so a run
    is final only when it is over or broken.) Pushes plus :meth:`flush` equal the whole decoding.

    Amortised constant work per token, also for a model that emits invalid bytes for ever.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._kinds: dict[int, int] = {}  # token id -> its byte value, _TEXT or _SILENT
        self._window: list[int] = []
        self._window_limit = WINDOW_TOKENS
        self._emitted = 0  # characters of decode(window) already given out
        self._run: list[int] = []  # byte tokens of the open run
        self._run_state = codecs.getincrementaldecoder("utf-8")()
        self._run_broken = False
        self._closed = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more token ids; return the text that became final, whole characters only."""
        if self._closed:
            raise ValueError("this text stream was flushed; start a new one")
        pieces: list[str] = []
        grown = False
        for token_id in token_ids:
            kind = self._kind(token_id)
            if kind == _SILENT:
                continue
            if kind == _TEXT:
                self._end_run()
                self._window.append(token_id)
                grown = True
            else:
                pieces.append(self._push_byte(token_id, kind))
        if grown:
            pieces.append(self._advance())
        return "".join(pieces)

    @property
    def pending(self) -> str:
        """What is not final yet, as the tokenizer decodes it now."""
        return self._decode(self._window + self._run)[self._emitted :]

    def flush(self, *, keep_torn: bool = True) -> str:
        """End the stream and return the pending text.

        With ``keep_torn`` it is what the tokenizer makes of it: a torn last character is U+FFFD.
        Without, one U+FFFD at the very end is dropped and so are the bytes of a torn character.
        """
        if not keep_torn and self._run:
            torn_bytes = len(self._run_state.getstate()[0])
            self._run = self._run[: len(self._run) - torn_bytes]
        text = self.pending
        self._closed = True
        return text.removesuffix(REPLACEMENT) if not keep_torn else text

    def _decode(self, token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def _kind(self, token_id: int) -> int:
        kind = self._kinds.get(token_id)
        if kind is None:
            kind = self._kinds[token_id] = self._classify(token_id)
        return kind

    def _classify(self, token_id: int) -> int:
        # Twice, because a tokenizer may drop the leading space of the first token it decodes.
        if not self._decode([token_id, token_id]):
            return _SILENT
        to_token = getattr(self._tokenizer, "convert_ids_to_tokens", None)
        token = to_token(token_id) if to_token is not None else None
        match = _BYTE_TOKEN.fullmatch(token) if isinstance(token, str) else None
        if match is None or self._decode([token_id]) == token:
            return _TEXT
        return int(match.group(1), 16)

    def _advance(self) -> str:
        """Decode the window and give out what became final in it."""
        text = self._decode(self._window)
        # Of several U+FFFD at the end only the last can be a torn character: a new lead byte, or a
        # fourth continuation byte, has already settled the ones before it.
        end = len(text) - 1 if text.endswith(REPLACEMENT) else len(text)
        piece = text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        if len(self._window) > self._window_limit:
            self._shorten(text[self._emitted :])
        return piece

    def _shorten(self, not_given_out: str) -> None:
        tail = self._window[-KEEP_TOKENS:]
        tail_text = self._decode(tail)
        emitted = len(tail_text) - len(not_given_out)
        if emitted > 0 and tail_text.endswith(not_given_out):
            self._window, self._emitted, self._window_limit = tail, emitted, WINDOW_TOKENS
        else:  # an unusual decoder: try again at twice the length, which keeps the cost linear
            self._window_limit = 2 * len(self._window)

    def _push_byte(self, token_id: int, byte: int) -> str:
        if self._run_broken:
            return REPLACEMENT
        self._run.append(token_id)
        try:
            self._run_state.decode(bytes([byte]))
        except UnicodeDecodeError:
            return self._break_run()
        return ""

    def _break_run(self) -> str:
        """The open run can no longer be valid UTF-8: from here each byte is one U+FFFD."""
        text = self.pending
        # One high byte alone stands for the run in the window: it decodes to one U+FFFD.
        high = next(token_id for token_id in self._run if self._kinds[token_id] >= 0x80)
        self._window, self._emitted = [high], 1
        self._run.clear()
        self._run_broken = True
        return text

    def _end_run(self) -> None:
        if self._run or self._run_broken:
            self._window.extend(self._run)
            self._run.clear()
            self._run_state.reset()
            self._run_broken = False


@dataclass(frozen=True)
class TextUpdate:
    """``text`` is new final text; ``stopped`` is the stop string that has just ended it, or None."""

    text: str
    stopped: str | None = None


class TextOutput:
    """Token ids to final text with stop strings applied.

    With :meth:`push_token` the caller learns after each token whether that token completed a stop
    string, and can cut the committed tokens right behind it.
    """

    def __init__(
        self, tokenizer: Any, stops: Sequence[str] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._stream = TextStream(tokenizer, skip_special_tokens=skip_special_tokens)
        self._matcher = StopMatcher(stops)

    def push_token(self, token_id: int) -> TextUpdate:
        """Take one token."""
        return self.push((token_id,))

    def push(self, token_ids: Sequence[int]) -> TextUpdate:
        """Take several tokens at once, for instance those of a resumed run."""
        result = self._matcher.push(self._stream.push(token_ids))
        return TextUpdate(result.text, result.stop)

    @property
    def pending(self) -> str:
        """Text that is held back: a possible stop string or an unfinished character."""
        return "" if self._matcher.matched is not None else self._matcher.held + self._stream.pending

    def finish(self, *, keep_torn: bool = False) -> TextUpdate:
        """Release the text held back. A torn last character is dropped unless ``keep_torn``."""
        result = self._matcher.push(self._stream.flush(keep_torn=keep_torn))
        return TextUpdate(result.text + self._matcher.flush(), result.stop)
