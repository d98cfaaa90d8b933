"""Which settings decide the text: a resumed run must not change them."""

from __future__ import annotations

from dataclasses import fields

from tokenswift_cli.config import Config
from tokenswift_cli.engine.settings import SamplingSettings

# Besides these only the model (compared by its own identity) and the prompt (kept as ids) decide.
_TEXT_DECIDING = (
    *(("sampling", setting.name) for setting in fields(SamplingSettings)),
    ("model", "kv_dtype"),
    ("model", "rope_scaling"),
    ("generation", "min_tokens"),
    ("generation", "ignore_eos"),
    ("generation", "stop"),
)


def text_deciding_differences(stored: Config, requested: Config) -> list[str]:
    """In words, each setting that decides the text and differs; empty if none does."""
    differences = []
    for section, name in _TEXT_DECIDING:
        before = getattr(getattr(stored, section), name)
        after = getattr(getattr(requested, section), name)
        if before != after:
            differences.append(f"{section}.{name} was {before} and is {after}")
    return differences
