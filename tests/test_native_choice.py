"""The compiled choice: the bits, the errors and the texts of torch's operators."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_in_memory import tiny_llama
from torch import Tensor

from tokenswift_cli.engine import sampling
from tokenswift_cli.engine.engine import Engine
from tokenswift_cli.engine.noise import gumbel, hash32
from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import DraftingSettings, SamplingSettings
from tokenswift_cli.errors import NonFiniteLogitsError
from tokenswift_cli.models.target import Target
from tokenswift_cli.native import attention
from tokenswift_cli.native.attention import Loaded
from tokenswift_cli.native.choice import RowScan

SIZES = [1, 7, 32, 1000, 49152]
NOTHING = torch.tensor([], dtype=torch.int64)


def both(chosen: SamplingSettings, size: int, held_until: int = 0) -> tuple[Sampler, Sampler]:
    """The sampler with compiled code and the one without."""
    compiled = Sampler(chosen, size, held_ids=[size // 2], held_until=held_until)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "loaded_library", lambda: None)
        plain = Sampler(chosen, size, held_ids=[size // 2], held_until=held_until)
    assert compiled._scan is not None and plain._scan is None
    return compiled, plain


def any_row(size: int, seed: int, *, equal: bool, impossible: float, odd: float | None) -> Tensor:
    """Logits: maybe many equal ones, a share of -Inf, one that is no number; at an odd address."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.empty(size + 3)[1 : size + 1]
    row.copy_(torch.randn(size, generator=generator) * 4)
    if equal:
        row.round_()
    row[torch.rand(size, generator=generator) < impossible] = -math.inf
    if odd is not None:
        row[int(torch.randint(size, (1,), generator=generator))] = odd
    return row


def outcome(run: functools.partial[object]) -> object:
    """What comes out, an error included."""
    try:
        result = run()
    except NonFiniteLogitsError as error:
        return str(error)
    return [part.tolist() for part in result] if isinstance(result, tuple) else result


SAMPLINGS = st.builds(
    SamplingSettings,
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.0, 1.0, 1.0, 0.7, 1e-4, 3.3]),
    top_k=st.sampled_from([0, 0, 1, 5, 50, 100_000]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.1, 0.1, 0.01, 1.0]),
    eta=st.sampled_from([0.0, 0.0, 0.05]),
    penalty=st.sampled_from([1.0, 1.2, 1.2, 0.7, 3.0]),
    suppress_ids=st.sampled_from([(), (), (0,), (0, 2, 5, 6)]),
)


@settings(deadline=None, max_examples=120)
@given(
    chosen=SAMPLINGS,
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 10**6),
    equal=st.booleans(),
    impossible=st.sampled_from([0.0, 0.0, 0.3, 0.98, 1.0]),
    odd=st.sampled_from([None, None, None, None, math.nan, math.inf]),
    window_size=st.sampled_from([0, 1, 60, 1024]),
    held=st.booleans(),
)
def test_each_result_has_the_bits_of_torch(
    library: ctypes.CDLL,
    chosen: SamplingSettings,
    size: int,
    seed: int,
    equal: bool,
    impossible: float,
    odd: float | None,
    window_size: int,
    held: bool,
) -> None:
    chosen = replace(chosen, suppress_ids=tuple(i for i in chosen.suppress_ids if i < size))
    compiled, plain = both(chosen, size, held_until=10 if held else 0)
    row = any_row(size, seed, equal=equal, impossible=impossible, odd=odd)
    before = row.clone()
    generator = torch.Generator().manual_seed(seed + 1)
    window = torch.randint(min(size, 600), (window_size + 1,), generator=generator)[1:]
    runs = [("choose", (row, window, 9)), ("ranked", (row, window, 9, 3, 77))]
    if chosen.temperature:
        runs.append(("candidates", (row, window, 9)))
    for name, arguments in runs:
        first, second = (
            outcome(functools.partial(getattr(sampler, name), *arguments)) for sampler in (compiled, plain)
        )
        assert first == second, name
    assert torch.equal(row.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.9])
