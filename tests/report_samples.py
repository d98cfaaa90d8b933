"""Runs for the report, made without a model: tokens and records are functions of the position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tokenswift_cli.config import Config
from tokenswift_cli.run_dir import RunDirectory
from tokenswift_cli.yaml_config import dump_yaml

CHUNK = 50
META = {
    "tokenswift": "0.1.0",
    "torch": "2.13.0",
    "device": "cpu",
    "model": {"name": "tiny", "files": {"model.gguf": "ab" * 32}, "vocab_size": 1000},
    "seed": 7,
}
Change = Callable[[dict[str, object]], object]


def token(position: int) -> int:
    """Two hundred tokens that are new, then the same ones again, and so on."""
    return position % 200


def record(chunk: int, *, resumed: bool = False, drafting: bool = True) -> dict[str, object]:
    """What a chunk leaves: 50 tokens in 2 s and 40 steps, 30 of which verified 60 drafted positions."""
    tokens = chunk * CHUNK
    facts: dict[str, object] = {
        "tokens": tokens,
        "chunk_tokens": CHUNK,
        "steps": 40,
        "rows": 100,
        "decode_seconds": 2.0,
        "draft_seconds": 0.25,
        "verify_seconds": 1.5,
        "host_seconds": 0.25,
        "plain_step_seconds": 0.06,
        "tokens_per_second": 25.0,
        "acceptance_rate": 0.25 if drafting else None,
        "mean_acceptance_length": 1.5 if drafting else None,
        "drafters": {
            "heads": {"drafted": 40, "accepted": 10},
            "suffix": {"drafted": 20, "accepted": 5},
        }
        if drafting
        else {},
        "depths": [[30, 12], [30, 3]] if drafting else [],
        "distinct": [0.25, 0.5, 0.75, 1.0],
        "novelty": 0.5,
        "kv_bytes": tokens * 2**20,
        "process_bytes": 2**30,
        "peak_process_bytes": 2**30 + chunk,
        "time": f"2026-01-31T14:{2 * chunk:02d}:00+00:00",
        "journal_bytes": tokens * 2**19,
    }
    if chunk == 1 or resumed:
        facts["session"] = {
            "resumed_tokens": tokens - CHUNK,
            "restored_rows": tokens - CHUNK,
            "restore_seconds": 0.5,
            "computed_rows": 3,
            "start_seconds": 1.0,
        }
    return facts


def make_run(
    path: Path,
    chunks: int,
    *,
    resume_at: int = 0,
    drafting: bool = True,
    penalty: float = 1.2,
    finish_reason: str | None = "length",
    meta: Mapping[str, object] = META,
    change: Change | None = None,
) -> Path:
    """A run of ``chunks`` chunks; chunk ``resume_at`` begins a second session; ``change`` spoils records."""
    config = Config()
    config = replace(
        config,
        generation=replace(config.generation, max_tokens=1000),
        sampling=replace(config.sampling, seed=7, penalty=penalty),
    )
    with RunDirectory.create(
        path, run_yaml=dump_yaml(config), meta=meta, prompt_text=b"Once", prompt_ids=[1, 2, 3]
    ) as run:
        for chunk in range(1, chunks + 1):
            metrics = record(chunk, resumed=chunk == resume_at, drafting=drafting)
            if change is not None:
                change(metrics)
            start = (chunk - 1) * CHUNK
            tokens = [token(position) for position in range(start, start + CHUNK)]
            reason = finish_reason if chunk == chunks else None
            run.append_chunk(tokens, "x" * CHUNK, metrics, finish_reason=reason)
    return path
