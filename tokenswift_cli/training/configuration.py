"""One training configuration from four places: command line > environment > YAML file > defaults.

All that is wrong is reported at once, each with where it was said. Imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenswift_cli.coerce import CoercionError
from tokenswift_cli.errors import ConfigError
from tokenswift_cli.options import ENVIRONMENT
from tokenswift_cli.shipped import configuration_file
from tokenswift_cli.training.flags import training_flag_name
from tokenswift_cli.training.rules import TRAINING_CROSS_RULES, TRAINING_TABLE
from tokenswift_cli.training.settings import TrainingConfig
from tokenswift_cli.yaml_config import read_yaml_file

# File names in a configuration are relative to its folder, those on the command line to the current one.
_FILES: Final = ("data.paths", "self_distill.prompts")


@dataclass(frozen=True)
class _Given:
    path: str
    value: object
    subject: str


def resolve_training(
    cli: Mapping[str, object], yaml_path: Path | None = None, environ: Mapping[str, str] | None = None
) -> TrainingConfig:
    """Merge the command line, the environment and a YAML file over the defaults.

    Args:
        cli: values of the flags by dotted key, as text; None means that the flag was not given.
        yaml_path: the configuration file, if any, or the name of one that is shipped.
        environ: the environment, ``os.environ`` by default; an empty variable counts as not set.

    Raises:
        ConfigError: something is wrong; all of it is listed.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values: dict[str, object] = {}
    subjects: dict[str, str] = {}
    broken: set[str] = set()
    for layer in (
        _yaml_layer(configuration_file(yaml_path), problems) if yaml_path else [],
        _environment_layer(environ),
        [_Given(path, value, training_flag_name(path)) for path, value in cli.items() if value is not None],
    ):
        seen = _read_layer(layer, values, subjects, problems, broken)
        if {"training.steps", "training.epochs"} <= seen and values["training.steps"]:
            problems.append(
                f"{subjects['training.steps']} and {subjects['training.epochs']} exclude each other: give one"
            )
        elif "training.epochs" in seen:
            values.pop("training.steps", None)  # the stronger place says how long
    config = TRAINING_TABLE.build(values)
    for rule in TRAINING_CROSS_RULES:
        if not broken & {rule.path, rule.other} and (wrong := rule.broken(config)):
            problems.append(f"{subjects.get(rule.path, rule.path)} {wrong}")
    if problems:
        raise ConfigError(problems)
    return config


def _read_layer(
    layer: Iterable[_Given],
    values: dict[str, object],
    subjects: dict[str, str],
    problems: list[str],
    broken: set[str],
) -> set[str]:
    """Lay one place's values over the others; returns the keys it gave."""
    seen = set()
    for given in layer:
        try:
            values[given.path] = TRAINING_TABLE.read_value(given.path, given.value)
        except CoercionError as error:
            problems.append(f"{given.subject} {error}")
            broken.add(given.path)
            continue
        subjects[given.path] = given.subject
        seen.add(given.path)
    return seen


def _environment_layer(environ: Mapping[str, str]) -> list[_Given]:
    return [
        _Given(path, environ[name], name)
        for name, path in ENVIRONMENT.items()
        if environ.get(name) and path in TRAINING_TABLE.keys
    ]


def _yaml_layer(path: Path, problems: list[str]) -> list[_Given]:
    reading = read_yaml_file(path, TRAINING_TABLE)
    problems.extend(reading.problems)
    return [
        _Given(item.path, _located(item.path, item.value, path.parent), f"{item.origin}: {item.path}")
        for item in reading.values
    ]


def _located(path: str, value: str | list[str], folder: Path) -> str | list[str]:
    if path not in _FILES:
        return value
    if isinstance(value, list):
        return [os.path.abspath(folder / os.path.expanduser(name)) if name else name for name in value]
    return os.path.abspath(folder / os.path.expanduser(value)) if value else value
