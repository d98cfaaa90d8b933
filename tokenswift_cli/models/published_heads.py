"""The heads in checkpoints as the authors of TokenSwift publish them, turned into a heads directory.

Such a checkpoint is a whole Llama or Qwen2 model whose state dict also holds
``model.medusa_layers.{i}.linear.weight``, ``.input_layernorm.weight`` and ``.post_layernorm.weight``, and
whose ``config.json`` counts them as ``medusa_heads``. Only those tensors are read.

The heads fit the checkpoint itself (transformers leaves the additional tensors out) and the plain model it
was made from, whose files are others. So no hashes are recorded: architecture, width and vocabulary size
are all that is compared when they are loaded. Wrong heads cost speed and never change a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokenswift_cli.errors import HeadsError, ModelError
from tokenswift_cli.models.checkpoint import (
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    indexed_files,
    read_model_config,
    weight_files,
)
from tokenswift_cli.models.heads import DraftHeads, HeadsShape
from tokenswift_cli.models.heads_directory import STORED_TYPES, save_heads
from tokenswift_cli.models.identity import ModelIdentity

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")

# Stands where an identity needs a hash and there is none to record.
NOT_RECORDED = "0" * 64

_PREFIX = "model.medusa_layers."
_PARTS = ("linear", "input_layernorm", "post_layernorm")


def read_published(checkpoint_dir: Path) -> DraftHeads:
    """The heads of a published checkpoint, variant "linear", in the type they are stored in, on the CPU.

    Raises:
        ModelError: the directory is no such checkpoint, or one of its files is missing or damaged.
    """
    return _read(checkpoint_dir, _checked_config(checkpoint_dir))


def convert_published(checkpoint_dir: Path, out_dir: Path, *, replace: bool = False) -> None:
    """Write the heads of a published checkpoint as a heads directory, without loss.

    Args:
        checkpoint_dir: holds ``config.json`` and safetensors; of several shards, those with heads suffice.
        out_dir, replace: as ``directory`` of :func:`save_heads`.

    Raises:
        ModelError: as :func:`read_published` and :func:`save_heads`.
    """
    config = _checked_config(checkpoint_dir)
    heads = _read(checkpoint_dir, config)
    name = checkpoint_dir.resolve().name
    stored = str(heads.dtype).removeprefix("torch.")
    base = ModelIdentity(
        name=name,
        architecture=config["architectures"][0],
        files={},
        tokenizer_sha256=NOT_RECORDED,
        dtype=stored,
        vocab_size=config["vocab_size"],
    )
    training = {"converted_from": name, "tensors": f"{_PREFIX}*"}
    save_heads(
        out_dir,
        heads,
        base,
        card=_card(base, heads.shape),
        training=training,
        dtype=heads.dtype,
        replace=replace,
    )


def _checked_config(directory: Path) -> dict[str, Any]:
    config = read_model_config(directory)
    if "medusa_heads" not in config:
        raise HeadsError(
            f"{directory} is not a published TokenSwift checkpoint: its config.json has no medusa_heads."
        )
    named = config.get("architectures")
    if not isinstance(named, list) or not named or named[0] not in ARCHITECTURES:
        raise HeadsError(
            f"The heads in {directory} are for {named or 'no architecture'} by its "
            f"config.json; only those for {' and '.join(ARCHITECTURES)} can be converted."
        )
    size = config.get("vocab_size")
    if type(size) is not int or size < 1:
        raise HeadsError(f"config.json in {directory} is damaged: vocab_size cannot be {size!r}.")
    return config


def _read(directory: Path, config: Mapping[str, Any]) -> DraftHeads:
    try:
        shape = HeadsShape(
            config["medusa_heads"], config["hidden_size"], variant="linear", norm_eps=config["rms_norm_eps"]
        )
    except KeyError as error:
        raise HeadsError(f"config.json in {directory} is damaged: it lacks {error}.") from error
    except ValueError as error:
        raise HeadsError(
            f"config.json in {directory} is damaged: medusa_heads or its shape, {error}."
        ) from error
    files = _files_of_heads(directory)
    wanted = {
        f"{_PREFIX}{index}.{part}.weight": f"heads.{index}.{part}.weight"
        for index in range(shape.count)
        for part in _PARTS
    }
    if missing := sorted(set(wanted) - set(files)):
        raise HeadsError(
            f"{directory} lacks {missing[0]} ({len(missing)} of {len(wanted)} tensors of its {shape.count} "
            "heads are missing). Download the checkpoint again."
        )
    if foreign := sorted(set(files) - set(wanted)):
        raise HeadsError(
            f"{directory} holds {foreign[0]}, which {shape.count} TokenSwift heads do not have: "
            "its config.json and its weights do not belong together, or it is another kind of checkpoint."
        )
    with torch.device("meta"):
        heads = DraftHeads(shape)
    sizes = {name: tensor.shape for name, tensor in heads.state_dict().items()}
    state: dict[str, Tensor] = {}
    for name, own in wanted.items():
        state[own] = _read_tensor(directory / files[name], name, sizes[own])
    types = {tensor.dtype for tensor in state.values()}
    common = types.pop() if len(types) == 1 else torch.float32
    heads.load_state_dict({name: tensor.to(common) for name, tensor in state.items()}, assign=True)
    return heads.requires_grad_(False).eval()


def _files_of_heads(directory: Path) -> dict[str, str]:
    """Tensor name -> file name of everything that belongs to the heads."""
    index = directory / WEIGHTS_INDEX_NAME
    if index.is_file() and not (directory / WEIGHTS_NAME).is_file():
        indexed_files(index)  # refuses a damaged index and files elsewhere
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: str(file) for name, file in weight_map.items() if name.startswith(_PREFIX)}
    try:
        (file,) = weight_files(directory)
    except ModelError as error:  # what helps a model that is only loaded does not help here
        raise HeadsError(
            f"{directory} has no {WEIGHTS_NAME}, and heads are never taken from a pickle. Save a checkpoint "
            "that you trust anew with save_pretrained."
        ) from error
    return {name: file for name in _names(directory / file) if name.startswith(_PREFIX)}


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _read_tensor(path: Path, name: str, size: torch.Size) -> Tensor:
    with _opened(path) as file:
        if name not in file.keys():  # noqa: SIM118 (not a dictionary)
            raise HeadsError(
                f"{path} lacks {name}, which the index places there. Download the checkpoint again."
            )
        view = file.get_slice(name)
        if tuple(view.get_shape()) != tuple(size) or view.get_dtype() not in STORED_TYPES:
            raise HeadsError(
                f"{name} in {path} is {view.get_dtype()} of the shape {list(view.get_shape())}; "
                f"config.json asks for {list(size)} in a floating type of 16 or 32 bits."
            )
        tensor: Tensor = file.get_tensor(name).clone()  # no longer backed by the file
    if not bool(tensor.isfinite().all()):
        raise HeadsError(f"{name} in {path} holds values that are not finite. Download the checkpoint again.")
    return tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise HeadsError(f"{path} is missing, and the heads are in it. Download the checkpoint again.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise HeadsError(f"{path} is damaged ({error}). Download the checkpoint again.") from error


def _card(base: ModelIdentity, shape: HeadsShape) -> str:
    return f"""# Drafting heads of {base.name}

{shape.count} heads of the form published with TokenSwift (arXiv 2502.18890), variant "{shape.variant}", taken
unchanged from the checkpoint `{base.name}` with `tokenswift train-heads --convert`.

- Model: {base.architecture}, hidden states of width {shape.hidden_size}, {base.vocab_size} tokens.
- Hashes of the model's weights are not recorded, because these heads fit both the checkpoint itself and the
  plain model it was made from. Any model of the same architecture, width and vocabulary size is accepted.
  Heads used with a model they were not trained for slow generation down; they never change the text.
- Acceptance has not been measured here; `tokenswift generate` reports it while it runs.
"""
