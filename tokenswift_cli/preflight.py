"""Would this run fail hours from now? Numbers first, then a refusal with remedies, or nothing."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from tokenswift_cli.errors import PreflightError
from tokenswift_cli.kv_journal.policy import JournalPlan

_GIB = float(1 << 30)

# Activations, logits and the index of the text, beyond weights and cache.
_WORKING_BYTES = 1 << 29

# tokens.bin holds 4 bytes per token, output.txt some 4, metrics and manifests little more.
_DISK_BYTES_PER_TOKEN = 16
_DISK_FIXED_BYTES = 1 << 20


@dataclass(frozen=True)
class Preflight:
    """What a run needs and what there is.

    Attributes:
        prompt_tokens, max_tokens: lengths in tokens.
        position_limit: longest text the model is made for, or None if it names none.
        stretched: by what factor its positions are stretched for that; None where this cannot be changed.
        weight_bytes: the loaded model.
        kv_bytes: key-value cache for prompt and all new tokens.
        kv_dtype: the setting of the type that it stores.
        free_bytes: memory still free on the device, with the model loaded; None if unknown.
        disk_bytes, free_disk_bytes: the run directory without the journal, and its file system.
        journal: of the key-value cache; None where there is no run to keep one for.
        heads: the drafting heads in words; empty where they were not asked about.
    """

    prompt_tokens: int
    max_tokens: int
    position_limit: int | None
    weight_bytes: int
    kv_bytes: int
    kv_dtype: str
    free_bytes: int | None
    disk_bytes: int
    free_disk_bytes: int
    stretched: float | None = 1.0
    journal: JournalPlan | None = None
    heads: str = ""

    def lines(self) -> list[str]:
        """The numbers for people, one line each."""
        limit = "no limit named" if self.position_limit is None else f"limit {self.position_limit}"
        free = "free memory unknown" if self.free_bytes is None else f"{_gib(self.free_bytes)} free"
        lines = [
            f"positions: {self.prompt_tokens} prompt + {self.max_tokens} new tokens ({limit})",
            f"memory: {_gib(self.weight_bytes)} weights (loaded) + {_gib(self.kv_bytes)} key-value cache "
            f"+ {_gib(_WORKING_BYTES)} working space ({free})",
            f"disk: {_gib(self.disk_bytes)} for the run directory ({_gib(self.free_disk_bytes)} free)",
        ]
        if self.journal is not None:
            kept = "kept" if self.journal.kept else "not kept"
            lines.append(f"key-value journal: {_gib(self.journal.size)}, {kept}: {self.journal.reason}")
        if self.heads:
            lines.append(f"heads: {self.heads}")
        return lines

    def require_room(self) -> None:
        """Refuse a run that cannot end well.

        Raises:
            PreflightError: positions, memory or disk do not suffice; says by how much and what helps.
        """
        total = self.prompt_tokens + self.max_tokens
        if self.position_limit is not None and total > self.position_limit:
            room = self.position_limit - self.prompt_tokens
            remedy = f"Use --max-tokens {room} or less" if room > 0 else "Use a shorter prompt"
            stretch = ""
            if self.stretched is not None:
                factor = math.ceil(total * self.stretched / self.position_limit)
                stretch = f", stretch its positions with --rope-scaling yarn:{factor}"
            raise PreflightError(
                f"{self.prompt_tokens} prompt tokens + {self.max_tokens} new tokens = {total} positions, but "
                f"the model is made for {self.position_limit}. {remedy}{stretch}, or use a model with a "
                "longer context."
            )
        needed = self.kv_bytes + _WORKING_BYTES
        if self.free_bytes is not None and needed > self.free_bytes:
            per_token = max(1, self.kv_bytes // max(1, total))
            room = (self.free_bytes - _WORKING_BYTES) // per_token - self.prompt_tokens
            remedy = f"--max-tokens {room} or less" if room > 0 else "a smaller model"
            shorter = "" if self.kv_dtype == "float16" else ", --kv-dtype float16"
            raise PreflightError(
                f"The key-value cache for {total} tokens needs {_gib(self.kv_bytes)} and the run "
                f"{_gib(_WORKING_BYTES)} besides, but only {_gib(self.free_bytes)} are free. Free memory, or "
                f"use {remedy}{shorter}, or a 16-bit --dtype."
            )
        journal_bytes = 0 if self.journal is None else self.journal.disk_bytes
        disk_bytes = self.disk_bytes + journal_bytes
        if disk_bytes > self.free_disk_bytes:
            or_without = ", or leave the key-value journal out (--kv-journal never)" if journal_bytes else ""
            raise PreflightError(
                f"The run directory needs {_gib(disk_bytes)} of disk, but only "
                f"{_gib(self.free_disk_bytes)} are free. Free some space or choose another --run-dir"
                f"{or_without}."
            )


def disk_need(max_tokens: int) -> int:
    """Bytes a run directory takes at most."""
    return max_tokens * _DISK_BYTES_PER_TOKEN + _DISK_FIXED_BYTES


def free_disk(path: Path) -> int:
    """Free bytes on the file system where ``path`` is or will be."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
