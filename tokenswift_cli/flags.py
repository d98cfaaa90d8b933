"""The flags of the command line that set a configuration key: one table for all commands.

A flag's kind and default belong to the configuration; here are only its names, its help and the
panel of the help page it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenswift_cli.config import DTYPES, JOURNAL_MODES, KV_DTYPES, LOOP_POLICIES, PROGRESS_MODES
from tokenswift_cli.engine.settings import METHODS

PROMPT: Final = "Prompt"
LENGTH: Final = "Length"
SAMPLING: Final = "Sampling (decides the text)"
SPEED: Final = "Speed (never changes the text)"
MODEL: Final = "Model"
RUN: Final = "Run"
DISPLAY: Final = "Display"

# Others can be named, too: a second GPU.
DEVICES: Final = ("auto", "cpu", "cuda", "mps")
DTYPE_HELP: Final = f"Number format of the weights: {', '.join(DTYPES)}."


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        path: the configuration key that it sets.
        names: its names, the last one stands for it in messages.
        panel: the panel of the help page.
        help: one line; the default is added by :meth:`help_with_default`.
        metavar: what the value is called; empty for a switch, which also gets a ``--no-`` form.
        values: what completion offers, where the value is no file.
        repeatable: may be given several times, each adding a value.
        resume: ``tokenswift resume`` has it too.
    """

    path: str
    names: tuple[str, ...]
    panel: str
    help: str
    metavar: str = ""
    values: tuple[str, ...] = ()
    repeatable: bool = False
    resume: bool = True

    @property
    def parameter(self) -> str:
        """The name of its function parameter."""
        return self.path.replace(".", "__")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self.names[-1]

    def help_with_default(self, config: object) -> str:
        """The help with the value that it has in ``config``, where that is one to speak of."""
        section, key = self.path.split(".")
        default = getattr(getattr(config, section), key)
        if self.metavar == "" or default is None or default == ():
            return self.help
        return f"{self.help} (default {default})"


def choice(
    path: str,
    name: str,
    panel: str,
    help: str,
    values: tuple[str, ...],
    *,
    metavar: str | None = None,
    resume: bool = True,
) -> Flag:
    """A flag whose value is one of ``values``; its metavar lists them unless it is given."""
    return Flag(path, (name,), panel, help, metavar or "|".join(values), values, resume=resume)


