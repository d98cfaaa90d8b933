"""A run directory as the source of contexts: its tokens, and the rows that its journal holds of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenswift_cli.bench.contestant import Say
from tokenswift_cli.config import Config
from tokenswift_cli.disk_errors import resume_command, telling
from tokenswift_cli.errors import ResumeRefusedError
from tokenswift_cli.run_journal import journal_of
from tokenswift_cli.run_layout import TOKENS

if TYPE_CHECKING:
    from tokenswift_cli.kv_journal.reader import JournalRows
    from tokenswift_cli.models.kv_layout import KeyValueLayout
    from tokenswift_cli.models.loading import LoadedModel


def run_ids(run_dir: Path) -> list[int]:
    """Token ids of a run: prompt and text.

    Raises:
        UsageError: there is no run.
        ResumeRefusedError: it is damaged.
        RunDirectoryError: the disk refuses.
    """
    from tokenswift_cli.run_snapshot import read_snapshot

    snapshot = read_snapshot(run_dir)
    for problem in snapshot.problems:
        if problem.file == TOKENS:
            raise ResumeRefusedError(
                f"{problem.message}. Let `{resume_command(run_dir)}` repair the run first."
            )
    return [*snapshot.contents.prompt_ids, *snapshot.tokens]


def stored_rows(run_dir: Path, loaded: LoadedModel, config: Config, layout: KeyValueLayout) -> JournalRows:
    """What the journal of the run holds of its text."""
    with telling(run_dir, "measure again"):
        return journal_of(run_dir, loaded, config).open_rows(run_ids(run_dir), layout)


def tell_problems(rows: JournalRows, say: Say) -> None:
    """One line for each file that was of no use."""
    for problem in rows.problems:
        say(f"{problem}; what it held was computed")


def fill_dynamic_cache(
    cache: Any, run_dir: Path, loaded: LoadedModel, config: Config, limit: int, say: Say
) -> int:
    """Give a cache of transformers the rows that the journal holds of the beginning of the run's text.

    Args:
        cache: a ``DynamicCache`` that holds a few rows, which tell its form; emptied first.
        run_dir, loaded, config: as for :func:`stored_rows`.
        limit: most tokens.
        say: gets a line for each file that was of no use.

    Returns:
        how many tokens it holds now: those before the first that is missing, none if a layer has a window.
    """
    from tokenswift_cli.models.device import stored_type
    from tokenswift_cli.models.kv_cache import KeyValueCache
    from tokenswift_cli.models.kv_layout import KeyValueLayout, LayerLayout

    windowed = any(cache.is_sliding)
    layers = tuple(
        LayerLayout(index, layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
        for index, layer in enumerate(cache.layers)
    )
    dtype, device = cache.layers[0].keys.dtype, cache.layers[0].keys.device
    cache.crop(-cache.get_seq_length())
    if windowed:
        return 0
    rows = KeyValueCache(limit, stored_type(config.model.kv_dtype))
    layout = KeyValueLayout(layers, rows.dtype or dtype)
    with stored_rows(run_dir, loaded, config, layout) as stored:
        while rows.length < limit and stored.restore(rows, limit):
            pass
        tell_problems(stored, say)
    for layer in range(rows.layers):
        stores = rows.keys(layer), rows.values(layer)
        keys, values = (store[None, :, : rows.length].to(device, dtype) for store in stores)
        cache.update(keys, values, layer)
    return rows.length
