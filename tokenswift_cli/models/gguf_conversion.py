"""Turn a .gguf file into a model directory that loads in seconds and computes the very same logits.

transformers reads GGUF, slowly, and does not save what it read. So the dequantised weights are put into
a plain model of the same class, saved, read again and compared bit for bit.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.gguf_file import open_gguf
from tokenswift_cli.models.identity import tokenizer_fingerprint
from tokenswift_cli.models.quiet import no_gguf_progress_bar, quiet_libraries

# Tokenizer, configuration and file system need some room besides the weights.
SPARE_BYTES = 64 * 2**20


def convert_gguf(source: Path, target: Path, dtype: str, notify: Callable[[str], None]) -> None:
    """Write weights (in ``dtype``), configuration and tokenizer of ``source`` into the directory ``target``.

    Raises:
        ModelError: transformers cannot read the file, the disk is too small, or the directory would not
            give exactly the weights and token ids that the file gives.
        OSError: the directory cannot be written.
    """
    quiet_libraries()
    open_gguf(source)  # what its header claims is checked before transformers believes it
    notify(f"Converting {source.name} to {dtype} for quick loading; this is needed once")
    tokenizer, model = read_gguf(source, dtype)
    _require_disk(model, target)
    plain_model(model).save_pretrained(target)
    tokenizer.save_pretrained(target)
    _compare(source, target, tokenizer, model)


def read_gguf(source: Path, dtype: str) -> tuple[Any, Any]:
    """(tokenizer, model) as transformers reads them from a .gguf file, the model on the CPU in ``dtype``.

    Raises:
        ModelError: the file is damaged, or of an architecture that transformers does not read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": source.name, "local_files_only": True}
    try:
        with no_gguf_progress_bar():
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
            model, info = AutoModelForCausalLM.from_pretrained(
                source.parent, dtype=getattr(torch, dtype), output_loading_info=True, **where
            )
    except Exception as error:  # third-party readers fail in many ways; the cause stays attached
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelError(
            f"transformers cannot read {source}: {reason} "
            "If the file is whole, use the model's original safetensors directory instead."
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{source} lacks {len(missing)} of the model's tensors, {missing[0]} among them.")
    return tokenizer, model.eval()


def plain_model(model: Any) -> Any:
    """A model of the same class around the same weights that knows nothing of GGUF: it can be saved."""
    import torch
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _require_disk(model: Any, target: Path) -> None:
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in model.state_dict().values()
    }
    needed, free = sum(storages.values()) + SPARE_BYTES, shutil.disk_usage(target).free
    if needed > free:
        raise ModelError(
            f"The converted model needs {needed / 2**30:.1f} GiB and {target.parent} has "
            f"{free / 2**30:.1f} GiB free. "
            "Free some space, or set TOKENSWIFT_CACHE to a directory on a larger disk."
        )


def _compare(source: Path, target: Path, tokenizer: Any, model: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stored_tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    stored = AutoModelForCausalLM.from_pretrained(
        target, dtype=model.dtype, use_safetensors=True, local_files_only=True
    )
    expected, found = model.state_dict(), stored.state_dict()
    wrong = sorted(
        name
        for name in {*expected, *found}
        if name not in expected or name not in found or not torch.equal(expected[name], found[name])
    )
    if wrong:
        raise ModelError(f"{source} cannot be converted without change: {wrong[0]} differs after saving.")
    if (
        tokenizer_fingerprint(stored_tokenizer) != tokenizer_fingerprint(tokenizer)
        or stored_tokenizer.chat_template != tokenizer.chat_template
    ):
        raise ModelError(f"{source} cannot be converted without change: its tokenizer differs after saving.")
