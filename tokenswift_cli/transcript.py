"""The growing text seen as text: characters, stop strings, distinct n-grams and repetition.

A pure function of the token ids, whatever steps or chunks they came in: a resumed run pushes the old ids
again and stands where the first one stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenswift_cli.loops import LoopDetector, LoopReport
from tokenswift_cli.metrics import DistinctCounter
from tokenswift_cli.text import TextOutput


@dataclass(frozen=True)
class Addition:
    """What some new tokens did to the text.

    Attributes:
        tokens: how many of them belong to the text; those after a stop do not.
        text: new final text.
        finish_reason: "stop" or "loop" if the last of these tokens ended the text.
        loops: repetitions that became evident, with the number of tokens written by then.
    """

    tokens: int
    text: str
    finish_reason: str | None = None
    loops: tuple[tuple[int, LoopReport], ...] = ()


class Transcript:
    """Turns token ids into text and watches it.

    Args:
        tokenizer: needs ``decode``.
        stops: stop strings.
        on_loop: "warn", "stop" or "ignore".
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], on_loop: str) -> None:
        self.distinct = DistinctCounter()
        self._output = TextOutput(tokenizer, stops)
        self._loops = LoopDetector()
        self._on_loop = on_loop

    def push(self, token_ids: Iterable[int]) -> Addition:
        """Add tokens up to the first that ends the text."""
        pieces: list[str] = []
        loops: list[tuple[int, LoopReport]] = []
        finish_reason: str | None = None
        count = 0
        for token_id in token_ids:
            count += 1
            self.distinct.push((token_id,))
            update = self._output.push_token(token_id)
            pieces.append(update.text)
            if update.stopped is not None:
                finish_reason = "stop"
            report = self._loops.push(token_id)
            if report is not None and self._on_loop != "ignore":
                loops.append((self.distinct.tokens, report))
                if self._on_loop == "stop" and finish_reason is None:
                    finish_reason = "loop"
            if finish_reason is not None:
                break
        return Addition(count, "".join(pieces), finish_reason, tuple(loops))

    @property
    def looping(self) -> bool:
        """Whether the text so far ends in a repetition."""
        return self._loops.looping

    @property
    def novelty(self) -> float | None:
        """See :attr:`LoopDetector.novelty`."""
        return self._loops.novelty

    def replay(self, token_ids: Sequence[int]) -> str:
        """Take in the tokens of an earlier session; returns their final text."""
        # What ended the text then does not end it now: the caller knows why it goes on.
        pieces: list[str] = []
        done = 0
        while done < len(token_ids):
            addition = self.push(token_ids[done:])
            pieces.append(addition.text)
            done += addition.tokens
        return "".join(pieces)

    def finish(self) -> Addition:
        """What was held back as a possible stop string or character, now that the text is at its end."""
        update = self._output.finish()
        return Addition(0, update.text, None if update.stopped is None else "stop")
