"""The variants of a linear layer agree, and plans pad to sizes between which rows round alike."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswift_cli.models.lean import calibration
from tokenswift_cli.models.lean.calibration import make_plan, row_classes, usable_sizes
from tokenswift_cli.models.lean.linear import VARIANTS, BySizeLinear, Float16Linear
from tokenswift_cli.models.lean.plan import LinearPlan, Shape

SHAPES = [Shape(96, 64, False), Shape(200, 100, True), Shape(64, 160, True)]


def weights(shape: Shape):
    torch.manual_seed(1)
    weight = torch.randn(shape.outputs, shape.inputs) / math.sqrt(shape.inputs)
    return weight.half().float(), torch.randn(shape.outputs) if shape.bias else None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", list(VARIANTS))
def test_variants_agree(name, shape):
    """With weights that float16 holds exactly, all variants give the same up to float32 rounding."""
    if not calibration._works(name):
        pytest.skip("not in this build of torch")
    weight, bias = weights(shape)
    linear = VARIANTS[name](weight, bias)
    for count in (1, 2, 3, 7, 16, 33):
        rows = torch.randn(count, shape.inputs)
        expected = torch.nn.functional.linear(
            rows.double(), weight.double(), None if bias is None else bias.double()
        )
        result = linear(rows)
        assert result.is_contiguous() and result.dtype == torch.float32
        torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)
    if linear.matrix is not None:
        assert torch.equal(linear.matrix, weight)


def test_both_ways_of_multiplying_float16_give_the_same_bits(monkeypatch):
    """torch announces the removal of the fast one; the other one must not change any text."""
    if not calibration._works("float16"):
        pytest.skip("not in this build of torch")
    from tokenswift_cli.models.lean import linear

    for shape in SHAPES:
        weight, bias = weights(shape)
        rows = torch.randn(5, shape.inputs)
        fast = Float16Linear(weight, bias)(rows)
        with monkeypatch.context() as patch:
            patch.setattr(linear, "_direct_float16", lambda *_: None)
            assert torch.equal(Float16Linear(weight, bias)(rows), fast)


def test_the_number_of_rows_decides_between_variants_of_one_storage():
    weight, bias = weights(SHAPES[1])
    linear = BySizeLinear(weight, bias, ((2, False), (8, True), (32, False)))
    used = []
    for index, way in enumerate(linear._ways):
        monitored = lambda rows, index=index, way=way: used.append(index) or way(rows)  # noqa: E731
        linear._limits = tuple((limit, monitored if w is way else w) for limit, w in linear._limits)
    for count in (1, 2, 3, 8, 9, 32, 100):
        linear(torch.randn(count, 100))
    assert used == [0, 0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "packed"])
def test_rows_are_equal_to_the_bit_in_all_sizes_of_a_plan(packed):
    """Different rows in different places and sizes, where the probe used equal ones."""
    plan = make_plan(dict.fromkeys(SHAPES, 1), packed, math.inf)
    if isinstance(plan, str) or not plan.row_invariant:
        pytest.skip("this machine has no kernel that rounds rows alike")
    for shape in SHAPES:
        linear = plan.build(*weights(shape))
        rows = torch.randn(300, shape.inputs)
        together = linear(rows[: plan.sizes[-1]])
        for size in plan.sizes:
            for first in range(0, plan.sizes[-1] - size + 1, max(1, size // 2)):
                assert torch.equal(linear(rows[first : first + size]), together[first : first + size])
        more = linear(rows[: 2 * plan.sizes[-1] + plan.sizes[0]])
        assert torch.equal(more[: plan.sizes[-1]], together)


def test_row_classes_tell_roundings_apart():
    """A layer that rounds by the number of rows, and by their place."""

    def linear(rows):
        result = rows.clone()
        result[rows.shape[0] // 4 * 4 :] += 1
        return result if rows.shape[0] < 16 else result + 2

    classes = row_classes(linear, 3, (1, 3, 4, 5, 8, 16, 20))
    assert classes[1] == classes[3] != classes[4] == classes[8]
    assert classes[5] == -1
    assert classes[16] == classes[20] not in (classes[1], classes[4])


def test_sizes_reach_far_without_wide_gaps():
    assert usable_sizes({1: 0, 2: 1, 4: 1, 8: 1, 16: 1, 32: 1, 64: 1, 128: 1}) == [(2, 4, 8, 16, 32, 64, 128)]
    assert usable_sizes({2: 0, 4: 0, 8: 0, 64: 0, 128: 0}) == []  # from 8 to 64 is too far
    assert usable_sizes({size: size for size in (1, 2, 4, 8)}) == []
    assert usable_sizes({4: -1, 8: -1, 16: -1, 32: -1, 64: -1}) == []


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 128), min_size=1, unique=True).map(sorted),
    st.integers(0, 1000),
)
def test_padding_is_enough_and_made_of_known_sizes(sizes, rows):
    plan = LinearPlan({}, tuple(sizes))
    padded = plan.padded(rows)
    assert padded >= rows
    rest = padded % sizes[-1]
    assert rest == 0 or rest in sizes
    assert padded - rows <= sizes[-1]
    assert LinearPlan({}, ()).padded(rows) == rows


def test_plans_survive_json_and_damage_is_refused():
    plan = LinearPlan(
        {Shape(4, 3, True): ((2, "rows"), (8, "turned")), Shape(2, 2, False): ((1, "blocked"),)}, (2, 4), 1.01
    )
    assert LinearPlan.from_json(plan.to_json()) == plan
    for change in ({"sizes": [4, 2]}, {"ways": [[4, 3, True, [[1, "magic"]]]]}, {"ways": [[4, 3, True, []]]}):
        with pytest.raises(ValueError):
            LinearPlan.from_json(plan.to_json() | change)


def test_tolerance_decides_between_fast_and_alike(monkeypatch):
    """With times set by hand: rounding alike needs two rows at least, and columns, which are slower."""
    shape = Shape(8, 8, False)
    slow, fast = dict.fromkeys(calibration.TIMED_ROWS, 1.1), dict.fromkeys(calibration.TIMED_ROWS, 1.0)
    monkeypatch.setattr(calibration, "_works", lambda name: name != "blocked")
    monkeypatch.setattr(calibration, "_times", lambda *_: {"rows": fast, "turned": slow, "columns": slow})
    sizes = (2, 4, 8, 16, 32, 64)
    monkeypatch.setattr(calibration, "_candidates", lambda *_: [calibration._Candidate("columns", sizes)])
    assert make_plan({shape: 3}, False, 0.05).ways == {
        shape: tuple((rows, "rows") for rows in calibration.TIMED_ROWS)
    }
    assert make_plan({shape: 3}, False, 0.05).sizes == ()
    alike = make_plan({shape: 3}, False, 0.2)
    assert alike.ways == {shape: ((1, "columns"),)} and alike.sizes == sizes
    assert alike.cost == pytest.approx(1.1)
