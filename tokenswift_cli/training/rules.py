"""What every value of a training configuration may be, and which values must fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tokenswift_cli.config_keys import KeyTable
from tokenswift_cli.config_rules import RULES, Rule
from tokenswift_cli.training.settings import HEAD_DTYPES, HEAD_VARIANTS, LABELS, TrainingConfig

_SHARED: Final = ("model.", "sampling.")
# Training reads whole texts, keeps no key-value cache, and none of them is longer than the model is made for.
_NOT_SHARED: Final = ("model.kv_dtype", "model.rope_scaling")
_POSITIVE: Final = Rule(low=1)
_NATURAL: Final = Rule(low=0)
_TOKENS: Final = Rule(low=1, count=True)
_SEED: Final = RULES["sampling.seed"]

TRAINING_RULES: Final[Mapping[str, Rule]] = {
    **{path: rule for path, rule in RULES.items() if path.startswith(_SHARED) and path not in _NOT_SHARED},
    "data.paths": Rule(filled=True),
    "data.text_key": Rule(filled=True),
    "data.sequence_tokens": Rule(low=8, count=True),
    "data.hold_out": Rule(low=0, high=1, high_open=True),
    "self_distill.prompts": Rule(filled=True),
    "self_distill.tokens": _TOKENS,
    "self_distill.batch": Rule(low=1, high=4096),
    "self_distill.tokens_per_sequence": Rule(low=8, count=True),
    "heads.count": Rule(low=1, high=16),
    "heads.variant": Rule(choices=HEAD_VARIANTS),
    "heads.draft_vocabulary": Rule(low=0, count=True),
    "heads.dtype": Rule(choices=HEAD_DTYPES),
    "training.labels": Rule(choices=LABELS),
    "training.steps": Rule(low=0, high=999_999_999, count=True),
    "training.epochs": Rule(low=0, low_open=True, high=1_000_000),
    "training.window_tokens": Rule(low=0, count=True),
    "training.batch_windows": _POSITIVE,
    "training.gradient_accumulation": _POSITIVE,
    "training.learning_rate": Rule(low=0, low_open=True, high=10),
    "training.warmup": Rule(low=0, high=1),
    "training.weight_decay": Rule(low=0, high=1),
    "training.beta1": Rule(low=0, high=1, high_open=True),
    "training.beta2": Rule(low=0, high=1, high_open=True),
    "training.max_grad_norm": _NATURAL,
    "training.seed": _SEED,
    "training.loss_chunk": _POSITIVE,
    "training.checkpoint_every": _POSITIVE,
    "training.log_every": _POSITIVE,
    "evaluation.positions": Rule(low=0, count=True),
    "evaluation.windows": _NATURAL,
    "evaluation.prompt_tokens": _TOKENS,
    "evaluation.tokens": Rule(low=8, count=True),
    "evaluation.texts": _POSITIVE,
}

TRAINING_TABLE: Final = KeyTable(TrainingConfig, TRAINING_RULES, without=_NOT_SHARED)


@dataclass(frozen=True)
class TrainingCrossRule:
    """Two keys that must fit together; ``broken`` gives the end of a sentence about ``path``, or None."""

    path: str
    other: str
    broken: Callable[[TrainingConfig], str | None]


def _prompt_fills_text(config: TrainingConfig) -> str | None:
    section = config.evaluation
    room = section.tokens - section.prompt_tokens
    if room < config.heads.count + 2:
        return (
            f"must leave room for {config.heads.count} heads in evaluation.tokens ({section.tokens}), "
            f"got {section.prompt_tokens}"
        )
    return None


def _sequences_too_short(config: TrainingConfig) -> str | None:
    needed, given = config.heads.count + 2, config.data.sequence_tokens
    return (
        f"must be at least {needed} for {config.heads.count} heads, got {given}" if given < needed else None
    )


def _written_too_short(config: TrainingConfig) -> str | None:
    needed, given = config.heads.count + 3, config.self_distill.tokens_per_sequence
    return (
        f"must be at least {needed} for {config.heads.count} heads, got {given}" if given < needed else None
    )


TRAINING_CROSS_RULES: Final = (
    TrainingCrossRule("evaluation.prompt_tokens", "evaluation.tokens", _prompt_fills_text),
    TrainingCrossRule("data.sequence_tokens", "heads.count", _sequences_too_short),
    TrainingCrossRule("self_distill.tokens_per_sequence", "heads.count", _written_too_short),
)
