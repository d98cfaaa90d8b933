"""What a run directory vouches for, read as a stranger would: manifests as JSON, files as bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .outcomes import require
from .process import Ended
from .subject import Reference

TOKEN_BYTES = 4


@dataclass(frozen=True)
class DurableState:
    """The newest manifest of a run: tokens, and bytes of its text, that it vouches for."""

    tokens: int
    text_bytes: int


def durable_state(run_dir: Path) -> DurableState | None:
    """What the newest manifest says; None where there is none."""
    manifests = sorted((run_dir / "checkpoints").glob("*.json"))
    if not manifests:
        return None
    newest = json.loads(manifests[-1].read_bytes())
    return DurableState(int(newest["token_count"]), int(newest["text_bytes"]))


def require_durable(run_dir: Path, reference: Reference, at_least: int) -> int | None:
    """Tokens that the directory vouches for, checked against the undisturbed run; None if it is no run yet.

    Raises FaultFailedError when it is no beginning of the same text, or when fewer than ``at_least``
    tokens are left, which the run had reported as saved.
    """
    state = durable_state(run_dir)
    kept = 0 if state is None else state.tokens
    require(kept >= at_least, f"{at_least} tokens were reported as saved, {kept} are there")
    if state is not None:
        tokens = (run_dir / "tokens.bin").read_bytes()[: kept * TOKEN_BYTES]
        require(tokens == reference.tokens[: kept * TOKEN_BYTES], "the saved tokens are not the text's")
        text = (run_dir / "output.txt").read_bytes()[: state.text_bytes]
        require(text == reference.text[: state.text_bytes], "the saved text is another")
    return None if state is None else kept


def lost_tokens(ended: Ended, reference: Reference, began_with: int, kept: int) -> int:
    """Tokens that a session showed, having begun with some, and that are not among those kept."""
    shown = reference.tokens_shown(reference.characters[began_with] + ended.shown_characters)
    return max(shown - kept, 0)


def tokens_file_size(run_dir: Path) -> int:
    """Bytes of tokens.bin; 0 where there is none."""
    try:
        return (run_dir / "tokens.bin").stat().st_size
    except OSError:
        return 0
