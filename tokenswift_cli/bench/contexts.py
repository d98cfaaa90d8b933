"""The contexts that are continued: the first tokens of one real text.

A context is nothing but token ids, so that other sources of them can be added beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenswift_cli.bench.settings import BenchSettings
from tokenswift_cli.config import PromptConfig
from tokenswift_cli.errors import UsageError
from tokenswift_cli.prompt_input import read_prompt

# More characters than this per token do not occur in text; a long book is not encoded whole.
_CHARACTERS_PER_TOKEN = 16


@dataclass(frozen=True)
class BenchText:
    """The text and what to call it."""

    text: str
    source: str


def bench_text(prompt: PromptConfig) -> BenchText:
    """The text that ``prompt`` names, else the language reference inside every Python: half a million
    characters of real prose and code that need no download.

    Raises:
        UsageError: the prompt cannot be read, or this Python comes without its documentation.
    """
    if prompt.file is not None or prompt.text is not None:
        read = read_prompt(prompt)
        return BenchText(read.text, read.source)
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UsageError(
            "This Python comes without pydoc_data, the text that is measured on by default; "
            "give a text with --prompt FILE."
        ) from None
    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return BenchText(text, "Python's language reference (pydoc topics; repetitive, as manuals are)")


def head_of(text: str, tokens: int) -> str:
    """As much of the beginning of ``text`` as ``tokens`` tokens can take."""
    return text[: tokens * _CHARACTERS_PER_TOKEN]


def beyond_limit(settings: BenchSettings, limit: int | None) -> list[str]:
    """A notice about contexts whose continuation has no room in the model: the speed is right all the same.

    Args:
        settings: which lengths.
        limit: positions that the model is made for; None if it names no limit.
    """
    more = settings.warm_up + settings.tokens
    beyond = [context for context in settings.prefix_tokens if limit is not None and context + more > limit]
    if not beyond:
        return []
    return [
        f"Context {', '.join(map(str, beyond))}: beyond the {limit} positions that the model is made for. "
        "Speeds are what they would be, the text and what drafts are worth are not."
    ]


def contexts_of(ids: Sequence[int], settings: BenchSettings, source: str) -> Mapping[int, list[int]]:
    """Token ids of each context, by its length.

    Args:
        ids: of the text, from its beginning.
        settings: which lengths.
        source: of the text, for the message.

    Raises:
        UsageError: the text is shorter than a context.
    """
    for context in settings.prefix_tokens:
        if context > len(ids):
            raise UsageError(
                f"--prefix-tokens {context}: the text ({source}) holds only {len(ids)} tokens. "
                + ("Name shorter contexts." if settings.run else "Give a longer one with --prompt FILE.")
            )
    return {context: list(ids[:context]) for context in settings.prefix_tokens}
