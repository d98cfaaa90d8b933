"""Which tensor of a .gguf file a parameter of a transformers model comes from, and in which order of rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.gguf_file import GgufFile

# Architecture named in the file (Mistral's is llama) -> whether the rows of queries and keys are stored with
# the two halves of each head interleaved, so that the pairs which a rotary embedding turns are neighbours.
INTERLEAVED: Final = {"llama": True, "qwen2": False, "qwen3": False}
# The part of a tensor's name -> the number that counts the heads in it.
HEAD_COUNTS: Final = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True)
class GgufNames:
    """The names of a file.

    Attributes:
        architecture: as the file calls it.
        map: from names of modules to names of tensors, both without the suffix; None: not covered.
        tensors: names of the file's tensors.
        heads: rows of which tensors are interleaved within how many heads, e.g. {"attn_q": 9}.
    """

    architecture: str
    map: Any
    tensors: Collection[str]
    heads: dict[str, int]

    @classmethod
    def of(cls, file: GgufFile) -> GgufNames:
        """The names of an open file."""
        architecture = str(file.values.get("general.architecture", ""))
        layers = file.values.get(f"{architecture}.block_count")
        if architecture not in INTERLEAVED or not isinstance(layers, int):
            return cls(architecture, None, file.tensors, {})
        known = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}
        counts = {part: file.values.get(f"{architecture}.{key}") for part, key in HEAD_COUNTS.items()}
        # transformers undoes the interleaving only if the file gives both numbers.
        both = [count for count in counts.values() if isinstance(count, int) and count > 0]
        undone = INTERLEAVED[architecture] and len(both) == len(counts)
        return cls(
            architecture=architecture,
            map=gguf.get_tensor_name_map(known[architecture], layers),
            tensors=file.tensors,
            heads={part: int(count) for part, count in counts.items() if count} if undone else {},
        )

    def stored_name(self, name: str) -> str | None:
        """The tensor behind the parameter ``name``, None if the file has none or is not understood.

        A file without an output layer ties it to the embedding, as transformers does then.
        """
        if self.map is None:
            return None
        module, dot, suffix = name.rpartition(".")
        base = self.map.get_name(module)
        if base is None:
            return None
        stored = f"{base}{dot}{suffix}"
        if stored == OUTPUT and stored not in self.tensors:
            stored = EMBEDDING
        return stored if stored in self.tensors else None

    def why_unknown(self, name: str) -> str:
        """Why :meth:`stored_name` is None, as the end of a sentence."""
        if self.map is None:
            return f"the file's architecture is {self.architecture}, not one of {', '.join(INTERLEAVED)}"
        return f"the file has no tensor for {name}"

    def row_order(self, stored_name: str, rows: int) -> NDArray[np.intp] | None:
        """For each row of the parameter, the row of the tensor it comes from; None if the order is the same.

        Raises:
            ModelError: the file contradicts itself: the heads do not divide the rows.
        """
        heads = next((count for part, count in self.heads.items() if f".{part}." in stored_name), None)
        if heads is None:
            return None
        if rows % (2 * heads):
            raise ModelError(f"The .gguf file is damaged: {stored_name} has {rows} rows for {heads} heads.")
        half = rows // heads // 2
        return np.arange(rows, dtype=np.intp).reshape(heads, half, 2).swapaxes(1, 2).reshape(rows)
