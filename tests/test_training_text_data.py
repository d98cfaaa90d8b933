"""Bad training text gets a clear error, before a model is loaded where that can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tokenswift_cli.errors import ConfigError, TrainingDataError, UsageError
from tokenswift_cli.training.request import FINISHED, TrainingRequest, check_request
from tokenswift_cli.training.sequences import ShardSequences, check_sequences, split_sequences
from tokenswift_cli.training.settings import DataSection, SelfDistillSection, TrainingConfig, TrainingSection
from tokenswift_cli.training.shards import Shard, shard_path, write_shard
from tokenswift_cli.training.text_data import Document, cut_documents, find_data, read_prompts


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b" \n\t\n", "a.txt is empty"),
        ("a.txt", b"ab\0cd", "a.txt holds a NUL character"),
        ("a.txt", b"line\n\xff\xfe", "a.txt is not UTF-8: byte 0xff at offset 5 in line 2"),
        ("a.txt", b"\xef\xbb\xbf\xff", "byte 0xff at offset 3"),
        ("a.txt", "long enough".encode("utf-16"), "a.txt is UTF-16"),
        ("a.txt", b"ab", "too short: its longest document has 2 bytes, and 3 heads need 5 tokens"),
        ("a.jsonl", b"\n\n", "a.jsonl is empty"),
        ("a.jsonl", b'{"text": "some text"}\n{"text": ', "a.jsonl line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "some text"}\n\n{"tekst": "x"}', "line 3 has no key 'text' (it has 'tekst')"),
        ("a.jsonl", b'{"text": "some text"}\n[1]', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"text": 5}', "line 1: the value of 'text' is not text"),
        ("a.jsonl", b'{"text": ""}', "line 1: the text is empty"),
        ("a.jsonl", b'{"text": "\\ud800 long"}', "line 1 holds broken Unicode"),
        ("a.jsonl", b'{"text": "ok ok ok"}\n{"text": "\xff"}', "line 2 is not UTF-8: byte 0xff at offset 10"),
        ("a.json", b"[" * 100_000, "line 1 is nested too deeply"),
        ("a.parquet", b"PAR1", "a.parquet is no kind of training text"),
    ],
)  # fmt: skip
def test_bad_files_are_named_with_the_place(tmp_path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TrainingDataError) as caught:
        find_data([str(tmp_path / name)], "text", 3)
    assert expected in str(caught.value) and caught.value.exit_code == 2


def test_missing_files_and_directories_without_text_are_named(tmp_path) -> None:
    for name, expected in (("no.txt", "does not exist"), ("no.jsonl", "does not exist"), ("no", "does not")):
        with pytest.raises(TrainingDataError, match=expected):
            find_data([str(tmp_path / name)], "text", 3)
    with pytest.raises(TrainingDataError, match="holds no training text"):
        find_data([str(tmp_path)], "text", 3)


def test_good_files_are_read_whole(tmp_path) -> None:
    """Case 28: bytes are kept, a byte order mark is no text."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"body": "\\u00e9t\\u00e9"}\r\n\r\n{"body": "zwei", "id": 2}')
    found = find_data([str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")], "body", 1)
    assert [document.text for document in found.documents] == ["one\r\ntwo\n", "été", "zwei"]
    assert found.documents[2].source.endswith("b.jsonl line 3")


def test_prompts_are_lines(tmp_path) -> None:
    (tmp_path / "p.txt").write_bytes("Once upon\r\n\n  in a  \né".encode())
    assert read_prompts(tmp_path / "p.txt") == ["Once upon", "  in a  ", "é"]
    (tmp_path / "s.txt").write_text("a line\u2028separator and \x0b are text\n", encoding="utf-8")
    assert read_prompts(tmp_path / "s.txt") == ["a line\u2028separator and \x0b are text"]
    for content in (b"", b"\n \n"):
        (tmp_path / "p.txt").write_bytes(content)
        with pytest.raises(TrainingDataError, match="is empty"):
            read_prompts(tmp_path / "p.txt")
    with pytest.raises(TrainingDataError, match="does not exist"):
        read_prompts(tmp_path / "q.txt")


def letters(text: str, truncation: bool) -> dict[str, list[int]]:
    assert not truncation
    return {"input_ids": [ord(letter) for letter in text]}


def test_documents_are_cut_and_short_ones_reported() -> None:
    documents = [Document("abcdefghijkl", "a"), Document("xyz", "b"), Document("mnopq", "c")]
    pieces, notices = cut_documents(documents, letters, 8, 2)
    assert [("".join(map(chr, ids)), source) for ids, source in pieces] == [
        ("abcdefgh", "a"), ("ijkl", "a"), ("mnopq", "c")
    ]  # fmt: skip
    assert notices == ["1 of 3 documents are shorter than the 4 tokens that 2 heads need, and left out."]
    with pytest.raises(TrainingDataError, match=r"3 heads need 5 tokens in a row, .* longest document has 3"):
        cut_documents(documents[1:2], letters, 8, 3)


def shard_of(tokens: torch.Tensor, prompt: int = 1) -> Shard:
    count, length = tokens.shape
    hidden = torch.zeros(count, length, 4, dtype=torch.float16)
    return Shard(tokens, hidden, torch.full((count,), prompt), torch.zeros(count, dtype=torch.int64))


def test_ids_beyond_the_vocabulary_and_short_shards_are_refused(tmp_path) -> None:
    write_shard(shard_path(tmp_path, 0), shard_of(torch.tensor([[1, 2, 3, 4, 256, 5]])))
    sequences = ShardSequences(tmp_path, None)
    check_sequences(sequences, 257, 3)
    with pytest.raises(TrainingDataError, match=r"token id 256, which is beyond .* vocabulary of 256"):
        check_sequences(sequences, 256, 3)
    with pytest.raises(TrainingDataError, match="5 heads need sequences of at least 7 tokens"):
        check_sequences(sequences, 257, 5)


def test_damaged_shards_are_named(tmp_path) -> None:
    with pytest.raises(TrainingDataError, match="holds no training text"):
        ShardSequences(tmp_path, None)
    path = shard_path(tmp_path, 0)
    write_shard(path, shard_of(torch.ones(1, 9, dtype=torch.int64), prompt=12))
    with pytest.raises(TrainingDataError, match="a prompt of 12 tokens in a text of 9"):
        ShardSequences(tmp_path, None)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(TrainingDataError, match="is not a shard"):
        ShardSequences(tmp_path, None)


def test_a_single_sequence_cannot_be_held_out() -> None:
    with pytest.raises(TrainingDataError, match=r"1 sequence, so none can be held out"):
        split_sequences([9], 0.1, 0)
    assert split_sequences([9], 0, 0).train == (0,)


def request(tmp_path: Path, **changes: object) -> TrainingRequest:
    text = tmp_path / "book.txt"
    text.write_text("A book that is long enough.")
    options: dict[str, object] = {
        "config": TrainingConfig(data=DataSection(paths=(str(text),))),
        "output": tmp_path / "heads",
        "work": tmp_path / "work",
    }
    return TrainingRequest(**(options | changes))


def test_requests_that_make_no_sense_are_refused(tmp_path) -> None:
    assert check_request(request(tmp_path)).found.documents
    for changes, expected in (
        ({"config": TrainingConfig()}, "nothing to learn from"),
        ({"self_distill": True}, "--prompts FILE"),
        ({"resume": True}, "nothing to resume"),
        ({"resume": True, "restart": True}, "give one of them"),
    ):
        with pytest.raises(UsageError, match=expected):
            check_request(request(tmp_path, **changes))
    data = request(tmp_path).config.data
    windows = TrainingConfig(data=data, training=TrainingSection(window_tokens=64))
    with pytest.raises(ConfigError, match="window_tokens must be 0"):
        check_request(request(tmp_path, config=windows))
    prompts = TrainingConfig(self_distill=SelfDistillSection(prompts=data.paths[0]))
    assert check_request(request(tmp_path, config=prompts, self_distill=True)).prompts


def test_an_output_that_is_taken_is_refused_before_hours_of_training(tmp_path) -> None:
    heads, work = tmp_path / "heads", tmp_path / "work"
    heads.mkdir()
    work.mkdir()
    check_request(request(tmp_path))
    (heads / "something").touch()
    with pytest.raises(UsageError, match="heads is not empty"):
        check_request(request(tmp_path))
    check_request(request(tmp_path, overwrite=True))
    # Heads that this very work directory made may be asked for again, but not trained anew.
    (work / FINISHED).write_text(json.dumps({"output": str(heads.absolute())}))
    check_request(request(tmp_path))
    with pytest.raises(UsageError, match="--replace"):
        check_request(request(tmp_path, restart=True))
    (heads / "something").unlink()
    heads.rmdir()
    heads.touch()
    with pytest.raises(UsageError, match="is a file"):
        check_request(request(tmp_path))
