"""A run from start to end: model -> engine -> run directory -> events.

Drives the engine in chunks. A chunk is the unit of durability: its tokens, text and metrics are on disk
before the next one begins.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenswift_cli import __version__
from tokenswift_cli.config import Config, parse_rope_scaling
from tokenswift_cli.disk_errors import resume_command
from tokenswift_cli.errors import ResumeRefusedError, TokenSwiftError, UsageError
from tokenswift_cli.events import Loading, Notice
from tokenswift_cli.kv_journal.policy import JournalPlan
from tokenswift_cli.metrics import peak_process_memory_bytes
from tokenswift_cli.outcome import RunOutcome
from tokenswift_cli.preflight import Preflight, disk_need, free_disk
from tokenswift_cli.prompt_input import PromptText
from tokenswift_cli.run_dir import RunDirectory, default_run_path
from tokenswift_cli.run_journal import journal_of, plan_for
from tokenswift_cli.run_layout import PROMPT_IDS, RUN_YAML, TOKENS, kind_of, refusal_to_create
from tokenswift_cli.run_model import (
    Publish,
    largest_unknown,
    load_run_model,
    load_same_model,
    make_target,
    require_known_ids,
)
from tokenswift_cli.signals import StopRequests
from tokenswift_cli.text_settings import text_deciding_differences
from tokenswift_cli.yaml_config import dump_yaml

if TYPE_CHECKING:
    from tokenswift_cli.models.heads import DraftHeads
    from tokenswift_cli.models.loading import LoadedModel
    from tokenswift_cli.run_dir import Recovery

_RUNS = Path("runs")


def generate(config: Config, prompt: PromptText, *, publish: Publish, dry_run: bool = False) -> RunOutcome:
    """Write a new text.

    Args:
        config: validated.
        prompt: the prompt's text and bytes.
        publish: gets every event.
        dry_run: load, measure and check, but write nothing.

    Raises:
        TokenSwiftError: see the subclasses in errors.py; nothing checkpointed is ever lost.
    """
    with StopRequests() as stops:
        for notice in prompt.notices:
            publish(Notice(notice))
        started = datetime.now()
        path = Path(config.run.directory) if config.run.directory else default_run_path(_RUNS, started)
        if refusal := refusal_to_create(path, kind_of(path)):
            raise refusal
        config = _with_absolute_model(config)
        loaded = load_run_model(config, publish)
        _require_textual_stops(loaded, config)
        prompt_ids = encode_prompt(loaded.tokenizer, prompt.text, config.prompt.chat, config.prompt.system)
        _require_known_ids(loaded, prompt_ids, config)
        target = _target(loaded, len(prompt_ids), config, publish)
        heads = _heads(loaded, target, config, publish)
        plan = plan_for(path, target, len(prompt_ids), config)
        check = _preflight(loaded, target, heads, len(prompt_ids), config, path, plan)
        if dry_run:
            for line in check.lines():
                publish(Notice(line))
            check.require_room()
            return RunOutcome("dry-run", None, 0, config.generation.max_tokens, len(prompt_ids))
        check.require_room()
        stops.defer()
        with _create(path, started, config, _meta(loaded, config), prompt, prompt_ids) as directory:
            return _write(directory, config, loaded, target, heads, plan, None, stops, publish)


def resume(run_dir: Path, stored: Config, requested: Config, *, publish: Publish) -> RunOutcome:
    """Continue the text in ``run_dir`` exactly as an undisturbed run would have gone on.

    Args:
        run_dir: made by :func:`generate`.
        stored: its run.yaml.
        requested: the same with this session's changes; only speed, display and ``max_tokens`` may differ.
        publish: gets every event.

    Raises:
        ResumeRefusedError: model, tokenizer or a setting that decides the text differs.
    """
    differences = text_deciding_differences(stored, requested)
    if differences:
        raise ResumeRefusedError(
            f"Resume refused, as the text in {run_dir} was written with other settings: "
            + "; ".join(differences)
            + ". Leave these options out, or start a new run."
        )
    with StopRequests() as stops, RunDirectory.open(run_dir) as directory:
        recovery = directory.recover()
        for message in recovery.messages:
            publish(Notice(message, "warning"))
        finished = _already_finished(recovery, requested)
        if finished is not None:
            if recovery.text_damaged or requested.model != stored.model:
                loaded = load_same_model(run_dir, directory.meta, requested, publish)
                if recovery.text_damaged:
                    _rebuild_text(directory, recovery, loaded, requested)
            publish(Notice(finished))
            return RunOutcome(
                recovery.finish_reason or "length",
                str(run_dir),
                len(recovery.tokens),
                requested.generation.max_tokens,
                len(directory.prompt_ids),
            )
        loaded = load_same_model(run_dir, directory.meta, requested, publish)
        require_known_ids(
            loaded,
            run_dir,
            {
                RUN_YAML: requested.sampling.suppress_ids,
                PROMPT_IDS: directory.prompt_ids,
                TOKENS: recovery.tokens,
            },
        )
        target = _target(loaded, len(directory.prompt_ids), requested, publish)
        heads = _heads(loaded, target, requested, publish)
        plan = plan_for(run_dir, target, len(directory.prompt_ids), requested)
        check = _preflight(loaded, target, heads, len(directory.prompt_ids), requested, run_dir, plan)
        replace(check, stretched=None).require_room()  # how far is part of what the run is
        if requested != stored:
            if recovery.text_damaged:  # until it is rebuilt, no manifest can be written
                _rebuild_text(directory, recovery, loaded, requested)
            directory.update_run_yaml(dump_yaml(requested))
        stops.defer()
        return _write(directory, requested, loaded, target, heads, plan, recovery, stops, publish)


def encode_prompt(tokenizer: Any, text: str, chat: bool, system: str | None) -> list[int]:
    """Token ids of the prompt, whole; never truncated.

    Raises:
        UsageError: a chat was asked for and the model has no chat template, or nothing is left of the text.
    """
    if chat:
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError("The model has no chat template; leave --chat out.")
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    else:
        if system is not None:
            raise UsageError("--system needs --chat.")
        ids = tokenizer(text, truncation=False)["input_ids"]
    if not ids:
        raise UsageError("The prompt holds no token the model knows; give some text.")
    return [int(token_id) for token_id in ids]


def _with_absolute_model(config: Config) -> Config:
    """A model named by a relative path is found again from any folder."""
    from tokenswift_cli.models.demo import is_demo_name

    path = Path(config.model.name).expanduser()
    if is_demo_name(config.model.name) or not os.path.exists(path):  # not Path's: any name is fine here
        return config
    # Not resolved: the name that a symbolic link gives a file may say what it is.
    return replace(config, model=replace(config.model, name=str(path.absolute())))


def _require_textual_stops(loaded: LoadedModel, config: Config) -> None:
    """Special tokens are no text, so a stop string that names one would never be seen."""
    special = set(loaded.tokenizer.all_special_tokens)
    for stop in config.generation.stop:
        if stop in special:
            raise UsageError(
                f"--stop {stop} is a special token of the model and never part of the text. Leave it out: "
                "the model's own end-of-text tokens end the run already."
            )


def _require_known_ids(loaded: LoadedModel, prompt_ids: list[int], config: Config) -> None:
    for name, ids in (("sampling.suppress_ids", config.sampling.suppress_ids), ("the prompt", prompt_ids)):
        if (unknown := largest_unknown(loaded, ids)) is not None:
            raise UsageError(
                f"Token id {unknown} in {name} is beyond the model's vocabulary of "
                f"{loaded.identity.vocab_size} tokens. Use ids of this model, and its own tokenizer."
            )


def _target(loaded: LoadedModel, prompt_tokens: int, config: Config, publish: Publish) -> Any:
    scratch = config.drafting.most_nodes + 1
    return make_target(loaded, prompt_tokens + config.generation.max_tokens + scratch, config, publish)


def _heads(loaded: LoadedModel, target: Any, config: Config, publish: Publish) -> DraftHeads | None:
    """The drafting heads that the run uses, checked against model and method."""
    if not config.drafting.uses_heads:
        return None
    from tokenswift_cli.engine.drafting import require_fitting_heads
    from tokenswift_cli.models.heads_directory import load_heads

    directory = Path(str(config.drafting.heads))
    publish(Loading(f"Loading the drafting heads in {directory}"))
    heads = load_heads(
        directory,
        loaded.identity,
        loaded.model.config.get_text_config().hidden_size,
        loaded.identity.vocab_size,
    )
    require_fitting_heads(config.drafting, heads)
    # A model that keeps no states for them is refused now, not when the run directory exists.
    target.keep_states()
    return heads


def _preflight(
    loaded: LoadedModel,
    target: Any,
    heads: DraftHeads | None,
    prompt_tokens: int,
    config: Config,
    path: Path,
    plan: JournalPlan,
) -> Preflight:
    max_tokens = config.generation.max_tokens
    return Preflight(
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        position_limit=loaded.position_limit,
        stretched=parse_rope_scaling(config.model.rope_scaling) or 1.0,
        weight_bytes=target.weight_bytes,
        kv_bytes=target.kv_bytes_per_token * (prompt_tokens + max_tokens),
        kv_dtype=config.model.kv_dtype,
        free_bytes=target.free_bytes(),
        disk_bytes=disk_need(max_tokens),
        free_disk_bytes=free_disk(path),
        journal=plan,
        heads=_heads_in_words(heads, config),
    )


def _heads_in_words(heads: DraftHeads | None, config: Config) -> str:
    if heads is not None:
        return f"{heads.shape.count} ({heads.shape.variant}) in {config.drafting.heads}, of this model"
    return f"none (method {config.drafting.method} does without)"


def _create(
    path: Path,
    started: datetime,
    config: Config,
    meta: dict[str, object],
    prompt: PromptText,
    prompt_ids: list[int],
) -> RunDirectory:
    """The run's directory; a name of our own making may be taken by now, by a run of the same second."""
    while True:
        try:
            return RunDirectory.create(
                path,
                run_yaml=dump_yaml(config),
                meta=meta,
                prompt_text=prompt.raw,
                prompt_ids=prompt_ids,
            )
        except TokenSwiftError:
            free = default_run_path(_RUNS, started)
            if config.run.directory or free == path:
                raise
            path = free


