"""Planning matrix products: layouts, batches, packed weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.core import Operation, Value
from ...graph.kernel.bodies import signature
from ...graph.kernel.kernel_base import epilogue_of, extras_of
from ...graph.kernel.scalar_emitter import computed_in
from ...graph.kernel.strided import Strided
from ...graph.kernel.tracing import is_traced
from .kernels.elementwise import collapse
from .kernels.gemm import (
    Gemm,
    Tiling,
    arguments_of,
    build_gemm,
    choose_tiling,
    scratch_elements,
    waits_in_place,
    work_units,
)
from .kernels.pack import fill_panels, panels_shape
from .kernels.tile import Epilogue, EpilogueOperand
from .plan_dot import dots, plan_dot
from .plan_map import finishing
from .plan_split import add_parts, in_parts, parts_of
from .planner import Argument, Buffer, Planner, View, plans, replaceable
from .tune_gemm import gemm_candidates, gemm_runner

# Multiply-adds from which on it matters how they are done.
_WORTH_TUNING = 1_000_000
# With fewer rows to each matrix of a stack, reading the other factor for each of them takes longer than its products.
_FEW_ROWS = 64


@dataclass(frozen=True)
class Product:
    """Stacks of matrices as views of one batch: a [batch, m, k], b [batch, k, n], c and extras [batch, m, n].

    `weight` is the constant behind b if that is one constant matrix, or parts of one; `static` says that m is the same
    in every run, though there may be more or fewer matrices.
    """

    a: View
    b: View
    c: View
    extras: tuple[View, ...]
    weight: Value | None
    static: bool


@plans("kernel.gemm")
def plan_gemm(planner: Planner, op: Operation) -> None:
    """Rows of the result lie one behind the other."""
    left, right = op.operand_values[:2]
    shape = planner.shape(op.result)
    a, b = planner.view(left), planner.view(right)
    c = planner.new(op.result)
    extras = tuple(planner.view(value).broadcast(shape) for value in extras_of(op))
    weight = planner.constant_behind(right) if b.layout.rank == 2 else None
    product = Product(
        a.broadcast((*shape[:-2], *a.shape[-2:])), b.broadcast((*shape[:-2], *b.shape[-2:])), c,
        extras, weight, planner.is_fixed([left, right, op.result], [a, b, c, *extras], 2),
    )  # fmt: skip
    multiply(planner, op, product)


def multiply(planner: Planner, op: Operation, product: Product) -> None:
    """Call the product of views; `op` has the epilogue."""
    product = _readable(planner, product)
    product = _as_one_matrix(planner, product)
    if dots(product):
        planner.keep_apart(op.result)
        plan_dot(planner, op, product, _epilogue(op, _operands(product)))
        return
    parts = parts_of(planner, product)
    if parts > 1:
        partial = planner.allocate((parts, *product.c.shape[-2:]), product.c.dtype)
        _multiply(planner, None, in_parts(product, parts, partial))
        add_parts(planner, op, product, partial)
        return
    _multiply(planner, op, product)


def is_single_row(m: int, n: int, k: int) -> bool:
    """Whether a product is of a single row, as when text is generated word by word: it has code of its own though the
    number of rows changes; but not for every length, if that changes, too."""
    return not is_traced((n, k)) and bool(m == 1)


def _multiply(planner: Planner, op: Operation | None, product: Product) -> None:
    """Call the kernel; `op` has the epilogue, if there is one."""
    batch, m, n = product.c.shape[:-2], product.c.shape[-2], product.c.shape[-1]
    machine, dtype, b = planner.machine, product.c.dtype, product.b
    operands = _operands(product)
    is_weight = product.weight is not None and b.layout.rank <= 3
    k = b.shape[-2] if is_weight else product.a.shape[-1]
    c_row, a_row, a_k, b_k, b_column = _row_stride(product.c), *product.a.strides[-2:], *b.strides[-2:]
    static_m = product.static or is_single_row(m, n, k)
    if static_m:
        m, n, k, c_row, a_row, a_k, b_k, b_column = map(int, (m, n, k, c_row, a_row, a_k, b_k, b_column))
    fixed = static_m or is_weight
    fixed_k = fixed or computed_in(dtype) is not dtype  # sums of narrow floats are not stored in parts
    sizes: Sequence[Any] = batch  # some may be numbers of a trace
    count = math.prod(size for size in sizes if isinstance(size, int))
    tiling = choose_tiling(
        machine, dtype, m if static_m else None, n if fixed else None, k if fixed_k else None, count,
        is_weight, b_column, b_k, a_row, planner.threads,
    )  # fmt: skip
    space = collapse(batch, [view.layout.strides[:-2] for view in (product.a, b, product.c, *product.extras)])
    gemm = Gemm(
        m=m if static_m else None, n=n, k=k, dtype=dtype, a_row=a_row, a_k=a_k,
        c_row=c_row if static_m else n if c_row == n else None, b_packed=is_weight, b_k=b_k,
        b_column=b_column, batched=space.extents != (1,), epilogue=_epilogue(op, operands),
    )  # fmt: skip
    if not static_m:
        gemm, tiling = _of_any_height(gemm, tiling, is_weight)
    elif not batch:
        tiling = _tuned(planner, gemm, (m, n, k), tiling)
    if op is not None and op.result in planner.segment.in_place and waits_in_place(gemm, tiling, k):
        planner.keep_apart(op.result)
    panels = _packed(planner, product, tiling)
    rows = [list(strides) for strides in space.strides]
    if panels is not None:
        is_one = b.layout.rank == 2 or b.strides[0] == 0
        rows[1] = [0 if is_one else panels.layout.size // b.shape[0]] * len(space.extents)
    name = f"gemm_{'m' if gemm.m is None else m}x{n}x{k}"
    block = None if op is None else epilogue_of(op)
    key = (replace(gemm, epilogue=Epilogue(operands)), tiling, None if block is None else signature(block))
    compiled = planner.library.get(key, lambda name: build_gemm(name, gemm, tiling), name)
    given: dict[str, Argument] = {
        "m": m, "n": n, "k": k, "a_row": a_row, "a_k": a_k, "c_row": c_row, "b_k": b_k, "b_column": b_column,
        "a_batch": rows[0][-1], "b_batch": rows[1][-1], "c_batch": rows[2][-1],
    }  # fmt: skip
    names = ["a", "b", "c", *(operand.name for operand in operands)]
    for index, view in enumerate(product.extras):
        given[f"e{index}_row"], given[f"e{index}_batch"] = view.strides[-2], rows[3 + index][-1]
    scratch = scratch_elements(gemm, tiling) * dtype.numpy.itemsize
    units = work_units(gemm, tiling, m, n, space.extents[-1]) if product.c.layout.size else 0
    views = [product.a, b if panels is None else panels, product.c, *product.extras]
    is_read_last = space.extents[:-1] == () and not waits_in_place(gemm, tiling, k)
    instead = replaceable([product.c], product.extras) if is_read_last else []
    for position in np.ndindex(*space.extents[:-1]):
        for each, view, strides in zip(names, views, rows, strict=True):
            offset = sum(p * s for p, s in zip(position, strides[:-1], strict=True))
            given[each] = planner.buffer(view, offset)
        given["scratch"] = Buffer(None)
        work = 2.0 * m * n * max(k, 1) * space.extents[-1]
        planner.call(compiled, arguments_of(gemm), given, units, work, scratch, instead)


def _of_any_height(gemm: Gemm, tiling: Tiling, is_weight: bool) -> tuple[Gemm, Tiling]:
    """The product for any number of rows: strides that follow from it are arguments of the kernel.

    A tile has no registers for the places of rows at an unknown distance, so such rows are packed.
    """
    if not is_weight:
        gemm = replace(gemm, n=None, k=None, b_k=_one_or_any(gemm.b_k), b_column=_one_or_any(gemm.b_column), c_row=None)
    if gemm.a_row == 1:
        return replace(gemm, a_row=1, a_k=None), tiling
    gemm = replace(gemm, a_k=_one_or_any(gemm.a_k))
    if is_weight and gemm.a_row == gemm.k and gemm.a_k == 1:
        return replace(gemm, a_row=gemm.k), tiling
    return replace(gemm, a_row=None), replace(tiling, pack_a=True)


def _one_or_any(stride: Any) -> int | None:
    """1 where that is sure, so that blocks are transposed or copied in registers."""
    return 1 if isinstance(stride, int) and stride == 1 else None


def _tuned(planner: Planner, gemm: Gemm, sizes: tuple[int, int, int], default: Tiling) -> Tiling:
    """The tiling that the executable's tuner chooses; `default` if it has none, or the product is small."""
    tuner = planner.shared.tuner
    if tuner is None or math.prod(sizes) < _WORTH_TUNING:
        return default
    plain = replace(gemm, epilogue=Epilogue())
    candidates = gemm_candidates(planner.machine, plain, *sizes)
    return tuner.choose(("gemm", plain, sizes), candidates, gemm_runner(planner.machine, plain, *sizes))


