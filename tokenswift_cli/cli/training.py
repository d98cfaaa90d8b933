"""``tokenswift train-heads``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokenswift_cli.cli.app import ConfigFile, app, interruptible, switch, valued, with_flags
from tokenswift_cli.cli.help_page import examples
from tokenswift_cli.flags import DISPLAY, RUN
from tokenswift_cli.training.flags import DATA, TRAINING_FLAGS, given_training_values
from tokenswift_cli.training.settings import TrainingConfig

_Silent = Annotated[bool, switch("-q", "--quiet", panel=DISPLAY, help="No progress, messages and table.")]
_HeadsOutput = Annotated[
    Path | None, valued("-o", "--output", panel=RUN, help="The heads directory to write.")
]
_WorkDirectory = Annotated[
    Path | None,
    valued(
        "--work-dir", panel=RUN, help="Where text, checkpoints and log are kept (default OUTPUT.training)."
    ),
]
_Published = Annotated[
    Path | None,
    valued(
        "--convert",
        metavar="CHECKPOINT_DIR",
        panel=RUN,
        help="Take the heads out of a published TokenSwift checkpoint instead of training.",
    ),
]
_SelfDistill = Annotated[
    bool, switch("--self-distill", panel=DATA, help="Let the model write training text from prompts.")
]
_SelfDistillOnly = Annotated[
    bool, switch("--self-distill-only", panel=DATA, help="Write that text, and train nothing.")
]
_Resume = Annotated[
    bool, switch("--resume", panel=RUN, help="Only go on: refuse where there is no checkpoint.")
]
_Restart = Annotated[
    bool, switch("--restart", panel=RUN, help="Forget the checkpoints and train anew; text is kept.")
]
_Replace = Annotated[
    bool, switch("--replace", panel=RUN, help="Put the new heads in the place of older ones.")
]


@app.command(
    name="train-heads",
    help="Train drafting heads for a model: small layers that guess its next tokens, to write faster.\n\n"
    "The model itself stays as it is. It can write its own training text (--self-distill). Text, checkpoints "
    "and log are kept in OUTPUT.training, and the same command again goes on where it stopped.",
    epilog=examples(
        "tokenswift train-heads -m ./my-model --data book.txt -o heads/my-model",
        "tokenswift train-heads -c train-heads-demo --self-distill -o heads/demo",
        "tokenswift train-heads --self-distill-only --prompts lines.txt --work-dir text",
        "tokenswift train-heads --convert ./published-checkpoint -o heads/published",
    ),
)
@with_flags(TRAINING_FLAGS, defaults=TrainingConfig())
def train_heads(
    *,
    self_distill: _SelfDistill = False,
    self_distill_only: _SelfDistillOnly = False,
    output: _HeadsOutput = None,
    work_dir: _WorkDirectory = None,
    config: ConfigFile = None,
    resume: _Resume = False,
    restart: _Restart = False,
    replace: _Replace = False,
    convert: _Published = None,
    quiet: _Silent = False,
    **parameters: object,
) -> int:
    """``tokenswift train-heads``."""
    with interruptible():
        from tokenswift_cli.commands.train_heads import TrainHeadsOptions, run_train_heads

        options = TrainHeadsOptions(
            config=config,
            output=output,
            work_dir=work_dir,
            convert=convert,
            self_distill=self_distill,
            self_distill_only=self_distill_only,
            resume=resume,
            restart=restart,
            replace=replace,
            quiet=quiet,
        )
        return run_train_heads(given_training_values(parameters), options)
