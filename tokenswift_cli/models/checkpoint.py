"""A model directory as transformers and the Hub lay it out: what it holds, and what it lacks.

Weights are safetensors. Pickles, which can run any code when they are read, are taken only where the caller
says that they are trusted, and where there is nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tokenswift_cli.errors import ModelError

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

# The names under which transformers finds pickled weights.
PICKLED_WEIGHTS_NAME = "pytorch_model.bin"
PICKLED_WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"

# More is no configuration and no index.
_JSON_BYTES = 64 * 2**20
# A key of config.json by which transformers takes the weights from another file than it usually does.
_OTHER_WEIGHTS_KEY = "transformers_weights"

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


def weight_files(directory: Path, trust_pickle: bool = False) -> tuple[str, ...]:
    """Names of the files that hold the weights, sorted: safetensors, or pickles if those are trusted.

    Raises:
        ModelError: there are none, only pickles that are not trusted, or one that the index names is missing.
    """
    for single, index in weight_names(trust_pickle):
        if (directory / single).is_file():
            return (single,)
        if (directory / index).is_file():
            names = indexed_files(directory / index)
            missing = [name for name in names if not (directory / name).is_file()]
            if missing:
                raise ModelError(
                    f"{directory} lacks {len(missing)} of its {len(names)} weight files, "
                    f"{missing[0]} among them. Download the model again."
                )
            return names
    raise ModelError(no_weights_message(str(directory), [path.name for path in directory.iterdir()]))


def weight_names(trust_pickle: bool) -> tuple[tuple[str, str], ...]:
    """(name of a single file, name of the index of several) for each kind of weights, the best first."""
    names = ((WEIGHTS_NAME, WEIGHTS_INDEX_NAME), (PICKLED_WEIGHTS_NAME, PICKLED_WEIGHTS_INDEX_NAME))
    return names if trust_pickle else names[:1]


def indexed_files(index: Path) -> tuple[str, ...]:
    """Names of the weight files in a ``model.safetensors.index.json`` or its pickled like, sorted.

    Raises:
        ModelError: the index is damaged, or names a file outside its directory or of another kind.
    """
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} is damaged: it has no weight_map. Download the model again.")
    names = sorted({str(name) for name in weight_map.values()})
    # transformers goes by the suffix of each file: it would unpickle one that a safetensors index names.
    suffix = Path(PICKLED_WEIGHTS_NAME if index.name == PICKLED_WEIGHTS_INDEX_NAME else WEIGHTS_NAME).suffix
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{index} names the file {name!r}, which lies outside the model's directory.")
        if not name.endswith(suffix):
            raise ModelError(f"{index} names the file {name!r}, which is no {suffix} file.")
    return tuple(names)


def no_weights_message(where: str, names: Collection[str]) -> str:
    """Why a model with these file names has no weights that can be loaded, and what to do."""
    pickles = sorted(name for name in names if name.endswith(PICKLE_SUFFIXES))
    if pickles:
        shown = ", ".join(pickles[:3]) + (f" and {len(pickles) - 3} more" if len(pickles) > 3 else "")
        convert = "convert it to safetensors with save_pretrained, or choose another model"
        remedy = f"If you trust it, {convert}."
        if PICKLED_WEIGHTS_NAME in names or PICKLED_WEIGHTS_INDEX_NAME in names:
            remedy = f"If you trust it, add --trust-pickle; else {convert}."
        return (
            f"{where} has its weights only as Python pickles ({shown}), which can run any code when they are "
            f"read. {remedy}"
        )
    if any(name.endswith(".gguf") for name in names):
        return (
            f"{where} holds GGUF files only. Download one and give the path of the .gguf file as the model."
        )
    return f"{where} has no weights: neither {WEIGHTS_NAME} nor {WEIGHTS_INDEX_NAME} is there."


def require_usual_weights(where: str, facts: dict[str, Any]) -> None:
    """Refuse a ``config.json`` that has transformers read other weights than :func:`weight_files` names.

    Raises:
        ModelError: it does; a resume would not notice that they changed, and they may be a pickle.
    """
    for name in _values_of(facts, _OTHER_WEIGHTS_KEY):
        if name not in (None, WEIGHTS_NAME):
            raise ModelError(
                f"The config.json of {where} takes the weights from {name!r} ({_OTHER_WEIGHTS_KEY}). Save "
                f"the model anew with save_pretrained, which writes {WEIGHTS_NAME}."
            )


def _values_of(facts: object, key: str) -> Iterator[object]:
    """What stands under ``key`` in parsed JSON, at any depth."""
    if isinstance(facts, dict):
        yield from (facts[key],) if key in facts else ()
    if isinstance(facts, dict | list):
        for inner in facts.values() if isinstance(facts, dict) else facts:
            yield from _values_of(inner, key)


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


def identity_files(directory: Path, trust_remote_code: bool, trust_pickle: bool = False) -> tuple[str, ...]:
    """Names of the files that decide the logits: configuration, weights and, if trusted, custom code."""
    code = sorted(path.name for path in directory.glob("*.py")) if trust_remote_code else []
    return (CONFIG_NAME, *weight_files(directory, trust_pickle), *code)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _JSON_BYTES:
            raise ModelError(f"{path} is larger than {_JSON_BYTES >> 20} MiB. Download the model again.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}). Download the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object. Download the model again.")
    return content
