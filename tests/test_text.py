"""Incremental detokenization equals decoding everything at once, for any split of the ids."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tokenswift_cli.text import REPLACEMENT, WINDOW_TOKENS, TextOutput, TextStream

SENTENCES = [
    "The old ship sailed on, and nobody on board asked where it was going.",
    "  Indented lines,\n\ttabs and\r\nline ends are text as well.",
    "Emoji 😀👩‍🚀🇫🇷 and 漢字かな交じり文 stand next to plain words.",
    "Ünïcödé café naïve — “quoted” text… and don't forget: commas , spaced .",
]
SPECIALS = ["<|end|>", "<pad>"]


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2 and SmolLM2 style: characters may be split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return wrapped(tokenizer)


def metaspace() -> PreTrainedTokenizerFast:
    """SentencePiece style: the first token decoded loses its leading space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIALS], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return wrapped(tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama 2 style: unknown characters become runs of byte tokens; one leading space is stripped."""
    words = ["▁", "▁▁", "a", "b", "▁the", "▁ship", ",", "é", "漢", REPLACEMENT]
    tokens = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIALS)
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIALS[0], pad_token=SPECIALS[1])


TOKENIZERS = {"byte level": byte_level(), "metaspace": metaspace(), "byte fallback": byte_fallback()}
SIZES = {name: len(tokenizer) for name, tokenizer in TOKENIZERS.items()}
every_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def decode_all(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def splits(draw: Callable[[Any], Any], ids: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=len(ids))))
    borders = [0, *cuts, len(ids)]
    return [ids[start:end] for start, end in pairwise(borders)]


@every_tokenizer
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_random_ids_and_splits_equal_decoding_at_once(name: str, data: st.DataObject) -> None:
    """Case 12: random ids hold torn, invalid and special tokens in any order."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, SIZES[name] - 1), max_size=80))
    whole = decode_all(tokenizer, ids)
    stream, shown = TextStream(tokenizer), ""
    for piece in splits(data.draw, ids):
        shown += stream.push(piece)
        assert whole.startswith(shown)
    assert shown + stream.pending == whole
    if name != "byte fallback":
        assert shown == whole.removesuffix(REPLACEMENT)
    assert shown + stream.flush() == whole


BYTES = [TOKENIZERS["byte fallback"].convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)]
LETTER = TOKENIZERS["byte fallback"].convert_tokens_to_ids("a")


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(["😀", "é", "\n", "a", b"\xe2\x82", b"\xff", b"\x80"]), max_size=40))
def test_byte_token_runs_equal_decoding_at_once(parts: list[str | bytes]) -> None:
    """Case 12: whole, torn and invalid characters side by side in runs of byte tokens."""
    tokenizer = TOKENIZERS["byte fallback"]
    ids: list[int] = []
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode()
        ids += [LETTER] if raw == b"a" else [BYTES[byte] for byte in raw]
    stream, whole = TextStream(tokenizer), decode_all(tokenizer, ids)
    assert "".join(stream.push([token_id]) for token_id in ids) + stream.flush() == whole
    closed = TextStream(tokenizer)
    shown = "".join(closed.push([token_id]) for token_id in [*ids, LETTER])
    assert shown == decode_all(tokenizer, [*ids, LETTER])


@every_tokenizer
@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet=st.sampled_from("the ship,é漢😀\n🇫🇷"), max_size=60))
def test_every_push_gives_whole_characters(name: str, text: str) -> None:
    """Case 12: no U+FFFD is ever shown for text that has none."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    stream = TextStream(tokenizer)
    shown = [stream.push([token_id]) for token_id in ids]
    if REPLACEMENT not in decode_all(tokenizer, ids):
        assert REPLACEMENT not in "".join(shown)
    assert "".join(shown) + stream.flush() == decode_all(tokenizer, ids)


def test_invalid_bytes_in_the_middle_are_kept() -> None:
    tokenizer = TOKENIZERS["byte level"]
    lead = tokenizer.convert_tokens_to_ids(pre_tokenizers.ByteLevel().pre_tokenize_str("é")[0][0][1])
    letter = tokenizer.encode("T", add_special_tokens=False)[0]
    ids = [letter, lead, lead, letter]
    assert decode_all(tokenizer, ids).count(REPLACEMENT) == 2
    stream = TextStream(tokenizer)
    assert "".join(stream.push([token_id]) for token_id in ids) == decode_all(tokenizer, ids)


def test_torn_last_character_is_kept_back_and_can_be_dropped() -> None:
    tokenizer = TOKENIZERS["byte fallback"]
    torn = [LETTER, BYTES[0x0A], BYTES[0xE2], BYTES[0x82]]
    stream = TextStream(tokenizer)
    assert stream.push(torn) == "a"
    assert stream.flush(keep_torn=False) == "\n"
    with pytest.raises(ValueError, match="flushed"):
        stream.push([LETTER])


class CountingTokenizer:
    """Passes everything on and notes the longest list of ids ever decoded."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.longest, self.calls = tokenizer, 0, 0

    def decode(self, token_ids: list[int], **options: bool) -> Any:
        self.longest, self.calls = max(self.longest, len(token_ids)), self.calls + 1
        return self.tokenizer.decode(token_ids, **options)

    def convert_ids_to_tokens(self, token_id: int) -> Any:
        return self.tokenizer.convert_ids_to_tokens(token_id)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@pytest.mark.parametrize("byte", [0x80, 0xE2, 0xFF])
