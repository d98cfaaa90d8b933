"""Get a model from the Hugging Face Hub, or from its local cache, as one directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.checkpoint import (
    TOKENIZER_FILES,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    indexed_files,
    no_safetensors_message,
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
    WEIGHTS_INDEX_NAME,
)


def hub_snapshot(
    model_id: str, offline: bool, trust_remote_code: bool, notify: Callable[[str], None]
) -> Path:
    """The directory of a Hub model in the local Hub cache, downloaded as far as it is missing.

    Only what is loaded is fetched: configuration, tokenizer, safetensors and, if trusted, custom code.
    ``offline`` (or ``HF_HUB_OFFLINE=1``) uses the cache alone.

    Raises:
        ModelError: no such model, no access, no network, not in the cache, or no safetensors.
    """
    from huggingface_hub import constants

    quiet_libraries()
    offline = offline or constants.HF_HUB_OFFLINE
    small = [*SMALL_FILES, *(["*.py"] if trust_remote_code else [])]
    notify(f"Looking for {model_id} {'in the local Hub cache' if offline else 'on the Hub'}")
    directory = _download(model_id, None, small, offline)
    index = directory / WEIGHTS_INDEX_NAME
    names = list(indexed_files(index)) if index.is_file() else [WEIGHTS_NAME]
    if all((directory / name).is_file() for name in names):
        return directory
    if not offline:
        published = _published_names(model_id, directory.name)
        if not set(names) <= set(published):
            raise ModelError(no_safetensors_message(f"The Hub model {model_id}", published))
        notify(f"Downloading the weights of {model_id} ({len(names)} file{'s' if len(names) > 1 else ''})")
    return _download(model_id, directory.name, names, offline)


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
