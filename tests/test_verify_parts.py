"""Parts of an audit: margins, the text and its end, progress, and the words of the report."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_model_directory import save_tiny_model

from tokenswift_cli.audit.mismatch import Mismatch, measure_mismatch
from tokenswift_cli.audit.progress import AuditProgress
from tokenswift_cli.audit.recompute import Piece, Recomputation
from tokenswift_cli.audit.report import AuditedToken, AuditReport, Choices
from tokenswift_cli.audit.written_text import check_ending, check_text
from tokenswift_cli.commands.verify_display import AuditBar, AuditLines, open_verify_display, progress_text
from tokenswift_cli.commands.verify_text import report_text
from tokenswift_cli.config import GenerationConfig
from tokenswift_cli.display.base import LineWriter
from tokenswift_cli.engine.filling import NoStoredRows
from tokenswift_cli.engine.noise import gumbel
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.events import Loading, Notice, PrefillProgress, Progress
from tokenswift_cli.models.target import Target
from tokenswift_cli.run_files import FileProblem

NOTHING = torch.empty(0, dtype=torch.int64)


def measured(settings: SamplingSettings, logits: torch.Tensor, token: int, **more: Any) -> Mismatch:
    sampler = Sampler(settings, logits.numel(), **more)
    chosen = sampler.choose(logits, NOTHING, 40)
    return measure_mismatch(sampler, logits, NOTHING, 40, position=3, token=token, chosen=chosen)


def test_the_margin_is_the_difference_of_noisy_scores() -> None:
    logits = torch.linspace(-1.0, 1.0, 20)
    settings = SamplingSettings(seed=5, temperature=0.5, min_p=0.0, penalty=1.0)
    noisy = logits / 0.5 + gumbel(5, 40, torch.arange(20))
    order = noisy.argsort(descending=True).tolist()
    for rank, token in enumerate(order[1:], start=2):
        found = measured(settings, logits, token)
        assert found.chosen == order[0] and found.rank == rank and found.candidates == 20
        assert found.margin == pytest.approx(float(noisy[order[0]] - noisy[token]), rel=1e-5)


def test_greedy_margins_have_no_noise() -> None:
    settings = SamplingSettings(temperature=0.0, penalty=1.0, suppress_ids=(2,))
    found = measured(settings, torch.tensor([1.0, 3.0, 9.0, 2.5]), 3)
    assert (found.chosen, found.rank, found.candidates, found.margin) == (1, 2, 3, 0.5)


def test_a_truncated_token_has_a_margin_and_no_rank() -> None:
    logits = torch.tensor([5.0, 4.9, -8.0])
    found = measured(SamplingSettings(min_p=0.5, penalty=1.0), logits, 2)
    assert found.rank is None and found.candidates == 2
    assert found.margin is not None and math.isfinite(found.margin) and not found.near


@pytest.mark.parametrize(("token", "more"), [(1, {"held_ids": (1,), "held_until": 41}), (9, {})])
def test_a_token_that_cannot_be_chosen_at_all_has_no_margin(token: int, more: dict[str, Any]) -> None:
    found = measured(SamplingSettings(penalty=1.0), torch.tensor([1.0, 8.0, 0.5]), token, **more)
    assert (found.margin, found.rank, found.near) == (None, None, False)


@pytest.mark.parametrize(("gap", "near"), [(1e-5, True), (0.1, False)])
def test_only_what_rounding_can_turn_is_near(gap: float, near: bool) -> None:
    greedy = SamplingSettings(temperature=0.0, penalty=1.0)
    assert measured(greedy, torch.tensor([10.0, 10.0 - gap, 0.0]), 1).near is near
    # The edge of a truncation, too: with its noise the token would win if it were a candidate.
    seed = next(seed for seed in range(100) if gumbel(seed, 40, torch.arange(2)).diff() > 1)
    logits = torch.tensor([10.0, 10.0 + math.log(0.5) - gap])
    found = measured(SamplingSettings(seed=seed, min_p=0.5, penalty=1.0), logits, 1)
    assert (found.chosen, found.rank, found.near) == (0, None, near)
    assert found.margin is not None and found.margin < 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("model")))


def text_problems(tokenizer: Any, text: str, found: str, reason: str | None, *stops: str) -> list[str]:
    tokens = tokenizer(text)["input_ids"]
    problems = check_text(tokenizer, tokens, GenerationConfig(stop=stops), reason, found.encode())
    return [problem.message for problem in problems]


def test_the_text_may_lack_what_is_held_back_only_while_a_run_goes_on(tokenizer: Any) -> None:
    for reason, found, sound in (
        (None, "One day, ", True),
        (None, "One day, TH", False),
        ("interrupted", "One day, ", True),
        ("length", "One day, TH", True),
        ("length", "One day, ", True),  # extended, and killed before its first chunk
        ("length", "One day,", False),
        (None, "One Day, ", False),
    ):
        assert (text_problems(tokenizer, "One day, TH", found, reason, "THE END") == []) is sound, found


def test_a_stop_string_ends_the_tokens(tokenizer: Any) -> None:
    assert text_problems(tokenizer, "So THE END", "So ", "stop", "THE END") == []
    assert (
        "goes on after the stop string" in text_problems(tokenizer, "So THE END.", "So ", None, "THE END")[0]
    )
    assert "there is none at its end" in text_problems(tokenizer, "So THE", "So THE", "stop", "THE END")[0]
    assert text_problems(tokenizer, "", "", None, "THE END") == []


@pytest.mark.parametrize(
    ("tokens", "ignore", "reason", "says"),
    [
        ([1, 2, 9], False, "eos", None),
        ([1, 2, 3], False, "length", None),
        ([1, 9, 3], False, "length", "goes on after the end-of-text at position 1"),
        ([1, 9, 3], True, "length", None),
        ([1, 2, 3], False, "eos", "has no end-of-text"),
        ([], False, None, None),
    ],
)
def test_end_of_text_stands_at_the_end(
    tokens: list[int], ignore: bool, reason: str | None, says: str | None
) -> None:
    problems = check_ending(tokens, (9,), GenerationConfig(ignore_eos=ignore), reason)
    assert [problem.message for problem in problems if says is None or says not in problem.message] == []
    assert bool(problems) is (says is not None)


def test_rows_that_are_stored_need_not_be_computed(tiny_llama: Any) -> None:
    """The seam for a journal of the cache: what restores rows is asked first."""
    tokens = [(17 * i) % 256 for i in range(90)]
    sampler = Sampler(SamplingSettings(), 256)

    class Recording(NoStoredRows):
        def __init__(self) -> None:
            self.asked: list[tuple[int, int]] = []

        def restore(self, cache: Any, limit: int) -> int:
            self.asked.append((cache.length, limit))
            return 0

    stored = Recording()
    recomputation = Recomputation(
        Target(tiny_llama, 90), sampler, tokens, 10, prefill_chunk=30, stored=stored
    )
    pieces = list(recomputation.check([50, 52, 79]))
    assert stored.asked == [(0, 59), (30, 59)]
    assert pieces[-1].rows == 89 and sum(piece.checked for piece in pieces) == 3


def progress_events(pieces: list[tuple[float, Piece]]) -> tuple[list[Any], AuditProgress]:
    now = [0.0]
    events: list[Any] = []
    progress = AuditProgress(events.append, rows_before=100, rows=400, positions=300, clock=lambda: now[0])
    for seconds, piece in pieces:
        now[0] = seconds
        progress.update(piece)
    return events, progress


def test_progress_reads_first_and_estimates_by_rows() -> None:
    events, progress = progress_events(
        [(2.0, Piece(50)), (4.0, Piece(100)), (5.0, Piece(200, 100)), (6.0, Piece(300, 100, 1))]
    )
    assert events[:3] == [
        PrefillProgress(0, 100, 0.0), PrefillProgress(50, 100, 2.0), PrefillProgress(100, 100, 4.0),
    ]  # fmt: skip
    assert (progress.read_seconds, progress.check_seconds, progress.checked) == (4.0, 2.0, 200)
    last = events[-1]
    assert (last.tokens, last.max_tokens, last.tokens_per_second) == (200, 300, 100.0)
    assert last.eta_seconds == 1.0


CHECKING = Progress(
    tokens=25_000, max_tokens=100_000, session_tokens=25_000, decode_seconds=15.0, tokens_per_second=333.3,
    recent_tokens_per_second=None, speedup=None, acceptance_rate=None, mean_acceptance_length=None,
    distinct=None, eta_seconds=285.0,
)  # fmt: skip


def test_plain_lines_come_every_ten_seconds() -> None:
    now = [0.0]
    stream = io.StringIO()
    with AuditLines(LineWriter(stream), clock=lambda: now[0]) as lines:
        lines.handle(Loading("Loading x"))
        for seconds in (1.0, 11.0, 12.0, 22.0):
            now[0] = seconds
            lines.handle(PrefillProgress(512, 1024, 4.0) if seconds < 12 else CHECKING)
        lines.handle(Notice("look\x1b[31m", "warning"))
    assert stream.getvalue().splitlines() == [
        "loading: Loading x",
        "read=512/1024 tok/s=128.0 eta=4s",
        "checked=25000/100000 tok/s=333.3 eta=4m45s",
        "warning: look␛[31m",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_moving_line_fits_its_terminal(columns: int) -> None:
    line = progress_text(CHECKING, columns)
    assert len(line.plain) < columns
    assert line.plain.startswith("Checking ━") and line.plain.endswith("about 4m45s left")
    done = progress_text(replace(CHECKING, tokens=100_000, eta_seconds=0.0), columns)
    assert "─" not in done.plain and "100%" in done.plain and len(done.plain) <= columns


def test_the_bar_leaves_a_clean_terminal() -> None:
    stream = io.StringIO()
    with AuditBar(stream, no_color=True) as bar:
        bar.handle(Loading("Loading x"))
        bar.handle(Notice("a thing to know"))
        bar.handle(CHECKING)
    shown = stream.getvalue()
    assert "Loading x" in shown and "a thing to know" in shown
    assert "\x1b[?25" not in shown  # the cursor is never hidden
    assert shown.endswith("\r\x1b[1A\x1b[J")


def test_displays_are_chosen_by_mode_and_terminal() -> None:
    stream = io.StringIO()
    kinds = {mode: type(open_verify_display(mode, stream, {})) for mode in ("auto", "plain", "json", "none")}
    assert kinds["auto"] is kinds["plain"] is AuditLines
    assert {kinds["json"].__name__, kinds["none"].__name__} == {"JsonDisplay", "QuietDisplay"}
    open_verify_display("rich", stream, {})
    assert "not a terminal" in stream.getvalue()


def report(choices: Choices, *problems: FileProblem, **changes: Any) -> AuditReport:
    whole = AuditReport(
        run_dir="runs/novel", tokens=100_000, prompt_tokens=300, finish_reason="length", model="demo",
        device="cpu", path="native (AVX2)", row_invariant=True, written_on="cuda with torch 2.9.1",
        problems=problems, choices=choices,
    )  # fmt: skip
    return replace(whole, **changes)


GOOD = Choices(
    first=20_000, end=30_000, requested=10_000, checked=10_000, read_seconds=0.2, check_seconds=31.2
)
NEAR = AuditedToken(Mismatch(20_117, 317, 284, 0.00021, 2, 17, True), " the\n", " a")


def test_what_a_report_says() -> None:
    assert report_text(report(GOOD)).plain == (
        "10,000 of 10,000 tokens are what the model chooses (positions 20,000-29,999), 31s, 321 tokens/s.\n"
        "Files: sound."
    )
    sampled = replace(GOOD, drawn=500, requested=500, checked=500, seed=7, read_seconds=60.0)
    assert report_text(report(sampled)).plain.startswith(
        "500 of 500 tokens are what the model chooses (500 drawn from positions 20,000-29,999, sample "
        "seed 7), 1m31s."
    )
    stopped = replace(GOOD, checked=2_000)
    assert "8,000 were not checked: interrupted." in report_text(report(stopped, interrupted_code=130)).plain
    lines = report_text(
        report(
            replace(GOOD, mismatches=3, measured=(NEAR,) * 3),
            FileProblem("tokens.bin", "tokens.bin is \x1b not what was written"),
            row_invariant=False,
        )
    ).plain.splitlines()
    assert lines[0].startswith("9,997 of 10,000 tokens are what the model chooses, 3 are not (")
    assert lines[1] == (
        'First mismatch: position 20,117 holds token 317 (" the␤"), the model chooses 284 (" a"); '
        "margin 0.00021 with noise, rank 2 of 17 candidates."
    )
    assert "rounding" in lines[2] and "cuda with torch 2.9.1" in lines[2] and "computed together" in lines[2]
    assert lines[3] == "Then: 20,117, 20,117."
    assert lines[-2:] == ["Files: damaged.", "  tokens.bin is ␛ not what was written."]


def test_the_exit_code_says_what_was_found() -> None:
    assert report(GOOD).exit_code == 0
    assert report(GOOD, FileProblem("output.txt", "x")).exit_code == 1
    assert report(replace(GOOD, mismatches=1)).exit_code == 1
    assert report(replace(GOOD, checked=9_999)).exit_code == 1
    assert report(GOOD, interrupted_code=143).exit_code == 143


def test_the_report_is_plain_text_to_rich() -> None:
    """Nothing in a token is markup."""
    markup = replace(NEAR, token_text="[red]x")
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(report_text(report(replace(GOOD, mismatches=1, measured=(markup,)))))
    assert "[red]x" in console.file.getvalue()  # type: ignore[attr-defined]