def _readable(planner: Planner, product: Product) -> Product:
    """The product with every operand of its epilogue in a form that tiles read: along a row constant or contiguous."""
    return replace(product, extras=readable_operands(planner, product.extras))


def readable_operands(planner: Planner, views: Sequence[View]) -> tuple[View, ...]:
    """Operands of an epilogue, copied where tiles could not read them."""
    extras = [view if view.shape[-1] == 1 or view.strides[-1] in (0, 1) else planner.copied(view) for view in views]
    return tuple(
        view.seen(replace(view.layout, strides=(*view.strides[:-1], 0))) if view.shape[-1] == 1 else view
        for view in extras
    )


def _as_one_matrix(planner: Planner, product: Product) -> Product:
    """A stack of matrices times one matrix is one tall matrix times it, if the rows advance evenly. If only those of
    what is added do not, as in an image with room around it, it is copied where matrices have few."""
    batch = product.c.shape[:-2]
    if not batch or any(stride for stride in product.b.strides[:-2]):
        return product
    views = [product.a, product.c, *product.extras]
    if not _advances_evenly(views) and _advances_evenly(views[:2]) and product.c.shape[-2] < _FEW_ROWS:
        views[2:] = [view if _advances_evenly([*views[:2], view]) else planner.copied(view) for view in views[2:]]
    space = collapse(product.c.shape[:-1], [view.strides[:-1] for view in views])
    if len(space.extents) != 1:
        return product
    flat = [
        view.seen(Strided((*space.extents, view.shape[-1]), (strides[0], view.strides[-1]), view.layout.offset))
        for view, strides in zip(views, space.strides, strict=True)
    ]
    b = product.b.seen(Strided(product.b.shape[-2:], product.b.strides[-2:], product.b.layout.offset))
    is_static = product.static and isinstance(space.extents[0], int)
    return replace(product, a=flat[0], b=b, c=flat[1], extras=tuple(flat[2:]), static=is_static)


