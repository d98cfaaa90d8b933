"""Load any causal language model that transformers knows, with everything a run needs to know of it.

A model is the demo model's name, a directory, a .gguf file, or a Hub id, looked at in this order. Weights
come from safetensors, from pickles only if the configuration trusts them. The attention implementation is
left as transformers chooses it. Once the files are on this machine nothing asks the Hub any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenswift_cli.config import DEMO_MODEL, ModelConfig, parse_rope_scaling
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.checkpoint import (
    PICKLE_SUFFIXES,
    identity_files,
    read_model_config,
    require_tokenizer_files,
    require_usual_weights,
)
from tokenswift_cli.models.demo import DEMO_NAMES, demo_gguf_path, is_demo_name
from tokenswift_cli.models.device import choose_device, choose_dtype
from tokenswift_cli.models.file_hashes import file_sha256
from tokenswift_cli.models.gguf import converted_model
from tokenswift_cli.models.hub import hub_snapshot, hub_unreachable
from tokenswift_cli.models.identity import ModelIdentity, tokenizer_fingerprint
from tokenswift_cli.models.memory import free_memory, require_memory
from tokenswift_cli.models.quiet import quiet_libraries
from tokenswift_cli.models.rope_scaling import scale_positions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The name under which the identity records a .gguf file, whatever the file is called.
GGUF_IDENTITY_NAME = "model.gguf"

# Their configurations say is_decoder=False by habit, and they are decoders all the same.
DECODERS_THAT_DENY_IT = ("gpt_neox", "gpt_neox_japanese")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and the facts about it.

    Attributes:
        model: in evaluation mode, without gradients, on its device.
        tokenizer: the model's own.
        identity: what a resume compares.
        name: what to call it on the screen.
        eos_ids: all end-of-text ids, ascending; empty if the model has none.
        position_limit: positions the model is made for, None if it names no limit.
        gguf: the .gguf file that the weights come from, None if they do not.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    identity: ModelIdentity
    name: str
    eos_ids: tuple[int, ...]
    position_limit: int | None
    gguf: Path | None = None


@dataclass(frozen=True)
class _Source:
    """Where the files are; for a .gguf file also that file, and SHA-256 by name."""

    name: str
    directory: Path
    files: dict[str, str] | None = None
    gguf: Path | None = None


def load_model(config: ModelConfig, notify: Callable[[str], None]) -> LoadedModel:
    """Find, load and identify the model that ``config`` names. ``notify`` gets one line per slow step.

    Raises:
        ModelError: it cannot be found or loaded, or is no causal language model; says what to do.
    """
    import torch

    if config.threads > 0:
        torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    source = _find(config, device.type, notify)
    notify(f"Loading {source.name}")
    quiet_libraries()
    # Custom code may lie in yet another repository of the Hub; nothing else has to be fetched from here on.
    local_only = config.offline or not config.trust_remote_code
    with hub_unreachable() if local_only else nullcontext():
        return _load(source, config, device, local_only, notify)


def _load(
    source: _Source,
    config: ModelConfig,
    device: torch.device,
    local_only: bool,
    notify: Callable[[str], None],
) -> LoadedModel:
    import torch

    facts = read_model_config(source.directory)
    require_usual_weights(source.name, facts)
    code = {"trust_remote_code": config.trust_remote_code, "local_files_only": local_only}
    _require_causal(source, facts, code)
    require_tokenizer_files(source.directory, config.trust_remote_code)
    names = identity_files(source.directory, config.trust_remote_code, config.trust_pickle)
    pickled = any(name.endswith(PICKLE_SUFFIXES) for name in names)
    dtype = choose_dtype(config.dtype, device.type, facts.get("dtype") or facts.get("torch_dtype"))
    tokenizer = _load_tokenizer(source, code)
    if not pickled:  # a pickle has no header that tells the size before it is read
        require_memory(source.name, source.directory, dtype, free_memory(device.type))
    model = _load_weights(source, dtype, pickled, code, parse_rope_scaling(config.rope_scaling), notify)
    try:
        model = model.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{source.name} in {dtype} does not fit into the memory of {device}. "
            "Use a shorter --dtype, a smaller model, or --device cpu."
        ) from error
    model.eval().requires_grad_(False)
    files = source.files or {name: file_sha256(source.directory / name, notify) for name in names}
    text_config = model.config.get_text_config(decoder=True)
    identity = ModelIdentity(
        name=source.name,
        architecture=type(model).__name__,
        files=files,
        tokenizer_sha256=tokenizer_fingerprint(tokenizer),
        dtype=dtype,
        vocab_size=int(text_config.vocab_size),
    )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        identity=identity,
        name=source.name,
        eos_ids=end_of_text_ids(
            getattr(model.generation_config, "eos_token_id", None),
            getattr(model.config, "eos_token_id", None),
            getattr(text_config, "eos_token_id", None),
            tokenizer.eos_token_id,
        ),
        position_limit=position_limit(text_config),
        gguf=source.gguf,
    )


def end_of_text_ids(*sources: int | Iterable[int] | None) -> tuple[int, ...]:
    """The union of what configurations and tokenizer call end of text: each one id, several, or None."""
    found: set[int] = set()
    for source in sources:
        if isinstance(source, int):
            found.add(source)
        elif source is not None:
            found.update(int(token) for token in source)
    return tuple(sorted(token for token in found if token >= 0))


def position_limit(text_config: Any) -> int | None:
    """The longest text the model is made for and the engine writes exactly, or None if it names no limit.

    That is ``max_position_embeddings`` (under the name the model family gives it). Models whose rotary
    embedding switches to other factors at a length (longrope) would give a text that depends on how it
    was cut into passes: for them it is the length of the switch.
    """
    limits = [getattr(text_config, "max_position_embeddings", None)]
    rope = getattr(text_config, "rope_parameters", None) or {}
    # Families with several kinds of layers have one set of parameters for each kind.
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") in ("longrope", "dynamic"):
            limits.append(parameters.get("original_max_position_embeddings"))
            limits.append(getattr(text_config, "original_max_position_embeddings", None))
    return min((int(limit) for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def _find(config: ModelConfig, device_type: str, notify: Callable[[str], None]) -> _Source:
    name = config.name.strip()
    if not name:
        raise ModelError("No model is named. Use --model with a directory, a .gguf file or a Hub id.")
    path = Path(name).expanduser()
    if is_demo_name(name):
        return _gguf_source(DEMO_MODEL, demo_gguf_path(), config, device_type, notify)
    # os.path takes names that no file can have; Path raises an error for those.
    if os.path.isdir(path):
        return _Source(path.resolve().name, path)
    if path.suffix.lower() == ".gguf":
        return _gguf_source(path.name, path, config, device_type, notify)
    if os.path.exists(path):
        raise ModelError(f"{name} is a file but not a .gguf file. Give the directory of the model instead.")
    if not _is_hub_id(name):
        raise ModelError(
            f"There is no model directory {name}. Give a directory, a .gguf file, a Hub id such as "
            f"organisation/model, or {DEMO_NAMES[0]}."
        )
    snapshot = hub_snapshot(name, config.offline, config.trust_remote_code, notify, config.trust_pickle)
    return _Source(name, snapshot)


def _gguf_source(
    name: str, path: Path, config: ModelConfig, device_type: str, notify: Callable[[str], None]
) -> _Source:
    if not os.path.isfile(path):
        raise ModelError(f"There is no file {path}. Check the path of the .gguf file.")
    dtype = choose_dtype(config.dtype, device_type, None)
    with hub_unreachable():
        converted = converted_model(path, dtype, notify)
    return _Source(name, converted.directory, {GGUF_IDENTITY_NAME: converted.source_sha256}, path)


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if name.startswith(("/", ".", "~")) or "\\" in name:
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _require_causal(source: _Source, facts: dict[str, Any], code: dict[str, Any]) -> None:
    """Refuse models that do not write text from left to right, before their weights are read."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if "auto_map" in facts and not code["trust_remote_code"] and facts.get("model_type") is None:
        raise ModelError(_custom_code_message(source))
    try:
        model_config = AutoConfig.from_pretrained(source.directory, **code)
    except Exception as error:  # third-party code; the cause stays attached
        if "trust_remote_code" in str(error):
            raise ModelError(_custom_code_message(source)) from error
        raise ModelError(f"transformers does not understand {source.name}: {_reason(error)}") from error
    named = facts.get("architectures") or ["its architecture"]
    if "AutoModelForCausalLM" in facts.get("auto_map", {}):
        if not code["trust_remote_code"] and type(model_config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ModelError(_custom_code_message(source))
        return
    if getattr(model_config, "is_encoder_decoder", False):
        raise ModelError(
            f"{source.name} is an encoder-decoder model ({named[0]}). Choose a decoder-only causal model."
        )
    known: set[str] = set()
    for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        known.update([value] if isinstance(value, str) else value)
    denies = getattr(model_config, "is_decoder", True) is False
    if (
        type(model_config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        or (facts.get("architectures") and not known.intersection(named))
        or (denies and model_config.model_type not in DECODERS_THAT_DENY_IT)
    ):
        raise ModelError(
            f"{source.name} is not a causal language model ({named[0]}). "
            "Choose a model whose architecture ends in ForCausalLM."
        )


def _load_tokenizer(source: _Source, code: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.directory, **code)
    except Exception as error:  # third-party code; the cause stays attached
        raise ModelError(
            f"The tokenizer of {source.name} cannot be loaded: {_reason(error)} "
            "If a file is damaged, download the model again."
        ) from error
    if len(tokenizer) == 0:
        raise ModelError(
            f"The tokenizer of {source.name} is empty. Copy the tokenizer's files into its directory."
        )
    return tokenizer


def _load_weights(
    source: _Source,
    dtype: str,
    pickled: bool,
    code: dict[str, Any],
    position_factor: float | None,
    notify: Callable[[str], None],
) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_config = AutoConfig.from_pretrained(source.directory, **code)
    # config.json may name kernels here that transformers would fetch from the Hub and run.
    model_config._attn_implementation = None
    model_config._experts_implementation = None
    if position_factor is not None:
        scale_positions(model_config, position_factor, source.name)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            source.directory,
            config=model_config,
            dtype=getattr(torch, dtype),
            use_safetensors=not pickled,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
            **code,
        )
    except Exception as error:  # third-party code; the cause stays attached
        raise ModelError(
            f"The weights of {source.name} cannot be loaded: {_reason(error)} "
            "If a file is damaged, download the model again."
        ) from error
    # transformers would fill tensors that are missing or of another shape with random numbers.
    if mismatched := sorted(info["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise ModelError(
            f"The weights of {source.name} do not fit its config.json: {name} has the shape {list(stored)}, "
            f"not {list(wanted)}. Take both from the same model."
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"The weights of {source.name} lack {missing[0]} ({len(missing)} missing in all), which "
            f"{type(model).__name__} needs. Use a complete causal language model."
        )
    if unused := sorted(info["unexpected_keys"]):
        notify(f"{source.name}: {len(unused)} tensors are not used by {type(model).__name__} ({unused[0]})")
    return model


def _custom_code_message(source: _Source) -> str:
    return (
        f"{source.name} needs Python code that comes with the model (trust_remote_code). If you trust it, "
        "add --trust-code."
    )


def _reason(error: Exception) -> str:
    """The first line of an error of another library, as a sentence."""
    line = next(iter(str(error).strip().splitlines()), "").strip()
    if isinstance(error, KeyError) or not line:  # its text alone says nothing
        line = f"{type(error).__name__} {line}".strip()
    return line if line.endswith((".", "!", "?")) else f"{line}."
