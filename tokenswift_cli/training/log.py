"""What a training leaves behind to look at: ``log.csv`` always, TensorBoard's files where it is installed."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tokenswift_cli.disk_errors import telling
from tokenswift_cli.durable import atomic_write
from tokenswift_cli.training.measures import Measures

_THEN = "give the same command again to go on"


@dataclass(frozen=True)
class Row:
    """Averages since the row before.

    Attributes:
        step: optimizer steps done.
        split: "train" or "held-out".
        measures: of the heads.
        learning_rate, gradient_norm: of the last step; None for held-out text.
        seconds: of training so far, earlier sessions included.
    """

    step: int
    split: str
    measures: Measures
    learning_rate: float | None
    gradient_norm: float | None
    seconds: float


class TrainingLog:
    """Appends rows to ``log.csv`` in ``directory``.

    Args:
        directory: must exist.
        heads: number of heads.
        step: where the training goes on; rows of later steps, which were lost, are taken out.
    """

    def __init__(self, directory: Path, heads: int, step: int) -> None:
        self._heads = range(heads)
        path = directory / "log.csv"
        with telling(directory, _THEN):
            atomic_write(path, _kept(path, self._columns, step))
            self._file: TextIO = path.open("a", encoding="utf-8", newline="")
        self._board = _tensorboard(directory / "tensorboard", step)
        self._directory = directory

    def write(self, row: Row) -> None:
        """Append a row; it is in the file when this returns.

        Raises:
            RunDirectoryError: the disk refuses.
        """
        measures = row.measures
        values: list[object] = [row.step, row.split, f"{measures.loss:.6f}"]
        for shares in (measures.losses, measures.top1_shares, measures.top3_shares):
            values.extend(f"{share:.6f}" for share in shares)
        values.append("" if row.learning_rate is None else f"{row.learning_rate:.6g}")
        values.append("" if row.gradient_norm is None else f"{row.gradient_norm:.6g}")
        values.extend([max(measures.counts), f"{row.seconds:.1f}"])
        with telling(self._directory, _THEN):
            csv.writer(self._file).writerow(values)
            self._file.flush()
        if self._board is not None:
            self._show(row)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    @property
    def _columns(self) -> list[str]:
        names = [f"head{head + 1}_{name}" for name in ("loss", "top1", "top3") for head in self._heads]
        return ["step", "split", "loss", *names, "learning_rate", "gradient_norm", "positions", "seconds"]

    def _show(self, row: Row) -> None:
        measures = row.measures
        scalars = {"loss": measures.loss}
        for head in self._heads:
            scalars[f"head{head + 1}/loss"] = measures.losses[head]
            scalars[f"head{head + 1}/top1"] = measures.top1_shares[head]
            scalars[f"head{head + 1}/top3"] = measures.top3_shares[head]
        if row.learning_rate is not None:
            scalars["learning_rate"] = row.learning_rate
        for name, value in scalars.items():
            self._board.add_scalar(f"{row.split}/{name}", value, row.step)


def _kept(path: Path, columns: list[str], step: int) -> bytes:
    """The log with its header and the whole rows up to ``step``."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    if path.exists() and step:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for row in list(csv.reader(file))[1:]:
                if len(row) == len(columns) and row[0].isdigit() and int(row[0]) <= step:
                    writer.writerow(row)
    return text.getvalue().encode()


def _tensorboard(directory: Path, step: int) -> Any:
    """A writer, or None where the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=step + 1 if step else None)
