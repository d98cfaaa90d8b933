"""The native attention kernel: right against float64, and a row's bits depend on nothing but what it sees."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokenswift_cli.models import attention as torch_attention
from tokenswift_cli.models.kv_cache import KeyValueCache
from tokenswift_cli.native.attention import INSTRUCTIONS, NativeAttention, load, self_check
from tokenswift_cli.native.build import build
from tokenswift_cli.native.threads import find_team

SIZES = st.sampled_from([8, 20, 64, 80, 128])
LENGTHS = st.one_of(st.integers(0, 200), st.integers(0, 3000), st.sampled_from([63, 64, 511, 512, 1024]))
TYPES = st.sampled_from([torch.float32, torch.float16])


@functools.cache
def kernels() -> list[NativeAttention]:
    """One for each instruction set of this processor, the best one last."""
    loaded = load()
    if loaded.kernel is None:
        pytest.skip(loaded.description)
    best = INSTRUCTIONS.index(loaded.kernel.instructions)
    return [*(NativeAttention(build(), find_team(), which) for which in range(best)), loaded.kernel]


@pytest.fixture(scope="module")
def all_kernels() -> list[NativeAttention]:
    return kernels()


@pytest.fixture(scope="module")
def kernel(all_kernels: list[NativeAttention]) -> NativeAttention:
    return all_kernels[-1]


def spaced(values: Tensor, padding: int, offset: int) -> Tensor:
    """The same numbers with rows further apart, from an odd start; what lies between is not a number."""
    heads, rows, size = values.shape
    room = torch.full((heads * rows * (size + padding) + offset,), float("nan"), dtype=values.dtype)
    view = room[offset:].view(heads, rows, size + padding)[:, :, :size]
    view.copy_(values)
    return view


def random_tree(rows: int, generator: torch.Generator) -> Tensor:
    """bool [rows, rows]: each node sees itself and its ancestors; parents come first."""
    visible = torch.eye(rows, dtype=torch.bool)
    for row in range(1, rows):
        visible[row] |= visible[int(torch.randint(row, (), generator=generator))]
    return visible


def reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prefix: int,
    visible: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """float64 [KV heads, group * T, value size] from plain operators."""
    rows = visible.shape[0]
    mask = torch.cat([torch.ones(rows, prefix, dtype=torch.bool), visible], dim=1)
    if window is not None:
        # The n-th key that a row sees, from behind.
        mask &= mask.flip(1).cumsum(1).flip(1) <= window
    mask = mask.repeat(query.shape[1] // rows, 1)
    end = prefix + rows
    scores = query.double() @ keys[:, :end].double().transpose(1, 2) * scale
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ values[:, :end].double()


@settings(deadline=None, max_examples=120)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_equals_float64_on_any_shape(data: st.DataObject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads, group, rows = (data.draw(st.integers(1, most), label=name)
                          for most, name in ((3, "heads"), (4, "group"), (32, "rows")))  # fmt: skip
    size, value_size, prefix = data.draw(SIZES), data.draw(SIZES), data.draw(LENGTHS)
    dtype, window = data.draw(TYPES), data.draw(st.none() | st.integers(1, prefix + rows + 3))
    spare, padding, offset = (
        data.draw(st.integers(0, 5)),
        data.draw(st.integers(0, 3)),
        data.draw(st.integers(0, 3)),
    )
    query = torch.randn(heads, group * rows, size, generator=generator)
    keys, values = (
        spaced(torch.randn(heads, prefix + rows + spare, n, generator=generator).to(dtype), padding, offset)
        for n in (size, value_size)
    )
    keys[:, prefix + rows :] = values[:, prefix + rows :] = float("nan")
    kind = data.draw(st.sampled_from(["chain", "tree", "any"]))
    visibility = random_tree(rows, generator)
    if kind == "any":
        visibility = torch.rand(rows, rows, generator=generator) < 0.5
        visibility |= torch.eye(rows, dtype=torch.bool)
    visible = torch.ones(rows, rows, dtype=torch.bool).tril() if kind == "chain" else visibility
    expected = reference(query, keys, values, prefix, visible, size**-0.5, window)
    for kernel in kernels():
        actual = kernel.attention(
            query, keys, values, prefix, None if kind == "chain" else visibility, group, size**-0.5, window,
            threads=data.draw(st.integers(1, 3)),
        )  # fmt: skip
        assert actual.shape == (heads, group * rows, value_size)
        assert (actual - expected).abs().max() < 1e-5, kernel.instructions


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32), rows=st.integers(1, 32), group=st.integers(1, 4), size=SIZES,
    prefix=st.one_of(LENGTHS, st.integers(480, 520)), dtype=TYPES, windowed=st.booleans(),
)  # fmt: skip
def test_a_row_of_a_tree_has_the_bits_it_has_alone(
    seed: int, rows: int, group: int, size: int, prefix: int, dtype: torch.dtype, windowed: bool
) -> None:
    """As in plain decoding: the row's path is committed, and the row is computed by itself."""
    generator = torch.Generator().manual_seed(seed)
    heads = 2
    window = int(torch.randint(1, prefix + rows + 1, (), generator=generator)) if windowed else None
    query = torch.randn(heads, group, rows, size, generator=generator)
    keys, values = (torch.randn(heads, prefix + rows, size, generator=generator).to(dtype) for _ in range(2))
    visibility = random_tree(rows, generator)
    for kernel in kernels():
        together = kernel.attention(
            query.flatten(1, 2), keys, values, prefix, visibility, group, 0.3, window
        ).unflatten(1, (group, rows))
        for row in {0, rows // 2, rows - 1}:
            path = visibility[row].nonzero().squeeze(1) + prefix
            own = torch.cat([torch.arange(prefix), path])
            alone = kernel.attention(
                query[:, :, row].contiguous(), keys[:, own], values[:, own], prefix + path.numel() - 1, None,
                group, 0.3, window,
            )  # fmt: skip
            assert torch.equal(alone, together[:, :, row]), (kernel.instructions, row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_bits_do_not_depend_on_threads_or_lanes(
    all_kernels: list[NativeAttention], dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    query = torch.randn(3, 3 * 7, 64)
    keys, values = torch.randn(3, 2600, 64).to(dtype), torch.randn(3, 2600, 64).to(dtype)
    visibility = random_tree(7, torch.Generator().manual_seed(4))
    fused = [one for one in all_kernels if one.instructions != "portable"]
    for group_of in ([all_kernels[0]], fused):
        results = [
            one.attention(query, keys, values, 2500, visibility, 3, 0.125, threads=threads)
            for one in group_of
            for threads in (1, 2, 3, 5, 2)
        ]
        assert all(torch.equal(results[0], result) for result in results[1:])


def test_a_group_does_not_matter_either(kernel: NativeAttention) -> None:
    torch.manual_seed(5)
    query = torch.randn(1, 12, 64)
    keys, values = torch.randn(1, 1300, 64).half(), torch.randn(1, 1300, 64).half()
    together = kernel.attention(query, keys, values, 1299, None, 12, 0.125)
    for row in range(12):
        alone = kernel.attention(query[:, row : row + 1], keys, values, 1299, None, 1, 0.125)
        assert torch.equal(alone, together[:, row : row + 1])


@pytest.mark.parametrize("window", [None, 40, 700])
@pytest.mark.parametrize("size", [64, 20])
def test_equals_the_torch_path(kernel: NativeAttention, window: int | None, size: int) -> None:
    torch.manual_seed(6)
    heads, group, rows, prefix = 2, 3, 9, 1500
    visibility = random_tree(rows, torch.Generator().manual_seed(7))
    depths = visibility.sum(dim=1) - 1
    cache = KeyValueCache(prefix + rows)
    for start, count in ((0, prefix), (prefix, rows)):
        keys, values = torch.randn(heads, count, size), torch.randn(heads, count, size)
        cache.length = start
        if start == 0:
            cache.write(0, keys, values)
    query = torch.randn(1, heads * group, rows, size)
    step = torch_attention.AttentionStep(cache, visibility, depths)
    with torch_attention.attending(step):
        expected, _ = torch_attention.cached_attention(
            SimpleNamespace(layer_idx=0),  # type: ignore[arg-type]
            query, keys[None], values[None], None, sliding_window=window,
        )  # fmt: skip
    actual = kernel.attend_heads(
        query[0], cache.keys(0), cache.values(0), prefix, visibility, size**-0.5, window
    )
    assert (actual - expected[0]).abs().max() < 1e-5


def test_heads_as_a_model_makes_them_are_read_in_place(kernel: NativeAttention) -> None:
    torch.manual_seed(8)
    rows, heads, kv_heads, size = 5, 6, 2, 64
    fused = torch.randn(rows, (heads + 2 * kv_heads) * size)
    query = fused[:, : heads * size].view(rows, heads, size).transpose(0, 1)
    keys, values = torch.randn(kv_heads, 100, size), torch.randn(kv_heads, 100, size)
    actual = kernel.attend_heads(query, keys, values, 90, None, 0.125)
    folded = query.reshape(kv_heads, heads // kv_heads * rows, size)
    expected = kernel.attention(folded, keys, values, 90, None, heads // kv_heads, 0.125)
    assert actual.is_contiguous()
    assert torch.equal(actual.transpose(0, 1).reshape(expected.shape), expected)


def test_what_a_row_does_not_see_cannot_touch_it(all_kernels: list[NativeAttention]) -> None:
    torch.manual_seed(9)
    query, visibility = torch.randn(2, 3, 64), torch.eye(3, dtype=torch.bool)
    keys, values = torch.randn(2, 703, 64), torch.randn(2, 703, 64)
    for kernel in all_kernels:
        clean = kernel.attention(query, keys, values, 700, visibility, 1, 0.125)
        dirty_keys, dirty_values = keys.clone(), values.clone()
        dirty_keys[:, 701] = dirty_values[:, 701] = float("nan")
        dirty = kernel.attention(query, dirty_keys, dirty_values, 700, visibility, 1, 0.125)
        assert torch.equal(clean[:, [0, 2]], dirty[:, [0, 2]])
        assert dirty[:, 1].isnan().all()


def test_numbers_that_are_not_finite_are_not_hidden(all_kernels: list[NativeAttention]) -> None:
    for kernel in all_kernels:
        query, keys, values = torch.randn(1, 2, 64), torch.randn(1, 300, 64), torch.randn(1, 300, 64)
        query[0, 1, 5] = float("nan")
        actual = kernel.attention(query, keys, values, 298, None, 1, 0.125)
        assert actual[0, 0].isfinite().all() and actual[0, 1].isnan().all()
        values[0, 17, 3] = float("inf")
        assert kernel.attention(query, keys, values, 298, None, 1, 0.125)[0, 0, 3] == float("inf")


def test_large_scores_do_not_overflow(all_kernels: list[NativeAttention]) -> None:
    torch.manual_seed(10)
    query, keys = 60 * torch.randn(1, 4, 64), 60 * torch.randn(1, 900, 64)
    values = torch.randn(1, 900, 64)
    expected = reference(query, keys, values, 896, torch.ones(4, 4, dtype=torch.bool).tril(), 0.125, None)
    for kernel in all_kernels:
        actual = kernel.attention(query, keys, values, 896, None, 1, 0.125)
        # Scores of size 10,000 are rounded by about 1e-3, and so are the weights.
        assert (actual - expected).abs().max() < 2e-2


def test_every_float16_is_read_right(all_kernels: list[NativeAttention]) -> None:
    """One key per value: the output is the value itself, subnormals and infinities included."""
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = patterns.view(64, 1, 1024)
    for kernel in all_kernels:
        actual = kernel.attention(
            torch.zeros(64, 1, 8), torch.zeros(64, 1, 8).half(), values, 0, None, 1, 1.0
        )
        assert torch.equal(actual.nan_to_num(nan=7.0), values.float().nan_to_num(nan=7.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": torch.zeros(2, 4, 8, dtype=torch.float64)}, "not float32"),
        ({"query": torch.zeros(2, 3, 8)}, r"\[KV heads, 2 \* T"),
        ({"query": torch.zeros(2, 4, 16)[:, :, ::2]}, "side by side"),
        ({"query": torch.zeros(2, 4, 8, requires_grad=True)}, "gradient"),
        ({"keys": torch.zeros(2, 20, 8).half()}, "not both"),
        ({"keys": torch.zeros(2, 20, 8).bfloat16(), "values": torch.zeros(2, 20, 8).bfloat16()}, "not both"),
        ({"keys": torch.zeros(2, 20, 16)}, "do not fit"),
        ({"values": torch.zeros(2, 19, 8)}, "do not fit"),
        ({"prefix": 19}, "do not fit a cache"),
        ({"prefix": -1}, "do not fit a cache"),
        ({"window": 0}, "shows nothing"),
        ({"visibility": torch.ones(2, 2)}, "bool"),
        ({"visibility": torch.ones(3, 3, dtype=torch.bool)}, "visibility"),
        ({"visibility": torch.zeros(2, 2, dtype=torch.bool), "prefix": 0}, "sees neither"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    kernel: NativeAttention, change: dict[str, object], said: str
) -> None:
    arguments = {
        "query": torch.zeros(2, 4, 8), "keys": torch.zeros(2, 20, 8), "values": torch.zeros(2, 20, 8),
        "prefix": 10, "visibility": None, "group": 2, "scale": 1.0,
    }  # fmt: skip
    kernel.attention(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        kernel.attention(**(arguments | change))  # type: ignore[arg-type]


def test_the_self_check_finds_a_wrong_kernel(kernel: NativeAttention) -> None:
    assert self_check(kernel) is None

    class Wrong:
        def attention(self, query: Tensor, keys: Tensor, values: Tensor, *rest: object) -> Tensor:
            return kernel.attention(query, keys, values, *rest) * (1 + 1e-4)  # type: ignore[arg-type]

    assert "wrong by" in str(self_check(Wrong()))  # type: ignore[arg-type]
