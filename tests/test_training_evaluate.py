"""The replay counts what drafting would have had accepted: right positions, right noise."""

from __future__ import annotations

import dataclasses
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_in_memory import tiny_llama

from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.models.heads import DraftHeads, HeadsOutput, HeadsShape, new_heads
from tokenswift_cli.training.batch_model import BatchModel
from tokenswift_cli.training.card import acceptance_table, heads_card
from tokenswift_cli.training.evaluate import (
    BANDS,
    Acceptance,
    Chains,
    Place,
    band_name,
    band_of,
    choose_places,
    other_seed,
    replay,
)
from tokenswift_cli.training.hidden_states import HiddenStates
from tokenswift_cli.training.self_distill import SelfDistillation, SelfDistillSettings
from tokenswift_cli.training.sequences import SequenceFacts, ShardSequences

SAMPLING = SamplingSettings(penalty_window=20, min_p=0.02, temperature=0.9)
LENGTH = 60
END_IDS = (7,)
# All different, so that no two places have the same hidden state.
PROMPTS = [[5, 6], [9, 8, 4], [1], [30, 2], [77, 70, 7], [100]]


class Clairvoyant(DraftHeads):
    """Heads that know the target's own states at the coming positions."""

    def __init__(self, sequences, states: HiddenStates, heads: int, variant: str) -> None:
        super().__init__(HeadsShape(heads, 64, variant))
        # Not the stored ones, whose rounding to float16 can turn a close choice.
        self.hidden = torch.cat([states.read(sequences.tokens(index)) for index in range(6)])
        self.states, self.embeddings = states, []

    def step(self, index, state, token_embedding):
        if index == 0:
            # Where each row stands, by its hidden state.
            self.rows = torch.cdist(state.float(), self.hidden).argmin(dim=1)
        self.embeddings.append(token_embedding)
        return state, self.states.normed(self.hidden[self.rows + 1 + index])


@pytest.fixture(scope="module")
def model():
    return tiny_llama().requires_grad_(False)


