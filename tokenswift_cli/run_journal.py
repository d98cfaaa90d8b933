"""The key-value journal of a run: where it is, what its rows depend on, and whether it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenswift_cli.config import Config
from tokenswift_cli.disk_errors import resume_command, telling
from tokenswift_cli.kv_journal.policy import JournalPlan, plan_journal
from tokenswift_cli.preflight import free_disk
from tokenswift_cli.run_layout import KV_JOURNAL

if TYPE_CHECKING:
    from tokenswift_cli.kv_journal.journal import Journal
    from tokenswift_cli.models.loading import LoadedModel
    from tokenswift_cli.models.target import Target

READ_ONLY = JournalPlan(kept=False, required=False, size=0, held=0, reason="the run is only read")


def plan_for(run_dir: Path, target: Target, prompt_tokens: int, config: Config) -> JournalPlan:
    """Whether a run writes a journal, by its configuration and the disk.

    Raises:
        ResumeRefusedError: a symbolic link is where the journal would be.
        RunDirectoryError: the disk refuses.
    """
    from tokenswift_cli.kv_journal.stretches import size_of

    tokens = prompt_tokens + config.generation.max_tokens
    with telling(run_dir, f"continue with `{resume_command(run_dir)}`"):
        held = size_of(run_dir / KV_JOURNAL)
    return plan_journal(config.checkpoint.kv, tokens, target.kv_bytes_per_token, free_disk(run_dir), held)


def journal_of(run_dir: Path, loaded: LoadedModel, config: Config, plan: JournalPlan = READ_ONLY) -> Journal:
    """The journal of the run in ``run_dir``, whose model is ``loaded``."""
    from tokenswift_cli.kv_journal.journal import Journal, origin_of

    identity = loaded.identity.to_json()
    del identity["name"]  # for people only
    facts = {
        "model": identity,
        "kv_dtype": config.model.kv_dtype,
        "rope_scaling": config.model.rope_scaling,
    }
    return Journal(run_dir / KV_JOURNAL, origin_of(facts), plan)
