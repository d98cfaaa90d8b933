"""Checkpoints, resuming to the same bits, stopping at what is not finite, and the log."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_in_memory import Calm, Lesson, chain_llama, chain_texts, successors

from tokenswift_cli.errors import ResumeRefusedError, TrainingDataError, TrainingStoppedError
from tokenswift_cli.training.schedule import learning_rate

FOLLOWING = successors()
STEPS = 20
SETTINGS = {"steps": STEPS, "checkpoint_every": 7, "log_every": 3, "weight_decay": 0.1, "seed": 3}


@pytest.fixture(scope="module")
def model():
    return chain_llama(FOLLOWING)


def lesson(directory: Path, model, variant: str = "conditioned", **changes: object) -> Lesson:
    directory.mkdir(exist_ok=True)
    return Lesson(directory, model, chain_texts(FOLLOWING), variant, **(SETTINGS | changes))


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "log.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def weights(done: Lesson) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in done.heads.state_dict().items()}


@pytest.mark.parametrize("labels", ["tokens", "target"])
@pytest.mark.parametrize("variant", ["linear", "conditioned"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_training_resumed_half_way_ends_with_the_same_bits(
    tmp_path, model, labels: str, variant: str, accumulation: int
) -> None:
    """Stopped twice, once between two rows of the log and off the rhythm of the checkpoints."""
    changes = {"labels": labels, "gradient_accumulation": accumulation, "batch_windows": 2}
    whole = lesson(tmp_path / "whole", model, variant, **changes)
    whole.learn()
    for questions in (5, 6, None):
        part = lesson(tmp_path / "parts", model, variant, **changes)
        part.learn(Calm(questions))
    assert part.trainer.step == whole.trainer.step == STEPS
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(part)[name]), name
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    assert part.trainer.trained == whole.trainer.trained


def test_a_crash_goes_back_to_the_last_checkpoint_and_ends_the_same(tmp_path, model) -> None:
    """Rows that the log had of lost steps are taken out, also a torn one."""
    whole = lesson(tmp_path / "whole", model)
    whole.learn()
    torn = lesson(tmp_path / "torn", model)
    torn.learn(Calm(12))
    (torn.trainer._checkpoints.path(12)).unlink()
    with (tmp_path / "torn" / "log.csv").open("a") as file:
        file.write("15,train,0.1,0")
    again = lesson(tmp_path / "torn", model)
    again.trainer.restore()
    assert again.trainer.step == 7
    again.learn()
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(whole).items())
    assert rows_of(tmp_path / "torn") == rows_of(tmp_path / "whole")


def test_the_last_two_checkpoints_are_kept_and_a_damaged_one_is_passed_over(tmp_path, model) -> None:
    """Case 21."""
    done = lesson(tmp_path, model)
    done.learn()
    paths = done.trainer._checkpoints.paths()
    assert [path.name for path in paths] == ["step-000000014.safetensors", "step-000000020.safetensors"]
    paths[1].write_bytes(paths[1].read_bytes()[:1000])
    again = lesson(tmp_path, model)
    (message,) = again.learn()
    assert str(paths[1]) in message and "damaged" in message
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(done).items())
    for path in paths:
        path.write_bytes(b"nothing")
    with pytest.raises(TrainingDataError, match="--restart"):
        lesson(tmp_path, model).learn()


def test_other_settings_are_refused_by_name(tmp_path, model) -> None:
    """Case 22."""
    lesson(tmp_path, model).learn(Calm(4))
    with pytest.raises(ResumeRefusedError, match=r"training\.learning_rate was 0\.01, is now 0\.5") as caught:
        lesson(tmp_path, model, learning_rate=0.5).learn()
    assert caught.value.exit_code == 3 and "--restart" in str(caught.value)


class PoisonedStates:
    """Sequences whose hidden states turn bad at one moment."""

    def __init__(self, inner, after: int, value: float) -> None:
        self.inner, self.left, self.value = inner, after, value
        self.facts = inner.facts

    def tokens(self, index: int) -> torch.Tensor:
        return self.inner.tokens(index)

    def hidden(self, index: int, start: int, stop: int) -> torch.Tensor:
        self.left -= 1
        hidden = self.inner.hidden(index, start, stop)
        return hidden if self.left >= 0 else torch.full_like(hidden, self.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_loss_that_is_not_finite_stops_and_the_last_good_heads_are_kept(
    tmp_path, model, value: float
) -> None:
    """Case 31: a NaN loss ran to the end of training."""
    sick = lesson(tmp_path, model)
    sick.examples._sequences = PoisonedStates(sick.sequences, after=9 * 4, value=value)
    with pytest.raises(TrainingStoppedError, match=r"step 10.*step 7 are kept in .*000000007") as caught:
        sick.learn()
    assert "text 0" in str(caught.value) or "text " in str(caught.value)
    assert [path.name for path in sick.trainer._checkpoints.paths()] == ["step-000000007.safetensors"]
    assert all(bool(tensor.isfinite().all()) for tensor in weights(sick).values())
    good = lesson(tmp_path, model)
    good.learn()
    whole = lesson(tmp_path / "whole", model)
    whole.learn()
    assert all(torch.equal(tensor, weights(good)[name]) for name, tensor in weights(whole).items())


def test_a_training_that_runs_away_says_so(tmp_path, model) -> None:
    """Case 31, by a learning rate far too high."""
    wild = lesson(tmp_path, model, learning_rate=1e25, max_grad_norm=0.0, checkpoint_every=100)
    with pytest.raises(TrainingStoppedError, match="No checkpoint had been written yet") as caught:
        wild.learn()
    assert "lower training.learning_rate" in str(caught.value) and caught.value.exit_code == 1


def test_long_gradients_are_cut_and_the_rate_follows_the_schedule(tmp_path, model) -> None:
    done = lesson(tmp_path, model, max_grad_norm=1e-3, log_every=1, warmup=0.25, weight_decay=0.0)
    done.learn()
    rows = rows_of(tmp_path)
    assert len(rows) == STEPS and all(float(row["gradient_norm"]) > 1e-3 for row in rows)
    for step, row in enumerate(rows):
        assert float(row["learning_rate"]) == pytest.approx(learning_rate(step, STEPS, 0.01, 0.25), rel=1e-5)
    gradients = [parameter.grad.norm() for parameter in done.heads.parameters()]
    assert float(torch.stack(gradients).norm()) <= 1e-3 * 1.001


def test_accumulation_equals_one_large_batch(tmp_path, model) -> None:
    """A mean over the step's positions, not a mean of means."""
    texts = [text[: 10 + 5 * number] for number, text in enumerate(chain_texts(FOLLOWING))]
    found = []
    for name, batch, accumulation in (("one", 8, 1), ("many", 1, 8)):
        (tmp_path / name).mkdir()
        changes = {"batch_windows": batch, "gradient_accumulation": accumulation, "steps": 5}
        done = Lesson(tmp_path / name, model, texts, "linear", **changes)
        done.learn()
        found.append(weights(done))
    for name, tensor in found[0].items():
        assert torch.allclose(tensor, found[1][name], atol=1e-5), name


