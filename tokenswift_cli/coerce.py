"""From what a person wrote to a typed value: one set of rules for YAML, environment and flags.

YAML scalars arrive here as their source text, so ``1e-4`` is a number (PyYAML alone reads it as
text), ``010`` is ten and ``no`` is a word wherever the key wants text. Knows nothing of keys or
ranges: ``config_keys.py`` says which kind a key has, ``config_rules.py`` what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, Literal

Kind = Literal["bool", "int", "count", "float", "text", "texts", "ints"]

_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[+-]?(?:\.?inf|infinity|\.?nan)", re.IGNORECASE)
_SUFFIXES: Final[Mapping[str, int]] = {"k": 1_000, "m": 1_000_000}
_TRUE: Final = frozenset({"true", "yes", "on"})
_FALSE: Final = frozenset({"false", "no", "off"})
_LONGEST_NUMBER: Final = 64
_MOST_DIGITS: Final = 30
_SHOWN_CHARACTERS: Final = 60


class CoercionError(ValueError):
    """The value cannot be read as the kind asked for. The text completes "<key> ..."."""


def describe(value: object) -> str:
    """``value`` as a short, quoted piece of an error message, control characters escaped."""
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "a mapping"
    if not isinstance(value, str):
        return repr(value)
    if len(value) > _SHOWN_CHARACTERS:
        return repr(value[:_SHOWN_CHARACTERS]) + "..."
    return value if _NUMBER.fullmatch(value) else repr(value)


def coerce(value: object, kind: Kind) -> object:
    """Read ``value`` (text, or a value of the right type already) as ``kind``.

    Kinds: ``bool``; ``int``; ``count`` (a whole number, also written 100k or 1.5M); ``float``
    (finite); ``text``; ``texts`` and ``ints`` (tuples; a single item stands for a list of one).

    Raises:
        CoercionError: the value does not read as ``kind``.
    """
    return _READERS[kind](value)


def _read_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise CoercionError(f"must be true or false, got {describe(value)}")


def _read_int(value: object) -> int:
    return _whole(value, wanted="a whole number", suffixes=False)


def _read_count(value: object) -> int:
    return _whole(value, wanted="a whole number such as 2048, 100k or 1.5M", suffixes=True)


def _whole(value: object, *, wanted: str, suffixes: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        raise CoercionError(f"must be {wanted}, got {describe(value)}")
    text = value.strip()
    scale = 1
    if suffixes and text[-1:].lower() in _SUFFIXES:
        scale = _SUFFIXES[text[-1].lower()]
        text = text[:-1].rstrip()
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        raise CoercionError(f"must be {wanted}, got {describe(value)}")
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise CoercionError(f"must be {wanted}, got {describe(value)}") from None
    if not number:
        return 0
    # The exponent is looked at before any integer is built: 1e999999999 would fill the memory.
    if number.adjusted() > _MOST_DIGITS:
        raise CoercionError(f"is too large, got {describe(value)}")
    numerator, denominator = number.as_integer_ratio() if number.adjusted() > -_MOST_DIGITS else (1, 2)
    if numerator * scale % denominator:
        raise CoercionError(f"must be {wanted}, got {describe(value)}")
    return numerator * scale // denominator


def _read_float(value: object) -> float:
    if isinstance(value, str):
        text = value.strip()
        if _NOT_FINITE.fullmatch(text):
            raise CoercionError(f"must be a finite number, got {describe(value)}")
        if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            raise CoercionError(f"must be a number, got {describe(value)}")
        number = float(text)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        raise CoercionError(f"must be a number, got {describe(value)}")
    if not math.isfinite(number):
        raise CoercionError(f"must be a finite number, got {describe(value)}")
    return number


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise CoercionError(f"must be text, got {describe(value)}")


def _read_texts(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_read_text(item) for item in items)


def _read_ints(value: object) -> tuple[int, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_read_int(item) for item in items)


_READERS: Final[Mapping[Kind, Callable[[object], object]]] = {
    "bool": _read_bool,
    "int": _read_int,
    "count": _read_count,
    "float": _read_float,
    "text": _read_text,
    "texts": _read_texts,
    "ints": _read_ints,
}