@pytest.fixture(scope="module")
def sequences(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    settings = SelfDistillSettings(batches=2, lanes=3, tokens=LENGTH, seed=100, sampling=SAMPLING)
    writing = SelfDistillation(directory, settings, PROMPTS, {})
    batch_model = BatchModel(model)
    for index in writing.missing():
        for _ in writing.write(batch_model, END_IDS, index):
            pass
    return ShardSequences(directory, SAMPLING)


def replayed(heads, model, sequences, places) -> Acceptance:
    acceptance = Acceptance(heads.shape.count)
    done = list(replay(heads, HeadsOutput(model, heads), sequences, places, 256, END_IDS, acceptance))
    assert done[-1] == len(places)
    return acceptance


@pytest.mark.parametrize("variant", ["linear", "conditioned"])
def test_guesses_of_the_target_itself_are_all_accepted_with_shared_noise(model, sequences, variant) -> None:
    """Case 30: positions, noise, penalty window and held-back ids are those that wrote the text."""
    heads = Clairvoyant(sequences, HiddenStates(model), 3, variant)
    places = choose_places(sequences, range(6), 3, 1000, 0)
    chains = replayed(heads, model, sequences, places).whole
    assert chains["shared"].length == 4
    assert chains["independent"].length < 3.0
    assert chains["shared"].chains == len(places)
    for index, embedding in enumerate(heads.embeddings[:3]):
        if variant == "linear":
            assert embedding is None
            continue
        before = [int(sequences.tokens(place.sequence)[place.at + 1 + index]) for place in places[:32]]
        assert torch.equal(embedding, model.get_input_embeddings()(torch.tensor(before)))


def test_untrained_heads_are_replayed_like_a_draft_in_the_engines_terms(model, sequences) -> None:
    """Against a plain loop that drafts token by token from its own guesses."""
    kept = torch.arange(0, 256, 2)
    torch.manual_seed(4)
    heads = new_heads(model, 2, "conditioned", kept)
    for parameter in heads.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    output = HeadsOutput(model, heads)
    places = choose_places(sequences, range(6), 2, 50, 1)
    lengths = {"shared": 0, "independent": 0}
    for place in places:
        facts = sequences.facts[place.sequence]
        text = sequences.tokens(place.sequence)
        for mode in lengths:
            seed = facts.seed if mode == "shared" else other_seed(facts.seed)
            sampler = Sampler(
                dataclasses.replace(SAMPLING, seed=seed), 256, held_ids=END_IDS, held_until=sys.maxsize
            )
            state, draft = (
                sequences.hidden(place.sequence, place.at, place.at + 1)[0],
                [*text[: place.at + 2]],
            )
            for head in range(2):
                state, normed = heads.step(head, state, output.embed(draft[-1]))
                logits = torch.full((256,), -math.inf)
                logits[kept] = output.logits(normed).detach()
                position = len(draft)
                draft.append(torch.tensor(sampler.choose(logits, torch.stack(draft[-20:]), position)))
                if draft[-1] != text[position]:
                    break
                lengths[mode] += 1
    whole = replayed(heads, model, sequences, places).whole
    for mode, accepted in lengths.items():
        assert whole[mode].length == pytest.approx(1 + accepted / len(places))
    assert lengths["shared"] > 0


def test_places_leave_room_for_all_heads_and_stay_behind_the_prompt(sequences) -> None:
    places = choose_places(sequences, [0, 4], 3, 10_000, 0)
    prompts = {index: sequences.facts[index].prompt_length for index in (0, 4)}
    assert places == [Place(index, at) for index in (0, 4) for at in range(prompts[index] - 1, LENGTH - 4)]
    some = choose_places(sequences, [0, 4], 3, 9, 5)
    assert len(some) == len(set(some)) == 9 and set(some) <= set(places)
    assert some == choose_places(sequences, [0, 4], 3, 9, 5) != choose_places(sequences, [0, 4], 3, 9, 6)


@settings(deadline=None, max_examples=30)
@given(
    lengths=st.lists(st.tuples(st.integers(4, 9000), st.integers(0, 3)), min_size=1, max_size=4),
    heads=st.integers(1, 3),
)
def test_places_cover_every_band_that_has_text(lengths: list[tuple[int, int]], heads: int) -> None:
    facts = [SequenceFacts(length, prompt, "", 1, SAMPLING) for length, prompt in lengths]
    source = SimpleNamespace(facts=facts)
    places = choose_places(source, range(len(lengths)), heads, 10**6, 0)
    wanted = {
        (index, at)
        for index, (length, prompt) in enumerate(lengths)
        for at in range(max(prompt, 1) - 1, length - 1 - heads)
    }
    assert {(place.sequence, place.at) for place in places} == wanted and len(places) == len(wanted)
    few = choose_places(source, range(len(lengths)), heads, 3, 0)
    for start in BANDS:
        available = sum(band_of(at + 1) == start for _, at in wanted)
        assert sum(band_of(place.at + 1) == start for place in few) == min(3, available)


def test_text_that_the_target_did_not_write_is_not_replayed() -> None:
    book = SimpleNamespace(facts=[SequenceFacts(100, 0, "book.txt")])
    assert choose_places(book, [0], 3, 10, 0) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_lengths_rates_and_errors_are_those_of_the_chains(accepted: list[int]) -> None:
    chains = Chains([0] * 3, [0] * 3)
    for count in accepted:
        chains.record(count)
    lengths = torch.tensor([1.0 + count for count in accepted], dtype=torch.float64)
    assert chains.length == pytest.approx(float(lengths.mean()))
    assert chains.error == pytest.approx(float(lengths.std(correction=0)) / len(lengths) ** 0.5, abs=1e-7)
    for head, rate in enumerate(chains.rates):
        reached = [count for count in accepted if count >= head]
        if reached:
            assert rate == pytest.approx(sum(count > head for count in reached) / len(reached))
        else:
            assert math.isnan(rate)


def test_bands_have_names_and_the_whole_comes_last() -> None:
    assert [band_name(start) for start in BANDS] == ["0-1K", "1K-2K", "2K-4K", "4K-8K", "8K+"]
    acceptance = Acceptance(2)
    acceptance.band(1024)["shared"].record(2)
    acceptance.band(1023)["shared"].record(0)
    for mode in acceptance.band(0).values():
        mode.record(1)
    acceptance.band(1024)["independent"].record(0)
    assert [name for name, _ in acceptance.named()] == ["0-1K", "1K-2K", "all"]
    rows = acceptance.to_json()
    assert [row["noise"] for row in rows] == ["shared", "independent"] * 3
    assert rows[-2]["chains"] == 3 and rows[-2]["acceptance_length"] == 2.0
    assert rows[3]["rates"] == [0.0, None]
    assert acceptance_table(rows, 2).row_count == 6
    assert heads_card_of(rows).count("| 1K-2K | shared | 1 | 3.00 ± 0.00 | 1.00 | 1.00 |") == 1


def heads_card_of(rows) -> str:
    measured = {"losses": [1.0, 2.0], "top1": [0.5, 0.4], "top3": [0.6, 0.5]}
    training = {
        "model": "m", "architecture": "LlamaForCausalLM", "draft_vocabulary_size": None, "steps": 10,
        "epochs": 1.0, "seconds": 3.0, "loss": measured, "held_out_loss": None, "acceptance": rows,
        "data": {"tokens": 5, "sequences": 2, "held_out_sequences": 1, "source": "from text files"},
        "settings": {"heads.variant": "linear", "training.labels": "tokens", "training.learning_rate": 1e-3},
    }  # fmt: skip
    return heads_card(training, 2)
