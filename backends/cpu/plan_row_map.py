"""Planning maps with totals of rows: one kernel, and another that adds up the blocks' sums of rows.

Rows that no cache holds between two passes, and rows side by side that are to be added up, are reduced first and mapped
then, by kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...graph.cached import cached_property
from ...graph.core import Block, Operation, Value
from ...graph.dtypes import DType
from ...graph.kernel.bodies import cost, parted, picked, result_dtypes, signature
from ...graph.kernel.strided import Shape, Strided, broadcast_shapes, dense_strides
from ...graph.kernel.tracing import apply
from .kernels.row_map import (
    RowMap,
    block_of_rows,
    build_row_map,
    row_map_arguments,
    row_map_units,
)
from .kernels.strided import Body, Rows, split_rows, stride_sizes
from .kernels.strided import View as TensorView
from .plan_map import body_of, emit, order_of, turned
from .plan_rows import Function, Reduction, arguments_of, over, reduce_views, sizes_of, totals_of, with_means
from .planner import Planner, View, plans

if TYPE_CHECKING:
    from ...graph.kernel.loop_builder import LoopBuilder

# From here on a row is read from memory twice, whoever does it, and there are few rows to share out.
_LONG = 1 << 15


@plans("kernel.row_map")
def plan_row_map(planner: Planner, op: Operation) -> None:
    """One kernel where rows allow it."""
    work = _Work(planner, op)
    if not work.results and not work.sums:
        work.totals_alone()
    elif work.elements >= _LONG or (work.rows.along == "column" and work.sums):
        work.apart()
    else:
        work.together()


@dataclass
class _Work:
    planner: Planner
    op: Operation

    def __post_init__(self) -> None:
        planner, op = self.planner, self.op
        values = op.operand_values
        self.axes: tuple[int, ...] = tuple(op.attr("axes"))
        self.shape: Shape = broadcast_shapes(*(planner.shape(value) for value in values))
        self.prologue, self.body = (op.regions[name].block for name in ("prologue", "body"))
        self.kinds = op.attr("kinds")
        self.totals = totals_of(self.kinds, result_dtypes(self.prologue))
        self.means = tuple(index for index, kind in enumerate(self.kinds) if kind == "mean")
        order = order_of(planner, values, self.shape)
        self.sources = [turned(planner, planner.view(value).broadcast(self.shape), order) for value in values]
        sums, numbers = int(op.attr("sums")), int(op.attr("numbers"))
        count = len(op.results) - sums - numbers
        self.results = [planner.new(result, order) for result in op.results[:count]]
        rows = [planner.new(result) for result in op.results[count : count + numbers]]
        self.numbers = [over(view, self.shape, self.axes) for view in rows]
        self.sums = [self._spread(planner.new(result)) for result in op.results[count + numbers :]]
        self.fixed = [*(self._is_fixed(view) for view in self.sources), *(True for _ in result_dtypes(self.prologue))]
        self.static = all(planner.is_static(value) for value in (*op.results, *values))
        self.elements = math.prod(self.shape[axis] for axis in self.axes)

    def _spread(self, view: View) -> View:
        """A sum of rows, seen over the whole shape: the same for all rows."""
        strides = [0] * len(self.shape)
        for axis, stride in zip(self.axes, view.strides, strict=True):
            strides[axis] = stride
        return view.seen(Strided(self.shape, tuple(strides), view.layout.offset))

    def _is_fixed(self, view: View) -> bool:
        """Whether an operand is the same all along a row."""
        return all(view.strides[axis] == 0 or self.shape[axis] == 1 for axis in self.axes)

    def _region_of_numbers(self) -> Block:
        """What has one number for each row, of the fixed operands and the totals."""
        first = len(self.results)
        fixed = [index for index, is_one in enumerate(self.fixed) if is_one]
        return picked(self.body, range(first, first + len(self.numbers)), fixed)

    def _region_of_elements(self) -> Block:
        """What a row has an element of at each place: the results, and what is added to the sums."""
        first, behind = len(self.results), len(self.results) + len(self.numbers)
        kept = [*range(first), *range(behind, behind + len(self.sums))]
        return picked(self.body, kept, range(len(self.body.arguments)))

    @cached_property
    def rows(self) -> Rows:
        """Sources, results, numbers and sums as rows."""
        tensors = [*self.sources, *self.results, *self.numbers, *self.sums]
        main = next((view for view in tensors if 0 not in view.strides), tensors[0])
        return split_rows(self.shape, self.axes, [main.strides, *(view.strides for view in tensors)])

    @property
    def others(self) -> list[int]:
        return [axis for axis in range(len(self.shape)) if axis not in self.axes]

    # ---- one kernel ----------------------------------------------------------------------------------------------

    def together(self) -> None:
        planner, rows = self.planner, self.rows
        tensors = [*self.sources, *self.results, *self.numbers]
        views = rows.views([view.dtype for view in (*tensors, *self.sums)], self.static)
        first, behind = len(self.sources), len(self.sources) + len(self.results)
        operands = [
            replace(view, row=(0,) * len(rows.row)) if is_one else view
            for view, is_one in zip(views[:first], self.fixed, strict=False)
        ]
        count = math.prod(rows.outer)
        block = apply(block_of_rows, count) if self.sums else 1
        units = -(-count // block)
        partial = [planner.allocate((units, *rows.row), view.dtype) for view in self.sums]
        dense = stride_sizes(dense_strides(rows.row), self.static)
        start, body = parted(self._region_of_elements(), self.fixed)
        kernel = RowMap(
            sizes_of(rows.outer, self.static), sizes_of(rows.row, self.static), tuple(operands),
            tuple(views[first:behind]), self.totals, body_of(self.prologue), body_of(body), self._start(start),
            tuple(TensorView(view.dtype, view.outer) for view in views[behind : len(tensors)]),
            tuple(TensorView(view.dtype, (), dense) for view in partial), rows.along,
            block if self.static or not self.sums else None, self.means,
        )  # fmt: skip
        machine = planner.machine
        key = ("row_map", kernel.outer, kernel.row, kernel.operands, kernel.results, kernel.numbers, kernel.sums,
               kernel.totals, kernel.along, kernel.block, kernel.means, signature(self.prologue),
               signature(self.body))  # fmt: skip
        name = f"row_map_{'x'.join(map(str, rows.row))}"
        compiled = planner.library.get(key, lambda name: build_row_map(name, kernel, machine), name)
        names = [
            f"{kind}{i}"
            for kind, group in zip("xyn", (self.sources, self.results, self.numbers), strict=True)
            for i in range(len(group))
        ]
        given = arguments_of(planner, _first(rows, len(tensors)), names, tensors)
        given["block"] = block
        for index, view in enumerate(partial):
            given[f"c{index}"] = planner.buffer(view)
            given |= {f"c{index}_row{axis}": stride for axis, stride in enumerate(view.strides[1:])}
        work = 1.0 * (cost(self.prologue) + cost(self.body) + 8) * count * rows.row_length
        units_of_work = row_map_units(kernel, machine, rows.outer, block)
        planner.call(compiled, row_map_arguments(kernel), given, units_of_work, work)
        for index, view in enumerate(partial):
            strides = rows.row_strides[1 + len(tensors) + index]
            target = self.sums[index]
            shape = (units, *rows.row)
            result = target.seen(Strided(shape, (0, *strides), target.layout.offset))
            self._sum(view.dtype, Function(None, None), shape, [0], [view], result)

    def _start(self, start: Block | None) -> Body | None:
        """What is computed once for each row: for the elements, then the numbers that are results."""
        found = [body_of(block) for block in (start, self._region_of_numbers() if self.numbers else None) if block]
        return (lambda b, values: [each for body in found for each in body(b, values)]) if found else None

    def _sum(
        self, dtype: DType, prologue: Function, shape: Shape, axes: Sequence[int], sources: Sequence[View],
        result: View,
    ) -> None:  # fmt: skip
        work = Reduction(totals_of(["sum"], [dtype]), prologue, Function(None, None))
        reduce_views(self.planner, self.op, work, shape, axes, sources, [result], [])

    # ---- several kernels -----------------------------------------------------------------------------------------

    def totals_alone(self) -> None:
        """A reduction that has several results."""
        fixed = [
            over(view, self.shape, self.axes) for view, is_one in zip(self.sources, self.fixed, strict=False) if is_one
        ]
        block = self._region_of_numbers()
        count, finish = len(result_dtypes(self.prologue)), body_of(block)

        def epilogue(b: LoopBuilder, values: Sequence[Value]) -> Sequence[Any]:
            return finish(b, [*values[count:], *values[:count]])

        self._reduce(self.numbers, fixed, Function(epilogue, signature(block)))

    def _reduce(self, results: Sequence[View], others: Sequence[View], epilogue: Function) -> None:
        """What the epilogue makes of the totals (None: they themselves) and of the others."""
        prologue = Function(body_of(self.prologue), signature(self.prologue))
        work = Reduction(self.totals, prologue, epilogue)
        work, others = with_means(self.planner, work, self.kinds, self.elements, self.shape, others)
        reduce_views(self.planner, self.op, work, self.shape, self.axes, self.sources, results, others)

    def apart(self) -> None:
        """The totals, then the map, then each sum."""
        planner = self.planner
        kept = tuple(1 if axis in self.axes else size for axis, size in enumerate(self.shape))
        totals = [over(planner.allocate(kept, total.dtype), self.shape, self.axes) for total in self.totals]
        self._reduce(totals, [], Function(None, None))
        given, count = [*self.sources, *totals], len(self.results)
        self._map(picked(self.body, range(count), range(len(given))), given, self.results)
        fixed = [view for view, is_one in zip(given, self.fixed, strict=True) if is_one]
        first = [[self._first(view, kept) for view in views] for views in (fixed, self.numbers)]
        self._map(self._region_of_numbers(), *first)
        for index, result in enumerate(self.sums):
            part = self._part("body", count + len(self.numbers) + index)
            self._sum(result.dtype, part, self.shape, self.others, given, result)

    def _map(self, block: Block, sources: Sequence[View], targets: Sequence[View]) -> None:
        if targets:
            emit(self.planner, "map_rows", body_of(block), (signature(block),), sources, targets, cost(block))

    def _first(self, view: View, kept: Shape) -> View:
        """The first element of each row."""
        return view.seen(Strided(kept, view.strides, view.layout.offset))

    def _part(self, region: str, index: int) -> Function:
        """One result of a region."""
        block = self.op.regions[region].block
        whole: Body = body_of(block)

        def body(b: LoopBuilder, values: Sequence[Value]) -> Sequence[Any]:
            return [whole(b, values)[index]]

        return Function(body, (signature(block), index))


def _first(rows: Rows, count: int) -> Rows:
    """Without the tensors behind the first `count`."""
    return Rows(rows.outer, rows.row, rows.outer_strides[: count + 1], rows.row_strides[: count + 1], rows.along)