@pytest.mark.parametrize("min_p", [0.1, 0.05, 0.3])
def test_the_threshold_is_rounded_as_torch_rounds(
    library: ctypes.CDLL, temperature: float, min_p: float
) -> None:
    """Logits just at the threshold, in steps of the last bit."""
    compiled, plain = both(SamplingSettings(temperature=temperature, min_p=min_p, penalty=1.0), 40)
    generator = torch.Generator().manual_seed(3)
    for best in (torch.rand(100, generator=generator) * 20).tolist():
        threshold = (torch.tensor(best) / temperature + math.log(min_p)) * temperature
        bits = threshold.view(torch.int32) + torch.arange(-20, 20, dtype=torch.int32)
        row = bits.view(torch.float32).clone()
        row[0] = best
        first, second = (sampler.candidates(row, NOTHING, 0) for sampler in (compiled, plain))
        assert first.token_ids.tolist() == second.token_ids.tolist()
        assert 1 < len(first.token_ids) < 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_widened_or_rounded_first(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    compiled, plain = both(SamplingSettings(), 300)
    rows = torch.randn(300, 4, generator=torch.Generator().manual_seed(1)).mul(5).to(dtype)
    window = torch.arange(0, 300, 3)
    for column in range(4):  # its elements do not lie side by side
        assert compiled.choose(rows[:, column], window, column) == plain.choose(
            rows[:, column], window, column
        )


@pytest.mark.parametrize("size", [1, 64, 65, 1000])
def test_instruction_sets_agree(library: ctypes.CDLL, size: int) -> None:
    scans = [
        RowScan(library, size, penalty=1.2, temperature=0.7, log_min_p=-2.0, instructions=index)
        for index in range(library.tokenswift_attention_instructions() + 1)
    ]
    for seed in range(20):
        row = any_row(size, seed, equal=seed % 2 == 0, impossible=0.1, odd=math.nan if seed == 7 else None)
        window = torch.randint(size, (50,), generator=torch.Generator().manual_seed(seed))
        mask = scans[0].mask([size - 1]) if seed % 3 == 0 and size > 1 else None
        results = [scan(row, window, mask, seed % 4) for scan in scans]
        assert (
            len({(repr(r.best), tuple(r.token_ids.tolist()), tuple(r.scores.tolist())) for r in results}) == 1
        )


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**7), st.lists(st.integers(0, 48_999), max_size=40))
@settings(deadline=None, max_examples=50)
def test_noise_has_the_bits_of_numpy(
    library: ctypes.CDLL, seed: int, position: int, token_ids: list[int]
) -> None:
    scan = RowScan(library, 49_000)
    ids = torch.tensor(token_ids, dtype=torch.int64)
    assert gumbel(seed, position, ids, scan.uniforms).tolist() == gumbel(seed, position, ids).tolist()
    keyed = scan.uniforms(position, ids).tolist()
    assert all(0 < number < 1 and (number * 2**32) % 1 == 0.5 for number in keyed)
    assert hash32(seed, position, ids).shape == ids.shape


def test_a_refused_row_leaves_nothing_behind(library: ctypes.CDLL) -> None:
    scan = RowScan(library, 100, penalty=2.0)
    row = torch.arange(100.0)
    for window in ([5, 100], [5, -1]):
        with pytest.raises(ValueError, match="out of range"):
            scan(row, torch.tensor(window))
    assert scan(row, NOTHING).scores.tolist() == row.tolist()
    assert scan(row, torch.tensor([5, 99, 5])).best == 98.0
    assert scan(row, NOTHING).scores.tolist() == row.tolist()


@pytest.mark.parametrize(
    "row, window",
    [
        (torch.zeros(99), NOTHING),
        (torch.zeros(100, dtype=torch.float64), NOTHING),
        (torch.zeros(200)[::2], NOTHING),
        (torch.zeros(1, 100), NOTHING),
        (torch.zeros(100), torch.zeros(3, dtype=torch.int32)),
        (torch.zeros(100), torch.zeros(6, dtype=torch.int64)[::2]),
        (torch.zeros(100, device="meta"), NOTHING),
    ],
    ids=["short", "float64", "strided", "two dimensions", "int32 window", "strided window", "no CPU"],
)
def test_what_does_not_fit_is_refused(library: ctypes.CDLL, row: Tensor, window: Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        RowScan(library, 100, penalty=1.2)(row, window)


def test_settings_and_masks_out_of_range_are_refused(library: ctypes.CDLL) -> None:
    for wrong in (
        RowScan(library, 10, penalty=0.0),
        RowScan(library, 10, penalty=math.nan),
        RowScan(library, 10, temperature=-1.0),
        RowScan(library, 10, log_min_p=0.5),
    ):
        with pytest.raises(ValueError, match="out of range"):
            wrong(torch.zeros(10), NOTHING)
    for wrong_id in (-1, 10):
        with pytest.raises(ValueError, match=r"0\.\.9"):
            RowScan(library, 10).mask([wrong_id])


def test_nothing_is_compiled_because_of_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.cache
    def not_asked_yet() -> Loaded:
        raise AssertionError("asked for the library")

    monkeypatch.setattr(attention, "load", not_asked_yet)
    assert Sampler(SamplingSettings(), 10)._scan is None

    @functools.cache
    def none_there() -> Loaded:
        return Loaded(None, "off")

    none_there()
    monkeypatch.setattr(attention, "load", none_there)
    assert Sampler(SamplingSettings(), 10)._scan is None


@pytest.mark.parametrize(
    "chosen",
    [
        SamplingSettings(seed=5, min_p=0.05),
        SamplingSettings(temperature=0.0, penalty=3.0),
        SamplingSettings(seed=6, temperature=0.8, top_k=20, top_p=0.9, eta=0.01, suppress_ids=(7, 8)),
    ],
    ids=["min-p", "greedy", "everything"],
)
@pytest.mark.parametrize("method", ["autoregressive", "auto"])
def test_the_text_is_the_same(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, chosen: SamplingSettings, method: str
) -> None:
    def text() -> list[int]:
        engine = Engine(Target(tiny_llama(), 500), chosen, DraftingSettings(method=method, partial_cache=64))
        for _ in engine.prefill(list(range(0, 200, 5)), 40):
            pass
        assert engine._sampler is not None and (engine._sampler._scan is not None) == compiled
        return [token for step in engine.steps(400) for token in step.tokens]

    compiled = True
    with_it = text()
    monkeypatch.setattr(sampling, "loaded_library", lambda: None)
    compiled = False
    assert text() == with_it
    assert len(set(with_it)) > 20
