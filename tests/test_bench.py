"""The figures of the bench: settings, turns, medians, ratios, texts compared, and how they are shown."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.bench.contestant import Prefill, Trial
from tokenswift_cli.bench.contexts import bench_text, beyond_limit, contexts_of
from tokenswift_cli.bench.llama_peer import sampler_keywords, why_no_llama
from tokenswift_cli.bench.rows import LLAMA_VARIANTS, Row, differing, median, ratio, rows_of
from tokenswift_cli.bench.schedule import Entry, Measurements, measure, turns
from tokenswift_cli.bench.settings import PEERS, BenchSettings, read_bench_settings
from tokenswift_cli.bench.table import Report, cells, markdown, notes, rich_table
from tokenswift_cli.bench.transformers_peer import generation_keywords
from tokenswift_cli.bench.worker import ContestantFailedError, Worker
from tokenswift_cli.config import Config, ModelConfig, PromptConfig
from tokenswift_cli.engine.settings import METHODS, SamplingSettings
from tokenswift_cli.errors import ConfigError, ModelError, UsageError

FAILED = ContestantFailedError("its process ended")


class Recorder:
    """A contestant that notes its calls; it fails where it is told to."""

    def __init__(self, log: list[tuple[object, ...]], fails_at: object = None) -> None:
        self.log, self.fails_at = log, fails_at

    def facts(self) -> dict[str, object]:
        return {}

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        self.log.append(("read", len(prompt)))
        if self.fails_at == len(prompt):
            raise FAILED
        return Prefill(2.0, 5)

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        self.log.append((method, warm_up, tokens))
        if self.fails_at == method:
            raise FAILED
        return Trial(tokens, 1.0, tokens)


class Silent:
    def __init__(self) -> None:
        self.done = 0

    def phase(self, what: str) -> None:
        pass

    def turn_done(self) -> None:
        self.done += 1


def run(entries: list[Entry], contexts: Sequence[int], repeats: int) -> tuple[Measurements, Silent]:
    results, watcher = Measurements(), Silent()
    measure(entries, {n: [1] * n for n in contexts}, repeats, results, watcher)
    return results, watcher


# --- settings ---------------------------------------------------------------------------------------


def test_the_settings_say_what_is_measured() -> None:
    read = read_bench_settings(
        {"prefix_tokens": "8k, 2048,8000", "tokens": "1k", "methods": "lookup,auto", "peers": "transformers",
         "repeats": "5", "warm_up": "0", "peer_tokens": "7"},
        with_heads=False,
    )  # fmt: skip
    assert read == BenchSettings((2048, 8000), 1000, ("lookup", "auto"), ("transformers",), True, 5, 0, 7)
    assert read.capacity == 9000


def test_by_default_all_methods_that_can_run_and_all_peers_that_are_there() -> None:
    assert read_bench_settings({}, with_heads=False) == BenchSettings()
    assert read_bench_settings({}, with_heads=True).methods == METHODS
    assert read_bench_settings({"peers": None, "methods": "all"}, with_heads=True).methods == METHODS
    assert read_bench_settings({"peers": "none"}, with_heads=False).peers == ()
    everyone = read_bench_settings({"peers": "all"}, with_heads=False)
    assert everyone.peers == PEERS and not everyone.peers_required


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("prefix_tokens", "1", "--prefix-tokens must be at least 2, got 1"),
        ("prefix_tokens", "2k,,4k", "without empty parts"),
        ("prefix_tokens", "", "without empty parts"),
        ("prefix_tokens", "2.5", "--prefix-tokens must be a whole number"),
        ("tokens", "0", "--tokens must be at least 1"),
        ("methods", "auto,lokup", "did you mean lookup?"),
        ("methods", "tokenswift", "give --heads DIR"),
        ("methods", "all", "give --heads DIR"),
        ("peers", "llama", "did you mean llama.cpp?"),
        ("repeats", "0", "--repeats must be at least 1"),
        ("warm_up", "-1", "--warm-up must be at least 0"),
        ("peer_tokens", "x", "--peer-tokens must be a whole number"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match="1 configuration error") as refusal:
        read_bench_settings({name: text}, with_heads=False)
    assert expected in str(refusal.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        read_bench_settings({"tokens": "0", "repeats": "x", "peers": "y"}, with_heads=False)
    assert len(refusal.value.problems) == 3


# --- contexts ---------------------------------------------------------------------------------------


def test_contexts_are_the_beginnings_of_the_text() -> None:
    found = contexts_of(range(10), BenchSettings(prefix_tokens=(2, 10)), "a book")
    assert found == {2: [0, 1], 10: list(range(10))}
    with pytest.raises(UsageError, match=r"--prefix-tokens 11: the text \(a book\) holds only 10 tokens"):
        contexts_of(range(10), BenchSettings(prefix_tokens=(2, 11)), "a book")


def test_a_context_beyond_the_models_positions_is_measured_and_said() -> None:
    wanted = BenchSettings(prefix_tokens=(50, 64, 70), tokens=30, warm_up=6)
    assert beyond_limit(wanted, 106) == beyond_limit(wanted, None) == []
    (notice,) = beyond_limit(wanted, 99)
    assert "Context 64, 70: beyond the 99 positions" in notice


def test_the_default_text_is_long_and_named(tmp_path: Any) -> None:
    text = bench_text(PromptConfig())
    assert len(text.text) > 300_000 and "Python" in text.source
    book = tmp_path / "book.txt"
    book.write_text("Call me", encoding="utf-8")
    assert bench_text(PromptConfig(file=str(book))).text == "Call me"


# --- turns ------------------------------------------------------------------------------------------


def test_methods_take_turns_in_each_repeat() -> None:
    log: list[tuple[object, ...]] = []
    entries = [Entry(Recorder(log), ("auto", "plain"), 3, 20), Entry(Recorder(log), ("peer",), 1, 5, True)]
    results, watcher = run(entries, (10, 30), 2)
    one_round = [("auto", 3, 20), ("plain", 3, 20), ("peer", 1, 5)]
    assert log == [
        *[("read", 10)] * 2, *one_round, *one_round, *[("read", 30)] * 2, *one_round, *one_round
    ]  # fmt: skip
    assert watcher.done == turns(entries, 2, 2) == 12
    assert {key: len(trials) for key, trials in results.trials.items()} == {
        (context, method): 2 for context in (10, 30) for method in ("auto", "plain", "peer")
    }


@pytest.mark.parametrize(("fails_at", "before"), [(30, 1), ("peer", 0)])
def test_a_failing_peer_leaves_the_others_their_turns(fails_at: object, before: int) -> None:
    log: list[tuple[object, ...]] = []
    entries = [Entry(Recorder(log), ("auto",), 0, 5), Entry(Recorder(log, fails_at), ("peer",), 0, 5, True)]
    results, watcher = run(entries, (10, 30, 40), 1)
    assert len([entry for entry in log if entry[0] == "auto"]) == 3
    assert len(results.trials.get((10, "peer"), [])) == before
    assert (40, "peer") in results.failures and (10, "auto") not in results.failures
    assert watcher.done == 6
    rows = {(row.context, row.method): row for row in rows_of(results)}
    assert rows[40, "peer"].failure == "failed at a shorter context"
    assert rows[40, "peer"].tokens_per_second is None and rows[40, "auto"].tokens_per_second == 5.0


def test_a_failure_of_our_own_is_an_error() -> None:
    with pytest.raises(ContestantFailedError):
        run([Entry(Recorder([], "auto"), ("auto",), 0, 5)], (10,), 1)


# --- figures ----------------------------------------------------------------------------------------


def trial(speed: float, **more: Any) -> Trial:
    return Trial(**({"tokens": 100, "seconds": 100 / speed, "steps": 50} | more))


def measured(**by_method: list[Trial]) -> Measurements:
    results = Measurements()
    for method, trials in by_method.items():
        results.trials[100, method] = trials
        results.prefills[100, method] = Prefill(2.0, 3 << 30)
    return results


def test_figures_of_one_turn() -> None:
    turn = Trial(tokens=60, seconds=3.0, steps=20, forward_seconds=2.5, bytes_read=5e9)
    assert turn.tokens_per_second == 20.0
    assert turn.host_ms_per_step == pytest.approx(25.0)
    assert turn.gigabytes_per_second == pytest.approx(2.0)
    bare = Trial(tokens=0, seconds=0.0, steps=0)
    assert (bare.tokens_per_second, bare.host_ms_per_step, bare.gigabytes_per_second) == (None, None, None)


def test_rows_hold_medians_and_their_ratios() -> None:
    results = measured(
        autoregressive=[trial(10.0), trial(40.0), trial(20.0, peak_bytes=4 << 30)],
        auto=[trial(s, acceptance_rate=a, mean_acceptance_length=2.0) for s, a in ((30, 0.2), (90, 0.4))],
        transformers=[trial(5.0), trial(5.0)],
    )
    plain, auto, stock = rows_of(results)
    assert plain.tokens_per_second == pytest.approx(20.0)
    assert plain.repeats == pytest.approx((10.0, 40.0, 20.0))
    assert plain.speedup_vs_autoregressive == pytest.approx(1.0)
    assert plain.peak_gib == 4.0 and auto.peak_gib == 3.0
    assert auto.tokens_per_second == pytest.approx(60.0)
    assert auto.speedup_vs_autoregressive == pytest.approx(3.0)
    assert auto.speedup_vs_transformers == pytest.approx(12.0)
    assert auto.speedup_vs_llama_cpp is None and auto.flash_attention is None
    assert auto.acceptance_rate == pytest.approx(0.3) and plain.acceptance_rate is None
    assert stock.speedup_vs_autoregressive == pytest.approx(0.25)
    assert stock.prefill_tokens_per_second == pytest.approx(50.0)


def test_the_faster_of_llama_cpps_two_ways_is_kept() -> None:
    plain, flash = LLAMA_VARIANTS
    results = measured(**{"auto": [trial(30.0)], plain: [trial(10.0)], flash: [trial(15.0)]})
    auto, llama = rows_of(results)
    assert (llama.method, llama.flash_attention) == ("llama.cpp", True)
    assert llama.tokens_per_second == pytest.approx(15.0)
    assert auto.speedup_vs_llama_cpp == pytest.approx(2.0)
    results.trials[100, flash] = [trial(9.0)]
    assert rows_of(results)[1].flash_attention is False


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(1, 1e6)), max_size=9),
    st.sampled_from([None, 0.0]) | st.floats(1e-6, 1e6),
)
def test_medians_and_ratios_of_what_is_known(values: list[float | None], base: float | None) -> None:
    known = sorted(value for value in values if value is not None)
    middle = median(values)
    if not known:
        assert middle is None
    else:
        assert middle is not None and known[(len(known) - 1) // 2] <= middle <= known[len(known) // 2]
    share = ratio(middle, base)
    assert (share is None) == (middle is None or not base)
    assert share is None or base is None or middle is None or math.isclose(share * base, middle)


def test_a_text_that_differs_is_found_in_any_repeat() -> None:
    same, other = trial(1.0, text=(1, 2, 3)), trial(1.0, text=(1, 9, 3))
    assert differing({"autoregressive": [same, same], "auto": [same], "peer": [trial(1.0)]}) == {}
    assert differing({"auto": [same, other], "autoregressive": [same]}) == {"auto": 1}
    assert differing({"auto": [trial(1.0, text=(1, 2))], "autoregressive": [same]}) == {"auto": 2}
    # Plain decoding is what the others are measured against, wherever it stands.
    assert differing({"auto": [other], "autoregressive": [same]}) == {"auto": 1}
    assert differing({"auto": [other], "lookup": [same]}) == {"lookup": 1}
    assert differing({"autoregressive": [same, other]}) == {"autoregressive": 1}


# --- how it is shown --------------------------------------------------------------------------------

MACHINE = {
    "model": "M",
    "dtype": "float32",
    "device": "cpu",
    "threads": 2,
    "cpu": "C",
    "memory_bytes": 8 << 30,
}


def report(rows: Sequence[Row], **more: Any) -> Report:
    return Report(rows, MACHINE, BenchSettings(), Config(), "a book", **more)


def test_markdown_is_one_table_and_what_must_be_known() -> None:
    rows = rows_of(measured(autoregressive=[trial(20.0, forward_seconds=4.0)], auto=[trial(30.0)]))
    text = markdown(report(rows, notices=("llama.cpp is not measured: X.",)))
    table, _, rest = text.partition("\n\n")
    lines = table.splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert [cell.strip() for cell in lines[2].split("|")][1:5] == ["100", "autoregressive", "20.0", "1.00"]
    assert "| auto | 30.0 | 1.50 |" in lines[3]
    assert "/ transformers" not in lines[0] and "/ llama.cpp" not in lines[0]
    assert "llama.cpp is not measured: X." in rest
    assert "a book" in rest and "3 interleaved repeats" in rest and "32 tokens of warm-up" in rest
    assert "penalty 1.2 over 1024 tokens" in rest and "2 threads" in rest


def test_ratios_to_peers_have_columns_where_they_were_measured() -> None:
    heads, lines = cells(rows_of(measured(autoregressive=[trial(20.0)], transformers=[trial(5.0)])))
    assert lines[0][heads.index("/ transformers")] == "4.00"
    assert any("whole text" in note for note in notes(report(rows_of(measured(transformers=[trial(5.0)])))))


def test_a_narrow_terminal_leaves_columns_out_and_says_so() -> None:
    shown = report(rows_of(measured(autoregressive=[trial(20.0)], transformers=[trial(5.0)])))
    assert rich_table(shown, 200)[1] == []
    table, left_out = rich_table(shown, 80)
    assert left_out[:2] == ["tokens", "prefill tokens/s"]
    heads = [str(column.header) for column in table.columns]
    assert heads[:5] == ["context", "method", "tokens/s", "/ AR", "/ transformers"]
    assert not set(heads) & set(left_out) and len(heads) + len(left_out) == 12


def test_json_has_the_promised_keys_and_is_json() -> None:
    rows = rows_of(measured(autoregressive=[trial(20.0)], auto=[trial(30.0, text=(1,))]))
    data = json.loads(json.dumps(report(rows).to_json(), allow_nan=False))
    assert set(data["rows"][0]) >= {
        "context", "method", "tokens_per_second", "speedup_vs_autoregressive", "speedup_vs_transformers",
        "acceptance_rate", "mean_acceptance_length", "host_ms_per_step", "peak_gib",
    }  # fmt: skip
    assert data["machine"]["cpu"] == "C"
    assert data["same_text"] is True and data["interrupted"] is False


def test_a_different_text_is_said_first() -> None:
    row = replace(rows_of(measured(auto=[trial(30.0)]))[0], text_differs=7)
    shown = report([row])
    assert not shown.exact and shown.to_json()["same_text"] is False
    assert notes(shown)[0].startswith("TEXT DIFFERS: auto at context 100") and "token 7" in notes(shown)[0]


# --- peers ------------------------------------------------------------------------------------------


def test_peers_sample_as_we_do() -> None:
    sampling = SamplingSettings(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, penalty=1.1, suppress_ids=(4,)
    )
    assert generation_keywords(sampling, (2, 7)) == {
        "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05,
        "repetition_penalty": 1.1, "suppress_tokens": [2, 4, 7],
    }  # fmt: skip
    assert sampler_keywords(sampling) == {
        "temp": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1
    }  # fmt: skip
    greedy = generation_keywords(SamplingSettings(temperature=0.0, penalty=1.0), ())
    assert greedy == {"do_sample": False}
    assert generation_keywords(SamplingSettings(eta=3e-4), ())["eta_cutoff"] == 3e-4


def test_without_the_package_or_a_gguf_file_llama_cpp_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")
    why = why_no_llama(ModelConfig(name=str(gguf)))
    assert why is not None and "pip install llama-cpp-python" in why
    why = why_no_llama(ModelConfig(name=str(tmp_path)))
    assert why is not None and "reads .gguf files" in why


# --- processes --------------------------------------------------------------------------------------


class InProcess:
    """What a worker's process runs in these tests; needs nothing heavy."""

    def __init__(self, trouble: str, say: Any) -> None:
        say(f"building {os.getpid()}")
        print("a library prints")
        if trouble == "refuse":
            raise ModelError("There is no model.")

    def facts(self) -> dict[str, object]:
        return {"pid": os.getpid()}

    def prepare(self, prompt: Sequence[int]) -> Prefill:
        return Prefill(float(len(prompt)), 0)

    def decode(self, method: str, warm_up: int, tokens: int) -> Trial:
        if method == "raise":
            raise ZeroDivisionError("x / 0")
        if method == "die":
            os._exit(9)
        return Trial(tokens, 1.0, warm_up)


