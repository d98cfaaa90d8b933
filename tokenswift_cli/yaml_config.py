"""YAML and the configuration: reading with line numbers, writing so that reading gives it back.

The document is composed, not constructed: values keep their source text and line, and
``coerce.py`` reads them by the type of their key. Nothing in a file can make Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml

from tokenswift_cli.coerce import CoercionError
from tokenswift_cli.config import Config
from tokenswift_cli.config_keys import TABLE, KeyTable
from tokenswift_cli.errors import ConfigError
from tokenswift_cli.shipped import configuration_names

_CORE_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)
_MOST_NODES: Final = 2**17
_NULL: Final = "tag:yaml.org,2002:null"
_HEADER: Final = "# The resolved configuration of this run; `tokenswift resume` reads it. Do not edit.\n"


@dataclass(frozen=True)
class YamlValue:
    """One value of a file: dotted ``path``, ``value`` as text or list of texts, ``origin``."""

    path: str
    value: str | list[str]
    origin: str


@dataclass(frozen=True)
class YamlReading:
    """The values of a file (null ones left out) and everything that is wrong with it."""

    values: tuple[YamlValue, ...]
    problems: tuple[str, ...]


class _Problem(Exception):
    """One complete error message, to be listed with the others."""


class _TooManyValues(Exception):
    """The document takes more time and memory than any configuration."""


class _Loader(yaml.SafeLoader):
    """Stops at a number of values: each takes a kilobyte, however short it is in the file."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise _TooManyValues
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def read_yaml(text: str, source: str, table: KeyTable[Any] = TABLE) -> YamlReading:
    """Read the values of a configuration file.

    Args:
        text: the document; a leading byte order mark is ignored.
        source: the file's name as messages should show it.
        table: the keys it may have; those of a run by default.
    """
    try:
        root = yaml.compose(text.removeprefix("\ufeff"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return YamlReading((), (f"{source}{where}: not valid YAML: {error.problem or error.context}",))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return YamlReading((), (f"{source} line {line}: character {error.character:#06x} is not allowed",))
    except _TooManyValues:
        return YamlReading((), (f"{source}: more than {_MOST_NODES} values are no configuration",))
    except RecursionError:
        return YamlReading((), (f"{source}: nested too deeply for a configuration",))
    if root is None or root.tag == _NULL:
        return YamlReading((), ())
    if not isinstance(root, yaml.MappingNode):
        wanted = ", ".join(table.sections)
        return YamlReading((), (f"{source} {_line(root)}: must be a mapping with the sections {wanted}",))
    values: list[YamlValue] = []
    problems: list[str] = []
    for section, node in _entries(root, source, "", problems):
        if section not in table.sections:
            problems.append(f"{source} {_line(node)}: {_unknown_section(section, table)}")
        elif node.tag == _NULL:
            continue
        elif not isinstance(node, yaml.MappingNode):
            problems.append(f"{source} {_line(node)}: section {section} must be a mapping of keys to values")
        else:
            _read_section(section, node, source, table, values, problems)
    return YamlReading(tuple(values), tuple(problems))


def read_yaml_file(path: Path, table: KeyTable[Any] = TABLE) -> YamlReading:
    """As :func:`read_yaml`, of a file; that it cannot be read is a problem like any other."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"{path}: not UTF-8 text (byte {error.start}); save the configuration as UTF-8"
    except FileNotFoundError:
        shipped = ", ".join(configuration_names())
        names = f", or a name of those that come with tokenswift: {shipped}" if shipped else ""
        problem = f"--config: {path} does not exist; give the path of a YAML file{names}"
    except OSError as error:
        problem = f"--config: {path} cannot be read: {error.strerror or error}"
    else:
        return read_yaml(text, str(path), table)
    return YamlReading((), (problem,))


def _read_section(
    section: str,
    node: yaml.MappingNode,
    source: str,
    table: KeyTable[Any],
    values: list[YamlValue],
    problems: list[str],
) -> None:
    for name, value_node in _entries(node, source, f"{section}.", problems):
        path, origin = f"{section}.{name}", f"{source} {_line(value_node)}"
        if path not in table.keys:
            near = table.nearest(section, name)
            hint = f"; did you mean {near}?" if near else f"; {section} has {', '.join(table.names(section))}"
            problems.append(f"{origin}: unknown key {path}{hint}")
            continue
        try:
            value = _value(value_node, f"{origin}: {path}")
        except _Problem as problem:
            problems.append(str(problem))
            continue
        if value is not None:
            values.append(YamlValue(path, value, origin))


def _entries(
    node: yaml.MappingNode, source: str, prefix: str, problems: list[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """The (key, value node) pairs of a mapping, each key once; the rest goes to ``problems``."""
    lines: dict[str, str] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(f"{source} {_line(key_node)}: a key must be a plain word")
        elif key_node.value in lines:
            first = lines[key_node.value]
            problems.append(
                f"{source} {_line(key_node)}: {prefix}{key_node.value} is given twice, first on {first}"
            )
        else:
            lines[key_node.value] = _line(key_node)
            yield key_node.value, value_node


def _value(node: yaml.Node, subject: str) -> str | list[str] | None:
    if isinstance(node, yaml.SequenceNode):
        return [_item(item, subject) for item in node.value]
    if node.tag == _NULL:
        return None
    return _item(node, subject)


def _item(node: yaml.Node, subject: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        kind = "a mapping" if isinstance(node, yaml.MappingNode) else "a list inside a list"
        raise _Problem(f"{subject} must be a single value, got {kind}")
    if node.tag == _NULL:
        raise _Problem(f"{subject} has an empty item in its list")
    if node.tag not in _CORE_TAGS:
        raise _Problem(f"{subject} has the tag {node.tag}, which a configuration may not use")
    return str(node.value)


def _unknown_section(section: str, table: KeyTable[Any]) -> str:
    near = get_close_matches(section, table.sections, n=1)
    if near:
        return f"unknown section {section}; did you mean {near[0]}?"
    key = table.nearest("", section)
    if key:
        return f"unknown section {section}; did you mean the key {key}?"
    return f"unknown section {section}; the sections are {', '.join(table.sections)}"


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


class _Dumper(yaml.SafeDumper):
    """Escapes what PyYAML's plain and single-quoted styles lose, such as a lone U+0085."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)


def dump_yaml(config: Config) -> str:
    """``config`` as a YAML document that :func:`load_run_yaml` reads back to an equal value."""
    document: dict[str, dict[str, object]] = {section: {} for section in TABLE.sections}
    for path, value in TABLE.flatten(config).items():
        key = TABLE.keys[path]
        document[key.section][key.name] = list(value) if isinstance(value, tuple) else value
    # An endless line keeps long texts unfolded, one key to a line.
    return _HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)


def load_run_yaml(text: str, source: str = "run.yaml") -> Config:
    """The configuration that :func:`dump_yaml` wrote.

    Raises:
        ConfigError: the text is not such a document; every fault is listed with its line.
    """
    reading = read_yaml(text, source)
    problems = list(reading.problems)
    values: dict[str, object] = {}
    for item in reading.values:
        try:
            values[item.path] = TABLE.read_value(item.path, item.value)
        except CoercionError as error:
            problems.append(f"{item.origin}: {item.path} {error}")
    if problems:
        raise ConfigError(problems)
    return TABLE.build(values)
