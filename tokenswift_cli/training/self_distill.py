"""The target writes its own training text: what heads have to predict is what this model would write.

Batches of texts, each text with its own prompt and noise, each batch one immutable file. Choices are those
of the engine, so each text is the one ``tokenswift generate`` writes with its seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tokenswift_cli.durable import atomic_write
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.errors import TrainingDataError
from tokenswift_cli.training.batch_model import BatchModel
from tokenswift_cli.training.lane_writer import write_lanes
from tokenswift_cli.training.shards import Shard, shard_path, write_shard

SETTINGS_FILE = "self-distill.json"
_STORED = torch.float16


@dataclass(frozen=True)
class SelfDistillSettings:
    """What decides the text.

    Attributes:
        batches: files to write.
        lanes: texts per file, written at once.
        tokens: length of each text, its prompt included.
        seed: of the first text; each has the next number.
        sampling: as in a run; its seed is not used.
    """

    batches: int
    lanes: int
    tokens: int
    seed: int
    sampling: SamplingSettings


class SelfDistillation:
    """Text written by a model, in a directory; what is there already is kept.

    Args:
        directory: made when missing.
        settings: what decides the text.
        prompts: token ids, each not empty and shorter than the text; used in turn.
        model_facts: JSON-able identity of the model.

    Raises:
        TrainingDataError: a prompt does not fit, or the directory holds the text of other settings.
    """

    def __init__(
        self,
        directory: Path,
        settings: SelfDistillSettings,
        prompts: Sequence[Sequence[int]],
        model_facts: Mapping[str, object],
    ) -> None:
        if not prompts:
            raise TrainingDataError("There is no prompt to start a training text from. Give --prompts FILE.")
        for number, prompt in enumerate(prompts, start=1):
            if not 0 < len(prompt) < settings.tokens:
                raise TrainingDataError(
                    f"Prompt {number} has {len(prompt)} tokens; it must have 1 to {settings.tokens - 1}, as "
                    f"each training text has {settings.tokens} tokens."
                )
        self.directory = directory
        self.settings = settings
        self._prompts = [list(prompt) for prompt in prompts]
        self._claim(model_facts)

    def missing(self) -> list[int]:
        """Numbers of the batches that are not written yet."""
        return [
            index for index in range(self.settings.batches) if not shard_path(self.directory, index).exists()
        ]

    def write(self, model: BatchModel, end_ids: Sequence[int], index: int) -> Iterator[int]:
        """Write one batch; its file appears when it is whole.

        Args:
            model: the target.
            end_ids: never chosen, so that all texts have the same length.
            index: of the batch.

        Yields:
            tokens written so far in each text.
        """
        settings = self.settings
        first = index * settings.lanes
        seeds = [settings.seed + first + lane for lane in range(settings.lanes)]
        prompts = [self._prompts[(first + lane) % len(self._prompts)] for lane in range(settings.lanes)]
        samplers = [
            Sampler(
                dataclasses.replace(settings.sampling, seed=seed),
                model.vocabulary_size,
                model.device,
                held_ids=end_ids,
                held_until=sys.maxsize,
            )
            for seed in seeds
        ]
        # One block, allocated at once: small pieces kept between large ones would fragment the memory.
        hidden: Tensor | None = None
        tokens: Tensor | None = None
        passes = write_lanes(model, prompts, samplers, settings.tokens)
        for position, (written, states) in enumerate(passes):
            if hidden is None:
                hidden = states.new_empty(settings.lanes, settings.tokens, states.shape[1], dtype=_STORED)
            if hidden.dtype == _STORED and not _fits(states):
                hidden = hidden.float()
            hidden[:, position] = states
            tokens = written
            yield position + 1
        assert hidden is not None and tokens is not None
        shard = Shard(
            tokens=tokens.cpu(),
            hidden=hidden.cpu(),
            prompt_lengths=torch.tensor([len(prompt) for prompt in prompts]),
            seeds=torch.tensor(seeds),
        )
        write_shard(shard_path(self.directory, index), shard)

    def _claim(self, model_facts: Mapping[str, object]) -> None:
        """Say in the directory what its text is, or see that it says the same."""
        settings = dataclasses.asdict(self.settings)
        del settings["batches"], settings["sampling"]["seed"]  # more batches may be asked for later
        prompts = json.dumps(self._prompts).encode()
        facts = {
            "model": dict(model_facts),
            "settings": settings,
            "prompts_sha256": hashlib.sha256(prompts).hexdigest(),
        }
        facts = json.loads(json.dumps(facts))
        path = self.directory / SETTINGS_FILE
        self.directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            atomic_write(path, json.dumps(facts, indent=2).encode())
            return
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            raise TrainingDataError(f"{path} is damaged ({error}). Use another directory.") from error
        changed = sorted(key for key in facts if not isinstance(found, dict) or found.get(key) != facts[key])
        if changed:
            raise TrainingDataError(
                f"{self.directory} holds training text of another {' and '.join(changed)}. "
                "Use another directory, or the settings it was begun with."
            )


def _fits(states: Tensor) -> bool:
    """Whether float16 holds the values, for half the space of float32."""
    return bool(torch.isfinite(states.to(_STORED)).all())
