"""Runs in this process: chunks, interruptions, resumption, ends. The model is tiny, all else is real."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model_directory import END_ID, save_tiny_model

from tokenswift_cli import durable
from tokenswift_cli.config import CheckpointConfig, Config, GenerationConfig, ModelConfig, RunConfig
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.errors import (
    NonFiniteLogitsError,
    PreflightError,
    ResumeRefusedError,
    RunDirectoryError,
    UsageError,
)
from tokenswift_cli.events import (
    CheckpointSaved,
    LoopDetected,
    Notice,
    PrefillProgress,
    Progress,
    RunFinished,
    RunStarted,
    TextAppended,
)
from tokenswift_cli.prompt_input import PromptText
from tokenswift_cli.runner import encode_prompt, generate, resume
from tokenswift_cli.yaml_config import load_run_yaml

PROMPT = PromptText("Once upon a time, é 😀", "Once upon a time, é 😀".encode(), "test")
SAMPLING = SamplingSettings(seed=11, min_p=0.05, penalty=1.1, penalty_window=50)
COUNT = 300


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def config(model_directory, tmp_path):
    return Config(
        model=ModelConfig(name=str(model_directory)),
        sampling=SAMPLING,
        generation=GenerationConfig(max_tokens=COUNT, ignore_eos=True),
        drafting=DraftingSettings(method="lookup"),
        run=RunConfig(directory=str(tmp_path / "run"), chunk_tokens=50),
    )


def run(config, publish=lambda event: None, prompt=PROMPT, **options):
    return generate(config, prompt, publish=publish, **options)


def go_on(config, publish=lambda event: None, **changes):
    """Resume with changed generation settings."""
    directory = Path(config.run.directory)
    stored = load_run_yaml((directory / "run.yaml").read_text())
    requested = replace(stored, generation=replace(stored.generation, **changes))
    return resume(directory, stored, requested, publish=publish)


def tokens_of(config):
    return np.fromfile(Path(config.run.directory) / "tokens.bin", dtype="<u4").tolist()


def text_of(config):
    return (Path(config.run.directory) / "output.txt").read_bytes().decode("utf-8")


@pytest.fixture(scope="module")
def undisturbed(model_directory, tmp_path_factory):
    config = Config(
        model=ModelConfig(name=str(model_directory)),
        sampling=SAMPLING,
        generation=GenerationConfig(max_tokens=COUNT, ignore_eos=True),
        drafting=DraftingSettings(method="autoregressive"),
        run=RunConfig(directory=str(tmp_path_factory.mktemp("plain") / "run")),
    )
    outcome = run(config)
    assert (outcome.finish_reason, outcome.tokens, outcome.exit_code) == ("length", COUNT, 0)
    return tokens_of(config), text_of(config)


def signal_after(tokens, number, counter):
    """A publisher that sends this process a signal once so many tokens are there."""

    def publish(event):
        if isinstance(event, Progress) and event.tokens >= tokens and not counter:
            counter.append(event.tokens)
            os.kill(os.getpid(), number)

    return publish


@pytest.fixture(autouse=True)
def no_throttle(monkeypatch):
    monkeypatch.setattr("tokenswift_cli.session._PROGRESS_INTERVAL", 0.0)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 128, 5000])
@pytest.mark.parametrize("method", ["lookup", "auto"])
def test_chunks_and_methods_do_not_change_the_text(config, undisturbed, chunk_tokens, method):
    """Case 6."""
    config = replace(
        config,
        run=replace(config.run, chunk_tokens=chunk_tokens),
        drafting=DraftingSettings(method=method),
    )
    run(config)
    assert (tokens_of(config), text_of(config)) == undisturbed


def test_output_is_the_decoded_tokens(config, undisturbed, model_directory):
    """Case 12: the file equals decoding all ids at once, up to an unfinished last character."""
    from transformers import AutoTokenizer

    tokens, text = undisturbed
    decoded = AutoTokenizer.from_pretrained(model_directory).decode(tokens, skip_special_tokens=True)
    assert decoded.rstrip("�").startswith(text.rstrip("�")) and decoded.startswith(text)
    assert len(decoded) - len(text) <= 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_resumes_to_the_same_text(config, undisturbed, number, code):
    """Cases 19 and 27: several interruptions, inside and at the border of chunks."""
    stopped = []
    outcome = run(config, signal_after(70, number, stopped))
    assert (outcome.finish_reason, outcome.exit_code) == ("interrupted", code)
    assert 70 <= outcome.tokens < COUNT and len(tokens_of(config)) == outcome.tokens
    again = go_on(config, signal_after(150, number, []))
    assert again.finish_reason == "interrupted" and again.tokens >= 150
    events = []
    last = go_on(config, events.append)
    assert (last.finish_reason, last.exit_code, last.tokens) == ("length", 0, COUNT)
    assert (tokens_of(config), text_of(config)) == undisturbed
    assert any(isinstance(event, Notice) and "Restored" in event.message for event in events)
    started = next(event for event in events if isinstance(event, RunStarted))
    assert started.resumed_tokens == again.tokens


def test_interrupt_while_reading_the_prompt(config, undisturbed):
    def publish(event):
        if isinstance(event, PrefillProgress) and event.done_tokens == 0:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = run(config, publish)
    assert (outcome.finish_reason, outcome.tokens, outcome.exit_code) == ("interrupted", 0, 130)
    go_on(config)
    assert (tokens_of(config), text_of(config)) == undisturbed


def test_second_interrupt_stops_at_once_and_keeps_checkpoints(config, undisturbed):
    """Case 27."""

    def publish(event):
        if isinstance(event, Progress) and event.tokens >= 120:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(config, publish)
    assert tokens_of(config)[:100] == undisturbed[0][:100]
    go_on(config)
    assert (tokens_of(config), text_of(config)) == undisturbed


@pytest.mark.parametrize("damage", ["torn tail", "flipped text", "flipped token", "newest manifest"])
def test_damaged_runs_resume_to_the_same_text(config, undisturbed, damage):
    """Case 21: back to the last good point, with a message, then the same text."""
    run(config, signal_after(170, signal.SIGINT, []))
    directory = Path(config.run.directory)
    if damage == "torn tail":
        with (directory / "tokens.bin").open("ab") as file:
            file.write(b"\x01\x00\x00\x00\x02")
    elif damage == "flipped text":
        data = bytearray((directory / "output.txt").read_bytes())
        data[20] ^= 1
        (directory / "output.txt").write_bytes(data)
    elif damage == "flipped token":
        data = bytearray((directory / "tokens.bin").read_bytes())
        data[4 * 120] ^= 1
        (directory / "tokens.bin").write_bytes(data)
    else:
        newest = sorted((directory / "checkpoints").iterdir())[-1]
        newest.write_bytes(newest.read_bytes()[:40])
    events = []
    outcome = go_on(config, events.append)
    assert outcome.finish_reason == "length"
    assert (tokens_of(config), text_of(config)) == undisturbed
    assert any(isinstance(event, Notice) and event.level == "warning" for event in events)


def test_finished_run_is_extended(config, undisturbed):
    short = replace(config, generation=replace(config.generation, max_tokens=90))
    assert run(short).finish_reason == "length"
    events = []
    assert go_on(short, events.append).tokens == 90
    assert any("larger --max-tokens" in e.message for e in events if isinstance(e, Notice))
    assert go_on(short, max_tokens=COUNT).tokens == COUNT
    assert (tokens_of(config), text_of(config)) == undisturbed
    stored = load_run_yaml((Path(config.run.directory) / "run.yaml").read_text())
    assert stored.generation.max_tokens == COUNT


@pytest.mark.parametrize("chunk_tokens", [1, 50])
@pytest.mark.parametrize("method", ["lookup", "autoregressive"])
def test_stop_string_over_token_and_chunk_borders(config, undisturbed, chunk_tokens, method):
    """Case 11: the stop string begins in one chunk and ends in another; it is not written."""
    _, text = undisturbed
    place = len(text) // 2
    stop = text[place : place + 4]
    place = text.index(stop)
    config = replace(
        config,
        generation=replace(config.generation, stop=("never", stop)),
        run=replace(config.run, chunk_tokens=chunk_tokens),
        drafting=DraftingSettings(method=method),
    )
    pieces = []
    outcome = run(config, lambda e: pieces.append(e.text) if isinstance(e, TextAppended) else None)
    assert outcome.finish_reason == "stop"
    assert text_of(config) == text[:place] == "".join(pieces)
    tokens = tokens_of(config)
    assert tokens == undisturbed[0][: len(tokens)] and len(tokens) < COUNT
    assert go_on(config, max_tokens=COUNT + 50).tokens == len(tokens)


def test_extension_finds_a_stop_string_that_began_before(config, undisturbed):
    """What was released at the first end is taken back when it becomes part of a stop string."""
    _, text = undisturbed
    place = text.index(" ", 60) if " " in text[60:] else 80
    stop = text[place : place + 6]
    place = text.index(stop)
    whole = replace(config, generation=replace(config.generation, stop=(stop,)))
    run(whole)
    expected = (tokens_of(whole), text_of(whole))
    part = replace(
        whole,
        run=replace(config.run, directory=config.run.directory + "-part"),
        generation=replace(whole.generation, max_tokens=len(expected[0]) - 2),
    )
    assert run(part).finish_reason == "length"
    assert go_on(part, max_tokens=COUNT).finish_reason == "stop"
    assert (tokens_of(part), text_of(part)) == expected


def test_end_of_text_ends_the_run(config, undisturbed):
    """Case 10, through the run: the end token is the last one and not part of the text."""
    sampling = replace(SAMPLING, suppress_ids=tuple(range(250)), penalty=1.0, min_p=0.0, temperature=3.0)
    config = replace(config, sampling=sampling, generation=GenerationConfig(max_tokens=COUNT))
    outcome = run(config)
    tokens = tokens_of(config)
    assert outcome.finish_reason == "eos" and tokens[-1] == END_ID and END_ID not in tokens[:-1]
    assert "<end>" not in text_of(config)
    assert go_on(config, max_tokens=COUNT + 1).tokens == len(tokens)


def test_loop_alarm_and_loop_stop(config):
    """Case 23: a model that can only say two tokens."""
    sampling = SamplingSettings(temperature=0.0, penalty=1.0, suppress_ids=tuple(range(2, 257)))
    config = replace(config, sampling=sampling)
    events = []
    assert run(config, events.append).finish_reason == "length"
    assert any(isinstance(event, LoopDetected) for event in events)
    stopping = replace(
        config,
        generation=replace(config.generation, on_loop="stop"),
        run=replace(config.run, directory=config.run.directory + "-stop"),
    )
    outcome = run(stopping)
    assert outcome.finish_reason == "loop" and outcome.tokens < COUNT
    assert tokens_of(stopping) == tokens_of(config)[: outcome.tokens]


def test_resume_refuses_other_settings(config):
    """Case 22."""
    run(config, signal_after(60, signal.SIGINT, []))
    directory = Path(config.run.directory)
    stored = load_run_yaml((directory / "run.yaml").read_text())
    for changed in (
        replace(stored, sampling=replace(stored.sampling, min_p=0.2)),
        replace(stored, generation=replace(stored.generation, min_tokens=3)),
    ):
        with pytest.raises(ResumeRefusedError, match=r"min_p was 0.05 and is 0.2|min_tokens was 0 and is 3"):
            resume(directory, stored, changed, publish=lambda event: None)


def test_resume_refuses_another_model(config, tmp_path):
    """Case 22: same architecture, other weights."""
    run(config, signal_after(60, signal.SIGINT, []))
    other = save_tiny_model(tmp_path / "other", rms_norm_eps=1e-3)
    from safetensors.torch import load_file, save_file

    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 1.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    directory = Path(config.run.directory)
    stored = load_run_yaml((directory / "run.yaml").read_text())
    with pytest.raises(ResumeRefusedError, match=r"model\.safetensors"):
        resume(
            directory, stored, replace(stored, model=ModelConfig(name=str(other))), publish=lambda event: None
        )
    before = len(tokens_of(config))
    moved = save_tiny_model(tmp_path / "moved")
    outcome = resume(
        directory, stored, replace(stored, model=ModelConfig(name=str(moved))), publish=lambda event: None
    )
    assert outcome.tokens == COUNT > before


def test_dry_run_writes_nothing(config):
    events = []
    assert run(config, events.append, dry_run=True).finish_reason == "dry-run"
    assert not Path(config.run.directory).exists()
    text = " ".join(event.message for event in events if isinstance(event, Notice))
    assert "positions" in text and "GiB" in text


def test_too_long_for_the_model_is_refused_with_numbers(config):
    """Case 14: before anything is written."""
    config = replace(config, generation=replace(config.generation, max_tokens=16384))
    with pytest.raises(PreflightError, match=r"16384.*--max-tokens \d+ or less"):
        run(config)
    assert not Path(config.run.directory).exists()


@pytest.mark.parametrize("what", ["memory", "disk"])
def test_too_big_for_the_machine_is_refused_with_numbers(config, monkeypatch, what):
    """Case 14."""
    if what == "memory":
        monkeypatch.setattr("tokenswift_cli.models.target.Target.free_bytes", lambda self: 1 << 20)
    else:
        monkeypatch.setattr("tokenswift_cli.runner.free_disk", lambda path: 1000)
    with pytest.raises(PreflightError, match="GiB"):
        run(config)
    assert not Path(config.run.directory).exists()


def test_non_finite_logits_keep_the_checkpoint(config, undisturbed, monkeypatch):
    from tokenswift_cli.models.target import Target

    stock = Target.verify
    monkeypatch.setattr(
        Target,
        "verify",
        lambda self, *given: stock(self, *given) * (torch.nan if self.cache.length > 130 else 1.0),
    )
    with pytest.raises(NonFiniteLogitsError, match=r"position \d+"):
        run(config)
    monkeypatch.undo()
    assert tokens_of(config) and tokens_of(config) == undisturbed[0][: len(tokens_of(config))]
    go_on(config)
    assert (tokens_of(config), text_of(config)) == undisturbed


def test_full_disk_stops_and_the_run_resumes(config, undisturbed, monkeypatch):
    """Case 34."""
    saved = []

    def full(*given, **named):
        raise OSError(28, "No space left on device")

    def publish(event):
        if isinstance(event, CheckpointSaved) and not saved:
            saved.append(event)
            monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(RunDirectoryError, match="resume"):
        run(config, publish)
    monkeypatch.undo()
    go_on(config)
    assert (tokens_of(config), text_of(config)) == undisturbed


def test_metrics_have_one_record_per_chunk(config):
    """Case 18: acceptance by position, for each drafter, is in the records of the chunks."""
    events = []
    run(config, events.append)
    lines = (Path(config.run.directory) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert sum(record["chunk_tokens"] for record in records) == COUNT == records[-1]["tokens"]
    assert len(records) == sum(isinstance(event, CheckpointSaved) for event in events)
    assert all(0 <= value <= 1 for value in records[-1]["distinct"])
    assert all(0 <= record["acceptance_rate"] <= 1 and record["drafters"] for record in records[1:-1])
    finished = events[-1]
    assert isinstance(finished, RunFinished) and finished.tokens == COUNT


def test_run_directory_is_not_reused(config):
    run(config)
    with pytest.raises(UsageError, match="resume"):
        run(config)


def test_prompts_are_encoded_whole_or_refused(model_directory):
    """Case 28."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_directory, model_max_length=4)
    encode = partial(encode_prompt, tokenizer)
    assert tokenizer.decode(encode("a long prompt\r\n", False, None)) == "a long prompt\r\n"
    chat = tokenizer.decode(encode("hello", True, "be brief"))
    assert chat == "[system]be brief[user]hello"
    with pytest.raises(UsageError, match="--chat"):
        encode("hello", False, "be brief")
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="template"):
        encode("hello", True, None)


