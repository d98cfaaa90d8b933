"""``tokenswift bench`` on a tiny model: real methods, the real peer, one table."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model_directory import save_tiny_model

from tokenswift_cli import cli
from tokenswift_cli.bench import own_methods, transformers_peer, worker
from tokenswift_cli.bench.contestant import Trial
from tokenswift_cli.bench.llama_peer import LlamaPeer
from tokenswift_cli.bench.own_methods import OwnMethods
from tokenswift_cli.bench.pass_timer import timed_passes
from tokenswift_cli.bench.run_source import run_ids
from tokenswift_cli.bench.settings import TRANSFORMERS, TRANSFORMERS_LOOKUP, BenchSettings
from tokenswift_cli.bench.transformers_peer import TransformersPeer
from tokenswift_cli.commands.resume import read_stored_config
from tokenswift_cli.config import Config, ModelConfig
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import ModelError
from tokenswift_cli.models.target import Target

SETTINGS = BenchSettings(prefix_tokens=(20, 60), tokens=12, warm_up=4, methods=("lookup", "autoregressive"))


def silent(message: str) -> None:
    pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=512)


@pytest.fixture(scope="module")
def config(model: Path) -> Config:
    return Config(model=ModelConfig(name=str(model)))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("It was a dark and stormy night; the rain fell in torrents. " * 4, encoding="utf-8")
    return path


class Here:
    """Runs a contestant in this process, in the place of a worker."""

    def __init__(self, name: str, build: Any, arguments: Sequence[object], say: Any) -> None:
        self._contestant = build(*arguments, say)

    def close(self) -> None:
        pass

    def call(self, method: str, *arguments: object) -> Any:
        return getattr(self._contestant, method)(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contestant, name)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "Worker", Here)
    yield


def bench(model: Path, book: Path, *words: str) -> int:
    return cli.run(
        ["bench", "-m", str(model), "-p", str(book), "--prefix-tokens", "20,60", "-n", "12", "--warm-up", "4",
         "--repeats", "2", "-q", *words]
    )  # fmt: skip


def test_one_json_object_with_a_row_for_each_method_and_context(
    here: None, model: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "bench.md"
    assert bench(model, book, "--json", "-o", str(table), "--peer-tokens", "5") == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    methods = ["auto", "lookup", "autoregressive", TRANSFORMERS, TRANSFORMERS_LOOKUP]
    assert [(row["context"], row["method"]) for row in data["rows"]] == [
        (context, method) for context in (20, 60) for method in methods
    ]
    for row in data["rows"]:
        own = row["method"] in methods[:3]
        assert len(row["repeats"]) == 2 and row["tokens_per_second"] > 0
        assert row["speedup_vs_autoregressive"] > 0 and row["speedup_vs_transformers"] > 0
        assert row["host_ms_per_step"] >= 0 and row["peak_gib"] > 0 and row["gigabytes_per_second"] > 0
        assert 1 <= row["tokens"] <= (12 if own else 5)
        assert row["text_differs"] is None and row["failure"] is None
    plain = [row for row in data["rows"] if row["method"] == "autoregressive"]
    assert all(row["tokens"] == row["steps"] == 12 and row["acceptance_rate"] is None for row in plain)
    assert data["machine"]["dtype"] == "float32" and data["machine"]["decoder_path"]
    assert any("llama.cpp is not measured" in notice for notice in data["notices"])
    assert table.read_text(encoding="utf-8").count("\n| ") == 10


def test_markdown_where_standard_output_is_no_terminal(
    here: None, model: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(model, book, "--peers", "none", "--methods", "autoregressive") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("| context | method |") and captured.err == ""


def test_a_method_that_writes_another_text_is_reported_loudly(
    here: None, model: Path, book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = OwnMethods.decode

    def forge(self: OwnMethods, method: str, warm_up: int, tokens: int) -> Trial:
        trial = honest(self, method, warm_up, tokens)
        if method != "lookup" or len(self._prompt) != 60:
            return trial
        assert trial.text is not None
        return replace(trial, text=(*trial.text[:3], trial.text[3] ^ 1, *trial.text[4:]))

    monkeypatch.setattr(OwnMethods, "decode", forge)
    assert bench(model, book, "--peers", "none", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["same_text"] is False
    assert [(r["context"], r["method"]) for r in data["rows"] if r["text_differs"] == 3] == [(60, "lookup")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--prefix-tokens", "400"], "holds only 236 tokens"),
        (["--peers", "llama.cpp"], "reads .gguf files"),
        (["--methods", "heads"], "give --heads DIR"),
        (["--min-p", "7"], "--min-p"),
        (["-o", "."], "is a directory"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], expected: str, here: None, model: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(model, book, "--peers", "none", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and expected in captured.err


@pytest.mark.parametrize(
    ("error", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (ModelError("gone"), 1)]
)
def test_an_interrupt_shows_what_was_measured_so_far(
    error: signal.Signals | ModelError,
    code: int,
    here: None,
    model: Path,
    book: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    honest = OwnMethods.decode

    def stop(self: OwnMethods, method: str, warm_up: int, tokens: int) -> Trial:
        if len(self._prompt) == 60 and method == "autoregressive":
            if isinstance(error, ModelError):
                raise error
            os.kill(os.getpid(), error)
        return honest(self, method, warm_up, tokens)

    monkeypatch.setattr(OwnMethods, "decode", stop)
    try:
        assert bench(model, book, "--peers", "none", "--json") == code
    except SystemExit as stopped:
        assert stopped.code == code == 143
    data = json.loads(capsys.readouterr().out)
    assert data["interrupted"] is True
    assert [row["method"] for row in data["rows"]] == ["auto", "lookup", "autoregressive", "auto", "lookup"]


def test_nothing_is_printed_when_nothing_was_measured(
    here: None, model: Path, book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OwnMethods, "prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert bench(model, book, "--peers", "none", "--json") == 130
    assert capsys.readouterr().out == ""


def test_a_peer_that_does_not_start_is_a_row_with_the_reason(
    here: None, model: Path, book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: TransformersPeer, config: Config, run: Path | None, say: Any) -> None:
        raise ModelError("No room for another model.")

    monkeypatch.setattr(TransformersPeer, "__init__", refuse)
    assert bench(model, book, "--methods", "autoregressive", "--json") == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    failed = [row for row in rows if row["method"] == TRANSFORMERS]
    assert len(failed) == 2 and all(row["failure"] == "No room for another model." for row in failed)
    assert bench(model, book, "--methods", "autoregressive", "--peers", "transformers") == 1
    assert "No room for another model." in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_command_in_processes_of_its_own(
    model: Path, book: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench(model, book, "--peers", "transformers", "--json") == 0
    assert len(json.loads(capfd.readouterr().out)["rows"]) == 8


# --- a run's own text -------------------------------------------------------------------------------


@pytest.fixture
def journal_run(model: Path, tmp_path: Path) -> Path:
    run_dir = tmp_path / "run"
    words = ["-m", str(model), "--prompt-text", "Once upon a time", "-n", "90", "--ignore-eos"]
    code = cli.run(["generate", *words, "--kv-journal", "always", "-o", str(run_dir), "-q"])
    assert code == 0
    return run_dir


def test_a_runs_text_is_continued_from_its_journal(
    here: None, journal_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is computed again, by us or by transformers, and what follows is the run's own text."""
    capsys.readouterr()
    read: list[int] = []
    continued: list[tuple[int, ...]] = []
    honest, decode = Target.read, OwnMethods.decode
    monkeypatch.setattr(Target, "read", lambda self, ids: (read.extend(ids), honest(self, ids))[1])

    def keep(self: OwnMethods, method: str, warm_up: int, tokens: int) -> Trial:
        trial = decode(self, method, warm_up, tokens)
        assert trial.text is not None
        continued.append(trial.text)
        return trial

    monkeypatch.setattr(OwnMethods, "decode", keep)
    before = {path: path.read_bytes() for path in sorted(journal_run.rglob("*")) if path.is_file()}
    words = ["--prefix-tokens", "70", "-n", "8", "--warm-up", "2", "--repeats", "1", "--json", "-q"]
    assert cli.run(["bench", "--from-run", str(journal_run), *words, "--peers", "transformers"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["auto", "lookup", "autoregressive", TRANSFORMERS]
    assert not any(row["failure"] or row["prefill_seconds"] for row in rows)
    assert len(read) == 0
    ids = run_ids(journal_run)
    assert set(continued) == {tuple(ids[70:80])}
    assert before == {path: path.read_bytes() for path in sorted(journal_run.rglob("*")) if path.is_file()}


def test_transformers_has_the_rows_that_it_would_compute(journal_run: Path) -> None:
    config = read_stored_config(journal_run)
    prompt = run_ids(journal_run)[:70]
    restored, computed = (TransformersPeer(config, run, silent) for run in (journal_run, None))
    assert restored.prepare(prompt).seconds is None and computed.prepare(prompt).seconds is not None
    for one, other in zip(restored._cache.layers, computed._cache.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-5)


def test_a_runs_text_comes_alone(
    here: None, journal_run: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", "--from-run", str(journal_run), "-p", str(book)]) == 2
    assert "--from-run brings its own text" in capsys.readouterr().err
    assert cli.run(["bench", "--from-run", str(journal_run), "--prefix-tokens", "9999", "-q"]) == 2
    assert "holds only" in capsys.readouterr().err


# --- our own methods --------------------------------------------------------------------------------


def test_a_longer_context_is_read_on_from_the_shorter_one(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OwnMethods(config, SETTINGS, silent)
    prompt = [(7 * i + 3) % 256 for i in range(60)]
    read: list[int] = []
    honest = own._target.read
    monkeypatch.setattr(own._target, "read", lambda ids: (read.extend(ids), honest(ids))[1])
    own.prepare(prompt[:20])
    short = [own.decode(method, 4, 12).text for method in ("lookup", "autoregressive", "lookup")]
    own.prepare(prompt)
    assert read == prompt[:59], "every token but the last is read once"
    long = own.decode("autoregressive", 4, 12).text
    assert short[0] == short[1] == short[2]

    fresh = OwnMethods(config, SETTINGS, silent)
    fresh.prepare(prompt)
    assert fresh.decode("lookup", 0, 16).text == long
    own.prepare(prompt[1:20])
    assert own._target.cache.length == 18, "a context that does not go on is read anew"


def test_passes_are_timed_from_outside_and_left_as_they_were(config: Config) -> None:
    target = OwnMethods(config, SETTINGS, silent)._target
    target.read([1, 2, 3])
    with timed_passes(target) as passes:
        target.verify([4])
        assert passes.seconds > 0
        assert passes.bytes_read == target.pass_bytes + target.cache.used_bytes
        once = passes.bytes_read
        target.verify([4, 5])
        assert passes.bytes_read == 2 * once
        passes.reset()
        assert passes.seconds == 0
    assert not {"verify", "draft"} & set(vars(target))


def test_warm_up_is_not_timed(config: Config) -> None:
    own = OwnMethods(config, SETTINGS, silent)
    own.prepare(list(range(20)))
    trial = own.decode("autoregressive", 4, 8)
    assert (trial.tokens, trial.steps) == (8, 8)
    assert trial.text is not None and len(trial.text) == 12
    assert trial.forward_seconds is not None and 0 < trial.forward_seconds < trial.seconds


def test_own_methods_use_the_products_settings(config: Config) -> None:
    assert own_methods.AUTOREGRESSIVE in OwnMethods(config, SETTINGS, silent)._drafting


# --- transformers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [TRANSFORMERS, TRANSFORMERS_LOOKUP])
def test_generate_goes_on_from_the_prefilled_context_each_time(
    config: Config, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = replace(config, sampling=SamplingSettings(temperature=0.0, penalty=1.0))
    peer = TransformersPeer(greedy, None, silent)
    prompt = [5, 6, 7, 8] * 10
    expected = peer._model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=14)[
        0, 40:
    ].tolist()
    texts: list[list[int]] = []
    honest = peer._model.generate

    def keep(*arguments: Any, **keywords: Any) -> Any:
        result = honest(*arguments, **keywords)
        texts.append(result[0, 40:].tolist())
        return result

    monkeypatch.setattr(peer._model, "generate", keep)
    peer.prepare(prompt)
    for _ in range(2):
        trial = peer.decode(method, 4, 10)
        rows = [rows for _, _, rows in peer._clock._passes]
        assert rows[0] <= 1 + transformers_peer.PROMPT_LOOKUP_TOKENS, "the context is not read again"
        assert peer._cache.get_seq_length() == 39
        assert 1 <= trial.tokens <= 10 and trial.steps <= trial.tokens
        assert trial.forward_seconds is not None and 0 < trial.forward_seconds < trial.seconds
    assert texts == [expected, expected]
    if method == TRANSFORMERS:
        assert trial.tokens == trial.steps == 10 and trial.acceptance_rate is None


def test_the_authors_sampling_recommendation_does_not_apply(config: Config) -> None:
    peer = TransformersPeer(config, None, silent)
    assert peer._model.generation_config.top_k is None and peer._model.generation_config.eos_token_id is None


def test_a_sliding_window_survives_the_turns(tmp_path: Path) -> None:
    from models_in_memory import tiny_mistral

    directory = save_tiny_model(tmp_path / "model")
    mistral = tiny_mistral(16)
    mistral.save_pretrained(directory)
    peer = TransformersPeer(Config(model=ModelConfig(name=str(directory))), None, silent)
    peer.prepare([(3 * i) % 250 for i in range(40)])
    before = [layer.keys.clone() for layer in peer._cache.layers]
    for _ in range(2):
        peer.decode(TRANSFORMERS, 1, 5)
        assert all(torch.equal(a, layer.keys) for a, layer in zip(before, peer._cache.layers, strict=True))


# --- llama.cpp --------------------------------------------------------------------------------------


@pytest.mark.demo
@pytest.mark.parametrize("flash_attention", [False, True])
def test_llama_cpp_continues_the_same_context_each_time(flash_attention: bool) -> None:
    pytest.importorskip("llama_cpp")
    greedy = replace(Config(), sampling=SamplingSettings(temperature=0.0, penalty=1.0))
    peer = LlamaPeer(greedy, 128, 2, flash_attention, silent)
    prompt = [(11 * i) % 4000 + 100 for i in range(48)]
    texts = []
    honest = peer._llama.generate
    evaluated: list[int] = []
    plain_eval = peer._llama.eval

    def generate(*arguments: Any, **keywords: Any) -> Iterator[int]:
        texts.append([])
        for token in honest(*arguments, **keywords):
            texts[-1].append(token)
            yield token

    peer._llama.generate = generate
    peer._llama.eval = lambda tokens: (evaluated.append(len(tokens)), plain_eval(tokens))[1]
    peer.prepare(prompt[:20])
    peer.decode("llama.cpp", 1, 4)
    peer.prepare(prompt)
    assert evaluated[0] == 19 and 28 in evaluated, "the longer context goes on from the shorter one"
    first, second = (peer.decode("llama.cpp", 2, 6) for _ in range(2))
    assert first.tokens == second.tokens == 6 and first.seconds > 0
    assert texts[1] == texts[2] and len(texts[1]) == 8
    assert all(count == 1 for count in evaluated[2:] if count != 28)
