"""Heads on disk: a directory of ``config.json``, ``model.safetensors`` and ``README.md`` (the card).

``config.json`` records what the heads are and which model they were trained for; ``model.safetensors``
holds ``heads.{i}.linear.weight`` and so on, and the int32 ``draft_vocabulary`` if there is one. A directory
is whole or absent, is read without running any code, and is refused by name for any other model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokenswift_cli.errors import HeadsError, ModelError
from tokenswift_cli.models.checkpoint import CONFIG_NAME, PICKLE_SUFFIXES, WEIGHTS_NAME
from tokenswift_cli.models.heads import DraftHeads, HeadsShape
from tokenswift_cli.models.heads_writing import FORMAT, FORMAT_VERSION, write_heads_directory
from tokenswift_cli.models.identity import ModelIdentity
from tokenswift_cli.shipped import HEADS, namesake

# A larger file is not one of ours.
_CONFIG_BYTES = 4 * 2**20
_HEADER_BYTES = 2**20

STORED_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_TRAIN = "train heads for this model with `tokenswift train-heads`"


def save_heads(
    directory: Path,
    heads: DraftHeads,
    base: ModelIdentity,
    *,
    card: str,
    training: Mapping[str, object],
    dtype: torch.dtype = torch.float16,
    replace: bool = False,
) -> None:
    """Write ``heads`` as a new directory; it appears whole or not at all.

    Args:
        directory: does not exist, or is empty unless ``replace``.
        heads: what to write; unchanged.
        base: the model they belong to. Without hashes of weight files, any model of the same architecture,
            width and vocabulary size will be accepted: say so in the card.
        card: text of README.md.
        training: how they came about; anything JSON can hold.
        dtype: stored type: float16, bfloat16 or float32.
        replace: swap an existing heads directory for the new one once that is whole.

    Raises:
        HeadsError: the directory is taken or cannot be written, or a weight is not finite in ``dtype``.
        ValueError: ``dtype`` or ``training`` cannot be stored.
    """
    if dtype not in STORED_TYPES.values():
        raise ValueError(f"heads are stored as float16, bfloat16 or float32, not {dtype}")
    tensors: dict[str, Tensor] = {}
    for name, tensor in heads.state_dict().items():
        kept = tensor.detach().cpu().to(torch.int32 if name == "draft_vocabulary" else dtype).contiguous()
        if not bool(kept.isfinite().all()):
            cause = (
                f"they do not fit into {dtype}" if bool(tensor.isfinite().all()) else "training went wrong"
            )
            raise HeadsError(
                f"{name} of the heads holds values that are not finite: {cause}; nothing was saved."
            )
        tensors[name] = kept
    vocabulary = heads.draft_vocabulary
    facts = {
        "shape": asdict(heads.shape),
        "draft_vocabulary_size": None if vocabulary is None else len(vocabulary),
        "base_model": base.to_json(),
        "training": dict(training),
    }
    write_heads_directory(directory, facts, tensors, card, replace)


def load_heads(directory: Path, base: ModelIdentity, hidden_size: int, vocabulary_size: int) -> DraftHeads:
    """Read heads for a model, float32 on the CPU.

    Args:
        directory: as :func:`save_heads` wrote it.
        base: the model at hand. Architecture and content of the weight files must be those that are
            recorded, whatever the files are called. Settings, tokenizer and data type may differ: they
            change how often a draft is accepted and never the text.
        hidden_size: d of the model at hand.
        vocabulary_size: rows of its output layer.

    Raises:
        HeadsError: the heads belong to another model, or are missing, damaged or of another kind.
    """
    config = read_heads_config(directory)
    shape, rows, recorded = _parsed(directory, config)
    _require_same_model(directory, recorded, base)
    for what, mine, theirs in (
        ("hidden states of width", shape.hidden_size, hidden_size),
        ("a vocabulary of", recorded.vocab_size, vocabulary_size),
    ):
        if mine != theirs:
            raise HeadsError(
                f"{_belong(directory, recorded)} with {what} {mine}; {_named(base)} has {theirs}. "
                f"Use that model, or {_TRAIN}."
            )
    tensors = _read_tensors(directory, shape, rows, config.get("weights_sha256"))
    vocabulary = tensors.get("draft_vocabulary")
    if vocabulary is not None and int(vocabulary.max()) >= vocabulary_size:
        raise _damaged(
            directory, f"its draft vocabulary goes beyond the {vocabulary_size} tokens of the model"
        )
    try:
        heads = _skeleton(shape, vocabulary)
    except ValueError as error:
        raise _damaged(directory, str(error)) from error
    heads.load_state_dict(tensors, assign=True)
    return heads.requires_grad_(False).eval()


def read_heads_config(directory: Path) -> dict[str, Any]:
    """The parsed ``config.json`` of a heads directory, its format checked and nothing else.

    Raises:
        HeadsError: there is none, it is damaged, or it describes something else than heads.
    """
    path = directory / CONFIG_NAME
    if not directory.is_dir():
        raise HeadsError(
            f"There is no heads directory {directory}. Give the one that `train-heads` wrote."
            f"{namesake(HEADS, directory)}"
        )
    if not path.is_file():
        raise HeadsError(f"{directory} is not a heads directory: it has no {CONFIG_NAME}.")
    try:
        if path.stat().st_size > _CONFIG_BYTES:
            raise _damaged(directory, f"{CONFIG_NAME} is larger than {_CONFIG_BYTES >> 20} MiB")
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise HeadsError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(directory, f"{CONFIG_NAME} is not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise _damaged(directory, f"{CONFIG_NAME} is not a JSON object")
    if config.get("format") != FORMAT:
        hint = "Give the directory that `tokenswift train-heads` wrote."
        if "medusa_heads" in config:
            hint = "Turn it into one with `tokenswift train-heads --convert`."
        raise HeadsError(
            f"{directory} is not a heads directory: {CONFIG_NAME} describes something else. {hint}"
        )
    version = config.get("format_version")
    if type(version) is not int or version < 1:
        raise _damaged(directory, "format_version is not a positive number")
    if version > FORMAT_VERSION:
        raise HeadsError(
            f"The heads in {directory} have the format {version}, this version reads up to {FORMAT_VERSION}. "
            "Update tokenswift."
        )
    return config


def _parsed(directory: Path, config: dict[str, Any]) -> tuple[HeadsShape, int | None, ModelIdentity]:
    """Shape, rows of the draft vocabulary, and recorded base model."""
    shape = config.get("shape")
    if not isinstance(shape, dict):
        raise _damaged(directory, "shape is not a JSON object")
    try:
        parsed = HeadsShape(**{name: shape[name] for name in ("count", "hidden_size", "variant", "norm_eps")})
    except KeyError as error:
        raise _damaged(directory, f"shape lacks {error}") from error
    except (ValueError, TypeError) as error:
        raise _damaged(directory, str(error)) from error
    try:
        recorded = ModelIdentity.from_json(config.get("base_model"))
    except ModelError as error:
        raise _damaged(directory, str(error).rstrip(".")) from error
    rows = config.get("draft_vocabulary_size")
    if rows is not None and (type(rows) is not int or not 1 <= rows <= recorded.vocab_size):
        raise _damaged(directory, f"draft_vocabulary_size cannot be {rows!r}")
    return parsed, rows, recorded


def _require_same_model(directory: Path, recorded: ModelIdentity, base: ModelIdentity) -> None:
    mine, theirs = _weights(recorded), _weights(base)
    if recorded.architecture == base.architecture and (not mine or mine == theirs):
        return
    why = "which has other weights"
    if recorded.architecture != base.architecture:
        why = "which is another model"
    elif recorded.name == base.name:
        why = "whose weights are not those they were trained for"
    raise HeadsError(
        f"{_belong(directory, recorded)}, not to {_named(base)}, {why}. Use that model, or {_TRAIN}."
    )


def _weights(identity: ModelIdentity) -> list[str]:
    """Hashes of the weight files, whatever they are called."""
    return sorted(digest for name, digest in identity.files.items() if name.endswith(_WEIGHT_SUFFIXES))


def _read_tensors(directory: Path, shape: HeadsShape, rows: int | None, sha256: object) -> dict[str, Tensor]:
    """All tensors, checked before they are read: names, shapes, types, size of the file."""
    path = directory / WEIGHTS_NAME
    if not path.is_file():
        pickles = sorted(entry.name for entry in directory.iterdir() if entry.suffix in PICKLE_SUFFIXES)
        if pickles:
            raise HeadsError(
                f"{directory} has its weights as a Python pickle ({pickles[0]}), which can run any code when "
                f"it is read. Use heads that are stored as {WEIGHTS_NAME}."
            )
        raise HeadsError(f"{directory} lacks {WEIGHTS_NAME}. Download or train the heads again.")
    wanted = _wanted_shapes(shape, rows)
    largest = sum(4 * torch.Size(size).numel() for size in wanted.values()) + _HEADER_BYTES
    with _reading(directory):
        if path.stat().st_size > largest:
            raise _damaged(directory, f"{WEIGHTS_NAME} is larger than such heads can be")
        with safe_open(path, framework="pt", device="cpu") as file:
            _check_header(directory, file, wanted)
            tensors = {name: file.get_tensor(name) for name in wanted}
        if sha256 != _sha256(path):
            raise _damaged(directory, f"{WEIGHTS_NAME} is not the file that {CONFIG_NAME} was written for")
    found = {}
    for name, tensor in tensors.items():
        kind = torch.int64 if name == "draft_vocabulary" else torch.float32
        found[name] = tensor.to(kind, copy=True)  # the file may be replaced while the heads are used
        if not bool(found[name].isfinite().all()):
            raise _damaged(directory, f"{name} holds values that are not finite")
    return found


def _check_header(directory: Path, file: Any, wanted: Mapping[str, tuple[int, ...]]) -> None:
    stored = set(file.keys())
    if missing := sorted(set(wanted) - stored):
        raise _damaged(directory, f"{WEIGHTS_NAME} lacks {missing[0]} ({len(missing)} missing in all)")
    if foreign := sorted(stored - set(wanted)):
        raise _damaged(directory, f"{WEIGHTS_NAME} holds {foreign[0]!r}, which such heads do not have")
    for name, size in wanted.items():
        view = file.get_slice(name)
        if tuple(view.get_shape()) != size:
            raise _damaged(directory, f"{name} has the shape {list(view.get_shape())}, not {list(size)}")
        types = ("I32",) if name == "draft_vocabulary" else tuple(STORED_TYPES)
        if view.get_dtype() not in types:
            raise _damaged(directory, f"{name} has the type {view.get_dtype()}, not {' or '.join(types)}")


def _wanted_shapes(shape: HeadsShape, rows: int | None) -> dict[str, tuple[int, ...]]:
    wanted = {name: tuple(tensor.shape) for name, tensor in _skeleton(shape, None).state_dict().items()}
    return wanted if rows is None else wanted | {"draft_vocabulary": (rows,)}


def _skeleton(shape: HeadsShape, vocabulary: Tensor | None) -> DraftHeads:
    """Heads whose weights take no memory yet."""
    with torch.device("meta"):
        return DraftHeads(shape, vocabulary)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HeadsError(f"Cannot read the heads in {directory}: {error.strerror or error}.") from error
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _damaged(directory, f"{WEIGHTS_NAME} is not a whole safetensors file ({error})") from error


def _belong(directory: Path, recorded: ModelIdentity) -> str:
    return f"The heads in {directory} belong to {_named(recorded)}"


def _named(identity: ModelIdentity) -> str:
    return f"{identity.name} ({identity.architecture})"


def _damaged(directory: Path, what: str) -> HeadsError:
    return HeadsError(f"The heads in {directory} are damaged: {what}. Download or train them again.")