def test_special_tokens_are_no_stop_strings(config):
    """Never silently ignored: their text is never written, so they could never be found."""
    config = replace(config, generation=replace(config.generation, stop=("<end>",)))
    with pytest.raises(UsageError, match="special token"):
        run(config)


def test_a_relative_model_is_found_from_another_folder(config, undisturbed, monkeypatch, tmp_path):
    model = Path(config.model.name)
    monkeypatch.chdir(model.parent)
    run(replace(config, model=ModelConfig(name=model.name)), signal_after(60, signal.SIGINT, []))
    monkeypatch.chdir(tmp_path)
    go_on(config)
    assert (tokens_of(config), text_of(config)) == undisturbed


def test_a_symbolic_link_keeps_its_name_and_the_demo_stays_the_demo(tmp_path, monkeypatch):
    from tokenswift_cli.runner import _with_absolute_model

    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / "model.gguf").symlink_to(tmp_path / "blob")
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    names = {
        name: _with_absolute_model(Config(model=ModelConfig(name=name))).model.name
        for name in ("model.gguf", "demo", "organisation/model")
    }
    assert names == {
        "model.gguf": str(tmp_path / "model.gguf"),
        "demo": "demo",
        "organisation/model": "organisation/model",
    }


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_occupied_run_directory_is_refused_before_the_model_loads(config, dry_run):
    directory = Path(config.run.directory)
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    config = replace(config, model=ModelConfig(name="no-such/model", offline=True))
    with pytest.raises(UsageError, match="run"):
        run(config, dry_run=dry_run)


