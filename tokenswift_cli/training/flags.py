"""The flags of ``tokenswift train-heads`` that set a configuration key, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenswift_cli.config import DTYPES
from tokenswift_cli.flags import DEVICES, DTYPE_HELP, MODEL, Flag, choice
from tokenswift_cli.training.settings import HEAD_VARIANTS

DATA: Final = "What the heads learn from"
TRAINING: Final = "Training"

TRAINING_FLAGS: Final = (
    Flag("data.paths", ("--data",), DATA, "Text file (.txt), JSON lines (.jsonl), or a directory of text "
         "that the model wrote; may be repeated.", "PATH", repeatable=True),
    Flag("self_distill.prompts", ("--prompts",), DATA, "Prompts for --self-distill, one a line.", "FILE"),
    Flag("self_distill.tokens", ("--self-distill-tokens",), DATA, "Tokens to write: 200k, 1.5M.", "N"),
    choice("heads.variant", "--variant", TRAINING,
           "As in the paper, or also seeing the token drafted before.", HEAD_VARIANTS),
    Flag("heads.count", ("--head-count",), TRAINING, "Number of heads.", "N"),
    Flag("training.steps", ("--steps",), TRAINING, "Optimizer steps; 0: as many as the epochs need.",
         "N"),
    Flag("training.seed", ("--seed",), TRAINING, "Of first weights, order, and held-out text.", "N"),
    Flag("model.name", ("-m", "--model"), MODEL, "As in `tokenswift generate`.", "MODEL"),
    Flag("model.device", ("--device",), MODEL, "auto, cpu, cuda, cuda:1 or mps.", "DEVICE",
         DEVICES),
    choice("model.dtype", "--dtype", MODEL, DTYPE_HELP, DTYPES, metavar="TYPE"),
    Flag("model.threads", ("--threads",), MODEL, "CPU threads; 0 chooses.", "N"),
    Flag("model.offline", ("--offline",), MODEL, "Never ask the Hub; use what is on this machine."),
    Flag("model.trust_remote_code", ("--trust-code",), MODEL, "Run Python code that comes with the model."),
    Flag("model.trust_pickle", ("--trust-pickle",), MODEL,
         "Load weights that there are only as Python pickles."),
)  # fmt: skip

_NAMES: Final[Mapping[str, str]] = {flag.path: flag.name for flag in TRAINING_FLAGS}


def training_flag_name(path: str) -> str:
    """The flag that sets the key ``path``. Raises ``KeyError`` where none does."""
    return _NAMES[path]


def given_training_values(parameters: Mapping[str, object]) -> dict[str, object]:
    """The flags that were really given, by configuration key, out of the command's parameters."""
    return {
        flag.path: parameters[flag.parameter]
        for flag in TRAINING_FLAGS
        if parameters.get(flag.parameter) is not None
    }
