"""The result for people: one table, drawn on a terminal or as Markdown, and what it was measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenswift_cli.bench.rows import GIB, Row
from tokenswift_cli.bench.settings import TRANSFORMERS_LOOKUP, BenchSettings
from tokenswift_cli.bench.transformers_peer import PROMPT_LOOKUP_TOKENS
from tokenswift_cli.config import Config

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "-"

# What a narrow terminal does without, first things first.
_FIRST_TO_GO = ("tokens", "prefill tokens/s", "GB/s", "tokens per verification", "peak GiB")


@dataclass(frozen=True)
class Report:
    """Everything that is shown.

    Attributes:
        rows: the figures.
        machine: what they were measured on.
        settings, config: how.
        source: the text that was continued.
        notices: what was left out, and why.
        interrupted: Ctrl-C or an error came before the end.
    """

    rows: Sequence[Row]
    machine: Mapping[str, object]
    settings: BenchSettings
    config: Config
    source: str
    notices: Sequence[str] = ()
    interrupted: bool = False

    @property
    def exact(self) -> bool:
        """Whether all own methods wrote the same text."""
        return all(row.text_differs is None for row in self.rows)

    def to_json(self) -> dict[str, object]:
        """As one JSON object."""
        settings, sampling = self.settings, self.config.sampling
        return {
            "rows": [row.to_json() for row in self.rows],
            "machine": dict(self.machine),
            "text": self.source,
            "tokens": settings.tokens,
            "peer_tokens": min(settings.peer_tokens, settings.tokens),
            "warm_up": settings.warm_up,
            "repeats": settings.repeats,
            "sampling": {
                "seed": sampling.seed,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "eta": sampling.eta,
                "penalty": sampling.penalty,
                "penalty_window": sampling.penalty_window,
            },
            "same_text": self.exact,
            "notices": list(self.notices),
            "interrupted": self.interrupted,
        }


@dataclass(frozen=True)
class _Column:
    head: str
    cell: Callable[[Row], str]
    always: bool = True


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _method(row: Row) -> str:
    return f"{row.method} (flash attention)" if row.flash_attention else row.method


_COLUMNS = (
    _Column("context", lambda row: str(row.context)),
    _Column("method", _method),
    _Column("tokens/s", lambda row: _number(row.tokens_per_second, 1)),
    _Column("/ AR", lambda row: _number(row.speedup_vs_autoregressive, 2)),
    _Column("/ transformers", lambda row: _number(row.speedup_vs_transformers, 2), always=False),
    _Column("/ llama.cpp", lambda row: _number(row.speedup_vs_llama_cpp, 2), always=False),
    _Column("accepted", lambda row: _number(row.acceptance_rate, 2)),
    _Column("tokens per verification", lambda row: _number(row.mean_acceptance_length, 2)),
    _Column("host ms/step", lambda row: _number(row.host_ms_per_step, 2)),
    _Column("GB/s", lambda row: _number(row.gigabytes_per_second, 1)),
    _Column("peak GiB", lambda row: _number(row.peak_gib, 2)),
    _Column("prefill tokens/s", lambda row: _number(row.prefill_tokens_per_second, 0)),
    _Column("tokens", lambda row: _number(row.tokens, 0)),
)


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells; a ratio to a peer that nobody measured has no column."""
    columns = [
        column for column in _COLUMNS if column.always or any(column.cell(row) != UNKNOWN for row in rows)
    ]
    return [column.head for column in columns], [[column.cell(row) for column in columns] for row in rows]


def notes(report: Report) -> list[str]:
    """What must be known to read the table, one sentence each; first what is wrong."""
    settings, sampling, machine = report.settings, report.config.sampling, report.machine
    found = [
        f"TEXT DIFFERS: {row.method} at context {row.context} wrote another text than plain decoding from "
        f"new token {row.text_differs} on. This is a bug; please report it."
        for row in report.rows
        if row.text_differs is not None
    ]
    found += [f"{row.method} at context {row.context}: {row.failure}" for row in report.rows if row.failure]
    found += report.notices
    if report.interrupted:
        found.append("Interrupted: figures are of what was measured until then.")
    memory = machine.get("memory_bytes")
    path = machine.get("decoder_path")
    parts = [
        str(machine.get("model")),
        f"{machine.get('dtype')} on {machine.get('device')}",
        *([f"decoder {path}"] if path else []),
        f"{machine.get('threads')} threads",
        str(machine.get("accelerator") or machine.get("cpu")),
        *([f"{memory / GIB:.0f} GiB"] if isinstance(memory, int) else []),
        f"tokenswift {machine.get('tokenswift')}, torch {machine.get('torch')}, "
        f"transformers {machine.get('transformers')}",
    ]
    if machine.get("llama_cpp_python"):
        parts.append(f"llama-cpp-python {machine['llama_cpp_python']}")
    found.append("; ".join(parts) + ".")
    found.append(
        f"Text: {report.source}. Medians of {settings.repeats} interleaved repeats, decoding only; "
        f"{settings.warm_up} tokens of warm-up before the timed ones; all methods' texts are compared. "
        "/ AR: tokens/s over those of our own plain decoding (autoregressive); likewise for the peers."
    )
    found.append(
        f"Sampling: seed {sampling.seed}, temperature {sampling.temperature:g}, top-k {sampling.top_k}, "
        f"top-p {sampling.top_p:g}, min-p {sampling.min_p:g}, eta {sampling.eta:g}, "
        f"penalty {sampling.penalty:g} over {sampling.penalty_window} tokens."
    )
    if any(row.method in settings.peers for row in report.rows):
        found.append(
            "Peers sample with noise of their own, so their texts are others; the repetition penalty of "
            "transformers is over the whole text, at the same cost."
        )
    if any(row.method == TRANSFORMERS_LOOKUP for row in report.rows):
        found.append(
            f"{TRANSFORMERS_LOOKUP}: generate() with prompt_lookup_num_tokens={PROMPT_LOOKUP_TOKENS}."
        )
    return found


def markdown(report: Report) -> str:
    """The whole result as Markdown."""
    head, lines = cells(report.rows)
    table = ["| " + " | ".join(line) + " |" for line in (head, *lines)]
    table.insert(1, "|---|---|" + "---:|" * (len(head) - 2))
    return "\n".join(table) + "\n\n" + "\n\n".join(notes(report)) + "\n"


def rich_table(report: Report, width: int) -> tuple[Table, list[str]]:
    """The table for a terminal of ``width`` cells, and the heads of columns for which that is too narrow."""
    from rich import box
    from rich.table import Table

    head, lines = cells(report.rows)
    left_out: list[str] = []
    for name in _FIRST_TO_GO:
        if _width(head, lines) <= width:
            break
        place = head.index(name)
        left_out.append(head.pop(place))
        for line in lines:
            line.pop(place)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 1 else "right", overflow="fold")
    for row, line in zip(report.rows, lines, strict=True):
        table.add_row(*line, style="bold red" if row.text_differs is not None or row.failure else None)
    return table, left_out


def _width(head: Sequence[str], lines: Sequence[Sequence[str]]) -> int:
    """Cells that a table takes whose heads may break between words."""
    columns = zip(head, *lines, strict=True)
    return sum(max(*map(len, name.split()), *map(len, cell), 0) + 2 for name, *cell in columns)
