"""fuse-rows: a map that reads totals of its rows becomes one kernel with them. Level kernel, after fuse-kernels.

What a map reads beside its elements may be one number for each row, made of a reduction of tensors that the map reads,
too: the adjoints of softmax and of norms are such. Both become a `row_map`, which reads a row once from memory. A sum
over all rows of what that reads or makes, as the adjoint of a scale or bias is, becomes a further result, and a map
that nothing else reads becomes part of it. Reductions of one tensor along the same axes, in whatever ways, become one
kernel, too, and so do the mean and the variance of a batch.

    %0 = kernel.reduce %y, %g {kind="sum", axes=[1]}       %1 = kernel.row_map %y, %g {axes=[1]}
           prologue {mul}                              ->          prologue(%y, %g) {mul}
    %1 = kernel.map %y, %g, %0 body {%y * (%g - %0)}               body(%y, %g, %total) {%y * (%g - %total)}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..graph.core import Operation, Region, Value
from ..graph.kernel.bodies import cost, interpret, trace
from ..graph.location import fuse
from ..graph.lowerings.builder import KernelBuilder, dtype_of, tensor_type
from ..graph.types import TensorType
from .base import Pass
from .fuse_kernels import kernel_blocks
from .join_maps import MAX_OPERATIONS, MAX_TENSORS, is_before
from .join_moments import join_moments
from .join_reductions import element, finished, is_late, is_reduction, is_whole, join_reductions

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

# A map of at most so many operations may be computed in both passes over a row.
REPEATED = 8
# Longer rows are not in a cache when they are read again.
LONGEST = 1 << 15


class FuseRows(Pass):
    """Make one kernel of a map and the totals of rows that it reads."""

    name = "fuse-rows"
    level_in = "kernel"
    level_out = "kernel"
    after = ("fuse-kernels",)

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for block in kernel_blocks(module):
            for op in reversed(list(block)):
                if op.parent is not None and op.name == "kernel.map" and context.may_apply:
                    group = _group(op)
                    if group is not None:
                        group.replace(module, context)
            for join in (join_moments, join_reductions):
                for op in list(block):
                    if op.parent is not None and context.may_apply and is_reduction(op):
                        join(op, module, context)
        return context.applications > before


# ---- what goes together ----------------------------------------------------------------------------------------------


@dataclass
class _Group:
    """What becomes one row_map: a map, the `totals` it reads, the maps of single numbers `between` those and it, the
    `sums` of all rows, and `maps` whose results only these read; each kind in the order of the block."""

    op: Operation
    totals: list[Operation]
    between: list[Operation]
    sums: list[Operation] = field(default_factory=list)
    maps: list[Operation] = field(default_factory=list)

    @property
    def whole(self) -> TensorType:
        return tensor_type(self.op.results[0])

    @property
    def axes(self) -> tuple[int, ...]:
        axes: tuple[int, ...] = tuple(self.totals[0].attr("axes"))
        return axes

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.whole.shape or ())) if axis not in self.axes)

    @property
    def members(self) -> list[Operation]:
        return [*self.maps, *self.totals, *self.between, self.op, *self.sums]

    @property
    def operands(self) -> list[Value]:
        """What comes from outside."""
        made = {result for op in self.members for result in op.results}
        return list(dict.fromkeys(v for op in self.members for v in op.operand_values if v not in made))

    @property
    def results(self) -> list[Value]:
        """The results of the map that others read."""
        inside = set(self.members)
        return [result for result in self.op.results if not set(result.users) <= inside]

    @property
    def numbers(self) -> list[Value]:
        """The numbers of rows that others read."""
        inside = set(self.members)
        made = [result for op in (*self.totals, *self.between) for result in op.results]
        return [result for result in made if not set(result.users) <= inside]

    def fits(self) -> bool:
        """Whether one kernel can have so many tensors and operations."""
        tensors = len(self.operands) + len(self.results) + len(self.numbers) + len(self.sums)
        return tensors <= MAX_TENSORS and sum(map(_length, self.members)) <= MAX_OPERATIONS

    def grow(self) -> None:
        """Take sums and maps while there are any."""
        while self._take_sum() or self._take_map():
            pass

    def _take_sum(self) -> bool:
        for value in (*self.op.results, *self.operands):
            if not is_whole(value, self.whole):
                continue
            for user in value.users:
                if user not in self.sums and self._is_sum(user):
                    self.sums.append(user)
                    if self.fits():
                        return True
                    self.sums.pop()
        return False

    def _is_sum(self, op: Operation) -> bool:
        """Whether `op` adds up all rows of what is here anyway, or of it with what the map makes."""
        if not is_reduction(op, ("sum",)) or op.parent is not self.op.parent or "epilogue" in op.regions:
            return False
        if tuple(op.attr("axes")) != self.others or not any(is_whole(v, self.whole) for v in op.operand_values):
            return False
        new = [v for v in op.operand_values if v not in self.operands and v not in self.op.results]
        is_made = any(value in self.op.results for value in op.operand_values)
        if any(is_whole(value, self.whole) for value in new) and not is_made:
            return False
        there = all(v.producer is None or not is_late(v.producer, self.op) for v in new)
        return there and not any(is_before(user, self.op) for user in op.result.users)

    def _take_map(self) -> bool:
        for value in self.operands:
            inner = value.producer
            if inner is None or inner.name != "kernel.map" or len(inner.results) != 1:
                continue
            if inner.parent is not self.op.parent or not is_whole(value, self.whole):
                continue
            users = set(value.users)
            is_repeated = bool(users & set(self.totals)) and len(users) > 1
            if not users <= set(self.members) or (is_repeated and cost(inner.regions["body"].block) > REPEATED):
                continue
            self.maps.insert(0, inner)
            self.maps.sort(key=lambda op: sum(other is not op and other.is_before(op) for other in self.maps))
            if self.fits():
                return True
            self.maps.remove(inner)
        return False

    # ---- the kernel ----------------------------------------------------------------------------------------------

    def replace(self, module: Module, context: PassContext) -> None:
        """The row_map in the place of the map."""
        operands, op, numbers = self.operands, self.op, self.numbers
        results = [*self.results, *numbers]
        dtypes = [dtype_of(value) for value in operands]
        kinds = tuple(str(total.attr("kind")) for total in self.totals)
        prologue = trace(lambda s, *elements: self._elements(s, dict(zip(operands, elements, strict=True))), dtypes)
        body = trace(
            lambda s, *elements: self._made(s, dict(zip([*operands, *self.totals], elements, strict=True)), results),
            [*dtypes, *(dtype_of(total.result) for total in self.totals)],
        )
        shape = self.whole.shape or ()
        row = [shape[axis] for axis in self.axes]
        types = [*(v.type for v in results), *(tensor_type(s.result).with_shape(row) for s in self.sums)]
        attributes = {"axes": self.axes, "kinds": kinds, "numbers": len(numbers), "sums": len(self.sums)}
        with context.rewrite(module, "fuse-rows", op) as rewriter:
            assert op.parent is not None
            location = fuse("fuse-rows", [member.location for member in self.members])
            builder = KernelBuilder(op.parent, module.symbols, op, location, rewriter.on_create)
            made = builder.create(
                "kernel.row_map", operands, attributes,
                result_types=types, regions={"prologue": Region(prologue), "body": Region(body)},
            )  # fmt: skip
            replaced = dict(zip(results, made.results, strict=False))
            for total, value in zip(self.sums, made.results[len(results) :], strict=True):
                wide = builder.unsqueeze(value, self.others) if total.attr("keepdims") else value
                rewriter.replace(total, [wide])
            for member in (op, *reversed(self.between), *self.totals, *reversed(self.maps)):
                rewriter.replace(member, [replaced.get(result) for result in member.results])

    def _elements(self, s: Any, known: dict[Any, Any]) -> list[Any]:
        """What is combined for each total."""
        self._map(s, self.maps, known)
        return [element(s, total, known) for total in self.totals]

    def _made(self, s: Any, known: dict[Any, Any], results: Sequence[Value]) -> list[Any]:
        """The elements of the results, then what is added to each sum; `known` has totals by their reductions."""
        self._map(s, self.maps, known)
        for total in self.totals:
            known[total.result] = finished(s, total, known)
        self._map(s, [*self.between, self.op], known)
        return [*(known[result] for result in results), *(element(s, each, known) for each in self.sums)]

    def _map(self, s: Any, maps: Sequence[Operation], known: dict[Any, Any]) -> None:
        for op in maps:
            made = interpret(op.regions["body"].block, s, [known[value] for value in op.operand_values])
            known.update(zip(op.results, made, strict=True))


def _length(op: Operation) -> int:
    return sum(len(region.block) for region in op.regions.values())


# ---- a map and its totals --------------------------------------------------------------------------------------------


def _group(op: Operation) -> _Group | None:
    """A map with the reductions that become totals, and what grows around them; None if there are none."""
    whole = tensor_type(op.results[0])
    reductions, between = _reached(op, whole)
    axes = next((tuple(each.attr("axes")) for each in reductions), ())
    totals = [each for each in reductions if tuple(each.attr("axes")) == axes]
    # What others read before the map does stays what it is.
    while True:
        inside = {op, *between}
        kept = [each for each in totals if _is_free(each, op, inside)]
        needed = [each for each in between if _is_free(each, op, inside) and _follows(each, [*kept, *between])]
        if len(kept) == len(totals) and len(needed) == len(between):
            break
        totals, between = kept, needed
    if not any(_shares(each, op, whole) for each in totals):
        return None
    group = _Group(op, totals, between)
    if not group.fits():
        return None
    group.grow()
    return group


def _reached(op: Operation, whole: TensorType) -> tuple[list[Operation], list[Operation]]:
    """The reductions of rows that a map reads, perhaps through maps of what are single numbers of a row, and those
    maps, each in the order of the block."""
    found: dict[Operation, None] = {}
    waiting = [value for value in op.operand_values if not is_whole(value, whole)]
    while waiting:
        producer = waiting.pop().producer
        if producer is None or producer.parent is not op.parent or producer in found:
            continue
        if _is_total(producer, whole):
            found[producer] = None
        elif producer.name == "kernel.map":
            found[producer] = None
            waiting += producer.operand_values
    ordered = sorted(found, key=lambda each: sum(other is not each and other.is_before(each) for other in found))
    return (
        [each for each in ordered if each.name == "kernel.reduce"],
        [each for each in ordered if each.name == "kernel.map"],
    )


def _is_free(op: Operation, last: Operation, inside: set[Operation]) -> bool:
    """Whether what `op` makes is read inside, or after `last`."""
    return not any(user not in inside and is_before(user, last) for result in op.results for user in result.users)


def _follows(op: Operation, others: Sequence[Operation]) -> bool:
    return any(value.producer in others for value in op.operand_values)


def _shares(total: Operation, op: Operation, whole: TensorType) -> bool:
    """Whether a total is of a tensor that the map reads, too."""
    read = {value for value in op.operand_values if is_whole(value, whole)}
    return bool(read & set(total.operand_values[: int(total.attr("sources"))]))


def _is_total(op: Operation, whole: TensorType) -> bool:
    """Whether `op` makes a number for each row of tensors of the shape `whole`; a batch is no row."""
    if not is_reduction(op) or not op.attr("keepdims"):
        return False
    sources = op.operand_values[: int(op.attr("sources"))]
    shape, axes = whole.shape or (), tuple(op.attr("axes"))
    if not any(is_whole(value, whole) for value in sources) or not axes or 0 in axes:
        return False
    sizes = [shape[axis] for axis in axes]
    return not all(isinstance(size, int) for size in sizes) or math.prod(sizes) < LONGEST
