"""drop-expands: leave broadcasting to the operation that broadcasts anyway. Level onnx.

Invariant: without the Expand the operation provably gives the same shape.

    %0 = expand %m, [1, 1, 4, 4] : bool[1, 1, 4, 4]       // %m : bool[1, 1, 1, 4]
    %1 = where %0, %x, 0.0 : f32[2, 3, 4, 4]              ->      %1 = where %m, %x, 0.0 : f32[2, 3, 4, 4]

What is made of an expanded constant and of numbers is computed before that is expanded, and so is a constant, too.
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.diagnostics import TypeInferenceError
from ..graph.dims import Dim
from ..graph.ops.common import broadcast
from .base import RulePass
from .proofs import checks_nothing, made_by, same_dims
from .rules import Match, OpRule, Replacement, Verdict

BROADCASTING = (
    "add", "sub", "mul", "div", "pow", "mod", "min", "max", "sum", "mean", "where", "and", "or", "xor", "equal", "less",
    "less_or_equal", "greater", "greater_or_equal", "bitwise_and", "bitwise_or", "bitwise_xor",
)  # fmt: skip


class UseUnexpanded(OpRule):
    """add(expand(x), y), where y has the expanded shape -> add(x, y); likewise for all that broadcasts"""

    root = BROADCASTING

    def when(self, m: Match) -> Verdict:
        return _position(m) is not None or m.fail("no operand is expanded in vain", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        position = _position(m)
        assert position is not None
        m.rewriter.set_operand(m.root, position, _unexpanded(m.root.operands[position]))
        return None


class ExpandLater(OpRule):
    """where(expand(c, s), 0, -1) -> expand(where(c, 0, -1), s), of a constant c; likewise for all that broadcasts"""

    root = (*BROADCASTING, "not", "neg", "cast")

    def when(self, m: Match) -> Verdict:
        return _only_expanded(m) is not None or m.fail("it is not made of an expanded constant and numbers", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        expand = _only_expanded(m)
        assert expand is not None
        operands = [_unexpanded(item) if item is expand.result else item for item in m.root.operands]
        inner = b.create(m.root.definition, operands, m.root.attributes, location=m.root.location).result
        result: Value = b.expand(inner, expand.operands[1])
        return result


def _only_expanded(m: Match) -> Operation | None:
    """The Expand of a constant that makes one operand, where the others are single numbers."""
    found = {made_by(operand, "expand") for operand in m.root.operands} - {None}
    expand = found.pop() if len(found) == 1 else None
    if expand is None or m.data(expand.operands[0]) is None:
        return None
    rank = len(m.shape(expand.result) or ())
    for operand in m.root.operands:
        shape = m.shape(operand)
        is_number = m.data(operand) is not None and shape is not None and len(shape) <= rank and set(shape) <= {1}
        if operand is not expand.result and not is_number:
            return None
    return expand


def _unexpanded(value: Value | None) -> Value | None:
    expand = made_by(value, "expand")
    return None if expand is None else expand.operands[0]


def _position(m: Match) -> int | None:
    """The first operand that need not be expanded."""
    shapes = [m.shape(operand) for operand in m.root.operands]
    if any(shape is None for shape in shapes):
        return None
    for position, operand in enumerate(m.root.operands):
        expand = made_by(operand, "expand")
        plain = m.shape(_unexpanded(operand))
        if expand is None or plain is None or not checks_nothing(expand, m.inference):
            continue
        without = [*shapes[:position], plain, *shapes[position + 1 :]]
        if same_dims(_broadcast(m, shapes), _broadcast(m, without)):
            return position
    return None


def _broadcast(m: Match, shapes: list[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    try:
        return broadcast(m.root, shapes, m.inference)
    except TypeInferenceError:
        return None


class DropExpands(RulePass):
    """Leave broadcasting to the operation that broadcasts anyway."""

    name = "drop-expands"
    rules = (UseUnexpanded, ExpandLater)
