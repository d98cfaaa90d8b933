"""What a training can be told, as frozen values with their defaults. Imports nothing heavy.

This is the one place for these defaults: the YAML configuration and the command line read them from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenswift_cli.config import ModelConfig
from tokenswift_cli.engine.settings import SamplingSettings

HEAD_VARIANTS = ("linear", "conditioned")
LABELS = ("tokens", "target")
HEAD_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class DataSection:
    """What the heads learn from.

    Attributes:
        paths: text files (.txt), JSON lines (.jsonl, .json), or directories of self-written text.
        text_key: the key of the text in a JSON line.
        sequence_tokens: text is cut into sequences of at most this many tokens.
        hold_out: share of the sequences that is kept for measuring, at least one.
        cache_hidden: hidden states of text are computed once and kept on disk; else anew in each epoch.
    """

    paths: tuple[str, ...] = ()
    text_key: str = "text"
    sequence_tokens: int = 8192
    hold_out: float = 0.05
    cache_hidden: bool = False


@dataclass(frozen=True)
class SelfDistillSection:
    """Text that the target writes itself.

    Attributes:
        prompts: file of prompts, one a line.
        tokens: tokens to write in all, prompts included; rounded up to whole batches.
        batch: texts written at once.
        tokens_per_sequence: length of each text, its prompt included.
    """

    prompts: str | None = None
    tokens: int = 200_000
    batch: int = 16
    tokens_per_sequence: int = 2048


@dataclass(frozen=True)
class HeadsSection:
    """What is trained.

    Attributes:
        count: number of heads.
        variant: one of :data:`HEAD_VARIANTS`.
        draft_vocabulary: heads can propose this many most frequent tokens of the training text; 0 for all.
        dtype: of the weights on disk.
    """

    count: int = 3
    variant: str = "conditioned"
    draft_vocabulary: int = 0
    dtype: str = "float16"


@dataclass(frozen=True)
class TrainingSection:
    """How it is trained.

    Attributes:
        labels: "tokens" (paper: the tokens of the text) or "target" (the target's own distribution).
        steps: optimizer steps; 0 for as many as ``epochs`` need.
        epochs: passes over the training text where ``steps`` is 0.
        window_tokens: positions in a piece of a sequence; 0 takes whole sequences.
        batch_windows: pieces per forward pass.
        gradient_accumulation: forward passes per step.
        learning_rate: of AdamW, at its highest.
        warmup: share of the steps in which the learning rate rises; then it falls as a cosine to 0.
        weight_decay, beta1, beta2: of AdamW.
        max_grad_norm: longer gradients are cut to this length; 0 cuts none.
        seed: of the order of the pieces, the held-out sequences, and first weights.
        loss_chunk: positions whose logits are in memory at once.
        checkpoint_every, log_every: in steps.
    """

    labels: str = "target"
    steps: int = 0
    epochs: float = 1.0
    window_tokens: int = 0
    batch_windows: int = 1
    gradient_accumulation: int = 1
    learning_rate: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    max_grad_norm: float = 1.0
    seed: int = 0
    loss_chunk: int = 512
    checkpoint_every: int = 100
    log_every: int = 10


@dataclass(frozen=True)
class EvaluationSection:
    """What is measured on held-out text.

    Attributes:
        positions: positions drafted from, in each band of positions; 0 measures no acceptance.
        windows: held-out pieces whose loss is taken at each checkpoint; 0 takes none.
        prompt_tokens: held-out text files start with this many tokens, the target then writes on by itself.
        tokens: length of those texts.
        texts: most of those texts.
    """

    positions: int = 400
    windows: int = 16
    prompt_tokens: int = 64
    tokens: int = 1024
    texts: int = 8


@dataclass(frozen=True)
class TrainingConfig:
    """A complete training configuration."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataSection = field(default_factory=DataSection)
    self_distill: SelfDistillSection = field(default_factory=SelfDistillSection)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    heads: HeadsSection = field(default_factory=HeadsSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