@settings(deadline=None)
@given(steps=st.integers(1, 500), highest=st.floats(1e-6, 1, allow_nan=False), warmup=st.floats(0, 1))
def test_the_rate_rises_then_falls_and_is_never_zero_or_too_high(
    steps: int, highest: float, warmup: float
) -> None:
    rates = [learning_rate(step, steps, highest, warmup) for step in range(steps)]
    assert all(0 < rate <= highest for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == highest


@pytest.mark.parametrize("variant", ["linear", "conditioned"])
def test_learning_does_not_depend_on_the_size_of_the_hidden_states(tmp_path, model, variant: str) -> None:
    """States of a real model can have a root mean square of 40, which weights would need long to reach."""
    from tokenswift_cli.training.trainer import state_scale

    small = lesson(tmp_path / "small", model, variant)
    small.learn()
    large = lesson(tmp_path / "large", model, variant, state_scale=64.0, hidden_factor=64.0)
    large.learn()
    state = torch.randn(5, 64)
    assert state_scale(64 * torch.ones(3, 64)) == 64 and state_scale(torch.zeros(2, 4)) == 1
    large.heads.rescale(64.0)
    embedding = torch.randn(5, 64) if variant == "conditioned" else None
    for head in range(3):
        before, normed = small.heads.step(head, state, embedding)
        after, normed_large = large.heads.step(head, 64 * state, embedding)
        torch.testing.assert_close(after, 64 * before, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(normed_large, normed, rtol=1e-2, atol=1e-2)
