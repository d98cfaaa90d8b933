"""Packed linear layers: right against float64, and a row's bits depend on the row and the weights alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokenswift_cli.native.attention import INSTRUCTIONS
from tokenswift_cli.native.build import BuildError, build, find_compiler
from tokenswift_cli.native.linear import PackedLinear

FIRST_FUSED = INSTRUCTIONS.index("AVX2")
ROW_COUNTS = [*range(1, 41), 64, 100, 130]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The real library, from the user's cache."""
    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    return ctypes.CDLL(str(build()))


def instruction_sets(library: ctypes.CDLL) -> range:
    return range(library.tokenswift_linear_instructions() + 1)


@dataclass(frozen=True)
class Kind:
    """A format: a type for plain matrices, bits and block for quantized ones."""

    dtype: torch.dtype | None = None
    bits: int = 0
    block: int = 0
    has_minimum: bool = False

    def __str__(self) -> str:
        if self.dtype is not None:
            return str(self.dtype).removeprefix("torch.")
        return f"{self.bits} bits by {self.block}{' with minima' if self.has_minimum else ''}"


PLAIN = [Kind(torch.float32), Kind(torch.float16), Kind(torch.bfloat16)]
BLOCKS = [
    Kind(bits=bits, block=block, has_minimum=has_minimum)
    for bits in (4, 8)
    for block in (16, 32)
    for has_minimum in (False, True)
]
KINDS = PLAIN + BLOCKS


@dataclass(frozen=True)
class Made:
    """A packed matrix, and what it stands for in float64."""

    packed: PackedLinear
    weight: Tensor
    bias: Tensor

    def expected(self, rows: Tensor) -> Tensor:
        return rows.double() @ self.weight.T + self.bias


