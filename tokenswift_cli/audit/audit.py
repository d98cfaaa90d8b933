"""An audit from start to end: snapshot -> model -> text -> choices -> report. It writes nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenswift_cli.audit.mismatch import Mismatch
from tokenswift_cli.audit.positions import Selection, selected_positions
from tokenswift_cli.audit.progress import AuditProgress
from tokenswift_cli.audit.report import AuditedToken, AuditReport, Choices
from tokenswift_cli.audit.written_text import check_ending, check_text
from tokenswift_cli.config import Config
from tokenswift_cli.disk_errors import telling
from tokenswift_cli.errors import PreflightError
from tokenswift_cli.events import Event, Loading, Notice
from tokenswift_cli.run_files import FileProblem
from tokenswift_cli.run_journal import journal_of
from tokenswift_cli.run_layout import PROMPT_IDS, RUN_YAML
from tokenswift_cli.run_model import load_same_model, make_target, require_known_ids
from tokenswift_cli.run_snapshot import RunSnapshot
from tokenswift_cli.signals import StopRequests

if TYPE_CHECKING:
    from tokenswift_cli.audit.recompute import Recomputation
    from tokenswift_cli.engine.filling import StoredRows
    from tokenswift_cli.kv_journal.reader import JournalRows
    from tokenswift_cli.models.loading import LoadedModel
    from tokenswift_cli.models.target import Target

_GIB = float(1 << 30)
# Activations and logits of a pass.
_WORKING_BYTES = 1 << 29


def audit_run(
    snapshot: RunSnapshot,
    config: Config,
    selection: Selection,
    publish: Callable[[Event], None],
    *,
    from_journal: bool = False,
) -> AuditReport:
    """Hold the text of a run against what its model chooses.

    Args:
        snapshot: of the run.
        config: of the run, with what this command line says of model, device and threads.
        selection: which positions.
        publish: gets every event.
        from_journal: rows of the cache before and between the audited positions are taken from the run's
            key-value journal, where it has them: much faster, and those rows are trusted.

    Returns:
        the report, also after a signal once choices are being recomputed.

    Raises:
        UsageError: the selection reaches beyond the text.
        ResumeRefusedError: the model is not the run's.
        ModelError, PreflightError: it cannot be loaded or driven, or memory does not suffice.
        NonFiniteLogitsError: the model produced NaN or Inf.
    """
    positions = selected_positions(selection, snapshot.manifest.token_count)
    with StopRequests() as stops:
        for problem in snapshot.problems:
            publish(Notice(f"{problem.message}.", "warning"))
        loaded = load_same_model(
            snapshot.path,
            snapshot.contents.meta,
            config,
            publish,
            task="Verification",
            remedy="Name the model of the run with --model.",
        )
        require_known_ids(
            loaded,
            snapshot.path,
            {RUN_YAML: config.sampling.suppress_ids, PROMPT_IDS: snapshot.contents.prompt_ids},
        )
        known = _known_tokens(snapshot.tokens, loaded.identity.vocab_size)
        problems = [*snapshot.problems, *_text_problems(snapshot, known, loaded, config, publish)]
        # The first token that the model does not know can be judged, but not read.
        auditable = min(len(snapshot.tokens), known + 1)
        readable = positions[: bisect_left(positions, auditable)]
        rows = snapshot.prompt_tokens + (readable[-1] if readable else 0)
        target = make_target(loaded, rows, config, publish)
        _require_room(target, rows)
        with _stored_rows(snapshot, config, loaded, target, from_journal) as stored:
            recomputation = _recomputation(snapshot, config, loaded, target, stored)
            choices, interrupted_code = _check(
                recomputation, readable, rows, loaded.tokenizer, stops, publish
            )
            if stored is not None:
                choices = replace(choices, restored=stored.restored)
                for unusable in stored.problems:
                    publish(Notice(f"{unusable}; what it held was computed.", "warning"))
    choices = replace(
        choices,
        first=selection.first or 0,
        end=snapshot.manifest.token_count if selection.end is None else selection.end,
        drawn=None if selection.sample is None else len(positions),
        seed=selection.seed,
        requested=len(positions),
        unreadable=None if len(readable) == len(positions) else _why_unreadable(snapshot.tokens, known),
    )
    return AuditReport(
        run_dir=str(snapshot.path),
        tokens=snapshot.manifest.token_count,
        prompt_tokens=snapshot.prompt_tokens,
        finish_reason=snapshot.manifest.finish_reason,
        model=loaded.name,
        device=str(target.device),
        path=target.path,
        row_invariant=target.row_invariant,
        written_on=_written_on(snapshot.contents.meta),
        problems=tuple(problems),
        choices=choices,
        interrupted_code=interrupted_code,
    )


def _check(
    recomputation: Recomputation,
    positions: Sequence[int],
    rows: int,
    tokenizer: Any,
    stops: StopRequests,
    publish: Callable[[Event], None],
) -> tuple[Choices, int]:
    """What was found until the end or a signal, and the exit code of that signal."""
    if not positions:
        return Choices(), 0
    progress = AuditProgress(
        publish,
        rows_before=recomputation.rows_before(positions[0]),
        rows=rows,
        positions=len(positions),
    )
    mismatches = 0
    measured: list[AuditedToken] = []
    interrupted_code = 0
    try:
        for piece in recomputation.check(positions):
            progress.update(piece)
            if piece.mismatches and not mismatches:
                place = piece.measured[0].position
                publish(
                    Notice(f"The model chooses another token at position {place:,}; going on.", "warning")
                )
            mismatches += piece.mismatches
            measured += [_with_texts(mismatch, tokenizer) for mismatch in piece.measured]
    except (KeyboardInterrupt, SystemExit):
        if not stops.requested:
            raise
        interrupted_code = stops.exit_code
    choices = Choices(
        checked=progress.checked,
        mismatches=mismatches,
        measured=tuple(measured),
        read_seconds=progress.read_seconds,
        check_seconds=progress.check_seconds,
    )
    return choices, interrupted_code


def _stored_rows(
    snapshot: RunSnapshot, config: Config, loaded: LoadedModel, target: Target, wanted: bool
) -> AbstractContextManager[JournalRows | None]:
    if not wanted:
        return nullcontext()
    token_ids = snapshot.contents.prompt_ids + snapshot.tokens
    with telling(snapshot.path, "verify the run again, or without --from-journal"):
        return journal_of(snapshot.path, loaded, config).open_rows(token_ids, target.kv_layout)


def _recomputation(
    snapshot: RunSnapshot,
    config: Config,
    loaded: LoadedModel,
    target: Target,
    stored: StoredRows | None,
) -> Recomputation:
    from tokenswift_cli.audit.recompute import Recomputation
    from tokenswift_cli.engine.text_sampler import text_sampler

    sampler = text_sampler(
        config.sampling,
        target,
        prompt_tokens=snapshot.prompt_tokens,
        end_ids=loaded.eos_ids,
        ignore_end=config.generation.ignore_eos,
        min_tokens=config.generation.min_tokens,
    )
    return Recomputation(
        target,
        sampler,
        snapshot.contents.prompt_ids + snapshot.tokens,
        snapshot.prompt_tokens,
        prefill_chunk=config.drafting.prefill_chunk,
        stored=stored,
    )


def _text_problems(
    snapshot: RunSnapshot,
    known: int,
    loaded: LoadedModel,
    config: Config,
    publish: Callable[[Event], None],
) -> list[FileProblem]:
    """What is wrong with output.txt and the end of the text, as far as the model knows the tokens."""
    publish(Loading("Comparing the text with the tokens"))
    tokens, reason = snapshot.tokens[:known], snapshot.manifest.finish_reason
    if known < snapshot.manifest.token_count:
        reason = None  # its end is not there
    problems = check_text(loaded.tokenizer, tokens, config.generation, reason, snapshot.text)
    problems += check_ending(tokens, loaded.eos_ids, config.generation, reason)
    for problem in problems:
        publish(Notice(f"{problem.message}.", "warning"))
    return problems


def _known_tokens(tokens: Sequence[int], vocabulary_size: int) -> int:
    """How many tokens from the first one on are in the vocabulary."""
    return next((place for place, token in enumerate(tokens) if token >= vocabulary_size), len(tokens))


def _why_unreadable(tokens: Sequence[int], known: int) -> str:
    if known < len(tokens):
        return f"token {tokens[known]} at position {known:,} is none of the model's, so nothing follows it"
    return f"tokens.bin ends after {len(tokens):,} tokens"


def _require_room(target: Target, rows: int) -> None:
    """Refuse what memory cannot hold, before hours of reading."""
    needed = target.kv_bytes_per_token * rows + _WORKING_BYTES
    free = target.free_bytes()
    if free is not None and needed > free:
        raise PreflightError(
            f"Reading {rows:,} tokens takes {needed / _GIB:.2f} GiB of memory (cache and passes), "
            f"and {free / _GIB:.2f} GiB are free. Free memory, or give a --range that ends earlier."
        )


def _with_texts(mismatch: Mismatch, tokenizer: Any) -> AuditedToken:
    def text(token: int) -> str:
        decoded: str = tokenizer.decode(
            [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return decoded

    known = mismatch.token < len(tokenizer)
    return AuditedToken(mismatch, text(mismatch.token) if known else None, text(mismatch.chosen))


def _written_on(meta: Mapping[str, object]) -> str:
    return f"{meta.get('device', 'an unknown device')} with torch {meta.get('torch', '?')}"
