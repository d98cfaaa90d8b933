"""Whether a run keeps a journal: its size against the disk, and what it would save."""

from __future__ import annotations

from dataclasses import dataclass

# A shorter text is read again in seconds.
_LEAST_TOKENS = 4096
# ``auto`` leaves the user most of the free disk.
_MOST_SHARE = 0.5


@dataclass(frozen=True)
class JournalPlan:
    """The decision.

    Attributes:
        kept: rows are written.
        required: the run fails rather than go on without it (``always``).
        size: bytes that it takes on the disk at the end, if kept.
        held: bytes of it that are there already.
        reason: why it is kept or not, as part of a sentence.
    """

    kept: bool
    required: bool
    size: int
    held: int
    reason: str

    @property
    def disk_bytes(self) -> int:
        """What is still to be written."""
        return max(0, self.size - self.held) if self.kept else 0


def plan_journal(mode: str, tokens: int, bytes_per_token: int, free_disk: int, held: int = 0) -> JournalPlan:
    """Decide by ``checkpoint.kv``.

    Args:
        mode: auto | always | never.
        tokens: of prompt and text at the end.
        bytes_per_token: of the key-value cache.
        free_disk: bytes.
        held: bytes that the journal takes already.
    """
    size = tokens * bytes_per_token
    if mode != "auto":
        return JournalPlan(mode == "always", mode == "always", size, held, f"checkpoint.kv is {mode}")
    if tokens < _LEAST_TOKENS:
        reason = f"fewer than {_LEAST_TOKENS} tokens are quickly read again"
        return JournalPlan(False, False, size, held, reason)
    if size > _MOST_SHARE * (free_disk + held):
        return JournalPlan(False, False, size, held, "it would take more than half of the free disk")
    return JournalPlan(True, False, size, held, "a resume need not read the text again")
