"""The native attention kernel as a function of tensors.

:func:`load` compiles it at the first use and says why if there is none; the caller then goes on with torch.
What it computes is what :mod:`tokenswift_cli.models.attention` computes: attention of T new rows, which stand
behind a prefix in the cache, to the prefix and to those of the new rows that they may see.

A row's result depends, to the last bit, only on its query, and on the keys and values it sees by position:
not on how many rows are computed with it, how much of what it sees is prefix or tree, or the number of
threads. All x86-64 processors with AVX2 give the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenswift_cli.native.build import BuildError, build, needs_compiling
from tokenswift_cli.native.threads import Team, find_team

if TYPE_CHECKING:
    from torch import Tensor

SWITCH = "TOKENSWIFT_NATIVE"
INTERFACE = 1
COMPILING = "Compiling the kernels for this processor; this is needed once"
INSTRUCTIONS = ("portable", "AVX2", "AVX-512")

_WORKSPACE_TOO_SMALL = 1
_OUTCOMES = {
    _WORKSPACE_TOO_SMALL: "the workspace is too small",
    2: "a size is out of range",
    3: "a row sees neither prefix nor itself",
    4: "this processor does not have the instructions asked for",
}


class _Call(ctypes.Structure):
    """As ``Call`` in attention_job.h."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("query_head", ctypes.c_int64),
        ("query_group", ctypes.c_int64),
        ("query_row", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("key_head", ctypes.c_int64),
        ("key_row", ctypes.c_int64),
        ("value_head", ctypes.c_int64),
        ("value_row", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("output_head", ctypes.c_int64),
        ("output_group", ctypes.c_int64),
        ("output_row", ctypes.c_int64),
        ("visibility", ctypes.c_void_p),
        ("kv_heads", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("key_size", ctypes.c_int64),
        ("value_size", ctypes.c_int64),
        ("prefix", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("half", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("instructions", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Loaded:
    """The outcome of :func:`load`.

    Attributes:
        kernel: the kernel, or None.
        description: one line for ``tokenswift doctor``: what is active, or why nothing is.
    """

    kernel: NativeAttention | None
    description: str


class NativeAttention:
    """The compiled kernel.

    Args:
        path: the shared library.
        team: torch's OpenMP threads; None to run on the calling thread only.
        instructions: index into ``INSTRUCTIONS``; -1 for the best that the processor has.

    Attributes:
        library: the loaded library, for what else it holds.
        team: as given.
        instructions: name of the instruction set in use.
        instructions_index: its index into ``INSTRUCTIONS``.

    Raises:
        OSError: the file is not a library for this system.
        BuildError: it is another version's.
    """

    def __init__(self, path: Path, team: Team | None, instructions: int = -1) -> None:
        import torch

        library = ctypes.CDLL(str(path))
        try:
            if library.tokenswift_attention_interface() != INTERFACE:
                raise BuildError(f"{path} has another interface than this version of tokenswift")
            self._workspace_bytes = library.tokenswift_attention_workspace
            self._attention = library.tokenswift_attention
        except AttributeError as error:
            raise BuildError(f"{path} lacks a function ({error})") from error
        self._workspace_bytes.restype = ctypes.c_int64
        best = library.tokenswift_attention_instructions()
        self.library = library
        self.team = team
        self.instructions_index: int = best if instructions < 0 else instructions
        self.instructions = INSTRUCTIONS[self.instructions_index]
        self._parallel = None if team is None else team.parallel
        self._torch = torch
        # One workspace per calling thread, kept: its pages are then touched once and not for each layer.
        self._kept = threading.local()

    def attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix: int,
        visibility: Tensor | None,
        group: int,
        scale: float,
        window: int | None = None,
        threads: int | None = None,
    ) -> Tensor:
        """Attention with the query heads that share a key-value head folded into rows.

        Args:
            query: float32 [KV heads, group * T, key size]; row ``g * T + t`` is new row t of head g.
            keys: float32 or float16 [KV heads, capacity, key size], the new rows written at ``prefix``.
            values: the same type, [KV heads, capacity, value size].
            prefix: rows of the cache before the new ones; every new row sees them all.
            visibility: bool [T, T], which new row sees which new row; None means causal order.
            group: query heads per key-value head.
            scale: factor on the scores.
            window: positions a row sees at most, itself included; None for all. The position of a new row is
                the prefix plus the number of new rows that it sees, itself not counted.
            threads: None for as many as torch uses.

        Returns:
            float32 [KV heads, group * T, value size].

        Raises:
            ValueError: shapes, strides or types do not fit, or some row sees nothing.
        """
        if query.dim() != 3 or group < 1 or query.shape[1] % group:
            raise ValueError(f"query of shape {tuple(query.shape)} is not [KV heads, {group} * T, key size]")
        kv_heads, folded, _ = query.shape
        rows = folded // group
        output = query.new_empty((kv_heads, folded, values.shape[-1]))
        (head, row, _), (output_head, output_row, _) = query.stride(), output.stride()
        shape = (kv_heads, group, rows)
        strides = (head, rows * row, row), (output_head, rows * output_row, output_row)
        self._run(query, keys, values, output, shape, *strides, prefix, visibility, scale, window, threads)
        return output

    def attend_heads(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix: int,
        visibility: Tensor | None,
        scale: float,
        window: int | None = None,
        threads: int | None = None,
    ) -> Tensor:
        """The same for queries as a model makes them, without a copy to fold or to unfold.

        Args:
            query: float32 [query heads, T, key size], any strides but the last.
            keys: as for :meth:`attention`; so are the others.

        Returns:
            float32 [T, query heads, value size], contiguous.
        """
        if query.dim() != 3 or keys.dim() != 3 or query.shape[0] % keys.shape[0]:
            raise ValueError(
                f"query of shape {tuple(query.shape)} does not share keys of shape {tuple(keys.shape)}"
            )
        (heads, rows, _), kv_heads = query.shape, keys.shape[0]
        group = heads // kv_heads
        output = query.new_empty((rows, heads, values.shape[-1]))
        (head, row, _), (output_row, output_head, _) = query.stride(), output.stride()
        shape = (kv_heads, group, rows)
        strides = (group * head, head, row), (group * output_head, output_head, output_row)
        self._run(query, keys, values, output, shape, *strides, prefix, visibility, scale, window, threads)
        return output

    def _run(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        output: Tensor,
        shape: tuple[int, int, int],
        query_strides: tuple[int, int, int],
        output_strides: tuple[int, int, int],
        prefix: int,
        visibility: Tensor | None,
        scale: float,
        window: int | None,
        threads: int | None,
    ) -> None:
        """Fill ``output``; shape and strides are by [KV heads, group, T]."""
        self._check(query, keys, values, shape, prefix, visibility, window)
        call = _Call(
            query.data_ptr(),
            *query_strides,
            keys.data_ptr(),
            values.data_ptr(),
            *keys.stride()[:2],
            *values.stride()[:2],
            output.data_ptr(),
            *output_strides,
            None if visibility is None else visibility.data_ptr(),
            *shape,
            keys.shape[2],
            values.shape[2],
            prefix,
            window or 0,
            None,
            0,
            self._parallel,
            scale,
            keys.dtype is self._torch.float16,
            1 if self._parallel is None else threads or self._torch.get_num_threads(),
            self.instructions_index,
        )
        workspace: Tensor | None = getattr(self._kept, "workspace", None)
        if workspace is not None:
            call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
        outcome = self._attention(ctypes.byref(call))
        if outcome == _WORKSPACE_TOO_SMALL:
            needed = self._workspace_bytes(ctypes.byref(call))
            workspace = self._torch.empty(needed * 5 // 4, dtype=self._torch.uint8)
            self._kept.workspace = workspace
            call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
            outcome = self._attention(ctypes.byref(call))
        if outcome:
            raise ValueError(f"attention over the cache: {_OUTCOMES.get(outcome, f'error {outcome}')}")

    def _check(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        shape: tuple[int, int, int],
        prefix: int,
        visibility: Tensor | None,
        window: int | None,
    ) -> None:
        torch = self._torch
        kv_heads, _, rows = shape
        size = query.shape[2]
        if query.dtype is not torch.float32:
            raise ValueError(f"query is {query.dtype}, not float32")
        if keys.dtype is not values.dtype or keys.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"keys are {keys.dtype} and values {values.dtype}, not both float32 or float16")
        if keys.dim() != 3 or keys.shape[0] != kv_heads or keys.shape[2] != size:
            raise ValueError(f"keys of shape {tuple(keys.shape)} do not fit {kv_heads} heads of size {size}")
        if values.dim() != 3 or values.shape[:2] != keys.shape[:2]:
            raise ValueError(f"values of shape {tuple(values.shape)} do not fit keys {tuple(keys.shape)}")
        if not 0 <= prefix <= keys.shape[1] - rows:
            raise ValueError(f"{prefix} + {rows} rows do not fit a cache of {keys.shape[1]}")
        if window is not None and window < 1:
            raise ValueError(f"a window of {window} positions shows nothing")
        if query.stride(2) != 1 or keys.stride(2) != 1 or values.stride(2) != 1:
            raise ValueError("the elements of a query, key or value must lie side by side")
        if not query.is_cpu or not keys.is_cpu or not values.is_cpu:
            raise ValueError("the native attention needs all tensors on the CPU")
        if query.requires_grad and torch.is_grad_enabled():
            raise ValueError("the native attention has no gradient; use torch.inference_mode()")
        if visibility is not None and (
            visibility.dtype is not torch.bool
            or visibility.shape != (rows, rows)
            or not visibility.is_contiguous()
            or not visibility.is_cpu
        ):
            raise ValueError(
                f"visibility must be a contiguous bool tensor of shape {(rows, rows)} on the CPU"
            )


def will_compile() -> bool:
    """Whether the first :func:`load` would have to compile, which takes half a minute: say so before."""
    return not _is_off() and needs_compiling()


def _is_off() -> bool:
    return os.environ.get(SWITCH, "").strip() == "0"


@functools.cache
def load() -> Loaded:
    """The kernel for this process: compiled or found, loaded, and checked; asked once.

    ``TOKENSWIFT_NATIVE=0`` switches it off. Compiling takes about half a minute, once per machine.
    """
    if _is_off():
        return Loaded(None, f"off ({SWITCH}=0)")
    import torch  # noqa: F401  (loads the OpenMP runtime that find_team looks for)

    team = find_team()
    try:
        try:
            kernel = NativeAttention(build(), team)
        except OSError:  # a file cut short by a power cut, or copied from another system
            kernel = NativeAttention(build(anew=True), team)
    except OSError as error:
        return Loaded(None, f"the compiled kernel cannot be loaded ({error})")
    except BuildError as error:
        return Loaded(None, str(error))
    wrong = self_check(kernel)
    if wrong is not None:
        return Loaded(None, wrong)
    threads = "one thread only, no OpenMP of torch found" if team is None else f"threads of {team.library}"
    return Loaded(kernel, f"{kernel.instructions}, {threads}")


def loaded_library() -> ctypes.CDLL | None:
    """The compiled library if this process has asked for it and has it; compiles and loads nothing."""
    if not load.cache_info().currsize:
        return None
    kernel = load().kernel
    return None if kernel is None else kernel.library


def self_check(kernel: NativeAttention) -> str | None:
    """Compare with plain operators in float64 on a small tree behind a prefix; None, or what is wrong."""
    import torch

    generator = torch.Generator().manual_seed(20)
    prefix, heads, group, size = 700, 2, 2, 24
    parents = (-1, 0, 0, 2, 1)
    rows = len(parents)
    visibility = torch.eye(rows, dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            visibility[row] |= visibility[parent]
    query = torch.randn(heads, group * rows, size, generator=generator)
    for dtype in (torch.float32, torch.float16):
        keys, values = (torch.randn(heads, prefix + rows, size, generator=generator).to(dtype) for _ in "kv")
        scores = query.double() @ keys.double().transpose(1, 2) / 4
        hidden = ~torch.cat([torch.ones(rows, prefix, dtype=torch.bool), visibility], dim=1)
        scores.masked_fill_(hidden.repeat(group, 1), float("-inf"))
        expected = scores.softmax(dim=-1) @ values.double()
        error = (
            (kernel.attention(query, keys, values, prefix, visibility, group, 0.25) - expected).abs().max()
        )
        if not error <= 1e-5:
            return f"the compiled kernel is wrong by {float(error):.1g} in {dtype}, so it is not used"
    return None
