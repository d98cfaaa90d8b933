"""What every configuration value may be: the one place for ranges, choices and cross-checks.

Each rule yields the end of a sentence ("must be between 0 and 1"); who said the value, and
where, is added by ``options.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from tokenswift_cli.config import (
    DTYPES,
    JOURNAL_MODES,
    KV_DTYPES,
    LOOP_POLICIES,
    MOST_TOKENS,
    PROGRESS_MODES,
    Config,
    parse_rope_scaling,
)
from tokenswift_cli.engine.settings import DRAFTERS, METHODS


@dataclass(frozen=True)
class Rule:
    """Limits of one key; a list is checked item by item.

    Attributes:
        low, high: inclusive limits of a number, unless ``low_open`` / ``high_open``.
        least_positive, zero_means: a number between 0 and this is refused, 0 itself has a meaning.
        choices: the only words allowed.
        count: tokens, so that ``100k`` and ``1.5M`` are understood.
        pattern, example: full match that text must have, and what to show when it has not.
        filled: empty text is refused.
        unicode: the text reaches the tokenizer, so it must be valid Unicode without NUL.
    """

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    least_positive: float | None = None
    zero_means: str = ""
    choices: tuple[str, ...] = ()
    count: bool = False
    pattern: str | None = None
    example: str = ""
    filled: bool = False
    unicode: bool = False


FREE: Final = Rule()
_TOKENS: Final = Rule(low=1, high=MOST_TOKENS, count=True)
_WHOLE_TOKENS: Final = Rule(low=0, high=MOST_TOKENS, count=True)

RULES: Final[Mapping[str, Rule]] = {
    "model.name": Rule(filled=True),
    "model.device": Rule(pattern=r"[a-z]+(:\d+)?", example="auto, cpu, cuda, cuda:1 or mps"),
    "model.dtype": Rule(choices=DTYPES),
    "model.kv_dtype": Rule(choices=KV_DTYPES),
    "model.threads": Rule(low=0, high=4096),
    "prompt.file": Rule(filled=True),
    "prompt.text": Rule(unicode=True),
    "prompt.system": Rule(unicode=True),
    "sampling.seed": Rule(low=0, high=2**63 - 1),
    # Logits divided by less would overflow or be greedy in all but name.
    "sampling.temperature": Rule(low=0, high=1e6, least_positive=1e-4, zero_means="greedy decoding"),
    "sampling.top_k": Rule(low=0),
    "sampling.top_p": Rule(low=0, low_open=True, high=1),
    "sampling.min_p": Rule(low=0, high=1),
    "sampling.eta": Rule(low=0, high=1, high_open=True),
    "sampling.penalty": Rule(low=1e-3, high=1e3),
    "sampling.penalty_window": _TOKENS,
    "sampling.suppress_ids": Rule(low=0),
    "generation.max_tokens": _TOKENS,
    "generation.min_tokens": _WHOLE_TOKENS,
    "generation.stop": Rule(filled=True, unicode=True),
    "generation.on_loop": Rule(choices=LOOP_POLICIES),
    "drafting.method": Rule(choices=METHODS),
    "drafting.drafters": Rule(choices=DRAFTERS),
    "drafting.heads": Rule(filled=True),
    "drafting.head_widths": Rule(low=1, high=64),
    "drafting.ngram_size": Rule(low=2),
    "drafting.ngram_candidates": Rule(low=0),
    "drafting.suffix_max_draft": Rule(low=1),
    "drafting.self_depth": Rule(low=0),
    "drafting.partial_cache": Rule(low=0, least_positive=64, zero_means="the method's own", count=True),
    "drafting.partial_sinks": Rule(low=0),
    "drafting.max_nodes": Rule(low=1, high=1024),
    "drafting.prefill_chunk": _TOKENS,
    "run.directory": Rule(filled=True),
    "run.chunk_tokens": _TOKENS,
    "checkpoint.kv": Rule(choices=JOURNAL_MODES),
    "display.progress": Rule(choices=PROGRESS_MODES),
}


def rule_for(path: str) -> Rule:
    """The rule of the key ``path`` ("sampling.min_p"); :data:`FREE` where anything goes."""
    return RULES.get(path, FREE)


def broken_rule(rule: Rule, value: object) -> str | None:
    """What is wrong with a coerced ``value``, as the end of a sentence, or None."""
    if isinstance(value, tuple):
        return next((wrong for item in value if (wrong := broken_rule(rule, item))), None)
    if isinstance(value, str):
        return _broken_text_rule(rule, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        too_low = rule.low is not None and (value < rule.low or (rule.low_open and value == rule.low))
        too_high = rule.high is not None and (value > rule.high or (rule.high_open and value == rule.high))
        in_gap = rule.least_positive is not None and 0 < value < rule.least_positive
        if too_high and rule.least_positive is not None:
            return f"must be at most {rule.high:g}"
        if too_low or too_high or in_gap:
            return f"must be {_range(rule)}"
    return None


def _broken_text_rule(rule: Rule, text: str) -> str | None:
    if rule.filled and not text:
        return "must not be empty"
    if rule.choices and text not in rule.choices:
        near = get_close_matches(text, rule.choices, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"must be one of {', '.join(rule.choices)}{hint}"
    if rule.pattern and not re.fullmatch(rule.pattern, text, re.ASCII):
        return f"must look like {rule.example}"
    if rule.unicode and (why := not_model_text(text)):
        return f"must be text the model can read, without {why}"
    return None


def not_model_text(text: str) -> str | None:
    """Why ``text`` cannot go to a tokenizer ("a NUL character", "broken Unicode"), or None."""
    if "\0" in text:
        return "a NUL character"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "broken Unicode"
    return None


def _range(rule: Rule) -> str:
    low, high = rule.low, rule.high
    if rule.least_positive is not None:
        return f"0 for {rule.zero_means} or at least {rule.least_positive}"
    if low is not None and high is not None and not (rule.low_open or rule.high_open):
        return f"between {low:g} and {high:g}" if isinstance(low, float) else f"between {low} and {high}"
    parts = []
    if low is not None:
        parts.append(f"greater than {low}" if rule.low_open else f"at least {low}")
    if high is not None:
        parts.append(f"less than {high}" if rule.high_open else f"at most {high}")
    return " and ".join(parts)


@dataclass(frozen=True)
class CrossRule:
    """Two keys that must fit together.

    ``broken`` gives the end of a sentence about ``path``, or None; ``other`` is the key it is
    measured against.
    """

    path: str
    other: str
    broken: Callable[[Config], str | None]


def _minimum_above_maximum(config: Config) -> str | None:
    least, most = config.generation.min_tokens, config.generation.max_tokens
    return f"must not exceed generation.max_tokens ({most}), got {least}" if least > most else None


def _sinks_crowd_the_cache(config: Config) -> str | None:
    sinks, rows = config.drafting.partial_sinks, config.drafting.partial_rows
    return (
        f"must be at most a quarter of drafting.partial_cache ({rows}), got {sinks}"
        if 4 * sinks > rows
        else None
    )


def _unknown_rope_scaling(config: Config) -> str | None:
    try:
        parse_rope_scaling(config.model.rope_scaling)
    except ValueError as error:
        return str(error)
    return None


def _method_without_heads(config: Config) -> str | None:
    method = config.drafting.method
    if method not in ("heads", "tokenswift") or config.drafting.uses_heads:
        return None
    return f"is {method}, which needs drafting heads: give --heads DIR (drafting.heads)"


def _system_without_chat(config: Config) -> str | None:
    if config.prompt.system is not None and not config.prompt.chat:
        return "is used only with a chat template: add --chat (prompt.chat: true) or drop it"
    return None


CROSS_RULES: Final = (
    CrossRule("generation.min_tokens", "generation.max_tokens", _minimum_above_maximum),
    CrossRule("drafting.partial_sinks", "drafting.partial_cache", _sinks_crowd_the_cache),
    CrossRule("drafting.method", "drafting.heads", _method_without_heads),
    CrossRule("model.rope_scaling", "model.name", _unknown_rope_scaling),
    CrossRule("prompt.system", "prompt.chat", _system_without_chat),
)
