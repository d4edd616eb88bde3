"""unroll-loops: repeat the body of a short Loop in place. Level onnx.

A Loop is unrolled if its trip count is a constant, nothing can end it before, and at most `max-operations` operations
come of it, or no more than its body has: it runs once. Constants of the body are shared by all iterations.

Invariant: the iterations run in order, as often as before. Random draws stay in their loop.

    %0 = loop 2, none, %x : f32[n]
      body(%i: i64[], %c: bool[], %s: f32[n]) -> (...) {
        %t = neg %s : f32[n]
        return %c, %t                          ->      %0 = neg %x : f32[n]
      }                                                %1 = neg %0 : f32[n]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import types
from ..graph.builder import OpBuilder
from ..graph.clone import clone_operation
from ..graph.core import Block, Operation, Value
from ..graph.data import ArrayData
from ..graph.dims import Dim, DimExpr
from ..graph.infer import InferenceContext
from ..graph.opdef import Trait
from ..graph.ops.control import outer_symbols, replace_known, type_symbols
from ..graph.types import TensorType, Type
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


@dataclass(frozen=True)
class UnrollLoops(Pass):
    """Repeat the body of a short Loop in place."""

    name = "unroll-loops"

    max_operations: int = 32

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        if not context.may_grow:
            return False
        for function in module.all_functions():
            # An inner loop first, so that its operations count for the outer one.
            for op in reversed([op for op in function.region.operations() if op.name == "loop"]):
                if not context.may_apply:
                    return context.applications > before
                count = _trip_count(op, InferenceContext(module.symbols))
                if (
                    count is not None
                    and _may_repeat(op)
                    and (count <= 1 or _size(op, count) <= self.max_operations)
                    and _is_defined(op, count)
                ):
                    with context.rewrite(module, "unroll", op, f"it runs {count} times") as rewriter:
                        rewriter.replace(op, _unrolled(rewriter.before(op), op, count))
        return context.applications > before


def _trip_count(op: Operation, inference: InferenceContext) -> int | None:
    """How often the body runs; None if that is not a known number."""
    body = op.regions["body"].block
    count, condition = op.input(0), op.input(1)
    known = inference.constant(count)
    if known is None or known.size != 1:
        return None
    if condition is not None and not _is_true(condition, inference):
        return 0 if _is_false(condition, inference) else None
    goes_on = body.returned[0]
    if goes_on is not body.arguments[1] and not _is_true(goes_on, inference):
        return None
    return max(int(known.reshape(())), 0)


def _is_true(value: Value, inference: InferenceContext) -> bool:
    known = inference.constant(value)
    return known is not None and known.size == 1 and bool(known.all())


def _is_false(value: Value, inference: InferenceContext) -> bool:
    known = inference.constant(value)
    return known is not None and known.size == 1 and not known.any()


def _may_repeat(op: Operation) -> bool:
    """Whether copies of the body do the same as running it again; a seeded draw may depend on where it is made."""
    never = {Trait.RANDOM, Trait.EFFECT}
    return not any(nested.definition.traits & never for nested in op.regions["body"].walk())


def _size(op: Operation, count: int) -> int:
    body = sum(nested.name != "const" and not nested.is_terminator for nested in op.regions["body"].walk())
    stacked = sum(result.use_count > 0 for result in op.results[len(op.operands) - 2 :])
    return count * body + stacked * (count + 1)


def _is_defined(op: Operation, count: int) -> bool:
    """Whether all that is needed can be written: initial states, and the shape of what no iteration gives."""
    used = [index for index, result in enumerate(op.results) if result.use_count]
    states = len(op.operands) - 2
    if any(op.operands[2 + index] is None for index in range(states)):
        return False
    return count > 0 or all(index < states for index in used)


def _unrolled(builder: OpBuilder, op: Operation, count: int) -> list[Value | None]:
    """Build the iterations; the values for the results of `op`."""
    body = op.regions["body"].block
    states: list[Value] = [value for value in op.operands[2:] if value is not None]
    stacked: list[list[Value]] = [[] for _ in op.results[len(states) :]]
    private = _private_symbols(op)
    shared: dict[Value, Value] = {}
    for each in body:
        if each.name == "const":
            builder.insert(clone_operation(each, shared))
    for iteration in range(count):
        renamed: dict[DimExpr, Dim] = {symbol: builder.symbols.fresh() for symbol in private}
        returned = _iteration(builder, body, iteration, states, dict(shared), renamed)
        states = returned[1 : 1 + len(states)]
        for items, value in zip(stacked, returned[1 + len(states) :], strict=True):
            items.append(value)
    results: list[Value | None] = list(states)
    for items, result in zip(stacked, op.results[len(states) :], strict=True):
        results.append(_stack(builder, items) if result.use_count else None)
    return results


def _iteration(
    builder: OpBuilder,
    body: Block,
    iteration: int,
    states: list[Value],
    values: dict[Value, Value],
    renamed: dict[DimExpr, Dim],
) -> list[Value]:
    """One copy of the body; what it returns."""
    counter, condition, *arguments = body.arguments
    if counter.use_count:
        values[counter] = builder.const(np.full(_static_shape(counter), iteration, np.int64))
    # The condition holds, or the body would not run; and it is returned.
    values[condition] = builder.const(ArrayData(np.full(_static_shape(condition), True, np.bool_)))
    values.update(zip(arguments, states, strict=True))
    for each in body:
        if each.name == "const" or each.is_terminator:
            continue
        copy = clone_operation(each, values)
        for value in _values_of(copy):
            value.type = _rename(value.type, renamed)
        for result in copy.results:
            result.name = f"{result.name}_{iteration}" if result.name else None
        builder.insert(copy)
    return [values.get(value, value) for value in body.returned]


def _private_symbols(op: Operation) -> list[DimExpr]:
    """The symbols that stand for a size in the current iteration: each iteration needs its own."""
    body = op.regions["body"]
    inner = [*body.block.arguments, *(value for nested in body.walk() for value in _values_of(nested))]
    outer = outer_symbols(op)
    found = dict.fromkeys(symbol for value in inner for symbol in type_symbols(value.type))
    return [symbol for symbol in found if symbol not in outer]


def _values_of(op: Operation) -> list[Value]:
    """The results of `op`, and all values in its regions."""
    values = list(op.results)
    for region in op.regions.values():
        values.extend(region.block.arguments)
        for nested in region.block:
            values.extend(_values_of(nested))
    return values


def _rename(type: Type, renamed: dict[DimExpr, Dim]) -> Type:
    if isinstance(type, TensorType) and type.shape is not None:
        return type.with_shape([replace_known(dim, renamed) for dim in type.shape])
    if isinstance(type, types.SequenceType):
        return types.sequence(_rename(type.element, renamed))
    if isinstance(type, types.OptionalType):
        return types.optional(_rename(type.element, renamed))
    return type


def _static_shape(value: Value) -> tuple[int, ...]:
    shape = value.type.static_shape if isinstance(value.type, TensorType) else None
    return () if shape is None else shape


def _stack(builder: OpBuilder, items: list[Value]) -> Value:
    """The items along a new first axis."""
    axes = builder.const(np.array([0], np.int64))
    expanded: list[Value] = [builder.unsqueeze(item, axes) for item in items]
    if len(expanded) == 1:
        return expanded[0]
    result: Value = builder.concat(*expanded, axis=0)
    return result
