"""The training loop: AdamW on the heads alone, the target stays as it is.

A step depends on the weights, the optimizer's moments and the step's number, nothing else, so a training
that goes on from a checkpoint ends with the same bits as one that was never disturbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenswift_cli.errors import ResumeRefusedError, TrainingStoppedError
from tokenswift_cli.models.heads import DraftHeads, HeadsOutput
from tokenswift_cli.training.checkpoints import Checkpoint, Checkpoints
from tokenswift_cli.training.examples import Batch, Examples, Window
from tokenswift_cli.training.hidden_states import HiddenStates
from tokenswift_cli.training.log import Row, TrainingLog
from tokenswift_cli.training.loss import HeadLoss, Labels, Output, heads_loss
from tokenswift_cli.training.measures import Measures
from tokenswift_cli.training.progress import Progress
from tokenswift_cli.training.schedule import learning_rate
from tokenswift_cli.training.session import Stops
from tokenswift_cli.training.settings import TrainingSection


@dataclass(frozen=True)
class HeldOut:
    """Windows whose loss is taken at each checkpoint."""

    examples: Examples
    windows: Sequence[Window]


class Trainer:
    """One training of one set of heads.

    Args:
        heads: float32, on the model's device; changed in place.
        output: the target's output layer for these heads.
        states: the target, for its own guesses.
        examples: what to learn, in which order.
        section: how.
        steps: optimizer steps of the whole training.
        checkpoints: where the training goes on and is kept.
        facts: JSON-able, by dotted name: all that decides the result. A checkpoint with others is refused.
        held_out: measured at each checkpoint; None measures nothing.
        state_scale: the heads learn on states divided by this, see :func:`state_scale`; it is to be given to
            :meth:`DraftHeads.rescale` afterwards.

    Attributes:
        step: optimizer steps done.
        trained: averages of the last log row; None before the first.
        measured: the newest held-out averages; None if there are none.
        seconds: of training so far, earlier sessions included.
    """

    def __init__(
        self,
        heads: DraftHeads,
        output: HeadsOutput,
        states: HiddenStates,
        examples: Examples,
        section: TrainingSection,
        steps: int,
        checkpoints: Checkpoints,
        facts: Mapping[str, object],
        held_out: HeldOut | None = None,
        state_scale: float = 1.0,
    ) -> None:
        self.step = 0
        self.trained: Measures | None = None
        self.measured: Measures | None = None
        self._heads, self._states, self._examples = heads, states, examples
        self._layer, self._embed = Output(output.weight, output.bias), output.embed
        self._section, self._steps = section, steps
        self._checkpoints, self._held_out = checkpoints, held_out
        self._facts = {**facts, "the scale of the hidden states": state_scale}
        self._device, self._state_scale = output.weight.device, state_scale
        vocabulary = torch.arange(states.model.config.get_text_config().vocab_size)
        if output.token_ids is not None:
            rows = torch.full_like(vocabulary, -1)
            rows[output.token_ids.cpu()] = torch.arange(len(output.token_ids))
            vocabulary = rows
        self._rows_of_tokens = vocabulary
        parameters = list(heads.parameters())
        # Scales of norms are not to be pulled to zero.
        groups: list[dict[str, Any]] = [
            {"params": [each for each in parameters if each.dim() > 1]},
            {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=section.learning_rate,
            betas=(section.beta1, section.beta2),
            weight_decay=section.weight_decay,
        )
        self._pending = Measures.empty(heads.shape.count)
        self.seconds = 0.0
        self._saved: int | None = None

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self._steps

    @property
    def epochs(self) -> float:
        """How often each window was seen, on average."""
        return self.step * self._examples.windows_per_step / len(self._examples.windows)

    def restore(self) -> list[str]:
        """Go on from the newest checkpoint, if there is one; returns messages about damaged ones.

        Raises:
            ResumeRefusedError: it belongs to a training with other settings or data.
            TrainingDataError: no checkpoint can be read.
        """
        checkpoint, messages = self._checkpoints.latest()
        if checkpoint is None:
            return messages
        before = checkpoint.state["facts"]
        changed = [
            f"{name} was {before.get(name)}, is now {value}"
            for name, value in self._facts.items()
            if before.get(name) != value
        ]
        if changed:
            raise ResumeRefusedError(
                f"The training in {self._checkpoints.directory.parent} was begun differently: "
                + "; ".join(changed)
                + ". Use what it was begun with, train from the beginning with --restart, or give another "
                "--work-dir."
            )
        with torch.no_grad():
            for name, parameter in self._heads.named_parameters():
                parameter.copy_(checkpoint.tensors[f"heads.{name}"])
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(checkpoint.step)),
                    **{
                        moment: checkpoint.tensors[f"{moment}.{name}"].to(parameter.device)
                        for moment in ("exp_avg", "exp_avg_sq")
                    },
                }
        self.step = checkpoint.step
        self.seconds = checkpoint.state["seconds"]
        self._pending = Measures.from_json(checkpoint.state["pending"])
        self.trained = _measures(checkpoint.state["trained"])
        self.measured = _measures(checkpoint.state["measured"])
        self._saved = checkpoint.step
        return messages

    def run(self, log: TrainingLog, progress: Progress, stops: Stops) -> None:
        """Train to the last step, or to a stop; either way what was learned is in a checkpoint.

        Raises:
            TrainingStoppedError: a loss or gradient was not finite; the checkpoint before it is kept.
            RunDirectoryError: the disk refuses; the checkpoint before is kept.
        """
        section = self._section
        started = time.monotonic() - self.seconds
        while not self.finished and not stops.requested:
            rate, length = self._one_step()
            self.seconds = time.monotonic() - started
            self.step += 1
            progress.to(self.step, _detail(self._pending))
            if self.step % section.log_every == 0 or self.finished:
                log.write(Row(self.step, "train", self._pending, rate, length, self.seconds))
                self.trained, self._pending = self._pending, Measures.empty(self._heads.shape.count)
            if self.step % section.checkpoint_every == 0 or self.finished:
                self._measure(log)
                self._save()
        if self.step and self._saved != self.step:
            self._save()

    def _one_step(self) -> tuple[float, float]:
        """Learning rate and gradient length of one optimizer step."""
        section = self._section
        batches = self._examples.step(self.step)
        labels = [self._labels(batch) for batch in batches]
        counts = torch.stack([each.valid.sum(dim=1) for each in labels]).sum(dim=0)
        # A mean over the whole step, however its positions are spread over the batches.
        shares = torch.where(counts > 0, 1.0 / counts.clamp(min=1), 0.0)
        self._optimizer.zero_grad(set_to_none=True)
        for batch, label in zip(batches, labels, strict=True):
            loss = self._loss(batch, label, shares)
            self._require_finite("loss", float(loss.loss.detach()), batches)
            loss.loss.backward()
            self._pending.add(loss)
        length = float(
            torch.nn.utils.clip_grad_norm_(self._heads.parameters(), section.max_grad_norm or math.inf)
        )
        self._require_finite("gradient", length, batches)
        rate = learning_rate(self.step, self._steps, section.learning_rate, section.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return rate, length

    def _labels(self, batch: Batch) -> Labels:
        tokens = self._rows_of_tokens[batch.following[1:]]
        valid = batch.valid
        if self._section.labels == "tokens":
            valid = valid & (tokens >= 0)
        return Labels(tokens.to(self._device), valid.to(self._device))

    def _loss(self, batch: Batch, labels: Labels, shares: Tensor) -> HeadLoss:
        hidden = self._examples.hidden(batch)
        if self._section.labels == "target":
            labels = Labels(labels.tokens, labels.valid, self._states.normed(hidden))
        state = hidden.to(self._device, torch.float32) / self._state_scale
        following = batch.following.to(self._device)
        conditioned = self._heads.shape.variant == "conditioned"
        outputs = []
        for head in range(self._heads.shape.count):
            embedding = self._embed(following[head]) if conditioned else None
            state, normed = self._heads.step(head, state, embedding)
            outputs.append(normed)
        return heads_loss(torch.stack(outputs), self._layer, labels, shares, self._section.loss_chunk)

    @torch.no_grad()
    def _measure(self, log: TrainingLog) -> None:
        if self._held_out is None or not self._held_out.windows:
            return
        measures = Measures.empty(self._heads.shape.count)
        nothing = torch.zeros(self._heads.shape.count, device=self._device)
        for batch in self._held_out.examples.batches(self._held_out.windows):
            measures.add(self._loss(batch, self._labels(batch), nothing))
        self.measured = measures
        log.write(Row(self.step, "held-out", measures, None, None, self.seconds))

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._heads.named_parameters():
            tensors[f"heads.{name}"] = parameter
            for moment in ("exp_avg", "exp_avg_sq"):
                tensors[f"{moment}.{name}"] = self._optimizer.state[parameter][moment]
        state = {
            "facts": self._facts,
            "seconds": self.seconds,
            "pending": self._pending.to_json(),
            "trained": self.trained.to_json() if self.trained else None,
            "measured": self.measured.to_json() if self.measured else None,
        }
        self._checkpoints.save(Checkpoint(self.step, tensors, state))
        self._saved = self.step

    def _require_finite(self, what: str, value: float, batches: Sequence[Batch]) -> None:
        if math.isfinite(value):
            return
        kept = "No checkpoint had been written yet"
        if self._saved is not None:
            kept = f"The heads of step {self._saved} are kept in {self._checkpoints.path(self._saved)}"
        source = next((bad for batch in batches if (bad := self._examples.damaged(batch))), None)
        if source is not None:
            raise TrainingStoppedError(
                f"Training stopped in step {self.step + 1}: the hidden states of {source} hold NaN or Inf. "
                f"{kept}. Delete the file if it is self-written text, or try another --dtype."
            )
        raise TrainingStoppedError(
            f"Training stopped in step {self.step + 1}, as the {what} was {value}. {kept}. "
            "Train with a lower training.learning_rate and --restart."
        )


def state_scale(hidden: Tensor) -> float:
    """The size of hidden states, as a power of two.

    Each head adds to the state before it, and the sum is normed, so only sizes relative to the state matter:
    on states of size one a step of the optimizer changes as much whatever the model is. A power of
    two, so that dividing and multiplying by it is exact.

    Args:
        hidden: [M, d].
    """
    size = float(hidden.float().square().mean(dim=-1).sqrt().median())
    return 2.0 ** round(math.log2(size)) if size > 0 and math.isfinite(size) else 1.0


def _measures(data: Any) -> Measures | None:
    return None if data is None else Measures.from_json(data)


def _detail(measures: Measures) -> str:
    """Loss and hits for the progress display; one figure per head."""
    top1 = "/".join(f"{share:.2f}" for share in measures.top1_shares)
    top3 = "/".join(f"{share:.2f}" for share in measures.top3_shares)
    return f"loss={measures.loss:.3f} top1={top1} top3={top3}"
