"""What is told about trained heads: the card in their directory, and the table on the screen.

Both are made of rows as :meth:`Acceptance.to_json` gives them, which is also what is kept in files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Rows = Sequence[Mapping[str, Any]]

_MEANING = (
    "Acceptance length: tokens per verification, the target's own included. Rates: acceptance of each head's "
    "guess where all before it were accepted."
)


def acceptance_table(rows: Rows, heads: int) -> Table:
    """The rows for a terminal."""
    table = Table(title="Simulated acceptance on held-out text")
    for name in _columns(heads):
        table.add_column(name, justify="left" if name in ("positions", "noise") else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def heads_card(training: Mapping[str, Any], heads: int) -> str:
    """README.md of a heads directory.

    Args:
        training: the ``training`` record of the directory, see :mod:`tokenswift_cli.training.pipeline`.
        heads: number of heads.
    """
    data, settings = training["data"], training["settings"]
    vocabulary = training["draft_vocabulary_size"]
    lines = [
        f"# Drafting heads for {training['model']}",
        "",
        f"{heads} heads of the variant `{settings['heads.variant']}` for {training['architecture']}, trained "
        "with `tokenswift train-heads`. They guess the tokens after the next one; the model checks every "
        "guess, so they change the speed of a text and nothing else. They fit the model they were trained "
        "for and are refused for any other.",
        "",
        "    tokenswift generate --method heads --heads THIS_DIRECTORY --prompt FILE",
        "",
        "## Training",
        "",
        "| | |",
        "|---|---|",
        f"| text | {data['tokens']} tokens in {data['sequences']} sequences, {data['source']} |",
        f"| held out | {data['held_out_sequences']} sequences |",
        f"| steps | {training['steps']} ({training['epochs']:.2f} epochs, {training['seconds']:.0f} s) |",
        f"| labels | {_LABELS[settings['training.labels']]} |",
        f"| learning rate | {settings['training.learning_rate']:g} |",
        f"| heads can propose | {'all tokens' if vocabulary is None else f'{vocabulary} tokens'} |",
    ]
    for name, key in (("training", "loss"), ("held-out", "held_out_loss")):
        measured = training[key]
        if measured is not None:
            per_head = ", ".join(f"{loss:.3f}" for loss in measured["losses"])
            top1 = ", ".join(f"{share:.3f}" for share in measured["top1"])
            lines.append(f"| {name} loss | {sum(measured['losses']):.3f} nats ({per_head}); top-1 {top1} |")
    rows = training["acceptance"]
    if rows:
        columns = _columns(heads)
        lines += [
            "",
            "## Acceptance on held-out text",
            "",
            "Replayed over text that the model wrote itself and the heads never saw. Shared noise: the guess "
            "knows the noise with which the target chooses at that position; independent: it does not. "
            + _MEANING,
            "",
            f"| {' | '.join(columns)} |",
            "|" + "---|" * len(columns),
            *(f"| {' | '.join(_cells(row))} |" for row in rows),
        ]
    return "\n".join(lines) + "\n"


_LABELS = {
    "tokens": "the tokens of the text",
    "target": "the target's own distribution at each position",
}


def _columns(heads: int) -> list[str]:
    return [
        "positions",
        "noise",
        "drafts",
        "acceptance length",
        *(f"head {head + 1}" for head in range(heads)),
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    rates = ["-" if rate is None else f"{rate:.2f}" for rate in row["rates"]]
    length = f"{row['acceptance_length']:.2f} ± {row['standard_error']:.2f}"
    return [str(row["positions"]), str(row["noise"]), str(row["chains"]), length, *rates]
