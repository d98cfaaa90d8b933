"""Get a model from the Hugging Face Hub, or from its local cache, as one directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.checkpoint import (
    TOKENIZER_FILES,
    indexed_files,
    no_weights_message,
    weight_names,
)
from tokenswift_cli.models.quiet import quiet_libraries

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    *TOKENIZER_FILES,
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "*.tiktoken",
)


def hub_snapshot(
    model_id: str,
    offline: bool,
    trust_remote_code: bool,
    notify: Callable[[str], None],
    trust_pickle: bool = False,
) -> Path:
    """The directory of a Hub model in the local Hub cache, downloaded as far as it is missing.

    Only what is loaded is fetched: configuration, tokenizer, safetensors and, if trusted, custom code, and
    pickled weights where there are no others. ``offline`` (or ``HF_HUB_OFFLINE=1``) uses the cache alone.

    Raises:
        ModelError: no such model, no access, no network, not in the cache, or no weights that may be loaded.
    """
    from huggingface_hub import constants

    quiet_libraries()
    offline = offline or constants.HF_HUB_OFFLINE
    kinds = weight_names(trust_pickle)
    small = [*SMALL_FILES, *(index for _, index in kinds), *(["*.py"] if trust_remote_code else [])]
    notify(f"Looking for {model_id} {'in the local Hub cache' if offline else 'on the Hub'}")
    with _no_telemetry():
        directory = _download(model_id, None, small, offline)
        choices = [_names_of(directory, single, index) for single, index in kinds]
        if any(all((directory / name).is_file() for name in names) for names in choices):
            return directory
        wanted = choices[0]
        if not offline:
            published = _published_names(model_id, directory.name)
            complete = [names for names in choices if set(names) <= set(published)]
            if not complete:
                raise ModelError(no_weights_message(f"The Hub model {model_id}", published))
            wanted = complete[0]
            count = len(wanted)
            notify(f"Downloading the weights of {model_id} ({count} file{'s' if count > 1 else ''})")
        return _download(model_id, directory.name, wanted, offline)


@contextmanager
def hub_unreachable() -> Iterator[None]:
    """Let transformers and what it uses find the Hub switched off, whatever a model's files ask for."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _no_telemetry() -> Iterator[None]:
    """Tell the Hub nothing of this machine beyond what is asked of it."""
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


def _names_of(directory: Path, single: str, index: str) -> list[str]:
    """The names of one kind of weights: those that the index lists if it is there."""
    return list(indexed_files(directory / index)) if (directory / index).is_file() else [single]


def _download(model_id: str, revision: str | None, patterns: list[str], offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(model_id, revision=revision, allow_patterns=patterns, local_files_only=offline)
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{model_id} is a gated model. Accept its terms on its page on the Hub, log in with "
            "`hf auth login`, and start again."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"The Hub has no model named {model_id} that you may read. Check the name; for a private model "
            "log in with `hf auth login`; a local model needs the path of its directory or .gguf file."
        ) from error
    except LocalEntryNotFoundError as error:
        cause = "this run is offline" if offline else "the Hub cannot be reached"
        raise ModelError(
            f"{model_id} is not (or not completely) in the local Hub cache, and {cause}. "
            "Download it once with a network, or give the path of a model directory or .gguf file."
        ) from error
    except Exception as error:  # network libraries fail in many ways; the cause stays attached
        raise ModelError(
            f"Downloading {model_id} failed: {type(error).__name__}: {error}. "
            "Try again, or use --offline if it is in the cache."
        ) from error


def _published_names(model_id: str, revision: str) -> list[str]:
    from huggingface_hub import list_repo_files

    try:
        return list(list_repo_files(model_id, revision=revision))
    except Exception as error:  # as above
        raise ModelError(
            f"Listing the files of {model_id} failed: {type(error).__name__}: {error}. Try again."
        ) from error