def _meta(loaded: LoadedModel, config: Config) -> dict[str, object]:
    import torch
    import transformers

    return {
        "tokenswift": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "device": str(loaded.model.device),
        "model": loaded.identity.to_json(),
        "seed": config.sampling.seed,
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _already_finished(recovery: Recovery, config: Config) -> str | None:
    """Why there is nothing to do, or None."""
    tokens, reason = len(recovery.tokens), recovery.finish_reason
    if reason in ("eos", "stop") or (reason == "loop" and config.generation.on_loop == "stop"):
        return f"The run is finished: its text ended after {tokens} tokens ({reason})."
    if tokens >= config.generation.max_tokens:
        return f"The run is finished: it holds {tokens} tokens. Give a larger --max-tokens to extend it."
    return None


def _rebuild_text(directory: RunDirectory, recovery: Recovery, loaded: LoadedModel, config: Config) -> None:
    """output.txt of a finished run, from its tokens."""
    from tokenswift_cli.transcript import Transcript

    transcript = Transcript(loaded.tokenizer, config.generation.stop, config.generation.on_loop)
    directory.rewrite_text(transcript.replay(recovery.tokens) + transcript.finish().text)


def _next_command(path: Path, reason: str, tokens: int) -> str | None:
    """The command that goes on from here, or None where the text is at its end."""
    command = resume_command(path)
    if reason == "interrupted":
        return command
    if reason == "length":
        return f"{command} --max-tokens {2 * tokens}"
    return f"{command} --on-loop warn" if reason == "loop" else None


def _write(
    directory: RunDirectory,
    config: Config,
    loaded: LoadedModel,
    target: Any,
    heads: DraftHeads | None,
    plan: JournalPlan,
    recovery: Recovery | None,
    stops: StopRequests,
    publish: Publish,
) -> RunOutcome:
    from tokenswift_cli.session import WritingSession

    journal = journal_of(directory.path, loaded, config, plan)
    session = WritingSession(directory, config, loaded, target, heads, journal, recovery, stops, publish)
    reason = session.run()
    finished = session.finished_event(reason, _next_command(directory.path, reason, session.tokens))
    publish(finished)
    return RunOutcome(
        finish_reason=reason,
        run_dir=str(directory.path),
        tokens=finished.tokens,
        max_tokens=config.generation.max_tokens,
        prompt_tokens=len(directory.prompt_ids),
        session_tokens=finished.session_tokens,
        decode_seconds=finished.decode_seconds,
        tokens_per_second=finished.tokens_per_second,
        acceptance_rate=finished.acceptance_rate,
        mean_acceptance_length=finished.mean_acceptance_length,
        distinct=finished.distinct,
        peak_process_bytes=peak_process_memory_bytes(),
        exit_code=stops.exit_code if reason == "interrupted" else 0,
    )
