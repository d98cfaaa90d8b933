"""The last phase: acceptance on held-out text, which the target must have written itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from tokenswift_cli.models.heads import DraftHeads, HeadsOutput
from tokenswift_cli.training.evaluate import Acceptance, choose_places, replay
from tokenswift_cli.training.progress import Progress
from tokenswift_cli.training.self_distill import SelfDistillSettings
from tokenswift_cli.training.sequences import Sequences
from tokenswift_cli.training.session import Session
from tokenswift_cli.training.written_text import open_written, write_texts


def measure_acceptance(
    session: Session, heads: DraftHeads, output: HeadsOutput, sequences: Sequences, held_out: Sequence[int]
) -> Acceptance:
    """Replay the heads over held-out text, by position band; empty if nothing is to be measured.

    Where none of the held-out text is the target's own, the target first writes on from its beginnings.

    Raises:
        Interrupted: a stop came.
    """
    section, count = session.config.evaluation, session.config.heads.count
    acceptance = Acceptance(count)
    if not section.positions or not held_out:
        return acceptance
    if not any(sequences.facts[index].seed is not None for index in held_out):
        sequences = _written_from(session, sequences, held_out)
        held_out = range(len(sequences.facts))
    places = choose_places(sequences, held_out, count, section.positions, session.config.training.seed)
    with Progress("measuring", len(places), "positions", quiet=session.quiet) as progress:
        for done in replay(
            heads, output, sequences, places, session.vocabulary_size, session.loaded.eos_ids, acceptance
        ):
            progress.to(done)
            session.go_on()
    return acceptance


def _written_from(session: Session, sequences: Sequences, held_out: Sequence[int]) -> Sequences:
    """Text that the target writes on from the beginnings of held-out text."""
    section, sampling = session.config.evaluation, session.config.sampling
    prompts = [
        sequences.tokens(index)[: section.prompt_tokens].tolist() for index in held_out[: section.texts]
    ]
    settings = SelfDistillSettings(1, len(prompts), section.tokens, sampling.seed, sampling)
    # Named by what decides it, so that other settings never meet it.
    content = json.dumps([prompts, str(settings), session.loaded.identity.to_json()], sort_keys=True)
    directory = session.request.work / f"evaluation-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    write_texts(session, directory, settings, prompts, "writing held-out text")
    return open_written(directory, session.loaded.identity)
