"""simplify-shapes: compute each shape once, and read it off a tensor directly. Level onnx.

Integer values whose elements follow from shapes are compared by what they hold, not by how they are computed: of two
that hold the same, the first is used. From opset 15 on, parts of one shape become one Shape with `start` and `end`.

Invariant: elements are equal for all sizes of the inputs; a dim name that merely repeats in the file proves nothing.

    %0 = shape %x : i64[3]
    %1 = gather %0, 0 : i64[]
    %2 = unsqueeze %1, [0] : i64[1]            ->      %2 = shape %x {start=0, end=1} : i64[1]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..graph import dtypes
from ..graph.core import Block, Operation, Value
from ..graph.dims import DimExpr
from ..graph.infer import InferenceContext
from ..graph.types import TensorType
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

# The opset that gave Shape its attributes `start` and `end`.
SHAPE_RANGE_OPSET = 15


@dataclass
class _Scope:
    """The shape values of one block that were met first, by what they hold; and the scope around it."""

    block: Block
    outer: _Scope | None
    place: Operation | None  # the operation of the outer block that holds this one
    first: dict[Hashable, Value] = field(default_factory=dict)
    shapes: list[Operation] = field(default_factory=list)


class SimplifyShapes(Pass):
    """Compute each shape once, and read it off a tensor directly."""

    name = "simplify-shapes"

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        inference = InferenceContext(module.symbols)
        may_take_range = module.opsets.get("", 0) >= SHAPE_RANGE_OPSET
        # Bodies of model-local functions have no types to reason about.
        pending = [_Scope(module.main.block, None, None)]
        while pending:
            scope = pending.pop()
            for op in scope.block:
                pending.extend(_Scope(region.block, scope, op) for region in op.regions.values())
                if len(op.results) != 1 or op.name == "const" or op.regions or not op.results[0].use_count:
                    continue
                if not context.may_apply:
                    return context.applications > before
                elements = inference.symbolic(op.results[0])
                if elements is None or not any(isinstance(item, DimExpr) for item in elements.flat):
                    continue
                if not all(isinstance(item, int | DimExpr) for item in elements.flat):
                    continue
                if not _use_first(module, context, scope, op, elements) and may_take_range:
                    _read_directly(module, context, scope, op, elements)
        return context.applications > before


def _use_first(module: Module, context: PassContext, scope: _Scope, op: Operation, elements: Any) -> bool:
    """Replace the result of `op` by an earlier value that holds the same; else note it as the first."""
    result = op.results[0]
    key = _key(result, elements)
    current: _Scope | None = scope
    place: Operation | None = op
    while current is not None:
        found = current.first.get(key)
        if found is not None and found.producer is not None and place is not None and found.producer.is_before(place):
            with context.rewrite(module, "use-equal-shape", op, f"%{found.name or '?'} holds the same") as rewriter:
                rewriter.replace(op, [found])
            return True
        place, current = current.place, current.outer
    if op.definition.is_pure:
        scope.first.setdefault(key, result)
    if op.name == "shape":
        scope.shapes.append(op)
    return False


def _key(value: Value, elements: Any) -> Hashable:
    dtype = value.type.dtype if isinstance(value.type, TensorType) else None
    return (id(dtype), elements.shape, tuple(elements.flat))


def _read_directly(module: Module, context: PassContext, scope: _Scope, op: Operation, elements: Any) -> None:
    """Make `op`, which computes some neighbouring dims of a tensor, the Shape of these dims."""
    if op.name not in ("gather", "slice", "unsqueeze", "concat", "reshape") or elements.ndim != 1:
        return
    type = op.results[0].type
    if not isinstance(type, TensorType) or type.dtype is not dtypes.i64:  # exporters also compute shapes in i32
        return
    current: _Scope | None = scope
    place: Operation | None = op
    while current is not None:
        for shape in current.shapes:
            if place is None or shape.parent is None or not shape.is_before(place):
                continue
            x = shape.operands[0]
            start = _position(x, list(elements.flat))
            if x is None or start is None:
                continue
            with context.rewrite(module, "read-shape-directly", op, f"dims of %{x.name or '?'}") as rewriter:
                dims = rewriter.before(op).shape(x, start=start, end=start + elements.size)
                rewriter.replace(op, [dims])
            scope.first[_key(dims, elements)] = dims
            return
        place, current = current.place, current.outer


def _position(x: Value | None, wanted: Sequence[Any]) -> int | None:
    """Where `wanted` lies among the dims of `x`."""
    dims = x.type.shape if x is not None and isinstance(x.type, TensorType) else None
    if dims is None:
        return None
    for start in range(len(dims) - len(wanted) + 1):
        if list(dims[start : start + len(wanted)]) == list(wanted):
            return start
    return None
