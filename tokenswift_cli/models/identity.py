"""What a model is, independent of where it lies: enough to refuse a resume with another one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenswift_cli.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Texts whose ids show a change of merges, normaliser, pre-tokeniser or treatment of special text.
PROBES = (
    "The quick brown fox jumps over 12,345 lazy dogs.",
    "  two  spaces\ttab\r\nnew line\n\n\nthree",
    "na\u00efve caf\u00e9 cafe\u0301 \u212b \ufb01",
    "\u6f22\u5b57\u304b\u306a\ud55c\uae00 \U0001f600\U0001f469\u200d\U0001f680",
    "def f(x):\n    return x**2  # don't",
    "<|im_start|><s></s><|endoftext|>",
)


@dataclass(frozen=True)
class ModelIdentity:
    """The facts that decide whether two runs use the same model.

    Attributes:
        name: what the user calls it; for people only, never compared.
        architecture: class name, e.g. ``LlamaForCausalLM``.
        files: file name -> hexadecimal SHA-256 of configuration, weights and custom code.
        tokenizer_sha256: fingerprint of what the tokenizer does, see :func:`tokenizer_fingerprint`.
        dtype: the type the weights have in memory, e.g. ``float32``.
        vocab_size: rows of the output layer.
    """

    name: str
    architecture: str
    files: Mapping[str, str]
    tokenizer_sha256: str
    dtype: str
    vocab_size: int

    def to_json(self) -> dict[str, Any]:
        """A dictionary that ``json.dumps`` takes; :meth:`from_json` reads it back."""
        return {
            "name": self.name,
            "architecture": self.architecture,
            "files": dict(sorted(self.files.items())),
            "tokenizer_sha256": self.tokenizer_sha256,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
        }

    @classmethod
    def from_json(cls, data: object) -> ModelIdentity:
        """Rebuild from parsed JSON; keys that are not known are ignored, so that later versions can add some.

        Raises:
            ModelError: a field is missing or has the wrong type.
        """
        if not isinstance(data, dict):
            raise ModelError("The recorded model identity is damaged: it is not a JSON object.")
        for key in ("name", "architecture", "tokenizer_sha256", "dtype"):
            if not isinstance(data.get(key), str):
                raise ModelError(f"The recorded model identity is damaged: {key} is not text.")
        vocab_size = data.get("vocab_size")
        if not isinstance(vocab_size, int) or isinstance(vocab_size, bool) or vocab_size < 1:
            raise ModelError("The recorded model identity is damaged: vocab_size is not a positive number.")
        files = data.get("files")
        if not isinstance(files, dict) or not all(
            isinstance(name, str) and _is_sha256(digest) for name, digest in files.items()
        ):
            raise ModelError(
                "The recorded model identity is damaged: files is not a map of names to SHA-256."
            )
        if not _is_sha256(data["tokenizer_sha256"]):
            raise ModelError("The recorded model identity is damaged: tokenizer_sha256 is not a SHA-256.")
        return cls(
            name=data["name"],
            architecture=data["architecture"],
            files=dict(files),
            tokenizer_sha256=data["tokenizer_sha256"],
            dtype=data["dtype"],
            vocab_size=vocab_size,
        )

    def differences(self, other: ModelIdentity) -> list[str]:
        """What differs between this model (the recorded one) and ``other`` (the one at hand), in words.

        Empty if both give the same text. Names are not compared.
        """
        found = []
        for label, mine, theirs in (
            ("architecture", self.architecture, other.architecture),
            ("vocabulary size", self.vocab_size, other.vocab_size),
            ("data type", self.dtype, other.dtype),
        ):
            if mine != theirs:
                found.append(f"{label} was {mine}, is now {theirs}")
        if self.tokenizer_sha256 != other.tokenizer_sha256:
            found.append(
                f"the tokenizer is another one (was {self.tokenizer_sha256[:12]}, "
                f"is now {other.tokenizer_sha256[:12]})"
            )
        for name in sorted({*self.files, *other.files}):
            mine_hash, their_hash = self.files.get(name), other.files.get(name)
            if their_hash is None:
                found.append(f"{name} is missing now")
            elif mine_hash is None:
                found.append(f"{name} was not part of the model")
            elif mine_hash != their_hash:
                found.append(
                    f"the content of {name} changed (was {mine_hash[:12]}, is now {their_hash[:12]})"
                )
        return found


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of what a tokenizer does: its vocabulary, its special tokens and its ids for :data:`PROBES`.

    Behaviour instead of files, so that re-saving, moving or converting a tokenizer changes nothing.
    """
    facts = {
        "vocabulary": sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])),
        "special": sorted(int(token) for token in tokenizer.all_special_ids),
        "probes": [list(tokenizer(probe)["input_ids"]) for probe in PROBES],
    }
    return hashlib.sha256(json.dumps(facts, ensure_ascii=True).encode("ascii")).hexdigest()


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(digit in "0123456789abcdef" for digit in value)