def test_ids_beyond_the_vocabulary_are_refused(config):
    config = replace(config, sampling=replace(SAMPLING, suppress_ids=(3, 999)))
    with pytest.raises(UsageError, match=r"999.*257"):
        run(config)
    assert not Path(config.run.directory).exists()


def test_a_finished_run_still_knows_its_model(config, tmp_path):
    """Case 22: no other tokenizer decodes its tokens."""
    run(config)
    other = save_tiny_model(tmp_path / "other", rms_norm_eps=1e-3)
    directory = Path(config.run.directory)
    stored = load_run_yaml((directory / "run.yaml").read_text())
    with pytest.raises(ResumeRefusedError, match="another model"):
        resume(
            directory, stored, replace(stored, model=ModelConfig(name=str(other))), publish=lambda event: None
        )


def test_a_loop_that_began_before_a_resume_stops_it(config):
    """Case 23: ``--on-loop stop`` given later still stops."""
    sampling = SamplingSettings(temperature=0.0, penalty=1.0, suppress_ids=tuple(range(2, 257)))
    config = replace(config, sampling=sampling)
    run(config)
    outcome = go_on(config, max_tokens=COUNT + 500, on_loop="stop")
    assert (outcome.finish_reason, outcome.tokens) == ("loop", COUNT)
    assert go_on(config, max_tokens=COUNT + 20, on_loop="warn").tokens == COUNT + 20


