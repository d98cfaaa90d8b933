"""A model directory as transformers and the Hub lay it out: what it holds, and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenswift_cli.errors import ModelError

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")

# One of these names every tokenizer that transformers can build from a directory.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "vocab",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tekken.json",
    "tokenizer_config.json",
)
# With custom code, tokenizer_config.json alone can name a tokenizer; without, it only adds settings to one.
_NEEDS_CUSTOM_CODE = "tokenizer_config.json"


def read_model_config(directory: Path) -> dict[str, Any]:
    """The parsed ``config.json``.

    Raises:
        ModelError: it is missing or is not a JSON object.
    """
    path = directory / CONFIG_NAME
    if not path.is_file():
        hint = "Give a directory that holds config.json, model.safetensors and the tokenizer's files."
        if found := sorted(directory.glob("*.gguf")):
            hint = f"To use the GGUF file in it, give its path: {found[0]}."
        raise ModelError(f"{directory} is not a model directory: it has no config.json. {hint}")
    return _read_json(path)


def weight_files(directory: Path) -> tuple[str, ...]:
    """Names of the safetensors files that make up the model, sorted.

    Raises:
        ModelError: there are none, only pickles, or one that the index names is missing.
    """
    if (directory / WEIGHTS_NAME).is_file():
        return (WEIGHTS_NAME,)
    if (directory / WEIGHTS_INDEX_NAME).is_file():
        names = indexed_files(directory / WEIGHTS_INDEX_NAME)
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise ModelError(
                f"{directory} lacks {len(missing)} of its {len(names)} weight files, "
                f"{missing[0]} among them. Download the model again."
            )
        return names
    raise ModelError(no_safetensors_message(str(directory), [path.name for path in directory.iterdir()]))


def indexed_files(index: Path) -> tuple[str, ...]:
    """Names of the weight files in a ``model.safetensors.index.json``, sorted.

    Raises:
        ModelError: the index is damaged, or names a file outside its directory.
    """
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} is damaged: it has no weight_map. Download the model again.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{index} names the file {name!r}, which lies outside the model's directory.")
    return tuple(names)


def no_safetensors_message(where: str, names: list[str]) -> str:
    """Why a model with these file names has no weights that can be loaded, and what to do."""
    pickles = sorted(name for name in names if name.endswith(PICKLE_SUFFIXES))
    if pickles:
        return (
            f"{where} has its weights only as a Python pickle ({pickles[0]}), which can run any code when it "
            "is read. Convert a copy that you trust with save_pretrained, or choose another model."
        )
    if any(name.endswith(".gguf") for name in names):
        return (
            f"{where} holds GGUF files only. Download one and give the path of the .gguf file as the model."
        )
    return f"{where} has no weights: neither {WEIGHTS_NAME} nor {WEIGHTS_INDEX_NAME} is there."


def require_tokenizer_files(directory: Path, trust_remote_code: bool) -> None:
    """Check that a tokenizer lies with the model.

    Raises:
        ModelError: none does; transformers might make up an empty one instead of failing.
    """
    names = [name for name in TOKENIZER_FILES if trust_remote_code or name != _NEEDS_CUSTOM_CODE]
    if not any((directory / name).is_file() for name in names) and not list(directory.glob("*.tiktoken")):
        raise ModelError(
            f"{directory} has no tokenizer (no tokenizer.json or similar file). "
            "Copy the tokenizer's files of the same model into it."
        )


def identity_files(directory: Path, trust_remote_code: bool) -> tuple[str, ...]:
    """Names of the files that decide the logits: configuration, weights and, if trusted, custom code."""
    code = sorted(path.name for path in directory.glob("*.py")) if trust_remote_code else []
    return (CONFIG_NAME, *weight_files(directory), *code)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}). Download the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object. Download the model again.")
    return content
