"""``tokenswift verify`` on the demo model: real weights, a real tokenizer, the command as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenswift_cli import cli
from tokenswift_cli.growing_file import decode_ids, encode_ids

PROMPT = Path(__file__).parent.parent / "prompts" / "chronicle.txt"
TOKENS = 64


@pytest.mark.demo
@pytest.mark.slow
def test_a_run_is_verified_and_one_altered_token_found(
    demo_model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["generate", "-p", str(PROMPT), "-n", str(TOKENS), "-o", str(run), "--seed", "4", "-q"]
    assert cli.run(words) == 0
    capsys.readouterr()
    assert cli.run(["verify", str(run), "-q"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{TOKENS} of {TOKENS} tokens are what the model chooses (positions 0-63)")
    tokens = decode_ids((run / "tokens.bin").read_bytes())
    right, tokens[40] = tokens[40], tokens[40] + 1
    (run / "tokens.bin").write_bytes(encode_ids(tokens))
    assert cli.run(["verify", str(run), "--range", "32:", "--json", "-q"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = report["choices"]["first_mismatch"]
    assert (found["position"], found["token"], found["chosen"]) == (40, right + 1, right)
    assert report["choices"]["checked"] == TOKENS - 32
