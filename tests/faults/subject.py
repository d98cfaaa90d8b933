"""The run that faults are done to: its settings, its commands, and how it goes when nothing happens."""

from __future__ import annotations

import bisect
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tokenswift_cli.models.demo import is_demo_name

from .outcomes import require
from .process import RunProcess

TINY = "tiny"
_ROOT = Path(__file__).parent.parent.parent
# Letters of the tiny model's prompt: long enough that reading it takes a while.
_TINY_PROMPT_BYTES = 3000
# Tokens that one step of the engine adds at most.
_LONGEST_STEP = 32


@dataclass(frozen=True)
class Reference:
    """An undisturbed run, decoded one token at a time with a checkpoint behind each.

    Attributes:
        tokens: tokens.bin.
        text: output.txt.
        characters: ``characters[k]`` is the length of the text that is final after k tokens.
        load_seconds: from the start of the process to the start of the run.
        prefill_pieces: so often it told how far reading the prompt was.
        decode_seconds: what writing took.
    """

    tokens: bytes
    text: bytes
    characters: tuple[int, ...]
    load_seconds: float
    prefill_pieces: int
    decode_seconds: float

    def tokens_shown(self, characters: int) -> int:
        """Fewest tokens whose text has so many characters."""
        return bisect.bisect_left(self.characters, characters)


@dataclass(frozen=True)
class Subject:
    """Settings of all runs of one session.

    Attributes:
        folder: for everything that is written.
        config: the YAML file of the runs.
        max_tokens: length of the text.
        chunk_tokens: tokens between two checkpoints.
    """

    folder: Path
    config: Path
    max_tokens: int
    chunk_tokens: int

    def new_folder(self) -> Path:
        """An empty folder for one case."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def generate(self, run_dir: Path | None, *more: str, **options: object) -> RunProcess:
        """Start the run, in ``run_dir`` unless that is None; ``options`` as of :class:`RunProcess`."""
        where = [] if run_dir is None else ["-o", str(run_dir)]
        return self._start(["generate", "-c", str(self.config), *where, *more], **options)

    def resume(self, run_dir: Path, *more: str, **options: object) -> RunProcess:
        """Start a process that continues the run."""
        return self._start(["resume", str(run_dir), "--progress", "json", *more], **options)

    def _start(self, arguments: list[str], **options: object) -> RunProcess:
        return RunProcess(arguments, **{"cwd": self.folder, **options})  # type: ignore[arg-type]

    def require_same_text(self, run_dir: Path, reference: Reference) -> None:
        """Raises FaultFailedError unless tokens and text are those of the undisturbed run."""
        tokens = (run_dir / "tokens.bin").read_bytes()
        require(tokens == reference.tokens, f"other tokens: {_difference(tokens, reference.tokens, 4)}")
        text = (run_dir / "output.txt").read_bytes()
        require(text == reference.text, f"another text: {_difference(text, reference.text, 1)}")

    def require_bounded(self, lost_tokens: int) -> None:
        """Raises FaultFailedError when more is lost than a chunk, which may be longer by one step."""
        longest = self.chunk_tokens + _LONGEST_STEP
        require(lost_tokens < longest, f"{lost_tokens} tokens lost with chunks of {self.chunk_tokens}")

    def finish(self, run_dir: Path, reference: Reference, kept: int) -> None:
        """Resume to the end and compare; ``kept`` tokens must be restored, if not the whole text."""
        with self.resume(run_dir) as process:
            ended = process.end()
        require(ended.code == 0, f"resume ended with exit {ended.code}: {' '.join(ended.messages)}")
        ended.require_no_traceback()
        whole = kept == self.max_tokens
        require(
            whole or ended.resumed_tokens == kept,
            f"{kept} tokens were saved, {ended.resumed_tokens} restored",
        )
        self.require_same_text(run_dir, reference)


def make_subject(folder: Path, model: str = TINY, seed: int = 0) -> Subject:
    """Write model (the tiny one), prompt and configuration into ``folder``.

    Args:
        folder: an empty directory.
        model: TINY for a small random Llama, else any name that ``--model`` takes.
        seed: of the sampling.
    """
    chronicle = (_ROOT / "prompts" / "chronicle.txt").read_bytes()
    tiny = model == TINY
    if tiny:
        from tiny_model_directory import save_tiny_model
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        model = str(save_tiny_model(folder / "model"))
        chronicle = (chronicle * (1 + _TINY_PROMPT_BYTES // len(chronicle)))[:_TINY_PROMPT_BYTES]
    elif not is_demo_name(model) and Path(model).exists():
        model = str(Path(model).absolute())
    (folder / "prompt.txt").write_bytes(chronicle)
    max_tokens, chunk_tokens = (1200, 24) if tiny else (240, 12)
    settings = {
        "model": {"name": model, "threads": 1 if tiny else 0},
        "prompt": {"file": "prompt.txt"},
        "sampling": {"seed": seed},
        "generation": {"max_tokens": max_tokens, "ignore_eos": True},
        "drafting": {"prefill_chunk": 64},
        "run": {"chunk_tokens": chunk_tokens},
        "checkpoint": {"kv": "always"},
        "display": {"progress": "json"},
    }
    config = folder / "run.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return Subject(folder, config, max_tokens, chunk_tokens)


def measure_reference(subject: Subject) -> Reference:
    """Do the run without any fault."""
    run_dir = subject.new_folder() / "reference"
    with subject.generate(run_dir, "--method", "autoregressive", "--chunk-tokens", "1") as process:
        ended = process.end()
    require(ended.code == 0, f"the undisturbed run failed: {' '.join(ended.messages)}")
    characters = [0]
    shown = 0
    for event in ended.events:
        if event.name == "text_appended":
            shown += len(event.fields["text"])
        elif event.name == "checkpoint_saved":
            characters.append(shown)
    require(len(characters) == subject.max_tokens + 1, "there was not one checkpoint for each token")
    reference = Reference(
        tokens=(run_dir / "tokens.bin").read_bytes(),
        text=(run_dir / "output.txt").read_bytes(),
        characters=tuple(characters),
        load_seconds=ended.named("run_started")[0].seconds,
        prefill_pieces=len(ended.named("prefill_progress")),
        decode_seconds=float(ended.named("run_finished")[0].fields["decode_seconds"]),
    )
    shutil.rmtree(run_dir.parent)
    print(
        f"undisturbed: {reference.load_seconds:.1f} s to load, {reference.decode_seconds:.1f} s of decoding",
        file=sys.stderr,
    )
    return reference


def _difference(found: bytes, expected: bytes, size: int) -> str:
    """Where two files part, in units of ``size`` bytes."""
    pairs = zip(found, expected, strict=False)
    first = next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(found), len(expected))
    )
    return f"{len(found) // size} instead of {len(expected) // size}, the first difference at {first // size}"
