"""The text that stands in output.txt, and where it ends, held against the tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tokenswift_cli import run_layout
from tokenswift_cli.config import GenerationConfig
from tokenswift_cli.run_files import FileProblem
from tokenswift_cli.text import TextOutput


def check_text(
    tokenizer: Any,
    tokens: Sequence[int],
    generation: GenerationConfig,
    finish_reason: str | None,
    text: bytes | None,
) -> list[FileProblem]:
    """Whether output.txt is the text of the tokens, and a stop string ends it where it should.

    Args:
        tokenizer: the model's own.
        tokens: of the run; all in the vocabulary.
        generation: settings of the run.
        finish_reason: of the run, None while it goes on.
        text: bytes of output.txt; None where it cannot be read.
    """
    output = TextOutput(tokenizer, generation.stop)
    before = output.push(tokens[:-1])
    last = output.push(tokens[-1:])
    final = before.text + last.text
    rest = output.finish()
    problems: list[FileProblem] = []
    # What was held back is written when a run ends, and taken back when a finished run is extended.
    allowed = [final] if finish_reason in (None, "interrupted") else [final + rest.text, final]
    if text is not None and text not in [one.encode("utf-8") for one in allowed]:
        place = _first_difference(text, allowed[0].encode("utf-8"))
        problems.append(
            FileProblem(
                run_layout.TEXT,
                f"{run_layout.TEXT} is not the text of {run_layout.TOKENS}: other from byte {place:,} on",
            )
        )
    if before.stopped is not None:
        problems.append(
            FileProblem(
                run_layout.TOKENS, f"{run_layout.TOKENS} goes on after the stop string {before.stopped!r}"
            )
        )
    if finish_reason == "stop" and last.stopped is None and rest.stopped is None:
        problems.append(
            FileProblem(
                run_layout.TOKENS,
                "a stop string is said to have ended the text, and there is none at its end",
            )
        )
    return problems


def check_ending(
    tokens: Sequence[int], end_ids: Collection[int], generation: GenerationConfig, finish_reason: str | None
) -> list[FileProblem]:
    """Whether end-of-text stands where it should: at the end of a text that it ended, and nowhere else.

    Args:
        tokens: of the run.
        end_ids: end-of-text ids of the model.
        generation: settings of the run.
        finish_reason: of the run, None while it goes on.
    """
    name = run_layout.TOKENS
    if not generation.ignore_eos:
        for position, token in enumerate(tokens[:-1]):
            if token in end_ids:
                return [FileProblem(name, f"{name} goes on after the end-of-text at position {position:,}")]
    if finish_reason == "eos" and (generation.ignore_eos or not tokens or tokens[-1] not in end_ids):
        return [FileProblem(name, f"the model is said to have ended the text, and {name} has no end-of-text")]
    return []


def _first_difference(found: bytes, expected: bytes) -> int:
    for place, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return place
    return min(len(found), len(expected))
