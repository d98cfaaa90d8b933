"""One configuration from four places: command line > environment > YAML file > defaults.

Every value is checked, also one that a stronger place overrides, and all that is wrong is
reported at once, each with where it was said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tokenswift_cli.coerce import CoercionError
from tokenswift_cli.config import Config
from tokenswift_cli.config_keys import KEYS, build_config, flatten, read_value
from tokenswift_cli.config_rules import CROSS_RULES
from tokenswift_cli.engine.settings import NO_HEADS
from tokenswift_cli.errors import ConfigError, ResumeRefusedError
from tokenswift_cli.flags import flag_name
from tokenswift_cli.shipped import configuration_file
from tokenswift_cli.yaml_config import read_yaml_file

ENVIRONMENT: Final[Mapping[str, str]] = {
    "TOKENSWIFT_MODEL": "model.name",
    "TOKENSWIFT_DEVICE": "model.device",
    "TOKENSWIFT_THREADS": "model.threads",
    "TOKENSWIFT_SEED": "sampling.seed",
    "TOKENSWIFT_METHOD": "drafting.method",
    "TOKENSWIFT_PROGRESS": "display.progress",
}
"""The environment variables that set a configuration key."""

OTHER_VARIABLES: Final = ("TOKENSWIFT_CACHE", "TOKENSWIFT_DEBUG", "TOKENSWIFT_NATIVE", "TOKENSWIFT_PATH")
"""Variables of ours that are read elsewhere."""

DEFAULT_ORIGIN: Final = "default"

# What lets a model run code of its own. A run directory may come from anybody, so it cannot ask for that.
_TRUST: Final = ("model.trust_remote_code", "model.trust_pickle")

# Keys that name a file or directory, and the word that stands for none.
_NO_FILE: Final = {"prompt.file": "-", "drafting.heads": NO_HEADS}

# Two ways to say the same thing: the stronger place's choice replaces the weaker place's other way.
_RIVALS: Final = {"prompt.file": "prompt.text", "prompt.text": "prompt.file"}


@dataclass(frozen=True)
class Resolved:
    """A valid configuration and how it came about.

    Attributes:
        config: the merged values.
        origins: for every key the place that decided it: "--min-p", "TOKENSWIFT_SEED",
            "configs/demo.yaml line 12" or "default".
        notices: things worth telling that are no errors.
    """

    config: Config
    origins: Mapping[str, str]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Given:
    """One value somebody gave; ``subject`` begins the sentence of an error about it."""

    path: str
    value: object
    origin: str
    subject: str


@dataclass
class _Merge:
    """Values laid over each other, weakest place first, with all problems on the way."""

    values: dict[str, object] = field(default_factory=dict)
    givens: dict[str, _Given] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def lay_over(self, layer: Iterable[_Given]) -> None:
        accepted: dict[str, object] = {}
        givens: dict[str, _Given] = {}
        for given in layer:
            try:
                accepted[given.path] = read_value(given.path, given.value)
                givens[given.path] = given
            except CoercionError as error:
                self.problems.append(f"{given.subject} {error}")
                self.broken.add(given.path)
        if "prompt.file" in accepted and "prompt.text" in accepted:
            first, second = givens["prompt.file"].subject, givens["prompt.text"].subject
            self.problems.append(f"{first} and {second} exclude each other: give exactly one of them")
        for path in accepted:
            self._drop(_RIVALS.get(path))
        if accepted.get("prompt.chat") is False:
            self._drop("prompt.system")
        self.values.update(accepted)
        self.givens.update(givens)

    def _drop(self, path: str | None) -> None:
        if path is not None:
            self.values.pop(path, None)
            self.givens.pop(path, None)

    def finish(self, notices: Sequence[str] = ()) -> Resolved:
        """The configuration, or every problem found. Raises: ConfigError."""
        config = build_config(self.values)
        for rule in CROSS_RULES:
            if self.broken & {rule.path, rule.other}:
                continue
            wrong = rule.broken(config)
            if wrong:
                self.problems.append(f"{self._culprit(rule.path, rule.other)} {wrong}")
        if self.problems:
            raise ConfigError(self.problems)
        origins = {path: self.givens[path].origin if path in self.givens else DEFAULT_ORIGIN for path in KEYS}
        return Resolved(config, origins, tuple(notices))

    def _culprit(self, path: str, other: str) -> str:
        subject = self.givens[path].subject if path in self.givens else path
        against = self.givens.get(other)
        if against is None or against.subject == subject:
            return subject
        return f"{subject} (with {against.origin})"


def resolve(
    cli: Mapping[str, object], yaml_path: Path | None = None, environ: Mapping[str, str] | None = None
) -> Resolved:
    """Merge the command line, the environment and a YAML file over the defaults.

    Args:
        cli: values of the flags by dotted key ("sampling.min_p"), as text or typed; None means
            that the flag was not given.
        yaml_path: the configuration file, if any, or the name of a shipped one. A relative
            ``prompt.file`` or ``drafting.heads`` in it is relative to the file's own folder; one on the
            command line to the current directory. All are made absolute.
        environ: the environment, ``os.environ`` by default; an empty variable counts as not set.

    Raises:
        ConfigError: something is wrong; all of it is listed, each with where it was said.
    """
    environ = os.environ if environ is None else environ
    merge = _Merge()
    if yaml_path is not None:
        merge.lay_over(_yaml_layer(configuration_file(yaml_path), merge.problems))
    merge.lay_over(_environment_layer(environ))
    merge.lay_over(_command_line_layer(cli))
    return merge.finish(_environment_notices(environ))


def resolve_resume(
    cli: Mapping[str, object], stored: Config, environ: Mapping[str, str] | None = None
) -> Resolved:
    """What a resumed run should use: the run's stored configuration, changed by flags alone.

    The environment does not touch a run that exists, or an exported ``TOKENSWIFT_SEED`` would
    make it refuse to go on. How the run is displayed is not part of it: that comes from this
    command line and this environment. So does trust in the model's code and pickles, which has to be
    given again.

    Raises:
        ConfigError: as :func:`resolve`.
        ResumeRefusedError: the run was started with such trust, and the command line says nothing of it.
    """
    environ = os.environ if environ is None else environ
    values = flatten(stored)
    for path in _TRUST:
        if values[path] and cli.get(path) is None:
            raise ResumeRefusedError(
                f"run.yaml asks for {path}, which lets the model {stored.model.name} run code, and a resume "
                f"takes that from the command line alone. If you trust that model, add {flag_name(path)}."
            )
    merge = _Merge()
    merge.lay_over(
        _Given(path, value, "run.yaml", f"run.yaml: {path}")
        for path, value in values.items()
        if value != KEYS[path].default and KEYS[path].section != "display"
    )
    merge.lay_over(given for given in _environment_layer(environ) if KEYS[given.path].section == "display")
    merge.lay_over(_command_line_layer(cli))
    return merge.finish(_environment_notices(environ))


def _command_line_layer(cli: Mapping[str, object]) -> list[_Given]:
    layer = []
    for path, value in cli.items():
        if value is None:
            continue
        if path not in KEYS:
            raise KeyError(f"no configuration key {path}")
        name = flag_name(path)
        layer.append(_Given(path, _located(path, value, Path()), name, name))
    return layer


def _environment_layer(environ: Mapping[str, str]) -> list[_Given]:
    return [
        _Given(path, environ[name], name, name) for name, path in ENVIRONMENT.items() if environ.get(name)
    ]


def _environment_notices(environ: Mapping[str, str]) -> list[str]:
    known = (*ENVIRONMENT, *OTHER_VARIABLES)
    notices = []
    for name in sorted(environ):
        if name.startswith("TOKENSWIFT_") and name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            notices.append(f"the environment variable {name} is unknown and has no effect{hint}")
    return notices


def _yaml_layer(path: Path, problems: list[str]) -> list[_Given]:
    reading = read_yaml_file(path)
    problems.extend(reading.problems)
    return [
        _Given(
            item.path,
            _located(item.path, item.value, path.parent),
            item.origin,
            f"{item.origin}: {item.path}",
        )
        for item in reading.values
    ]


def _located(path: str, value: object, folder: Path) -> object:
    """The name of a prompt file or heads directory made absolute, seen from ``folder``; else as it is."""
    if not isinstance(value, str) or value in ("", _NO_FILE.get(path, value)):
        return value
    return os.path.abspath(folder / os.path.expanduser(value))
