"""If, Loop, Scan and SequenceMap: result types from what the regions return.

A symbol that stands for a dim inside a region means nothing outside of it: in each iteration it may be another number.
So a dim leaves a region only as a number, or if all its symbols are known outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .. import types
from ..core import Block, Operation, Value
from ..dims import Dim, DimExpr, bounds, is_symbol, prove_equal, substitute, symbols_of
from ..opdef import OpDefinition, Trait, op
from ..types import SequenceType, TensorType, Type
from .common import Shape, element_dim, error, normalize_axis, operand_elements, same_dim

if TYPE_CHECKING:
    from ..infer import InferenceContext, SymbolicArray

CONTROL_FLOW = frozenset({Trait.CONTROL_FLOW})


# ---- joining types ---------------------------------------------------------------------------------------------------


def join(left: Type, right: Type, op: Operation, context: InferenceContext) -> Type:
    """The type of a value that is either. Dims that are not provably equal become fresh, ranks that differ unknown.

    Raises `control/types` if no type describes both.
    """
    if left is right:
        return left
    if left is types.UNKNOWN or right is types.UNKNOWN:
        return types.UNKNOWN
    if isinstance(left, TensorType) and isinstance(right, TensorType) and left.dtype is right.dtype:
        if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
            return types.tensor(left.dtype, None)
        dims = [_join_dim(a, b, context) for a, b in zip(left.shape, right.shape, strict=True)]
        return types.tensor(left.dtype, dims)
    if isinstance(left, SequenceType) and isinstance(right, SequenceType):
        return types.sequence(join(left.element, right.element, op, context))
    if isinstance(left, types.OptionalType) and isinstance(right, types.OptionalType):
        return types.optional(join(left.element, right.element, op, context))
    # One way may give an optional and the other what it holds.
    if isinstance(left, types.OptionalType):
        return types.optional(join(left.element, right, op, context))
    if isinstance(right, types.OptionalType):
        return types.optional(join(left, right.element, op, context))
    raise error("control/types", f"{op.name} gives {left} one way and {right} the other")


def _join_dim(left: Dim, right: Dim, context: InferenceContext) -> Dim:
    if left is right or prove_equal(left, right):
        return right if isinstance(right, int) else left
    lows = [bounds(dim)[0] or 0 for dim in (left, right)]
    return context.fresh(max(min(lows), 0))


def type_symbols(type: Type) -> Iterator[DimExpr]:
    """The symbols in the dims of `type`."""
    if isinstance(type, TensorType | types.SparseTensorType):
        for dim in type.shape or ():
            yield from symbols_of(dim)
    elif isinstance(type, SequenceType | types.OptionalType):
        yield from type_symbols(type.element)
    elif isinstance(type, types.MapType):
        yield from type_symbols(type.value)


def outer_symbols(op: Operation) -> set[DimExpr]:
    """The symbols in the types of all values from outside that `op` and its regions use."""
    inside = {block for region in op.regions.values() for block in _blocks(region.block)}
    captured = (
        value
        for region in op.regions.values()
        for nested in region.walk()
        for value in nested.operand_values
        if value.block not in inside
    )
    return {each for value in (*op.operand_values, *captured) for each in type_symbols(value.type)}


def _blocks(block: Block) -> Iterator[Block]:
    pending = [block]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(region.block for nested in current for region in nested.regions.values())


def carried_out(type: Type, known: set[DimExpr], context: InferenceContext) -> Type:
    """`type` as it is seen from outside: dims with symbols that are not `known` there become fresh."""
    if isinstance(type, TensorType) and type.shape is not None:
        return types.tensor(
            type.dtype, [dim if set(symbols_of(dim)) <= known else context.fresh() for dim in type.shape]
        )
    if isinstance(type, SequenceType):
        return types.sequence(carried_out(type.element, known, context))
    if isinstance(type, types.OptionalType):
        return types.optional(carried_out(type.element, known, context))
    return type


def returned_types(op: Operation, region: str, count: int | None = None) -> list[Type]:
    """The types that a region returns. Raises `control/results` unless there are `count`."""
    found = [value.type for value in op.regions[region].block.returned]
    if count is not None and len(found) != count:
        raise error("control/results", f"{region} of {op.name} returns {len(found)} values, {count} are needed")
    return found


# ---- operators -------------------------------------------------------------------------------------------------------


@op("If")
class If(OpDefinition):
    """Runs one of two regions."""

    traits = CONTROL_FLOW

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        then = returned_types(op, "then_branch")
        otherwise = returned_types(op, "else_branch", len(then))
        taken, known = self._taken(op, context), outer_symbols(op)
        if taken is not None:
            joined = then if taken == "then_branch" else otherwise
        else:
            joined = [join(a, b, op, context) for a, b in zip(then, otherwise, strict=True)]
        return [carried_out(type, known, context) for type in joined]

    def _taken(self, op: Operation, context: InferenceContext) -> str | None:
        """The region that runs, if that is known."""
        chosen = context.constant(op.operands[0])
        if chosen is None or chosen.size != 1:
            return None
        return "then_branch" if bool(chosen.reshape(-1)[0]) else "else_branch"

    def propagate(self, op: Operation, context: InferenceContext) -> Sequence[SymbolicArray | None] | None:
        taken = self._taken(op, context)
        return None if taken is None else [context.symbolic(value) for value in op.regions[taken].block.returned]


class Iterated(OpDefinition):
    """A region run again and again: states go around, and one element of each further result comes from each run."""

    traits = CONTROL_FLOW

    def states_out(
        self,
        op: Operation,
        initial: Sequence[Type],
        inner: Sequence[Value],
        returned: Sequence[Type],
        context: InferenceContext,
    ) -> tuple[list[Type], dict[DimExpr, Dim]]:
        """The types of the final states, and what the dims of the region's state arguments are outside.

        A dim that the region returns as it got it keeps its first value for ever.
        """
        invariants: dict[DimExpr, Dim] = {}
        results = [
            self._state_out(op, first, value.type, last, invariants, context)
            for first, value, last in zip(initial, inner, returned, strict=True)
        ]
        return results, invariants

    def _state_out(
        self,
        op: Operation,
        first: Type,
        inner: Type,
        last: Type,
        invariants: dict[DimExpr, Dim],
        context: InferenceContext,
    ) -> Type:
        if first is types.UNKNOWN:
            return carried_out(last, set(), context)
        shapes = [type.shape if isinstance(type, TensorType) else None for type in (first, inner, last)]
        ranks = {None if shape is None else len(shape) for shape in shapes}
        if not isinstance(first, TensorType) or None in ranks or len(ranks) > 1:
            return carried_out(join(first, last, op, context), set(type_symbols(first)), context)
        if isinstance(last, TensorType) and last.dtype is not first.dtype:
            raise error("control/types", f"a state of {op.name} begins as {first} and goes on as {last}")
        dims: list[Dim] = []
        for outside, argument, back in zip(*[shape or () for shape in shapes], strict=True):
            if back is outside or back == outside:
                dims.append(outside)
            elif back is argument and is_symbol(argument) and isinstance(argument, DimExpr):
                invariants[argument] = outside
                dims.append(outside)
            else:
                dims.append(context.fresh())
        return types.tensor(first.dtype, dims)

    def stacked(
        self,
        type: Type,
        axis: int,
        count: Dim,
        invariants: dict[DimExpr, Dim],
        known: set[DimExpr],
        op: Operation,
        context: InferenceContext,
    ) -> Type:
        """The type of one element per run, stacked along `axis`."""
        if not isinstance(type, TensorType):
            return type
        if type.shape is None:
            return type
        # Without any run nothing says what the open dims of an element would have been.
        at_least_once = (bounds(count)[0] or 0) > 0
        dims: list[Dim] = []
        for dim in type.shape:
            outside = replace_known(dim, invariants)
            keep = isinstance(outside, int) or (at_least_once and set(symbols_of(outside)) <= known)
            dims.append(outside if keep else context.fresh())
        dims.insert(normalize_axis(axis, len(dims) + 1, op), count)
        return types.tensor(type.dtype, dims)


def replace_known(dim: Dim, values: dict[DimExpr, Dim]) -> Dim:
    """`dim` with the symbols replaced that it has and `values` knows."""
    replaced = {symbol: values[symbol] for symbol in symbols_of(dim) if symbol in values}
    return substitute(dim, replaced) if replaced else dim


def types_of(values: Iterable[Value | None]) -> list[Type]:
    return [types.UNKNOWN if value is None else value.type for value in values]


@op("Loop")
class Loop(Iterated):
    """Runs `body(iteration, condition, *states) -> (condition, *states, *elements)` up to M times while it holds."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        initial, body = types_of(op.operands[2:]), op.regions["body"].block
        returned = returned_types(op, "body")
        count = len(initial)
        if len(body.arguments) != count + 2 or len(returned) < count + 1:
            raise error(
                "control/results",
                f"loop has {count} states; its body takes {len(body.arguments)} values and returns {len(returned)}",
            )
        states, invariants = self.states_out(op, initial, body.arguments[2:], returned[1 : count + 1], context)
        trips, known = self._trips(op, body, context), outer_symbols(op)
        elements = [self.stacked(type, 0, trips, invariants, known, op, context) for type in returned[count + 1 :]]
        return [*states, *elements]

    def _trips(self, op: Operation, body: Block, context: InferenceContext) -> Dim:
        """How often the body runs: M, if nothing can end the loop before; else fresh."""
        limit = operand_elements(op, 0, context)
        if limit is None or limit.size != 1 or not self._never_stops(op, body, context):
            return context.fresh()
        trips = limit.reshape(-1)[0]
        return max(trips, 0) if isinstance(trips, int) else element_dim(trips, context)

    def _never_stops(self, op: Operation, body: Block, context: InferenceContext) -> bool:
        condition = op.operands[1] if len(op.operands) > 1 else None
        first = None if condition is None else context.constant(condition)
        starts = condition is None or (first is not None and bool(first.all()))
        again = body.returned[0]
        while again.producer is not None and again.producer.name == "identity":
            again = again.producer.operand_values[0]
        if again is body.arguments[1]:
            return starts
        goes_on = context.constant(again)
        return starts and goes_on is not None and bool(goes_on.all())


