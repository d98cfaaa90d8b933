"""The shortest type that holds a tensor without change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.models import exact_storage as module
from tokenswift_cli.models.exact_storage import exact_storage

floats16 = st.floats(width=16, allow_nan=False)
floats32 = st.floats(width=32)
# bfloat16 numbers: the upper half of float32's bits.
brain = st.integers(0, 2**16 - 1).map(lambda bits: float(np.uint32(bits << 16).view(np.float32)))


def expected(values: list[float]) -> torch.dtype:
    """By numpy and by bits, one element after another."""
    numbers = np.array(values, dtype=np.float32)
    if np.isnan(numbers).any():
        return torch.float32
    bits = numbers.view(np.uint32)
    with np.errstate(over="ignore"):
        if np.array_equal(numbers.astype(np.float16).astype(np.float32).view(np.uint32), bits):
            return torch.float16
    return torch.bfloat16 if not (bits & 0xFFFF).any() else torch.float32


@settings(deadline=None)
@given(st.one_of(*(st.lists(one, max_size=40) for one in (floats16, brain, floats32, floats16 | brain))))
def test_against_numpy(values: list[float]) -> None:
    assert exact_storage(torch.tensor(values, dtype=torch.float32)) == expected(values)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, torch.float32),
        (-0.0, torch.float16),
        (65504.0, torch.float16),
        (65536.0, torch.bfloat16),  # overflows float16
        (2.0**-24, torch.float16),  # its least subnormal
        (2.0**-25, torch.bfloat16),
        (2.0**-133, torch.bfloat16),  # bfloat16's least subnormal
        (2.0**-149, torch.float32),  # float32's own
        (1 + 2.0**-10, torch.float16),  # one digit more than bfloat16 has
        (1 + 2.0**-11, torch.float32),
        (float("inf"), torch.float16),
        (float("nan"), torch.float32),
    ],
)
def test_numbers_at_the_limits(value: float, dtype: torch.dtype) -> None:
    assert exact_storage(torch.tensor([[1.0, value], [2.0, -value]])) == dtype


def test_one_element_in_any_slice_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 10)
    for shape in ((50,), (7, 9), (3, 5, 4)):
        for place in range(0, int(np.prod(shape)), 7):
            weight = torch.ones(shape)
            weight.view(-1)[place] = 2.0**-60
            assert exact_storage(weight) == torch.bfloat16
            assert exact_storage(weight.transpose(0, -1)) == torch.bfloat16
            weight.view(-1)[-1] = 1 + 2.0**-10  # and this is not a bfloat16
            assert exact_storage(weight) == torch.float32 or place == weight.numel() - 1


def test_it_stops_at_the_first_slice_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 10)
    looked_at: list[int] = []
    survives = module._survives

    def count(values: torch.Tensor, dtype: torch.dtype) -> bool:
        looked_at.append(values.numel())
        return survives(values, dtype)

    monkeypatch.setattr(module, "_survives", count)
    weight = torch.ones(100)
    weight[15] = 0.1
    assert exact_storage(weight) == torch.float32
    assert looked_at == [10] * 4


def test_subnormals_when_the_processor_flushes_them() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        weight = torch.tensor([1, 0x00012345], dtype=torch.int32).view(torch.float32)
        assert exact_storage(weight) == torch.float32
    finally:
        torch.set_flush_denormal(False)


def test_shapes_and_types() -> None:
    assert exact_storage(torch.empty(0, 5)) == torch.float16
    assert exact_storage(torch.tensor(0.5)) == torch.float16
    assert exact_storage(torch.tensor([0.1], dtype=torch.bfloat16)) == torch.float16
    assert exact_storage(torch.tensor([1e30], dtype=torch.bfloat16)) == torch.bfloat16
    assert exact_storage(torch.nn.Parameter(torch.ones(3))) == torch.float16
    for dtype in (torch.float64, torch.int8):
        with pytest.raises(ValueError, match="exact_storage needs"):
            exact_storage(torch.ones(2, dtype=dtype))
