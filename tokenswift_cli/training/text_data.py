"""Text files for training: read and checked before any model is loaded, then cut into token sequences."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenswift_cli.config_rules import not_model_text
from tokenswift_cli.errors import TrainingDataError
from tokenswift_cli.shipped import PROMPTS, namesake

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT_SUFFIXES: Final = (".txt", ".text", ".md")
JSON_SUFFIXES: Final = (".jsonl", ".json", ".ndjson")


@dataclass(frozen=True)
class Document:
    """One text; ``source`` is its file, and the line where it is one of several."""

    text: str
    source: str


@dataclass(frozen=True)
class FoundData:
    """What the paths of ``data.paths`` are: documents of text files, and directories of shards."""

    documents: tuple[Document, ...]
    directories: tuple[Path, ...]


def find_data(paths: Sequence[str], text_key: str, heads: int) -> FoundData:
    """Read and check everything that can be checked without a model.

    Args:
        paths: files and directories.
        text_key: key of the text in JSON lines.
        heads: number of heads, which need a text of some length.

    Raises:
        TrainingDataError: something is missing, empty, unreadable or not what its name says; with the line.
    """
    documents: list[Document] = []
    directories: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            if next(path.glob("batch-*.safetensors"), None) is None:
                raise TrainingDataError(
                    f"{path} holds no training text (no batch-*.safetensors). Give a directory that "
                    "--self-distill wrote, or name text files."
                )
            directories.append(path)
        elif path.suffix.lower() in JSON_SUFFIXES:
            documents.extend(_json_documents(path, text_key))
        elif path.suffix.lower() in TEXT_SUFFIXES:
            documents.append(Document(_model_text(_read(path), str(path)), str(path)))
        elif path.exists():
            known = ", ".join((*TEXT_SUFFIXES, *JSON_SUFFIXES))
            raise TrainingDataError(
                f"{path} is no kind of training text. Give a file whose name ends in one of {known}, or a "
                "directory that --self-distill wrote."
            )
        else:
            raise TrainingDataError(f"The training text {path} does not exist. Check the path.")
    # No tokenizer makes more tokens than bytes, but for one or two special ones at the ends.
    longest = max((len(document.text.encode("utf-8")) for document in documents), default=0)
    if documents and not directories and longest + 2 < heads + 2:
        raise TrainingDataError(
            f"The training text is too short: its longest document has {longest} bytes, and {heads} heads "
            f"need {heads + 2} tokens. Give more text or fewer heads."
        )
    return FoundData(tuple(documents), tuple(directories))


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file, one a line; blank lines are left out.

    Raises:
        TrainingDataError: the file cannot be read, holds no prompt, or no text a model can read.
    """
    text = _decode(_read(path), str(path))
    prompts = []
    # Not splitlines, which also ends lines at characters that a text may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            prompts.append(_checked(line.removesuffix("\r"), f"{path} line {number}"))
    if not prompts:
        raise TrainingDataError(f"{path} holds no prompt. Write one prompt a line.")
    return prompts


def cut_documents(
    documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, sequence_tokens: int, heads: int
) -> tuple[list[tuple[list[int], str]], list[str]]:
    """Token sequences of at most ``sequence_tokens``, each with its source, and notices of what is left out.

    Rests too short for ``heads`` heads are left out.

    Raises:
        TrainingDataError: nothing is long enough.
    """
    sequences: list[tuple[list[int], str]] = []
    needed = heads + 2
    short = longest = 0
    for document in documents:
        ids = [int(token) for token in tokenizer(document.text, truncation=False)["input_ids"]]
        longest = max(longest, len(ids))
        pieces = [ids[at : at + sequence_tokens] for at in range(0, len(ids), sequence_tokens)]
        kept = [piece for piece in pieces if len(piece) >= needed]
        short += not kept
        sequences.extend((piece, document.source) for piece in kept)
    if not sequences:
        raise TrainingDataError(
            f"The training text is too short: {heads} heads need {needed} tokens in a row, and the longest "
            f"document has {longest}. Give more text or fewer heads."
        )
    notices = []
    if short:
        notices.append(
            f"{short} of {len(documents)} documents are shorter than the {needed} tokens that {heads} heads "
            "need, and left out."
        )
    return sequences, notices


def _json_documents(path: Path, text_key: str) -> list[Document]:
    documents = []
    for number, line in enumerate(_read(path).removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        source = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(_decode(line, source))
        except RecursionError:
            raise TrainingDataError(f"{source} is nested too deeply. Write one JSON object a line.") from None
        except json.JSONDecodeError as error:
            raise TrainingDataError(
                f"{source} is not valid JSON ({error.msg} at column {error.colno}). Write one object a line."
            ) from None
        if not isinstance(value, dict):
            raise TrainingDataError(f"{source} is not a JSON object. Write one JSON object a line.")
        if text_key not in value:
            has = ", ".join(map(repr, value)) or "no key"
            raise TrainingDataError(
                f"{source} has no key {text_key!r} (it has {has}). Name the key with data.text_key."
            )
        if not isinstance(value[text_key], str):
            raise TrainingDataError(f"{source}: the value of {text_key!r} is not text. Correct the line.")
        documents.append(Document(_checked(value[text_key], source), source))
    if not documents:
        raise TrainingDataError(f"{path} is empty. Give a file with text in it.")
    return documents


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TrainingDataError(
            f"The file {path} does not exist. Check the path.{namesake(PROMPTS, path)}"
        ) from None
    except OSError as error:
        raise TrainingDataError(
            f"{path} cannot be read: {error.strerror or error}. Check the path."
        ) from None
    if not data.strip():
        raise TrainingDataError(f"{path} is empty. Give a file with text in it.")
    return data


def _model_text(data: bytes, source: str) -> str:
    return _checked(_decode(data, source), source)


def _decode(data: bytes, source: str) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TrainingDataError(f"{source} is UTF-16. Save it as UTF-8.")
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        place = f" in line {line}" if line > 1 else ""
        raise TrainingDataError(
            f"{source} is not UTF-8: byte 0x{body[error.start]:02x} at offset "
            f"{error.start + len(data) - len(body)}{place}. Save it as UTF-8."
        ) from None


def _checked(text: str, source: str) -> str:
    if not text.strip():
        raise TrainingDataError(f"{source}: the text is empty. Take the line out, or fill it.")
    if why := not_model_text(text):
        raise TrainingDataError(f"{source} holds {why}. Take it out.")
    return text
