"""Reductions of one tensor along the same axes are one kernel, which reads it once. Level kernel, part of fuse-rows.

What one makes of its total may depend on the others' totals: the range of a tensor is its greatest less its least.

%0 = kernel.reduce sum %g {axes=[0]}             %0, %1 = kernel.row_map %g, %x {axes=[0], kinds=[sum, max], numbers=2}
%1 = kernel.reduce max %g, %x {axes=[0]}     ->             prologue(%g, %x) {%g, mul %g, %x}
       prologue {mul}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.core import Operation, Region, Value
from ..graph.dtypes import f32, f64
from ..graph.kernel.bodies import interpret, trace
from ..graph.kernel.kernel_ops import COMBINE
from ..graph.location import fuse
from ..graph.lowerings.builder import KernelBuilder, dtype_of, tensor_type
from ..graph.types import TensorType
from .join_maps import MAX_TENSORS, is_short

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


def join_reductions(op: Operation, module: Module, context: PassContext) -> None:
    """Make one kernel of `op` and of what reduces the same tensor along the same axes, in its place."""
    joined = [op] if _is_of_rows(op) else []
    for value in _sources(op) if joined else ():
        if not all(is_whole(value, tensor_type(other)) or _is_smaller(other, value) for other in _sources(op)):
            continue
        while found := next((user for user in value.users if _goes_with(user, value, joined)), None):
            joined.append(found)
    if len(joined) > 1:
        _join(joined, module, context)


def _sources(op: Operation) -> Sequence[Value]:
    return op.operand_values[: int(op.attr("sources"))]


def _extras(op: Operation) -> Sequence[Value]:
    return op.operand_values[int(op.attr("sources")) :]


def _is_of_rows(op: Operation, joined: Sequence[Operation] = ()) -> bool:
    """Whether what the epilogue reads is broadcast to the rows as it is to the result."""
    extras = [value for value in _extras(op) if value.producer not in joined]
    return bool(op.attr("keepdims")) or all(tensor_type(value).shape == () for value in extras)


def _is_smaller(other: Value, value: Value) -> bool:
    """Whether `other` is surely broadcast to `value`, and not the other way round."""
    sizes, whole = tensor_type(other).shape, tensor_type(value).shape
    if sizes is None or whole is None or len(sizes) > len(whole):
        return False
    pairs = zip(sizes, whole[len(whole) - len(sizes) :], strict=True)
    return all(size in (1, full) for size, full in pairs)


def _goes_with(op: Operation, value: Value, joined: Sequence[Operation]) -> bool:
    """Whether `op` can be done where the first of `joined` is."""
    first = joined[0]
    if op in joined or op.parent is not first.parent or not first.is_before(op) or not is_reduction(op):
        return False
    if value not in _sources(op) or op.attr("axes") != first.attr("axes") or not _is_of_rows(op, joined):
        return False
    if not all(is_whole(other, tensor_type(value)) or _is_smaller(other, value) for other in _sources(op)):
        return False
    if not is_whole(value, tensor_type(_largest(first))):
        return False
    extras = [other for other in _extras(op) if other.producer not in joined]
    if any(other.producer is not None and is_late(other.producer, first) for other in (*_sources(op), *extras)):
        return False
    together = [*joined, op]
    tensors = len({value for each in together for value in each.operand_values}) + len(together)
    return tensors <= MAX_TENSORS and is_short(*(region for each in together for region in each.regions.values()))


def _largest(op: Operation) -> Value:
    """The source that all others are broadcast to."""
    return next(value for value in _sources(op) if all(_is_smaller(other, value) for other in _sources(op)))


def _join(joined: Sequence[Operation], module: Module, context: PassContext) -> None:
    op = joined[0]
    inside = {each.result for each in joined}
    operands = list(dict.fromkeys(value for each in joined for value in each.operand_values if value not in inside))
    dtypes = [dtype_of(value) for value in operands]

    def prologue(s: Any, *elements: Any) -> list[Any]:
        known = dict(zip(operands, elements, strict=True))
        return [element(s, each, known) for each in joined]

    def body(s: Any, *elements: Any) -> list[Any]:
        known = dict(zip([*operands, *joined], elements, strict=True))
        for each in joined:  # later ones may read what earlier ones make
            known[each.result] = finished(s, each, known)
        return [known[each.result] for each in joined]

    axes = tuple(op.attr("axes"))
    whole = tensor_type(_largest(op)).shape or ()
    kept = [1 if axis in axes else size for axis, size in enumerate(whole)]
    kinds = tuple(str(each.attr("kind")) for each in joined)
    regions = {
        "prologue": Region(trace(prologue, dtypes)),
        "body": Region(trace(body, [*dtypes, *(dtype_of(each.result) for each in joined)])),
    }
    with context.rewrite(module, "join-reductions", op) as rewriter:
        assert op.parent is not None
        location = fuse("join-reductions", [each.location for each in joined])
        builder = KernelBuilder(op.parent, module.symbols, op, location, rewriter.on_create)
        made = builder.create(
            "kernel.row_map", operands, {"axes": axes, "kinds": kinds, "numbers": len(joined), "sums": 0},
            result_types=[tensor_type(each.result).with_shape(kept) for each in joined], regions=regions,
        )  # fmt: skip
        pairs = zip(joined, made.results, strict=True)
        results = [value if each.attr("keepdims") else builder.squeeze(value, axes) for each, value in pairs]
        for each, value in zip(joined, results, strict=True):
            rewriter.replace(each, [value])


# ---- parts of reductions ---------------------------------------------------------------------------------------------


def element(s: Any, op: Operation, known: dict[Any, Any]) -> Any:
    """The element that a reduction combines."""
    sources = [known[value] for value in _sources(op)]
    return interpret(op.regions["prologue"].block, s, sources)[0] if "prologue" in op.regions else sources[0]


def finished(s: Any, op: Operation, known: dict[Any, Any]) -> Any:
    """What a reduction makes of its total, which is known by the operation."""
    if "epilogue" not in op.regions:
        return known[op]
    extras = [known[value] for value in _extras(op)]
    return interpret(op.regions["epilogue"].block, s, [known[op], *extras])[0]


def is_reduction(op: Operation, kinds: Sequence[str] = tuple(COMBINE)) -> bool:
    """Whether `op` reduces numbers, which are computed in their own type, in one of these ways."""
    if op.name != "kernel.reduce" or op.attr("kind") not in kinds:
        return False
    dtype = dtype_of(op.result)
    return dtype in (f32, f64) or dtype.kind in ("int", "uint")


def is_whole(value: Value, whole: TensorType) -> bool:
    """Whether the value has the shape of `whole`."""
    return isinstance(value.type, TensorType) and value.type.shape == whole.shape


def is_late(producer: Operation, op: Operation) -> bool:
    """Whether `producer` is `op` or comes after it in its block."""
    return producer.parent is op.parent and not producer.is_before(op)
