"""Planning a matrix product and what is applied to it: layouts, batches, packed weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core import Operation, Value
from ...graph.diagnostics import ExecutionError
from ...graph.types import TensorType
from .kernels.elementwise import broadcast_strides, collapse
from .kernels.gemm import (
    Gemm,
    Tiling,
    arguments_of,
    build_gemm,
    choose_tiling,
    scratch_elements,
    work_units,
)
from .kernels.pack import packed_panels
from .kernels.tile import Epilogue, EpilogueOperand
from .lower import Group, data_of, dtype_of
from .segment import Argument, Buffer, Call, Shape, buffer_of, shape_of

if TYPE_CHECKING:
    from ...graph.kernel.loop_builder import LoopBuilder
    from .segment import Planner


@dataclass(frozen=True)
class Factor:
    """A factor as a stack of matrices: the dims of the stack, and the strides of rows and columns."""

    value: Value
    batch: Shape
    rows: int
    columns: int
    row: int
    column: int

    @property
    def matrix(self) -> int:
        return self.rows * self.columns


def plan_product(planner: Planner, group: Group, known: dict[Value, Shape]) -> list[Call]:
    """The calls for one group; the shape of its result becomes known."""
    op = group.product
    assert op is not None
    a, b = _factors(op, known)
    batch = np.broadcast_shapes(a.batch, b.batch)
    m, n, k = a.rows, b.columns, a.columns
    shape = known[op.result] = _result_shape(op, batch, m, n, known)
    result = known[group.result] = shape
    if not b.batch and a.column == 1:
        # One matrix for all: the stack of A is one tall matrix.
        m, a, batch = m * math.prod(batch), replace(a, batch=(), rows=m * math.prod(batch)), ()
    others, epilogue = _epilogue(group, op, known, result, (*batch, m, n))
    for value in others:
        np.broadcast_shapes(shape_of(value, known), result)
    return _calls(planner, group, _Sizes(a, b, batch, m, n, k), others, epilogue, known)


@dataclass(frozen=True)
class _Sizes:
    a: Factor
    b: Factor
    batch: Shape
    m: int
    n: int
    k: int


def _factors(op: Operation, known: dict[Value, Shape]) -> tuple[Factor, Factor]:
    left, right = op.operand_values[:2]
    x, y = shape_of(left, known), shape_of(right, known)
    if op.name == "gemm":
        transposed = bool(op.attr("transA")), bool(op.attr("transB"))
    else:
        transposed = False, False
        x, y = (1, *x) if len(x) == 1 else x, (*y, 1) if len(y) == 1 else y
    factors = []
    for value, shape, turned in ((left, x, transposed[0]), (right, y, transposed[1])):
        *batch, rows, columns = shape
        if turned:
            factors.append(Factor(value, tuple(batch), columns, rows, 1, columns))
        else:
            factors.append(Factor(value, tuple(batch), rows, columns, columns, 1))
    a, b = factors
    if a.columns != b.rows:
        raise ExecutionError("run/matmul-k", f"{op.name} of {list(x)} and {list(y)}: the sums do not fit", op.location)
    return a, b


def _result_shape(op: Operation, batch: Shape, m: int, n: int, known: dict[Value, Shape]) -> Shape:
    if op.name == "gemm":
        return m, n
    left, right = (len(shape_of(value, known)) for value in op.operand_values[:2])
    return (*batch, *((m,) if left > 1 else ()), *((n,) if right > 1 else ()))


def _epilogue(
    group: Group, op: Operation, known: dict[Value, Shape], result: Shape, space: Shape
) -> tuple[list[Value], Epilogue]:
    """What the elementwise operations and Gemm's own bias read, and the function on the sums.

    `space` is the result's shape as the product sees it: a stack of matrices, or one tall matrix.
    """
    others = [value for value in group.inputs() if value is not op.result]
    bias = op.input(2) if op.name == "gemm" else None
    alpha, beta = (op.attr("alpha"), op.attr("beta")) if op.name == "gemm" else (1.0, 1.0)
    if bias is not None and beta != 0 and bias not in others:
        others.append(bias)
    has_bias = bias is not None and beta != 0
    if not others and not group.elementwise and alpha == 1:
        return [], Epilogue()
    operands = []
    for index, value in enumerate(others):
        strides = _strides(shape_of(value, known), result, space, op)
        row = 0 if strides[-2] == 0 else None
        operands.append(EpilogueOperand(f"e{index}", dtype_of(value), row, strides[-1]))

    def body(b: LoopBuilder, total: Value, given: Sequence[Value]) -> Any:
        values = dict(zip(others, given, strict=True))
        if alpha != 1:
            total = b.mul(total, alpha)
        if has_bias:
            assert bias is not None
            total = b.add(total, values[bias] if beta == 1 else b.mul(values[bias], beta))
        return group.body(b, {**values, op.result: total}) if group.elementwise else total

    return others, Epilogue(tuple(operands), body)


def _strides(shape: Shape, result: Shape, space: Shape, op: Operation) -> tuple[int, ...]:
    """The strides of an operand over `space`. A group is formed so that there are such."""
    strides = broadcast_strides(shape, result)
    if len(space) == len(result):
        return strides
    outer = collapse(result[:-1], [strides[:-1]])
    if len(outer.extents) != 1:
        raise ExecutionError(
            "run/epilogue", f"{op.name}: an operand of shape {list(shape)} was not foreseen", op.location
        )
    return (outer.strides[0][0], strides[-1])


def _calls(
    planner: Planner, group: Group, sizes: _Sizes, others: list[Value], epilogue: Epilogue, known: dict[Value, Shape]
) -> list[Call]:
    op = group.product
    assert op is not None
    a, b, m, n, k = sizes.a, sizes.b, sizes.m, sizes.n, sizes.k
    machine, dtype = planner.library.machine, dtype_of(op.result)
    static_m = _is_static(op.result)
    tiling = choose_tiling(machine, dtype, m if static_m else None, n, k)
    packed = _packed(planner, b, tiling)
    gemm = Gemm(
        m=m if static_m else None, n=n, k=k, dtype=dtype, a_row=a.row, a_k=a.column, c_row=n,
        b_packed=packed is not None, b_k=b.row, b_column=b.column, batched=bool(sizes.batch), epilogue=epilogue,
        pack_a=False,
    )  # fmt: skip
    name = f"{op.name}_{'m' if gemm.m is None else m}x{n}x{k}"
    key = (group, replace(gemm, epilogue=Epilogue(epilogue.operands)), tiling)
    compiled = planner.library.get(key, lambda name: build_gemm(name, gemm, tiling), name)
    panel_matrix = -(-n // tiling.columns) * tiling.columns * k
    b_matrix = panel_matrix if packed is not None else b.matrix
    result = known[group.result]
    rows = [
        [step * a.matrix for step in broadcast_strides(a.batch, sizes.batch)],
        [step * b_matrix for step in broadcast_strides(b.batch, sizes.batch)],
        [step * m * n for step in broadcast_strides(sizes.batch, sizes.batch)],
        *(list(_strides(shape_of(value, known), result, (*sizes.batch, m, n), op)[:-2]) for value in others),
    ]
    space = collapse(sizes.batch, rows)
    calls = []
    size = dtype.numpy.itemsize
    scratch = scratch_elements(gemm, tiling) * size
    for position in np.ndindex(*space.extents[:-1]):
        offsets = [sum(p * s for p, s in zip(position, strides[:-1], strict=True)) for strides in space.strides]
        steps = [strides[-1] for strides in space.strides]
        units = work_units(gemm, tiling, m, n, space.extents[-1]) if math.prod(result) else 0
        given: dict[str, Argument] = {
            "a": buffer_of(a.value, offsets[0] * size),
            "b": Buffer(packed, offsets[1] * size) if packed is not None else buffer_of(b.value, offsets[1] * size),
            "c": Buffer(group.result, offsets[2] * size), "scratch": Buffer(None), "m": m,
            "a_batch": steps[0], "b_batch": steps[1], "c_batch": steps[2],
        }  # fmt: skip
        for index, value in enumerate(others):
            strides = _strides(shape_of(value, known), result, (*sizes.batch, m, n), op)
            width = dtype_of(value).numpy.itemsize
            given[f"e{index}"] = buffer_of(value, offsets[3 + index] * width)
            given[f"e{index}_row"], given[f"e{index}_batch"] = strides[-2], steps[3 + index]
        arguments = [given[each] for each in arguments_of(gemm) if each not in ("begin", "end", "thread")]
        work = 2.0 * m * n * max(k, 1) * space.extents[-1]
        calls.append(Call(compiled.entry, name, arguments, units, min(units, planner.parts(work)), scratch))
    return calls


def _is_static(value: Value) -> bool:
    """Whether all rows of a product's result are known when the model is compiled."""
    return isinstance(value.type, TensorType) and value.type.is_static


def _packed(planner: Planner, b: Factor, tiling: Tiling) -> np.ndarray | None:
    """The panels of a constant B, made once for all plans; None if it is not constant."""
    data = data_of(b.value)
    if data is None:
        return None
    key = (b.value, tiling.columns)
    found = planner.packed.get(key)
    if found is None:
        matrix = data.numpy().reshape(*b.batch, b.rows, b.columns) if b.column == 1 else data.numpy().T
        found = planner.packed[key] = packed_panels(matrix, tiling.columns)
    return found