def test_a_worker_is_another_process_with_the_same_answers(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with Worker("peer", InProcess, ("",), said.append) as worker:
        assert worker.facts()["pid"] != os.getpid()
        assert said == [f"building {worker.facts()['pid']}"]
        assert worker.prepare([1, 2]) == Prefill(2.0, 0)
        assert worker.decode("auto", 3, 5) == Trial(5, 1.0, 3)
        with pytest.raises(ContestantFailedError, match="peer failed: ZeroDivisionError: x / 0"):
            worker.decode("raise", 0, 1)
        assert worker.decode("auto", 1, 1).tokens == 1, "one failed call does not end it"
        with pytest.raises(ContestantFailedError, match="ended with exit code 9"):
            worker.decode("die", 0, 1)
    assert capfd.readouterr().out == "", "standard output is for the result"


def test_an_error_for_people_crosses_the_process_as_it_is() -> None:
    with pytest.raises(ModelError, match=r"^There is no model\.$"):
        Worker("peer", InProcess, ("refuse",), lambda message: None)


def test_the_help_and_errors_of_usage_come_without_heavy_imports() -> None:
    script = (
        "import sys; from tokenswift_cli.cli import run; code = run(sys.argv[1:]); "
        "heavy = sorted({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)); "
        "sys.exit(f'heavy: {heavy}') if heavy else sys.exit(code)"
    )
    cases = [(["--help"], 0), (["-p", "/no/such/file"], 2), (["--tokens", "0"], 2), (["-o", "/no/such/x"], 2)]
    for words, code in cases:
        done = subprocess.run(
            [sys.executable, "-c", script, "bench", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "heavy:" not in done.stderr
