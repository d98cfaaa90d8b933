"""The whole configuration of a run as frozen values: the one place for each default.

Knows nothing of YAML, the environment or the command line: ``options.py`` merges those and
builds a :class:`Config`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings

DEMO_MODEL = "smollm2-135m"

AUTO_DTYPE = "auto"
DTYPES = (AUTO_DTYPE, "float32", "float16", "bfloat16")
KV_DTYPES = (AUTO_DTYPE, "float32", "float16")
MOST_SCALING = 1024
# More than any model has positions. A longer run would not be believed when it is resumed.
MOST_TOKENS = 2**24
PROGRESS_MODES = ("auto", "rich", "plain", "json", "none")
LOOP_POLICIES = ("warn", "stop", "ignore")
JOURNAL_MODES = ("auto", "always", "never")


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and where it runs.

    ``kv_dtype`` is of the stored keys and values; "auto" leaves them as the model makes them. What is rounded
    there changes the text, as ``dtype`` does. ``rope_scaling`` stretches the positions; see
    :func:`parse_rope_scaling`. ``trust_remote_code`` and ``trust_pickle`` allow what can run any code; a
    resumed run never takes them from its directory.
    """

    name: str = DEMO_MODEL
    device: str = "auto"
    dtype: str = AUTO_DTYPE
    kv_dtype: str = AUTO_DTYPE
    rope_scaling: str | None = None
    threads: int = 0
    offline: bool = False
    trust_remote_code: bool = False
    trust_pickle: bool = False


def parse_rope_scaling(text: str | None) -> float | None:
    """The factor of ``yarn:FACTOR``; None for None or ``none``.

    Raises:
        ValueError: it is something else; the message is the end of a sentence.
    """
    if text is None or text == "none":
        return None
    kind, colon, number = text.partition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if kind != "yarn" or not colon or not 1 < factor <= MOST_SCALING:
        raise ValueError(f"must be yarn:FACTOR with a factor above 1 and up to {MOST_SCALING}, got {text!r}")
    return factor


@dataclass(frozen=True)
class PromptConfig:
    """Where the prompt comes from: exactly one of ``file`` ("-" is standard input) and ``text``."""

    file: str | None = None
    text: str | None = None
    chat: bool = False
    system: str | None = None


@dataclass(frozen=True)
class GenerationConfig:
    """How long the text gets and what ends it."""

    max_tokens: int = 2048
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    on_loop: str = "warn"


@dataclass(frozen=True)
class RunConfig:
    """The run directory and its unit of durability."""

    directory: str | None = None
    chunk_tokens: int = 1024


@dataclass(frozen=True)
class CheckpointConfig:
    """What a checkpoint holds besides the text: ``kv`` says whether the key-value cache is kept, too."""

    kv: str = "auto"


@dataclass(frozen=True)
class DisplayConfig:
    """What the person sees."""

    progress: str = "auto"
    stream: bool = False


@dataclass(frozen=True)
class Config:
    """A complete, validated configuration."""

    model: ModelConfig = field(default_factory=ModelConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    drafting: DraftingSettings = field(default_factory=DraftingSettings)
    run: RunConfig = field(default_factory=RunConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    display: DisplayConfig = field(default_factory=DisplayConfig)