def test_shown_text_is_not_shown_again_after_an_extension(config, undisturbed):
    """The pieces of both sessions together are output.txt."""
    text = undisturbed[1]
    stop = text[-1] + "never this"
    config = replace(config, generation=replace(config.generation, stop=(stop,)))
    pieces = []

    def publish(event):
        if isinstance(event, TextAppended):
            pieces.append(event.text)

    run(config, publish)
    go_on(config, publish, max_tokens=COUNT + 60)
    assert "".join(pieces) == text_of(config)


def test_the_next_command_works(config):
    """What is printed at the end of a run really goes on."""
    events = []
    run(config, events.append)
    assert events[-1].resume_command.endswith(f"--max-tokens {2 * COUNT}")


def test_weights_that_do_not_fit_are_refused_before_they_are_read(config, monkeypatch):
    """Case 14."""
    monkeypatch.setattr("tokenswift_cli.models.loading.free_memory", lambda device: 100_000)
    monkeypatch.setattr("tokenswift_cli.models.loading._load_weights", None)
    with pytest.raises(PreflightError, match=r"GiB.*smaller model"):
        run(config)


def test_length_of_a_rope_switch_is_the_limit():
    """Case 15: factors that switch with the length would make the text depend on how it was cut."""
    from transformers import LlamaConfig, Phi3Config

    from tokenswift_cli.models.loading import position_limit

    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    phi = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        pad_token_id=0,
        max_position_embeddings=4000,
        original_max_position_embeddings=100,
        rope_parameters={**rope, "original_max_position_embeddings": 100},
    )
    assert position_limit(phi) == 100
    assert position_limit(LlamaConfig(max_position_embeddings=4000)) == 4000