def make(library: ctypes.CDLL, kind: Kind, outputs: int, inputs: int, *, bias: bool, seed: int = 0) -> Made:
    generator = torch.Generator().manual_seed(seed)
    added = torch.randn(outputs, generator=generator) if bias else None
    known = torch.zeros(outputs, dtype=torch.float64) if added is None else added.double()
    if kind.dtype is not None:
        weight = torch.randn(outputs, inputs, generator=generator).to(kind.dtype)
        return Made(PackedLinear.of_matrix(library, weight, added), weight.double(), known)
    dtype, low, high = (torch.uint8, 0, 16) if kind.bits == 4 else (torch.int8, -128, 128)
    levels = torch.randint(low, high, (outputs, inputs), dtype=dtype, generator=generator)
    scales = (torch.rand(outputs, inputs // kind.block, generator=generator) + 0.1) / high
    minima = torch.randn(scales.shape, generator=generator) if kind.has_minimum else None
    weight = levels.double() * scales.double().repeat_interleave(kind.block, dim=1)
    if minima is not None:
        weight += minima.double().repeat_interleave(kind.block, dim=1)
    packed = PackedLinear.of_blocks(library, levels, scales, minima, added, bits=kind.bits)
    return Made(packed, weight, known)


def tolerance(made: Made, rows: Tensor) -> Tensor:
    """A few roundings of the largest partial sum."""
    return 1e-6 * (rows.double().abs() @ made.weight.abs().T + made.bias.abs() + 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("outputs", [1, 5, 16, 17, 100])
def test_equals_float64_with_any_number_of_rows(library: ctypes.CDLL, kind: Kind, outputs: int) -> None:
    for inputs in (32, 96, 576) if kind.block else (1, 7, 96, 577):
        made = make(library, kind, outputs, inputs, bias=outputs % 2 == 1)
        rows = torch.randn(130, inputs, generator=torch.Generator().manual_seed(1))
        expected, allowed = made.expected(rows), tolerance(made, rows)
        for count in (1, 2, 3, 4, 6, 7, 13, 37, 73, 130):
            actual = made.packed(rows[:count])
            assert actual.shape == (count, outputs)
            assert ((actual - expected[:count]).abs() <= allowed[:count]).all(), (inputs, count)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bits_of_a_row_depend_on_nothing_else(library: ctypes.CDLL, kind: Kind) -> None:
    """Not on the other rows, the threads, the instruction set, or where the row stands."""
    made = make(library, kind, 84, 160 if kind.block else 165, bias=True)
    rows = torch.randn(130, made.packed.inputs, generator=torch.Generator().manual_seed(2))
    alone: Tensor | None = None
    for which in instruction_sets(library):
        # The portable code does not fuse multiplication and addition.
        if alone is None or which == FIRST_FUSED:
            alone = torch.cat([made.packed(row[None], threads=1, instructions=which) for row in rows])
        for count in ROW_COUNTS:
            together = made.packed(rows[-count:], threads=1 + count % 3, instructions=which)
            assert torch.equal(together, alone[-count:]), (INSTRUCTIONS[which], count)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bits_of_an_output_do_not_depend_on_the_other_outputs(library: ctypes.CDLL, kind: Kind) -> None:
    """A matrix cut into several, as when query, key and value are one matrix or three."""
    whole = make(library, kind, 150, 96, bias=False)
    rows = torch.randn(9, 96, generator=torch.Generator().manual_seed(3))
    result = whole.packed(rows)
    if kind.dtype is not None:
        part = PackedLinear.of_matrix(library, whole.weight[37:90].to(kind.dtype))
    else:
        # As in make, to be cut.
        generator = torch.Generator().manual_seed(0)
        dtype, low, high = (torch.uint8, 0, 16) if kind.bits == 4 else (torch.int8, -128, 128)
        levels = torch.randint(low, high, (150, 96), dtype=dtype, generator=generator)
        scales = (torch.rand(150, 96 // kind.block, generator=generator) + 0.1) / high
        minima = torch.randn(scales.shape, generator=generator) if kind.has_minimum else None
        part = PackedLinear.of_blocks(
            library,
            levels[37:90],
            scales[37:90],
            None if minima is None else minima[37:90],
            bits=kind.bits,
        )
    assert torch.equal(part(rows), result[:, 37:90])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_shape_and_strides(library: ctypes.CDLL, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS), label="kind")
    outputs = data.draw(st.integers(1, 200), label="outputs")
    inputs = kind.block * data.draw(st.integers(1, 12)) if kind.block else data.draw(st.integers(1, 300))
    count = data.draw(st.one_of(st.integers(1, 20), st.integers(1, 150)), label="rows")
    padding, threads = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 3))
    made = make(library, kind, outputs, inputs, bias=data.draw(st.booleans()), seed=count)
    generator = torch.Generator().manual_seed(count)
    room = torch.full((count, inputs + padding), float("nan"))
    rows = room[:, :inputs]
    rows.copy_(torch.randn(count, inputs, generator=generator))
    before = torch.randn(count, outputs + padding, generator=generator)
    target = before.clone()
    for which in instruction_sets(library):
        plain = made.packed(rows, threads=threads, instructions=which)
        assert ((plain - made.expected(rows)).abs() <= tolerance(made, rows)).all()
        target.copy_(before)
        view = target[:, :outputs]
        assert made.packed(rows, add_to=view, threads=threads, instructions=which) is view
        # One addition, and nothing beside the outputs is touched.
        assert torch.equal(view, before[:, :outputs] + plain)
        assert torch.equal(target[:, outputs:], before[:, outputs:])


def test_no_rows_give_no_rows(library: ctypes.CDLL) -> None:
    assert make(library, PLAIN[0], 5, 7, bias=True).packed(torch.empty(0, 7)).shape == (0, 5)


def test_a_weight_need_not_be_contiguous_nor_a_bias_float32(library: ctypes.CDLL) -> None:
    weight, bias, rows = torch.randn(40, 24).half(), torch.randn(24).bfloat16(), torch.randn(3, 40)
    turned = PackedLinear.of_matrix(library, weight.T, bias)
    straight = PackedLinear.of_matrix(library, weight.T.contiguous(), bias.float())
    assert torch.equal(turned(rows), straight(rows))
    # The packed matrix is a copy.
    result = turned(rows)
    weight.zero_()
    bias.zero_()
    assert torch.equal(turned(rows), result)


def test_half_precision_of_every_kind_is_widened_exactly(library: ctypes.CDLL) -> None:
    """All 16-bit patterns: subnormal numbers, infinities and what is not a number among them."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        weight = every.view(dtype)[:, None]
        packed = PackedLinear.of_matrix(library, weight)
        for which in instruction_sets(library):
            actual = packed(torch.ones(1, 1), instructions=which)[0]
            assert torch.equal(actual.nan_to_num(1.5), (weight[:, 0].float() + 0.0).nan_to_num(1.5))


def test_every_level_is_itself(library: ctypes.CDLL) -> None:
    """One input at a time, so that each place of a block is looked at."""
    ones = torch.eye(64)
    nibbles = torch.randint(0, 16, (33, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    whole = torch.arange(33 * 64).remainder(256).sub(128).to(torch.int8).view(33, 64)
    for levels, bits in ((nibbles, 4), (whole, 8)):
        for blocks in (2, 4):
            packed = PackedLinear.of_blocks(library, levels, torch.ones(33, blocks), bits=bits)
            for which in instruction_sets(library):
                assert torch.equal(packed(ones, instructions=which), levels.T.float())


def test_bytes_of_the_packed_matrix(library: ctypes.CDLL) -> None:
    """4.5 to 6 bits a weight for 4 bits with scales, 9 for 8; outputs in whole groups of 64."""
    sizes = {
        str(kind): make(library, kind, 128, 320, bias=False).packed.weight_bytes * 8 / (128 * 320)
        for kind in KINDS
    }
    assert sizes["float32"] == pytest.approx(32, abs=0.1)
    assert sizes["float16"] == sizes["bfloat16"] == pytest.approx(16, abs=0.1)
    assert sizes["4 bits by 32"] == pytest.approx(5, abs=0.1)
    assert sizes["4 bits by 32 with minima"] == pytest.approx(6, abs=0.1)
    assert sizes["8 bits by 32"] == pytest.approx(9, abs=0.1)


def matrix(outputs: int = 4, inputs: int = 64, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.zeros(outputs, inputs, dtype=dtype)


Refused = Callable[[ctypes.CDLL], object]


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda lib: PackedLinear.of_matrix(lib, torch.zeros(4, 4).double()), "float64 of shape"),
        (lambda lib: PackedLinear.of_matrix(lib, torch.zeros(4)), "not a float32"),
        (lambda lib: PackedLinear.of_matrix(lib, torch.zeros(0, 4)), "0 x 4 weights cannot be packed"),
        (lambda lib: PackedLinear.of_matrix(lib, torch.zeros(4, 4, device="meta")), "on meta"),
        (lambda lib: PackedLinear.of_matrix(lib, torch.zeros(4, 4), torch.zeros(5)), "does not fit 4"),
        (lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(4, 2), bits=5), "4 or 8 bits, not 5"),
        (lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(4, 2), bits=8), "not a matrix of"),
        (lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(4, 3), bits=4), "blocks of 16 or 32"),
        (lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(4, 1), bits=4), "blocks of 16 or 32"),
        (lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(3, 2), bits=4), "blocks of 16 or 32"),
        (lambda lib: PackedLinear.of_blocks(lib, matrix(inputs=70), torch.ones(4, 2), bits=4), "70 weights"),
        (
            lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(4, 2).half(), bits=4),
            "the scales are",
        ),
        (
            lambda lib: PackedLinear.of_blocks(lib, matrix(), torch.ones(4, 2), torch.ones(4, 4), bits=4),
            "the minima are",
        ),
        (lambda lib: PackedLinear.of_blocks(lib, matrix() + 16, torch.ones(4, 2), bits=4), "level of 16"),
        (lambda lib: make(lib, PLAIN[0], 4, 8, bias=False).packed(torch.zeros(2, 7)), "not float32 \\[T, 8"),
        (lambda lib: make(lib, PLAIN[0], 4, 8, bias=False).packed(torch.zeros(2, 8).half()), "float16"),
        (lambda lib: make(lib, PLAIN[0], 4, 8, bias=False).packed(torch.zeros(8, 2).T), "side by side"),
        (
            lambda lib: make(lib, PLAIN[0], 4, 8, bias=False).packed(
                torch.zeros(2, 8), add_to=torch.zeros(3, 4)
            ),
            "2 rows cannot be added to 3",
        ),
        (
            lambda lib: make(lib, PLAIN[0], 4, 8, bias=False).packed(torch.zeros(2, 8, requires_grad=True)),
            "no gradient",
        ),
        (
            lambda lib: make(lib, PLAIN[0], 4, 8, bias=False).packed(torch.zeros(2, 8), instructions=9),
            "does not have the instructions",
        ),
    ],
)
def test_what_does_not_fit_is_refused(library: ctypes.CDLL, refused: Refused, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refused(library)


def test_the_packer_itself_refuses_levels_that_do_not_fit(library: ctypes.CDLL) -> None:
    weights = make(library, BLOCKS[0], 4, 32, bias=False).packed.weights
    levels, scales = (ctypes.c_uint8 * 128)(*[16] * 128), (ctypes.c_float * 8)()
    assert library.tokenswift_pack_blocks(
        ctypes.byref(weights), levels, scales, None, ctypes.c_void_p(weights.data)
    )


def test_a_library_without_the_functions_is_another_version(library: ctypes.CDLL) -> None:
    with pytest.raises(BuildError, match="lacks a function"):
        PackedLinear.of_matrix(ctypes.CDLL(None), torch.zeros(4, 4))
