"""Planning reductions, and functions of rows: softmax and the norms."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...graph.core import Block, Operation, Value
from ...graph.dtypes import DType
from ...graph.kernel.bodies import signature
from ...graph.kernel.kernel_base import epilogue_of, extras_of
from ...graph.kernel.scalar_emitter import computed_in
from ...graph.kernel.strided import Shape, Strided, broadcast_shapes
from ...graph.kernel.tracing import apply, is_traced
from ...graph.types import ScalarType, VectorType
from .kernels.reduce import (
    Reduce,
    Total,
    build_reduce,
    has_many_rows,
    piece_length,
    reduce_arguments,
    reduce_units,
)
from .kernels.rows import (
    RowFunction,
    RowKernel,
    build_rows,
    layer_norm,
    log_softmax,
    rms_norm,
    row_arguments,
    row_buffers,
    row_scratch,
    row_units,
    softmax,
    streamed,
)
from .kernels.strided import Body, Rows, split_rows
from .kernels.strided import View as TensorView
from .plan_map import body_of, order_of
from .planner import Argument, Buffer, Planner, View, plans

if TYPE_CHECKING:
    from ...graph.kernel.loop_builder import LoopBuilder


@dataclass(frozen=True)
class Function:
    """A region as a function of vectors, and what identifies it."""

    body: Body | None
    key: Hashable


def function_of(block: Block | None) -> Function:
    return Function(None, None) if block is None else Function(body_of(block), signature(block))


def _prologue(op: Operation) -> Function:
    region = op.regions.get("prologue")
    return function_of(None if region is None else region.block)


@plans("kernel.rows")
def plan_rows(planner: Planner, op: Operation) -> None:
    """One call; a row is the last axis."""
    shape = planner.shape(op.result)
    count = int(op.attr("sources"))
    values = op.operand_values[:count]
    sources = [planner.view(value).broadcast(shape) for value in values]
    result = planner.new(op.result, order_of(planner, values, shape))
    others = [planner.view(value).broadcast(shape) for value in extras_of(op)]
    main = next((view for view in sources if 0 not in view.strides), result)
    tensors = [*sources, result, *others]
    rows = split_rows(shape, [len(shape) - 1], [main.strides, *(view.strides for view in tensors)])
    views = rows.views([view.dtype for view in tensors], planner.is_static(op.result))
    last = op.result.type.shape[-1]  # type: ignore[attr-defined]
    prologue, epilogue = _prologue(op), function_of(epilogue_of(op))
    static = planner.is_static(op.result)
    kernel = RowKernel(
        _row_function(op), sizes_of(rows.outer, static), sizes_of(rows.row, static or isinstance(last, int)),
        tuple(views[:count]), (views[count],), tuple(views[count + 1 :]), prologue=prologue.body,
        epilogue=epilogue.body, along=rows.along,
    )  # fmt: skip
    machine = planner.machine
    kernel = streamed(kernel, machine, rows.outer, rows.row)
    name = f"{op.attr('kind')}_{'x'.join(map(str, rows.row))}"
    key = ("rows", op.attr("kind"), op.attr("epsilon"), kernel.outer, kernel.row, tuple(views), kernel.along,
           kernel.streams, prologue.key, epilogue.key)  # fmt: skip
    compiled = planner.library.get(key, lambda name: build_rows(name, kernel, machine), name)
    names = [*(f"x{i}" for i in range(count)), "y0", *(f"o{i}" for i in range(len(others)))]
    given = arguments_of(planner, rows, names, tensors)
    given["scratch"] = Buffer(None)
    scratch = row_scratch(kernel, machine, rows.row) * row_buffers(kernel)["scratch"].numpy.itemsize
    units = row_units(kernel, machine, rows.outer) if result.layout.size else 0
    planner.call(compiled, row_arguments(kernel), given, units, 16.0 * result.layout.size, scratch)


def _row_function(op: Operation) -> RowFunction:
    match op.attr("kind"):
        case "softmax":
            return softmax()
        case "log_softmax":
            return log_softmax()
        case "layer_norm":
            return layer_norm(float(op.attr("epsilon")))
    return rms_norm(float(op.attr("epsilon")))


_COMBINE = {"sum": "sum", "mean": "sum", "max": "max", "min": "min", "prod": "product"}


def totals_of(kinds: Sequence[str], dtypes: Sequence[DType]) -> tuple[Total, ...]:
    """Totals of these kinds of `kernel.reduce`; a mean is a sum that is divided later."""
    return tuple(Total(_COMBINE[kind], dtype) for kind, dtype in zip(kinds, dtypes, strict=True))


@plans("kernel.reduce")
def plan_reduce(planner: Planner, op: Operation) -> None:
    """One call, or two where few rows are so long that they are cut into pieces."""
    count = int(op.attr("sources"))
    values, axes = op.operand_values[:count], tuple(op.attr("axes"))
    shape = broadcast_shapes(*(planner.shape(value) for value in values))
    sources = [planner.view(value).broadcast(shape) for value in values]
    order = order_of(planner, values, shape)
    if not op.attr("keepdims"):
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        order = tuple(kept.index(axis) for axis in order if axis in kept)
    result = planner.new(op.result, order)
    others = [planner.view(value).broadcast(result.shape) for value in extras_of(op)]
    result, *others = (over(view, shape, axes) for view in (result, *others))
    kinds = [op.attr("kind")]
    work = Reduction(totals_of(kinds, [computed_in(result.dtype)]), _prologue(op), function_of(epilogue_of(op)))
    work, others = with_means(planner, work, kinds, math.prod(shape[axis] for axis in axes), shape, others)
    reduce_views(planner, op, work, shape, axes, sources, [result], others)


@dataclass(frozen=True)
class Reduction:
    """Totals of what the prologue makes of the sources, and what the epilogue makes of all."""

    totals: tuple[Total, ...]
    prologue: Function
    epilogue: Function


def reduce_views(
    planner: Planner,
    op: Operation,
    work: Reduction,
    shape: Shape,
    axes: Sequence[int],
    sources: Sequence[View],
    results: Sequence[View],
    others: Sequence[View],
) -> None:
    """Reduce views over `shape`; the results and the others have stride 0 along `axes`."""
    main = next((view for view in sources if 0 not in view.strides), sources[0])
    tensors = [*sources, *results, *others]
    rows = split_rows(shape, axes, [main.strides, *(view.strides for view in tensors)])
    piece = _piece(rows)
    count = len(sources)
    if piece:
        outer, pieces = rows.outer, -(-rows.row[0] // piece)
        partial = [planner.allocate((pieces, *outer), total.dtype) for total in work.totals]
        step, places = partial[0].strides[0], [part.strides[1:] for part in partial]
        none = (0,) * len(rows.row)
        stage = Rows(outer, rows.row, [*rows.outer_strides[: count + 1], *places],
                     [*rows.row_strides[: count + 1], *(none for _ in partial)], rows.along)  # fmt: skip
        first = Reduction(work.totals, work.prologue, Function(None, None))
        emit_reduction(planner, op, first, stage, sources, partial, [], piece, step)
        # What is left: rows of pieces, everything else over the outer dims as they were joined.
        rest = rows.outer_strides[count + 1 :]
        rows = Rows(outer, (pieces,), [places[0], *places, *rest],
                    [(step,), *((step,) for _ in partial), *((0,) for _ in rest)], rows.along)  # fmt: skip
        sources, work = partial, Reduction(work.totals, Function(None, None), work.epilogue)
    emit_reduction(planner, op, work, rows, sources, results, others)


def _piece(rows: Rows) -> int:
    """`piece_length`. Rows whose extents are open are always cut, if only into one piece, unless there are many of
    them: plans for all sizes then have the same calls, and follow from each other."""
    sizes = (*rows.outer, *rows.row)
    if not is_traced(sizes):
        return piece_length(rows.along, rows.outer, rows.row)
    if has_many_rows(rows.along, rows.outer):
        return 0
    count = len(rows.outer)

    def steps(*sizes: int) -> int:
        return piece_length(rows.along, sizes[:count], sizes[count:]) or max(1, sizes[count])

    length: int = apply(steps, *sizes)
    return length


def emit_reduction(
    planner: Planner,
    op: Operation,
    work: Reduction,
    rows: Rows,
    sources: Sequence[View],
    results: Sequence[View],
    others: Sequence[View],
    piece: int = 0,
    piece_stride: int = 0,
) -> None:
    """Call the reduction of `rows`: of the first so many steps of a row for each piece, if it is cut into some."""
    count, behind = len(sources), len(sources) + len(results)
    tensors = [*sources, *results, *others]
    static = all(planner.is_static(value) for value in (*op.results, *op.operand_values))
    views = rows.views([view.dtype for view in tensors], static)
    seen = [TensorView(view.dtype, view.outer) for view in views]
    known_piece = piece if static or not piece else None
    kernel = Reduce(
        sizes_of(rows.outer, static), sizes_of(rows.row, static), tuple(views[:count]),
        work.totals, tuple(seen[count:behind]), tuple(seen[behind:]),
        work.prologue.body, work.epilogue.body, rows.along, known_piece,
    )  # fmt: skip
    ways = "_".join(dict.fromkeys(total.combine for total in work.totals))
    name = f"reduce_{ways}_{'x'.join(map(str, rows.row))}"
    key = ("reduce", kernel.outer, kernel.row, kernel.operands, kernel.totals, kernel.results, kernel.others,
           kernel.along, known_piece, work.prologue.key, work.epilogue.key)  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(key, lambda name: build_reduce(name, kernel, machine), name)
    groups = zip("xyo", (sources, results, others), strict=True)
    names = [f"{kind}{index}" for kind, group in groups for index in range(len(group))]
    given = arguments_of(planner, rows, names, tensors)
    given |= {"piece": piece, **{f"y{index}_piece": piece_stride for index in range(len(results))}}
    units = reduce_units(kernel, machine, rows.outer, rows.row, piece) if 0 not in rows.outer else 0
    planner.call(compiled, reduce_arguments(kernel), given, units, 2.0 * rows.row_length * math.prod(rows.outer))


def over(view: View, shape: Shape, axes: Sequence[int]) -> View:
    """The view of a result (with or without the dims `axes`) seen over the whole shape: the same along `axes`."""
    strides = list(view.strides)
    if view.layout.rank != len(shape):
        kept = iter(strides)
        strides = [0 if axis in axes else next(kept) for axis in range(len(shape))]
    strides = [0 if axis in axes else stride for axis, stride in enumerate(strides)]
    return view.seen(Strided(shape, tuple(strides), view.layout.offset))


def with_means(
    planner: Planner, work: Reduction, kinds: Sequence[str], elements: int, shape: Shape, others: Sequence[View]
) -> tuple[Reduction, list[View]]:
    """The reduction over `shape` and its other operands, where totals of kind "mean" are divided by the number of
    `elements` before the epilogue."""
    means = tuple(index for index, kind in enumerate(kinds) if kind == "mean")
    if not means:
        return work, list(others)
    divisor = planner.number(elements, work.totals[means[0]].dtype).broadcast(shape)
    return replace(work, epilogue=_divided(work.epilogue, len(kinds), means)), [*others, divisor]


def _divided(epilogue: Function, totals: int, means: tuple[int, ...]) -> Function:
    """Divide those of the totals whose numbers are in `means` by the last of the other operands, then go on."""

    def body(b: LoopBuilder, values: Sequence[Value]) -> Sequence[Any]:
        *given, elements = values
        for index in means:
            total = given[index]
            assert isinstance(total.type, ScalarType | VectorType)
            given[index] = b.div(total, b.cast(elements, total.type.dtype))
        return given[:totals] if epilogue.body is None else epilogue.body(b, given)

    return Function(body, ("mean", totals, means, epilogue.key))


def sizes_of(numbers: Sequence[int], static: bool) -> tuple[int | None, ...]:
    return tuple(number if static else None for number in numbers)


def arguments_of(planner: Planner, rows: Rows, names: Sequence[str], tensors: Sequence[View]) -> dict[str, Argument]:
    buffers = {name: planner.buffer(view) for name, view in zip(names, tensors, strict=True)}
    return {**rows.numbers(names), **buffers}