def _advances_evenly(views: Sequence[View]) -> bool:
    """Whether all rows of stacks of one shape are as far apart as those of each matrix."""
    return len(collapse(views[0].shape[:-1], [view.strides[:-1] for view in views]).extents) == 1


def _row_stride(view: View) -> int:
    """The distance of rows; that of a single row does not matter."""
    return view.strides[-2] if view.shape[-2] > 1 else view.shape[-1]


def _operands(product: Product) -> tuple[EpilogueOperand, ...]:
    return tuple(
        EpilogueOperand(f"e{index}", view.dtype, None if view.strides[-2] else 0, int(view.strides[-1]))
        for index, view in enumerate(product.extras)
    )


def _epilogue(op: Operation | None, operands: tuple[EpilogueOperand, ...]) -> Epilogue:
    body = None if op is None else finishing(op)
    return Epilogue() if body is None else Epilogue(operands, body)


def _packed(planner: Planner, product: Product, tiling: Tiling) -> View | None:
    """The panels of a constant b (of all its parts, one behind the other), made once for all plans; None if it is not
    constant."""
    view = product.b
    if product.weight is None or view.layout.rank > 3:
        return None
    storage, layout, columns = view.storage, view.layout, tiling.columns
    if layout.rank == 3 and layout.strides[0] == 0:  # one matrix for a whole stack
        layout = Strided(layout.shape[1:], layout.strides[1:], layout.offset)
    shape = panels_shape(layout.shape, columns)

    def fill(panels: np.ndarray) -> None:
        assert storage.array is not None
        fill_panels(panels.reshape(shape), _matrix(storage.array, layout), layout.rank - 2)

    key = ("panels", product.weight, layout, columns)
    panels = planner.shared.weights.filled(key, math.prod(shape), view.dtype.numpy, fill)
    return planner.constant(panels, view.dtype)


def _matrix(array: np.ndarray, layout: Strided) -> np.ndarray:
    flat = array.reshape(-1)
    strides = [stride * flat.dtype.itemsize for stride in layout.strides]
    return np.lib.stride_tricks.as_strided(flat[layout.offset :], layout.shape, strides)
