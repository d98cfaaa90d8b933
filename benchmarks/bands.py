"""How a long run went, by stretches of its length: speed, acceptance, Distinct-n, memory, and its sessions.

    python benchmarks/bands.py runs/100k

Reads metrics.jsonl of the run; measures nothing itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common

Record = dict[str, Any]

MIB = float(1 << 20)

_SPEED_HEAD = (
    "tokens", "seconds", "tokens/s", "plain tokens/s", "/ plain", "acceptance rate", "by drafter",
    "tokens per step", "draft %", "host %",
)  # fmt: skip
_STATE_HEAD = (
    "tokens", "Distinct-1", "Distinct-2", "Distinct-3", "Distinct-4", "novelty", "KV MiB", "process MiB",
    "process - KV MiB", "peak MiB",
)  # fmt: skip
_SESSION_HEAD = (
    "session", "tokens before", "rows from the journal", "in s", "rows computed", "ready after s",
    "tokens written", "decoding s",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--band", type=int, default=10_000, help="tokens of a stretch")
    arguments = parser.parse_args()
    with open(arguments.run / "metrics.jsonl", encoding="ascii") as lines:
        records: list[Record] = [json.loads(line) for line in lines]
    bands: dict[int, list[Record]] = {}
    for record in records:
        if record["steps"]:
            middle = record["tokens"] - record["chunk_tokens"] // 2
            bands.setdefault(middle // arguments.band, []).append(record)
    common.table(
        _SPEED_HEAD,
        [_speed_row(rows) for _, rows in sorted(bands.items())],
    )
    print()
    common.table(
        _STATE_HEAD,
        [_state_row(rows[-1]) for _, rows in sorted(bands.items())],
    )
    print()
    common.table(
        _SESSION_HEAD,
        _session_rows(records),
    )
    journal = sum(path.stat().st_size for path in (arguments.run / "kv").glob("*.kv"))
    seconds = _sum(records, "decode_seconds")
    print(
        f"\n{records[-1]['tokens']} tokens in {seconds:.0f} s of decoding "
        f"({records[-1]['tokens'] / seconds:.1f} tokens/s); key-value journal {journal / MIB:.0f} MiB."
    )


def _speed_row(rows: Sequence[Record]) -> list[str]:
    first = rows[0]["tokens"] - rows[0]["chunk_tokens"]
    seconds, tokens = _sum(rows, "decode_seconds"), _sum(rows, "chunk_tokens")
    # What the planner measured of plain steps while it wrote: an estimate, beside the bench's measurement.
    plain = sum(row["plain_step_seconds"] * row["chunk_tokens"] for row in rows if row["plain_step_seconds"])
    shares: dict[str, list[int]] = {}
    for row in rows:
        for name, share in row["drafters"].items():
            total = shares.setdefault(name, [0, 0])
            total[0] += share["drafted"]
            total[1] += share["accepted"]
    drafted, accepted = (sum(share[index] for share in shares.values()) for index in (0, 1))
    return [
        f"{first:,}-{rows[-1]['tokens']:,}",
        common.number(seconds, 0),
        common.number(tokens / seconds, 1),
        common.number(tokens / plain, 1) if plain else "-",
        common.number(plain / seconds) if plain else "-",
        common.number(accepted / drafted) if drafted else "-",
        ", ".join(f"{name} {share[1]}/{share[0]}" for name, share in sorted(shares.items())),
        common.number(tokens / _sum(rows, "steps")),
        common.number(100 * _sum(rows, "draft_seconds") / seconds, 1),
        common.number(100 * _sum(rows, "host_seconds") / seconds, 1),
    ]


def _state_row(row: Record) -> list[str]:
    kv, process = row["kv_bytes"] / MIB, row["process_bytes"] / MIB
    return [
        f"{row['tokens']:,}",
        *(common.number(value) for value in row["distinct"] or ()),
        common.number(row["novelty"]),
        *(common.number(size, 0) for size in (kv, process, process - kv, row["peak_process_bytes"] / MIB)),
    ]


def _session_rows(records: Sequence[Record]) -> list[list[str]]:
    starts = [index for index, record in enumerate(records) if "session" in record]
    rows = []
    for number, (first, end) in enumerate(zip(starts, [*starts[1:], len(records)], strict=True), start=1):
        session, own = records[first]["session"], records[first:end]
        rows.append(
            [
                str(number),
                f"{session['resumed_tokens']:,}",
                f"{session['restored_rows']:,}",
                common.number(session["restore_seconds"], 1),
                f"{session['computed_rows']:,}",
                common.number(session["start_seconds"], 1),
                f"{_sum(own, 'chunk_tokens'):,.0f}",
                common.number(_sum(own, "decode_seconds"), 0),
            ]
        )
    return rows


def _sum(rows: Sequence[Record], name: str) -> float:
    return sum(row[name] for row in rows)


if __name__ == "__main__":
    main()
