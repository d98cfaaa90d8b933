"""The keys of the configuration, read off the dataclasses: "sampling.min_p" and its like.

A key's name, kind and default come from ``config.py`` and ``engine/settings.py`` alone; this
module turns a :class:`Config` into dotted keys and back and finds the key somebody meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, get_type_hints

from tokenswift_cli.coerce import CoercionError, Kind, coerce, describe
from tokenswift_cli.config import Config
from tokenswift_cli.config_rules import broken_rule, rule_for

_KINDS: Final[Mapping[object, Kind]] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    str | None: "text",
    tuple[str, ...]: "texts",
    tuple[int, ...]: "ints",
}


@dataclass(frozen=True)
class Key:
    """One configuration key: dotted ``path``, ``kind`` for coercion, ``default``."""

    path: str
    section: str
    name: str
    kind: Kind
    default: object


def _read_keys() -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for section, section_type in get_type_hints(Config).items():
        types = get_type_hints(section_type)
        defaults = section_type()
        for field in fields(section_type):
            path = f"{section}.{field.name}"
            kind = "count" if rule_for(path).count else _KINDS[types[field.name]]
            keys[path] = Key(path, section, field.name, kind, getattr(defaults, field.name))
    return keys


KEYS: Final[Mapping[str, Key]] = _read_keys()
SECTIONS: Final = tuple(field.name for field in fields(Config))


def read_value(path: str, value: object) -> object:
    """``value`` coerced to the kind of the key ``path`` and checked against its rule.

    Raises:
        CoercionError: the end of a sentence that begins with the name of the value.
    """
    coerced = coerce(value, KEYS[path].kind)
    wrong = broken_rule(rule_for(path), coerced)
    if wrong:
        raise CoercionError(f"{wrong}, got {describe(value)}")
    return coerced


def flatten(config: Config) -> dict[str, object]:
    """Every key's value in ``config``, by dotted path, in the order of the dataclasses."""
    return {path: getattr(getattr(config, key.section), key.name) for path, key in KEYS.items()}


def build_config(values: Mapping[str, object]) -> Config:
    """The :class:`Config` with ``values`` (coerced, by dotted path) over the defaults."""
    section_types = get_type_hints(Config)
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        given = {KEYS[path].name: value for path, value in values.items() if KEYS[path].section == section}
        sections[section] = section_types[section](**given)
    return Config(**sections)


def nearest_key(section: str, name: str) -> str | None:
    """The dotted key that ``section``.``name`` most likely means, or None.

    The same name in another section comes first (``sampling.max_tokens`` is
    ``generation.max_tokens``), then a similar name in this section, then a similar one anywhere.
    """
    wanted = name.replace("-", "_").lower()
    elsewhere = [key.path for key in KEYS.values() if key.name == wanted]
    if elsewhere:
        return elsewhere[0]
    here = {key.name: key.path for key in KEYS.values() if key.section == section}
    anywhere = {key.name: key.path for key in KEYS.values()}
    for names in (here, anywhere):
        near = get_close_matches(wanted, names, n=1, cutoff=0.6)
        if near:
            return names[near[0]]
    return None
