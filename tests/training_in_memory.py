"""Small targets and texts whose right answers are known, and a training of them without files of text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from models_in_memory import tiny_llama
from torch import Tensor

from tokenswift_cli.models.heads import HeadsOutput, new_heads
from tokenswift_cli.training.checkpoints import Checkpoints
from tokenswift_cli.training.examples import Examples
from tokenswift_cli.training.hidden_states import HiddenStates
from tokenswift_cli.training.log import TrainingLog
from tokenswift_cli.training.progress import Progress
from tokenswift_cli.training.sequences import TextSequences
from tokenswift_cli.training.settings import TrainingSection
from tokenswift_cli.training.trainer import Trainer

WORDS = 48


def successors(seed: int = 5) -> list[int]:
    """A permutation of the words without short cycles: the word after each word."""
    order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(seed)).tolist()
    following = [0] * WORDS
    for place, word in enumerate(order):
        following[word] = order[(place + 1) % WORDS]
    return following


def chain_llama(following: Sequence[int]):
    """A Llama that says, whatever came before, the one word that follows the last one."""
    model = tiny_llama(vocab_size=WORDS)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        words = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1))).Q[:WORDS]
        model.model.embed_tokens.weight.copy_(words)
        model.lm_head.weight[list(following)] = 2 * words
    return model.requires_grad_(False)


def chain_texts(following: Sequence[int], count: int = 8, length: int = 60) -> list[list[int]]:
    texts = []
    for start in range(count):
        text = [start * 5 % WORDS]
        while len(text) < length:
            text.append(following[text[-1]])
        texts.append(text)
    return texts


class Calm:
    """Nobody asks to stop, or after so many questions."""

    def __init__(self, questions: int | None = None) -> None:
        self.left = questions

    @property
    def requested(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0


class Lesson:
    """One training in ``directory``; a second one with the same directory goes on."""

    def __init__(
        self,
        directory,
        model,
        texts,
        variant="linear",
        vocabulary: Tensor | None = None,
        heads=3,
        state_scale: float = 1.0,
        hidden_factor: float = 1.0,
        **changes,
    ):
        settings = {"learning_rate": 1e-2, "batch_windows": 4, "labels": "tokens", "log_every": 5} | changes
        self.section = TrainingSection(**settings)
        self.directory = directory
        torch.manual_seed(0)
        self.model = model
        self.states = HiddenStates(model)
        self.heads = new_heads(model, heads, variant, vocabulary)
        self.output = HeadsOutput(model, self.heads)
        self.sequences = texts if hasattr(texts, "facts") else self.text_sequences(texts)
        self.examples = Examples(
            self.sequences,
            range(len(self.sequences.facts)),
            heads,
            window_tokens=self.section.window_tokens,
            batch_windows=self.section.batch_windows,
            gradient_accumulation=self.section.gradient_accumulation,
            seed=self.section.seed,
        )
        read = self.examples.hidden
        self.examples.hidden = lambda batch: hidden_factor * read(batch)
        self.steps = self.section.steps or self.examples.steps_of(self.section.epochs)
        self.trainer = Trainer(
            self.heads,
            self.output,
            self.states,
            self.examples,
            self.section,
            self.steps,
            Checkpoints(directory / "checkpoints"),
            {"training.learning_rate": self.section.learning_rate},
            state_scale=state_scale,
        )

    def text_sequences(self, texts):
        return TextSequences([(text, f"text {number}") for number, text in enumerate(texts)], self.states)

    def learn(self, stops=None):
        messages = self.trainer.restore()
        log = TrainingLog(self.directory, self.heads.shape.count, self.trainer.step)
        try:
            with Progress("training", self.steps, "steps", quiet=True) as progress:
                self.trainer.run(log, progress, stops or Calm())
        finally:
            log.close()
        return messages

    @torch.no_grad()
    def guesses(self, text: Sequence[int]) -> list[list[int]]:
        """What each head says at each position, by the definition of the heads and nothing of the training.

        Entry [k - 1][t] is head k's guess of token t + 1 + k of the text.
        """
        tokens = torch.tensor(text)
        state = self.states.read(tokens)
        guesses = []
        for k in range(1, self.heads.shape.count + 1):
            before = tokens[[min(t + k, len(text) - 1) for t in range(len(text))]]
            embedding = self.output.embed(before) if self.heads.shape.variant == "conditioned" else None
            state, normed = self.heads.step(k - 1, state, embedding)
            best = self.output.logits(normed).argmax(dim=-1)
            ids = best if self.output.token_ids is None else self.output.token_ids[best]
            guesses.append(ids.tolist())
        return guesses