FLAGS: Final = (
    Flag("prompt.file", ("-p", "--prompt"), PROMPT, "Read the prompt from this file; - is standard input.",
         "FILE|-", resume=False),
    Flag("prompt.text", ("--prompt-text",), PROMPT, "The prompt itself.", "TEXT", resume=False),
    Flag("prompt.chat", ("--chat",), PROMPT, "Wrap the prompt in the model's chat template.", resume=False),
    Flag("prompt.system", ("--system",), PROMPT, "System message for the chat template.", "TEXT",
         resume=False),
    Flag("generation.max_tokens", ("-n", "--max-tokens"), LENGTH,
         "Tokens to write: 2048, 100k, 1.5M.", "N"),
    Flag("generation.min_tokens", ("--min-tokens",), LENGTH, "No end-of-text before this many tokens.", "N",
         resume=False),
    Flag("generation.ignore_eos", ("--ignore-eos",), LENGTH, "Write on past the model's end-of-text.",
         resume=False),
    Flag("generation.stop", ("--stop",), LENGTH, "Stop before this text; may be repeated.", "TEXT",
         repeatable=True, resume=False),
    choice("generation.on_loop", "--on-loop", LENGTH, "What to do when the text repeats itself.",
           LOOP_POLICIES),
    Flag("sampling.seed", ("--seed",), SAMPLING, "Same seed, same text.", "N"),
    Flag("sampling.temperature", ("--temp", "--temperature"), SAMPLING,
         "Divides the logits; 0 always takes the most likely token.", "X"),
    Flag("sampling.top_p", ("--top-p",), SAMPLING, "Keep the most likely tokens up to this mass; 1 is off.",
         "P"),
    Flag("sampling.top_k", ("--top-k",), SAMPLING, "Keep the K most likely tokens; 0 is off.", "K"),
    Flag("sampling.min_p", ("--min-p",), SAMPLING,
         "Drop tokens less likely than P times the most likely one; 0 is off.", "P"),
    Flag("sampling.eta", ("--eta",), SAMPLING, "Epsilon of eta-sampling; 0 is off.", "X"),
    Flag("sampling.penalty", ("--penalty",), SAMPLING, "Contextual repetition penalty; 1 is off.", "X"),
    Flag("sampling.penalty_window", ("--penalty-window",), SAMPLING,
         "Penalise what the last N tokens hold.", "N"),
    choice("drafting.method", "--method", SPEED, "How tokens are drafted.", METHODS),
    Flag("drafting.heads", ("--heads",), SPEED, "Drafting heads of this model; none does without.", "DIR"),
    Flag("model.name", ("-m", "--model"), MODEL,
         "A directory, a Hub id, a .gguf file or the demo model's name.", "MODEL"),
    Flag("model.device", ("--device",), MODEL, "Where the model runs: auto, cpu, cuda, cuda:1, mps.",
         "DEVICE", DEVICES),
    choice("model.dtype", "--dtype", MODEL, DTYPE_HELP, DTYPES, metavar="TYPE", resume=False),
    choice("model.kv_dtype", "--kv-dtype", MODEL,
           "Number format of the key-value cache: auto, float32, or float16, which is half the memory and "
           "another text.", KV_DTYPES, metavar="TYPE"),
    Flag("model.rope_scaling", ("--rope-scaling",), MODEL,
         "Stretch the positions for texts longer than the model was made for: yarn:4.", "yarn:FACTOR",
         resume=False),
    Flag("model.threads", ("--threads",), MODEL, "CPU threads; 0 chooses.", "N"),
    Flag("model.offline", ("--offline",), MODEL, "Never ask the Hub; use what is on this machine."),
    Flag("model.trust_remote_code", ("--trust-code",), MODEL, "Run Python code that comes with the model."),
    Flag("model.trust_pickle", ("--trust-pickle",), MODEL,
         "Load weights that there are only as Python pickles."),
    Flag("run.directory", ("-o", "--run-dir"), RUN, "Where the run is kept; by default a new folder.", "DIR",
         resume=False),
    Flag("run.chunk_tokens", ("--chunk-tokens",), RUN, "Tokens between two checkpoints.", "N"),
    choice("checkpoint.kv", "--kv-journal", RUN,
           "Keep the key-value cache on disk, so that a resume need not read the text again.", JOURNAL_MODES),
    choice("display.progress", "--progress", DISPLAY, "How progress is shown on standard error.",
           PROGRESS_MODES),
    Flag("display.stream", ("--stream",), DISPLAY, "Write the text to standard output even on a terminal."),
)  # fmt: skip

RESUME_FLAGS: Final = tuple(flag for flag in FLAGS if flag.resume)

# What decides text and speed of a measurement: all but length, method, run and display.
BENCH_FLAGS: Final = tuple(
    flag
    for flag in FLAGS
    if flag.path == "prompt.file"
    or flag.path == "drafting.heads"
    or flag.path.startswith(("sampling.", "model."))
)

# What a run would need: its model, length and place. Nothing is ever downloaded there.
DOCTOR_FLAGS: Final = tuple(
    flag
    for flag in FLAGS
    if flag.path in ("generation.max_tokens", "run.directory")
    or (flag.path.startswith("model.") and flag.path != "model.offline")
)

_NAMES: Final = {flag.path: flag.name for flag in FLAGS}


def flag_name(path: str) -> str:
    """The flag that sets the key ``path`` ("--min-p"), or the key itself where no flag does."""
    return _NAMES.get(path, path)


def given_values(parameters: dict[str, object]) -> dict[str, object]:
    """The flags that were really given, by configuration key, out of a command's parameters."""
    return {
        flag.path: parameters[flag.parameter] for flag in FLAGS if parameters.get(flag.parameter) is not None
    }
