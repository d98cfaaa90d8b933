"""The keys of a configuration, read off its dataclasses: "sampling.min_p" and its like.

A key's name, kind and default come from the dataclasses alone; a :class:`KeyTable` turns a configuration
into dotted keys and back and finds the key somebody meant. ``KEYS`` and the functions beside it are the
table of a run's :class:`Config`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar, get_type_hints

from tokenswift_cli.coerce import CoercionError, Kind, coerce, describe
from tokenswift_cli.config import Config
from tokenswift_cli.config_rules import FREE, RULES, Rule, broken_rule

_KINDS: Final[Mapping[object, Kind]] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    str | None: "text",
    tuple[str, ...]: "texts",
    tuple[int, ...]: "ints",
}

_Config = TypeVar("_Config")


@dataclass(frozen=True)
class Key:
    """One configuration key: dotted ``path``, ``kind`` for coercion, ``default``."""

    path: str
    section: str
    name: str
    kind: Kind
    default: object


class KeyTable(Generic[_Config]):
    """All keys of one kind of configuration.

    Args:
        config_type: a dataclass of sections, which are dataclasses of values; all have defaults.
        rules: what values may be, by dotted path.
        without: dotted paths of values that are no keys here: they keep their defaults.

    Attributes:
        keys: by dotted path, in the order of the dataclasses.
        sections: their names.
    """

    def __init__(
        self, config_type: type[_Config], rules: Mapping[str, Rule], without: Collection[str] = ()
    ) -> None:
        self._config_type = config_type
        self._section_types: Mapping[str, Any] = get_type_hints(config_type)
        self._rules = rules
        self._without = frozenset(without)
        self.sections = tuple(self._section_types)
        self.keys: Mapping[str, Key] = self._read_keys()

    def _read_keys(self) -> dict[str, Key]:
        keys: dict[str, Key] = {}
        for section, section_type in self._section_types.items():
            types = get_type_hints(section_type)
            defaults = section_type()
            for field in fields(section_type):
                path = f"{section}.{field.name}"
                if path in self._without:
                    continue
                kind = "count" if self._rules.get(path, FREE).count else _KINDS[types[field.name]]
                keys[path] = Key(path, section, field.name, kind, getattr(defaults, field.name))
        return keys

    def names(self, section: str) -> list[str]:
        """The names of the keys of a section."""
        return [key.name for key in self.keys.values() if key.section == section]

    def read_value(self, path: str, value: object) -> object:
        """``value`` coerced to the kind of the key ``path`` and checked against its rule.

        Raises:
            CoercionError: the end of a sentence that begins with the name of the value.
        """
        coerced = coerce(value, self.keys[path].kind)
        wrong = broken_rule(self._rules.get(path, FREE), coerced)
        if wrong:
            raise CoercionError(f"{wrong}, got {describe(value)}")
        return coerced

    def flatten(self, config: _Config) -> dict[str, object]:
        """Every key's value in ``config``, by dotted path, in the order of the dataclasses."""
        return {path: getattr(getattr(config, key.section), key.name) for path, key in self.keys.items()}

    def build(self, values: Mapping[str, object]) -> _Config:
        """The configuration with ``values`` (coerced, by dotted path) over the defaults."""
        sections: dict[str, Any] = {}
        for section in self.sections:
            keys = ((self.keys[path], value) for path, value in values.items())
            given = {key.name: value for key, value in keys if key.section == section}
            sections[section] = self._section_types[section](**given)
        return self._config_type(**sections)

    def nearest(self, section: str, name: str) -> str | None:
        """The dotted key that ``section``.``name`` most likely means, or None.

        The same name in another section comes first (``sampling.max_tokens`` is
        ``generation.max_tokens``), then a similar name in this section, then a similar one anywhere.
        """
        wanted = name.replace("-", "_").lower()
        elsewhere = [key.path for key in self.keys.values() if key.name == wanted]
        if elsewhere:
            return elsewhere[0]
        here = {key.name: key.path for key in self.keys.values() if key.section == section}
        anywhere = {key.name: key.path for key in self.keys.values()}
        for names in (here, anywhere):
            near = get_close_matches(wanted, names, n=1, cutoff=0.6)
            if near:
                return names[near[0]]
        return None


TABLE: Final = KeyTable(Config, RULES)
KEYS: Final = TABLE.keys
SECTIONS: Final = TABLE.sections
read_value = TABLE.read_value
flatten = TABLE.flatten
build_config = TABLE.build
