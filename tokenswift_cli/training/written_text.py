"""Directories of text that a model wrote itself: written, and opened for the model that wrote them."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenswift_cli.disk_errors import telling
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import ModelError, PreflightError, TrainingDataError
from tokenswift_cli.models.identity import ModelIdentity
from tokenswift_cli.models.loading import LoadedModel
from tokenswift_cli.training.batch_model import BatchModel
from tokenswift_cli.training.progress import Progress
from tokenswift_cli.training.request import WORK_AGAIN, WRITTEN_TEXT
from tokenswift_cli.training.self_distill import SETTINGS_FILE, SelfDistillation, SelfDistillSettings
from tokenswift_cli.training.sequences import ShardSequences
from tokenswift_cli.training.session import Session


def write_training_text(session: Session) -> None:
    """Write what is missing of the text that the configuration asks for.

    Raises: as :func:`write_texts`.
    """
    section, sampling = session.config.self_distill, session.config.sampling
    batches = math.ceil(section.tokens / (section.batch * section.tokens_per_sequence))
    settings = SelfDistillSettings(
        batches, section.batch, section.tokens_per_sequence, sampling.seed, sampling
    )
    tokenizer = session.loaded.tokenizer
    prompts = [
        [int(token) for token in tokenizer(prompt, truncation=False)["input_ids"]]
        for prompt in session.materials.prompts
    ]
    write_texts(session, session.request.work / WRITTEN_TEXT, settings, prompts, "writing text")


def write_texts(
    session: Session,
    directory: Path,
    settings: SelfDistillSettings,
    prompts: Sequence[Sequence[int]],
    title: str,
) -> None:
    """Let the target write the texts that are missing in ``directory``.

    Raises:
        TrainingDataError: the texts cannot be written with these settings, or are of other ones.
        PreflightError: the disk has no room for them.
        Interrupted: a stop came; the batch that was being written is lost.
    """
    loaded = session.loaded
    require_positions(loaded, settings.tokens, "each text")
    with telling(directory, WORK_AGAIN):
        writing = SelfDistillation(directory, settings, prompts, loaded.identity.to_json())
    missing = writing.missing()
    if not missing:
        return
    per_batch = settings.lanes * settings.tokens
    _require_disk(directory, len(missing) * per_batch, loaded)
    model = BatchModel(loaded.model)
    done = (settings.batches - len(missing)) * per_batch
    with (
        Progress(title, settings.batches * per_batch, "tokens", done=done, quiet=session.quiet) as progress,
        telling(directory, WORK_AGAIN),
    ):
        for index in missing:
            for written in writing.write(model, loaded.eos_ids, index):
                progress.to(done + written * settings.lanes)
                if written < settings.tokens:
                    session.go_on()
            done += per_batch


def open_written(directory: Path, identity: ModelIdentity) -> ShardSequences:
    """The texts that ``identity`` wrote into ``directory``.

    Raises:
        TrainingDataError: they are damaged, or another model wrote them.
    """
    path = directory / SETTINGS_FILE
    try:
        facts = json.loads(path.read_bytes())
        writer = ModelIdentity.from_json(facts["model"])
        sampling = _sampling(facts["settings"]["sampling"])
    except FileNotFoundError:
        raise TrainingDataError(
            f"{directory} has no {SETTINGS_FILE}, so nothing says which model wrote its text. Write it anew "
            "with --self-distill."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, ModelError) as error:
        raise TrainingDataError(
            f"{path} is damaged ({error}). Write the text anew with --self-distill."
        ) from error
    # In another data type the same model writes the same kind of text.
    differences = dataclasses.replace(writer, dtype=identity.dtype).differences(identity)
    if differences:
        raise TrainingDataError(
            f"The text in {directory} was written by {writer.name}, not by {identity.name}: "
            + "; ".join(differences)
            + ". Name the model that wrote it with --model, or let this one write with --self-distill."
        )
    return ShardSequences(directory, sampling)


def require_positions(loaded: LoadedModel, tokens: int, what: str) -> None:
    """Raises: TrainingDataError: ``what`` would be longer than the model is made for."""
    limit = loaded.position_limit
    if limit is not None and tokens > limit:
        raise TrainingDataError(
            f"{loaded.name} is made for at most {limit} tokens, and {what} would have {tokens}. "
            "Choose shorter ones in the configuration."
        )


def _sampling(data: dict[str, object]) -> SamplingSettings:
    suppressed = data.get("suppress_ids", ())
    return SamplingSettings(**{**data, "suppress_ids": tuple(suppressed)})  # type: ignore[arg-type]


def _require_disk(directory: Path, tokens: int, loaded: LoadedModel) -> None:
    width = int(loaded.model.config.get_text_config(decoder=True).hidden_size)
    needed = tokens * (2 * width + 4)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise PreflightError(
            f"The texts need {needed / 2**30:.1f} GiB in {directory}, where {free / 2**30:.1f} GiB are free. "
            "Free some space, choose another --work-dir, or write fewer tokens (self_distill.tokens)."
        )
