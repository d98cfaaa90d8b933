"""Every error a user can meet, each with the exit code of the process.

A message says what happened, where, and what to do next, in one or two sentences. The command
line prints it without a traceback; ``TOKENSWIFT_DEBUG=1`` adds the traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class TokenSwiftError(Exception):
    """Base of all errors shown to a user. ``exit_code`` is the process's exit status."""

    exit_code = 1


class UsageError(TokenSwiftError):
    """The command line, a configuration file or an input file is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """One or more configuration values are wrong; all of them are listed at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        head = "1 configuration error" if len(problems) == 1 else f"{len(problems)} configuration errors"
        super().__init__("\n".join([f"{head}:", *(f"  - {problem}" for problem in problems)]))


class ModelError(TokenSwiftError):
    """The model cannot be found, loaded or driven."""


class UnsupportedModelError(ModelError):
    """The model uses a feature the engine does not compute exactly, refused by name."""


class PreflightError(TokenSwiftError):
    """The run would fail later for want of memory, disk or positions."""


class NonFiniteLogitsError(TokenSwiftError):
    """The model produced NaN or Inf; what was checkpointed is kept."""


class RunDirectoryError(TokenSwiftError):
    """The run directory cannot be created, read or written."""


class ForeignFileError(RunDirectoryError):
    """Something else stands where a run has a plain file: a link, a pipe, a directory."""

    exit_code = 3


class ResumeRefusedError(TokenSwiftError):
    """The run directory does not match what the resume would use."""

    exit_code = 3


class HeadsError(ModelError):
    """Drafting heads cannot be read, or do not belong to the model."""


class TrainingDataError(UsageError):
    """Training text is missing, damaged or does not fit."""


class TrainingStoppedError(TokenSwiftError):
    """The training of heads cannot go on; what was checkpointed is kept."""