def with_journal(config, mode="always"):
    return replace(config, checkpoint=CheckpointConfig(kv=mode))


@pytest.mark.parametrize("tokens", [1, 50, 130])
def test_resume_takes_the_cache_from_the_journal(config, undisturbed, tokens):
    """Case 19: at a chunk border and inside a chunk; says what it restored and what it computed."""
    config = with_journal(config)
    assert run(config, signal_after(tokens, signal.SIGINT, [])).finish_reason == "interrupted"
    events = []
    go_on(config, events.append)
    assert (tokens_of(config), text_of(config)) == undisturbed
    said = next(event.message for event in events if getattr(event, "message", "").startswith("Key-value"))
    assert re.search(r": [1-9]\d* rows read from the journal in .* s, 0 computed again", said), said
    record = [json.loads(line) for line in (Path(config.run.directory) / "metrics.jsonl").open()]
    sessions = [line["session"] for line in record if "session" in line]
    assert [session["restored_rows"] > 0 for session in sessions] == [False, True]
    assert sessions[1]["computed_rows"] == 0


@pytest.mark.parametrize("end", ["stop", "loop"])
def test_a_text_that_ends_within_a_drafted_block_keeps_its_journal(config, end):
    """The last step may commit more rows than the text takes tokens; a resume needs none of them."""
    # Of few tokens a text repeats itself soon, so that drafts are long.
    greedy = SamplingSettings(temperature=0.0, penalty=1.0, suppress_ids=tuple(range(2, 257)))
    config = with_journal(replace(config, sampling=greedy, drafting=DraftingSettings(method="lookup")))
    if end == "loop":
        generations = [replace(config.generation, on_loop="stop")]
    else:
        config = replace(config, sampling=replace(SAMPLING, temperature=0.0, penalty=1.0))
        plain = replace(config.run, directory=config.run.directory + "-plain")
        run(replace(config, run=plain))
        whole = text_of(replace(config, run=plain))
        # Each place that may be in the middle of a block.
        generations = [replace(config.generation, stop=(whole[at : at + 9],)) for at in range(150, 162)]
    for number, generation in enumerate(generations):
        directory = f"{config.run.directory}-{number}"
        ended = replace(config, generation=generation, run=replace(config.run, directory=directory))
        outcome = run(ended)
        assert outcome.finish_reason == end
        limit = outcome.prompt_tokens + outcome.tokens - 1
        assert max(int(path.stem.split("-")[1]) for path in Path(directory, "kv").iterdir()) == limit