@op("Scan")
class Scan(Iterated):
    """Runs `body(*states, *elements) -> (*states, *elements)` for each place along an axis of the scanned operands."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        scanned = op.attr("num_scan_inputs")
        if not 0 < scanned <= len(op.operands):
            raise error("control/results", f"scan of {len(op.operands)} operands has num_scan_inputs={scanned}")
        count, body = len(op.operands) - scanned, op.regions["body"].block
        returned = returned_types(op, "body")
        if len(body.arguments) != len(op.operands) or len(returned) < count:
            raise error(
                "control/results",
                f"scan has {len(op.operands)} operands; its body takes {len(body.arguments)} values",
            )
        initial = types_of(op.operands[:count])
        states, invariants = self.states_out(op, initial, body.arguments[:count], returned[:count], context)
        length, known = self._length(op, count, context), outer_symbols(op)
        axes = op.attr("scan_output_axes") or (0,) * (len(returned) - count)
        elements = [
            self.stacked(type, axis, length, invariants, known, op, context)
            for type, axis in zip(returned[count:], axes, strict=True)
        ]
        return [*states, *elements]

    def _length(self, op: Operation, count: int, context: InferenceContext) -> Dim:
        axes = op.attr("scan_input_axes") or (0,) * (len(op.operands) - count)
        length: Dim | None = None
        for type, axis in zip(types_of(op.operands[count:]), axes, strict=True):
            shape: Shape | None = type.shape if isinstance(type, TensorType) else None
            if shape is not None:
                size = shape[normalize_axis(axis, len(shape), op)]
                length = (
                    size
                    if length is None
                    else same_dim(
                        length,
                        size,
                        context,
                        lambda: error("control/scan-length", "scan inputs have different lengths"),
                    )
                )
        return context.fresh() if length is None else length


@op("SequenceMap")
class SequenceMap(OpDefinition):
    """Runs `body` for each element of the sequences (and each whole tensor); a sequence of each result."""

    traits = CONTROL_FLOW

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        returned = returned_types(op, "body", len(op.results))
        # What holds for one element need not hold for the next, so only numbers survive.
        return [types.sequence(carried_out(type, set(), context)) for type in returned]


@op("FlexAttention", domain="ai.onnx.preview")
class FlexAttention(OpDefinition):
    """Attention of q, k, v [batch, heads, length, size] with regions that change scores and probabilities."""

    traits = CONTROL_FLOW

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        q, v = op.operands[0], op.operands[2]
        if q is None or v is None or not isinstance(q.type, TensorType) or not isinstance(v.type, TensorType):
            return [types.UNKNOWN]
        if q.type.shape is None or v.type.shape is None:
            return [q.type.with_shape(q.type.shape and [*q.type.shape[:3], context.fresh()])]
        return [q.type.with_shape([*q.type.shape[:3], v.type.shape[3]])]