def test_invalid_bytes_for_ever_cost_constant_work(name: str, byte: int) -> None:
    tokenizer = TOKENIZERS[name]
    if name == "byte level":
        # How the byte-level alphabet writes these three bytes.
        bad = tokenizer.convert_tokens_to_ids({0x80: "Ģ", 0xE2: "â", 0xFF: "ÿ"}[byte])
    else:
        bad = BYTES[byte]
    counting = CountingTokenizer(tokenizer)
    ids = [bad] * 400
    stream = TextStream(counting)
    shown = "".join(stream.push([token_id]) for token_id in ids)
    assert len(shown) >= 399
    assert shown + stream.flush() == decode_all(tokenizer, ids)
    assert counting.longest <= WINDOW_TOKENS + 1


@every_tokenizer
def test_the_window_stays_short_on_long_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(" ".join(SENTENCES * 8), add_special_tokens=False)
    counting = CountingTokenizer(tokenizer)
    stream = TextStream(counting)
    shown = "".join(stream.push([token_id]) for token_id in ids)
    assert shown + stream.flush() == decode_all(tokenizer, ids)
    assert counting.longest <= 2 * WINDOW_TOKENS and counting.calls < 3 * len(ids)


def test_a_leading_space_after_a_special_token_is_kept() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    word = tokenizer.encode("The ship", add_special_tokens=False)
    ids = [*word, *([tokenizer.eos_token_id] * 40), *word]
    stream = TextStream(tokenizer)
    assert "".join(stream.push([token_id]) for token_id in ids) == "The ship The ship"


@every_tokenizer
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_stop_strings_and_tokens_together(name: str, data: st.DataObject) -> None:
    """Case 11: token by token, the first token that completes a stop string reports it."""
    tokenizer = TOKENIZERS[name]
    text = data.draw(st.text(alphabet=st.sampled_from("the ship,é漢"), min_size=1, max_size=40))
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = decode_all(tokenizer, ids)
    start = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stop = whole[start : start + data.draw(st.integers(1, 6))]
    if not stop:
        return
    output, shown, used, stopped = TextOutput(tokenizer, [stop]), "", 0, None
    for token_id in ids:
        update = output.push_token(token_id)
        shown, used, stopped = shown + update.text, used + 1, update.stopped
        if stopped:
            break
    else:
        update = output.finish()
        shown, stopped = shown + update.text, update.stopped
    assert stopped == stop
    assert shown == whole[: whole.find(stop)]
    before = TextStream(tokenizer)
    assert stop not in before.push(ids[: used - 1])


def test_text_output_without_stops_finishes_with_all_text() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode(SENTENCES[2], add_special_tokens=False)
    output = TextOutput(tokenizer)
    shown = "".join(output.push_token(token_id).text for token_id in ids)
    assert output.pending == "" and shown + output.finish().text == SENTENCES[2]


def test_replaying_a_resumed_run_gives_the_same_state() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode("one STO P two STOP three", add_special_tokens=False)
    for cut in range(len(ids)):
        replayed, output = TextOutput(tokenizer, ["STOP"]), TextOutput(tokenizer, ["STOP"])
        first = replayed.push(ids[:cut])
        expected = "".join(output.push_token(token_id).text for token_id in ids[:cut])
        assert first.text == expected and replayed.pending == output.pending