def test_an_interrupted_reading_is_not_done_again(config, undisturbed):
    """The rows computed until Ctrl-C go into the journal, and files not reached yet stay."""
    config = with_journal(config)
    directory = Path(config.run.directory)
    run(replace(config, run=replace(config.run, chunk_tokens=256)))
    files = sorted((directory / "kv").iterdir())
    first, last = (int(word) for word in files[1].stem.split("-"))
    files[1].unlink()
    stored = load_run_yaml((directory / "run.yaml").read_text())
    requested = replace(
        stored,
        generation=replace(stored.generation, max_tokens=COUNT + 30),
        drafting=replace(stored.drafting, prefill_chunk=20),
    )

    def stop_in_the_gap(event):
        if isinstance(event, PrefillProgress) and event.done_tokens > first + 50:
            os.kill(os.getpid(), signal.SIGINT)

    assert resume(directory, stored, requested, publish=stop_in_the_gap).finish_reason == "interrupted"
    assert files[2].exists()
    events = []
    stored = load_run_yaml((directory / "run.yaml").read_text())
    resume(directory, stored, requested, publish=events.append)
    said = next(event.message for event in events if getattr(event, "message", "").startswith("Key-value"))
    computed = int(re.search(r"(\d+) computed", said)[1])
    assert 0 < computed < last - first - 50
    assert tokens_of(config)[:COUNT] == undisturbed[0]


