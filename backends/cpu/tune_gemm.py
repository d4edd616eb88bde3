"""What the tuner may choose from for a matrix product: tiles, depths, prefetching, packing; a model of their cost."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .jit import Code, object_code
from .kernels.gemm import (
    AHEAD,
    Gemm,
    Tiling,
    arguments_of,
    build_gemm,
    choose_tiling,
    scratch_elements,
    work_units,
)
from .kernels.pack import packed_panels
from .kernels.tile import Epilogue
from .machine import Machine
from .tuner import Candidate

# Bytes that come from the second- and from the third-level cache in one cycle, and the share of that time which
# prefetching does not hide.
_L2_BYTES, _L3_BYTES, _NOT_HIDDEN = 32.0, 6.0, 0.1
# Cycles of a call of a tile's function beside its steps: clearing, storing, a wrong guess at the loop's end.
_TILE_CYCLES = 80.0
_CYCLES_PER_SECOND = 3e9


def gemm_candidates(machine: Machine, gemm: Gemm, m: int, n: int, k: int) -> list[Candidate[Tiling]]:
    """Tilings for `gemm` at these sizes, each with the model's estimate; the default one first. At least three."""
    default = choose_tiling(
        machine, gemm.dtype, gemm.m, gemm.n, gemm.k, packed=gemm.b_packed, b_column=gemm.b_column, b_k=gemm.b_k,
        a_row=gemm.a_row,
    )  # fmt: skip
    found = {"default": default}
    if m <= default.rows:
        for panels in (1, 2, 4) if gemm.b_packed else ():
            if (m + 1) * panels * default.vectors < machine.registers:
                found[f"panels {panels}"] = replace(default, panels=panels)
        found["unroll 4"] = replace(default, unroll=4)
        found["no prefetch"] = replace(default, ahead=0)
    else:
        for rows, vectors in ((12, 2), (9, 3), (7, 4)):
            if (rows + 1) * vectors < machine.registers:
                found[f"tile {rows} x {vectors}"] = replace(
                    default, rows=rows, vectors=vectors, block=max(rows, default.block // rows * rows)
                )
        for depth in (256, 512):
            if depth < default.depth and gemm.sums is gemm.dtype:
                found[f"depth {depth}"] = replace(default, depth=-(-k // -(-k // depth)))
        if gemm.b_packed:
            found["rows ahead"] = replace(default, fetch_a=True, ahead=0, spread=0)
            found["steps ahead"] = replace(default, fetch_a=False, ahead=AHEAD, spread=0)
            found["strip and rows ahead"] = replace(default, fetch_a=True, spread=default.spread or 1)
        elif gemm.b_column == 1:
            direct = not default.copy_b
            found["copied" if direct else "direct"] = replace(default, copy_b=direct, ahead=0 if direct else AHEAD)
        found["rows as they lie" if default.pack_a else "packed rows"] = replace(
            default, pack_a=not default.pack_a, fetch_a=False
        )
    return [
        Candidate(label, tiling, estimate(machine, gemm, tiling, m, n, k))
        for label, tiling in found.items()
        if label == "default" or tiling != default
    ]


def estimate(machine: Machine, gemm: Gemm, tiling: Tiling, m: int, n: int, k: int) -> float:
    """Seconds by a model: multiply-adds or loads, whichever takes longer, what each tile costs, and what comes from the
    caches and is not prefetched."""
    size = gemm.dtype.bits // 8
    blocks, depths = -(-m // tiling.block), max(1, -(-k // tiling.depth))
    width = tiling.columns * tiling.panels
    down = max(1, -(-m // tiling.rows))
    tiles, height = down * -(-n // width), m / down  # rows are shared out evenly
    vectors = tiling.vectors * tiling.panels
    step = max(height * vectors, height + vectors) / 2
    cycles = tiles * (k * step + depths * (_TILE_CYCLES + 2 * height * vectors))
    a_bytes, b_bytes = m * k * size, n * k * size
    from_l2 = a_bytes * -(-n // width) + b_bytes * -(-m // tiling.rows)
    cycles += _NOT_HIDDEN * from_l2 / _L2_BYTES
    a_is_far, b_is_far = a_bytes > machine.l2 // 2, b_bytes > machine.l2 // 2
    hidden = (_NOT_HIDDEN if tiling.fetch_a or tiling.pack_a else 0.3, _b_waits(tiling))
    cycles += hidden[0] * (a_bytes if a_is_far else 0) / _L3_BYTES
    cycles += hidden[1] * (b_bytes * blocks if b_is_far else 0) / _L3_BYTES
    if tiling.fetch_a:
        cycles *= 1.02
    if tiling.pack_a:
        cycles += a_bytes / 4
    if not gemm.b_packed and tiling.copy_b:
        cycles += b_bytes * blocks / 4
    return cycles / _CYCLES_PER_SECOND


def _b_waits(tiling: Tiling) -> float:
    """The share of the time for fetching B that is not hidden."""
    return 0.05 if tiling.spread else 0.25 if tiling.ahead else 0.4


def gemm_runner(machine: Machine, gemm: Gemm, m: int, n: int, k: int) -> Callable[[Tiling], Callable[[], object]]:
    """For the tuner: builds a tiling's kernel without an epilogue and runs it on one thread, on numbers of its own."""
    plain = replace(gemm, epilogue=Epilogue(), batched=False)
    dtype = gemm.dtype.numpy

    def prepare(tiling: Tiling) -> Callable[[], object]:
        code = Code([object_code(build_gemm("candidate", plain, tiling), machine)], machine)
        b = np.ones((k, n), dtype)
        known: dict[str, np.ndarray | int | None] = {
            "b": packed_panels(b, tiling.columns) if gemm.b_packed else None,
            "scratch": np.zeros(max(1, scratch_elements(plain, tiling)), dtype),
            "m": m, "n": n, "k": k, "begin": 0, "end": work_units(plain, tiling, m, n), "thread": 0,
            # Strides that differ from one run to the next: as if the matrices had no gaps.
            "a_row": k if gemm.a_k in (1, None) else 1, "a_k": 1, "c_row": n, "b_k": n, "b_column": 1,
        }  # fmt: skip
        _make_room(known, gemm, m, n, k)
        given = [known[name] for name in arguments_of(plain)]
        words = [value.ctypes.data if isinstance(value, np.ndarray) else value for value in given]
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))(code.address("candidate"))

        def run(keep: object = (code, given)) -> None:
            function(*words)

        return run

    return prepare


def _make_room(known: dict[str, np.ndarray | int | None], gemm: Gemm, m: int, n: int, k: int) -> None:
    """Make A, B and C as large as strides that are known in advance ask for."""
    dtype = gemm.dtype.numpy
    a_row, a_k = gemm.a_row or known["a_row"], gemm.a_k or known["a_k"]
    known["a"] = np.ones((m - 1) * _int(a_row) + (k - 1) * _int(a_k) + 1, dtype)
    known["c"] = np.zeros((m - 1) * _int(gemm.c_row or n) + n, dtype)
    if not gemm.b_packed:
        b_k, b_column = gemm.b_k or known["b_k"], gemm.b_column or known["b_column"]
        known["b"] = np.ones((k - 1) * _int(b_k) + (n - 1) * _int(b_column) + 1, dtype)


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
