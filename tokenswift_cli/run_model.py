"""The model of a run: loaded, known to be the one that wrote the text, and ready for its passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenswift_cli.config import DTYPES, Config
from tokenswift_cli.errors import ModelError, ResumeRefusedError
from tokenswift_cli.events import Event, Loading
from tokenswift_cli.run_layout import META

if TYPE_CHECKING:
    from tokenswift_cli.models.loading import LoadedModel
    from tokenswift_cli.models.target import Target

Publish = Callable[[Event], None]


def load_run_model(config: Config, publish: Publish) -> LoadedModel:
    """The model that ``config`` names.

    Raises:
        ModelError: it cannot be found or loaded.
    """
    publish(Loading("Starting torch and transformers"))
    from tokenswift_cli.models.loading import load_model

    return load_model(config.model, lambda message: publish(Loading(message)))


def load_same_model(
    path: Path,
    meta: Mapping[str, object],
    config: Config,
    publish: Publish,
    *,
    task: str = "Resume",
    remedy: str = "Name the model of the run with --model, or start a new run.",
) -> LoadedModel:
    """The model that wrote the text of a run, or a refusal.

    Args:
        path: the run directory.
        meta: contents of its meta.json.
        config: names the model, where it lies now.
        publish: gets every event.
        task: what is refused with another model.
        remedy: a sentence, what to do then.

    Raises:
        ResumeRefusedError: model, tokenizer or data type is another one.
        ModelError: it cannot be found or loaded.
    """
    from tokenswift_cli.models.identity import ModelIdentity

    try:
        recorded = ModelIdentity.from_json(meta.get("model"))
        if recorded.dtype not in DTYPES:
            raise ModelError(f"The recorded model identity is damaged: dtype cannot be {recorded.dtype!r}.")
    except ModelError as error:
        raise ResumeRefusedError(f"{path / META} is not what tokenswift writes. {error}") from error
    if config.model.dtype == "auto":
        # What "auto" means depends on the device; the run began with one meaning.
        config = replace(config, model=replace(config.model, dtype=recorded.dtype))
    loaded = load_run_model(config, publish)
    differences = recorded.differences(loaded.identity)
    if differences:
        raise ResumeRefusedError(
            f"{task} refused, as the text in {path} was written by another model: "
            + "; ".join(differences)
            + f". {remedy}"
        )
    return loaded


def largest_unknown(loaded: LoadedModel, ids: Sequence[int]) -> int | None:
    """The largest id, if the model has no such token."""
    largest = max(ids, default=-1)
    return largest if largest >= loaded.identity.vocab_size else None


def require_known_ids(loaded: LoadedModel, run_dir: Path, ids_by_file: Mapping[str, Sequence[int]]) -> None:
    """Whatever the hashes say, no id in a run directory may lead out of the model's tables.

    Raises:
        ResumeRefusedError: one does.
    """
    for name, ids in ids_by_file.items():
        unknown = largest_unknown(loaded, ids)
        if unknown is not None:
            raise ResumeRefusedError(
                f"{run_dir / name} holds the token id {unknown}, beyond the model's vocabulary of "
                f"{loaded.identity.vocab_size} tokens, so this text was not written by it. Start a new run "
                "in another directory."
            )


def make_target(loaded: LoadedModel, capacity: int, config: Config, publish: Publish) -> Target:
    """The model with an empty cache for ``capacity`` tokens. Its own code cannot run any more.

    Raises:
        UnsupportedModelError: the model does not compute the same with our cache as by itself.
    """
    from tokenswift_cli.models.device import stored_type
    from tokenswift_cli.models.target import Target
    from tokenswift_cli.native.attention import COMPILING, will_compile

    if loaded.model.device.type == "cpu" and will_compile():
        publish(Loading(COMPILING))
    target = Target(
        loaded.model,
        capacity,
        gguf=loaded.gguf,
        keep_model=False,
        kv_dtype=stored_type(config.model.kv_dtype),
    )
    target.take_threads()
    return target
