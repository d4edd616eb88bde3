"""Maps that also know totals of the row that an element lies in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import op
from ..ops.numeric import summable
from ..ops.scalar import NumpyScalars
from .bodies import interpret, result_dtypes
from .kernel_base import KernelOp, Known, kernel_fault
from .kernel_ops import COMBINE, combined
from .strided import broadcast_shapes

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


@op("row_map", domain="kernel")
class RowMap(KernelOp):
    """A map whose body also gets totals of the row of its element: of all elements along `axes`, which ascend.

    The operands are broadcast against each other. The region `prologue` makes of their elements the numbers that are
    combined along the row, one for each total, in the ways of `kinds`: sum, mean, max, min or prod, as `reduce` does.
    The region `body` makes of the operands' elements, and of those totals, the results' elements. Of the last `sums`
    results all rows are added up: their dims are `axes`. The `numbers` results before those have one element for each
    row, with dims of 1 for `axes`; what they are made of is the same all along a row.

    So the adjoint of a softmax is one kernel (y, g): prologue y g, body y (g - total); that of a layer norm has two
    totals, and two sums of rows, the adjoints of scale and bias.
    """

    inputs = ("operands*",)
    outputs = ("results*",)
    attributes: ClassVar[dict[str, Any]] = {
        "axes": (),
        "kinds": ("sum",),
        "numbers": 0,
        "sums": 0,
        "prologue": None,
        "body": None,
    }

    def fixed_count(self, op: Operation) -> int:
        return len(op.operands)

    def check(self, op: Operation) -> None:
        prologue, body = (op.regions[name].block for name in ("prologue", "body"))
        given = [getattr(value.type, "dtype", None) for value in op.operand_values]
        totals = result_dtypes(prologue)
        taken = [[getattr(argument.type, "dtype", None) for argument in block.arguments] for block in (prologue, body)]
        made = [getattr(result.type, "dtype", None) for result in op.results]
        if taken != [given, [*given, *totals]] or made != result_dtypes(body):
            raise kernel_fault(op, f"of {given} to {made} has regions of {taken} to {totals} and {result_dtypes(body)}")
        kinds = op.attr("kinds")
        if len(kinds) != len(totals) or not set(kinds) <= set(COMBINE):
            raise kernel_fault(op, f"has {len(totals)} totals, of the kinds {list(kinds)}")

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        whole = broadcast_shapes(*shapes)
        axes, numbers, sums = op.attr("axes"), int(op.attr("numbers")), int(op.attr("sums"))
        row = tuple(whole[axis] for axis in axes)
        return [whole] * (len(op.results) - numbers - sums) + [_without(whole, axes)] * numbers + [row] * sums

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        prologue, body = (op.regions[name].block for name in ("prologue", "body"))
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        axes, numbers, sums = op.attr("axes"), int(op.attr("numbers")), int(op.attr("sums"))
        count = len(op.results) - numbers - sums
        shapes = [shape] * count + [_without(shape, axes)] * numbers + [shape] * sums
        with np.errstate(all="ignore"):
            totals = [
                combined(kind, np.broadcast_to(x, shape), axes, keepdims=True)
                for kind, x in zip(op.attr("kinds"), interpret(prologue, NumpyScalars(), operands), strict=True)
            ]
            totals = [t.astype(dtype.numpy) for t, dtype in zip(totals, result_dtypes(prologue), strict=True)]
            made = interpret(body, NumpyScalars(), [*operands, *totals])
            arrays = [
                np.broadcast_to(np.asarray(array, dtype.numpy), shape).copy()
                for array, dtype, shape in zip(made, result_dtypes(body), shapes, strict=True)
            ]
            others = tuple(axis for axis in range(len(shape)) if axis not in axes)
            added = [np.sum(summable(array), axis=others).astype(array.dtype) for array in arrays[count + numbers :]]
        found = (*arrays[: count + numbers], *added)
        return found if len(found) > 1 else found[0]


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    """Dims of 1 for `axes`."""
    return tuple([1 if axis in axes else size for axis, size in enumerate(shape)])