@pytest.mark.parametrize("harm", ["damaged", "missing", "foreign", "all missing"])
def test_what_the_journal_lacks_is_computed(config, undisturbed, harm):
    """Case 21."""
    config = with_journal(replace(config, run=replace(config.run, chunk_tokens=256)))
    directory = Path(config.run.directory)
    run(replace(config, generation=replace(config.generation, max_tokens=280)))
    files = sorted((directory / "kv").iterdir())
    assert len(files) == 3
    if harm == "damaged":
        files[1].write_bytes(files[1].read_bytes()[:-1] + b"?")
    elif harm == "missing":
        files[1].unlink()
    elif harm == "foreign":
        files[1].write_bytes(files[0].read_bytes())
    else:
        shutil.rmtree(directory / "kv")
    events = []
    go_on(config, events.append, max_tokens=COUNT)
    assert (tokens_of(config), text_of(config)) == undisturbed
    warned = [event.message for event in events if isinstance(event, Notice) and event.level == "warning"]
    assert len(warned) == (harm in ("damaged", "foreign"))
    assert all("computed again" in message and files[1].name in message for message in warned)


@pytest.mark.parametrize(("mode", "kept"), [("never", False), ("auto", False), ("always", True)])
def test_the_journal_is_kept_as_asked(config, mode, kept):
    events = []
    run(with_journal(config, mode), events.append, dry_run=True)
    said = [event.message for event in events if isinstance(event, Notice)]
    line = next(message for message in said if message.startswith("key-value journal"))
    assert ("not kept" not in line) == kept
    assert next(message for message in said if message.startswith("heads:"))
    run(with_journal(config, mode))
    assert (Path(config.run.directory) / "kv").exists() == kept


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_a_journal_that_cannot_be_written(config, undisturbed, monkeypatch, mode):
    """Case 34: the text goes on without it, or stops where it was required."""
    stock = durable.replacing

    def full(path):
        if path.suffix == ".kv":
            raise OSError(28, "No space left on device", str(path))
        return stock(path)

    monkeypatch.setattr("tokenswift_cli.kv_journal.policy._LEAST_TOKENS", 1)
    monkeypatch.setattr(durable, "replacing", full)
    events = []
    if mode == "always":
        with pytest.raises(
            RunDirectoryError, match=r"disk is full.*tokenswift resume.*first \d+ tokens are safe"
        ):
            run(with_journal(config, mode), events.append)
        monkeypatch.undo()
        go_on(config)
    else:
        run(with_journal(config, mode), events.append)
        warned = [event.message for event in events if isinstance(event, Notice) and event.level == "warning"]
        assert len(warned) == 1 and "journal ends here (the disk is full)" in warned[0]
    assert (tokens_of(config), text_of(config)) == undisturbed
