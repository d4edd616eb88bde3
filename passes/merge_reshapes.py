"""merge-reshapes: one Reshape in place of several, and constant targets in place of computed ones. Level onnx.

A chain of Reshape, Flatten, Squeeze and Unsqueeze only changes dims, so the last shape is all that matters. A target
that is computed at run time (`Concat` of parts of `Shape`) gives way to a constant where each computed element provably
is the operand's dim at that position (written 0), or is what is left (written -1).

Invariant: 0 and -1 are always resolved relative to the operand that they will apply to.

    %0 = shape %x : i64[3]               // %x : f32[n, s, 768]
    %1 = slice %0, [0], [2] : i64[2]
    %2 = concat %1, [12, 64] {axis=0} : i64[4]
    %3 = reshape %x, %2 : f32[n, s, 12, 64]    ->      %3 = reshape %x, [0, 0, 12, 64] : f32[n, s, 12, 64]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dims import Dim
from ..graph.types import TensorType
from .base import RulePass
from .proofs import checks_nothing, inferred, ints, made_by, normalized, reshape_target, same_dims
from .rules import Match, OpRule, Replacement, Verdict

RESHAPING = ("reshape", "flatten", "squeeze", "unsqueeze")


class ConstantTarget(OpRule):
    """reshape(x, computed shape) -> reshape(x, constant shape)"""

    root = "reshape"

    def when(self, m: Match) -> Verdict:
        if m.data(m.root.operands[1]) is not None:
            return m.fail("the target is a constant already")
        if not checks_nothing(m.root, m.inference):
            return m.fail("only a run shows whether the target fits", m.root)
        return _target_of(m) is not None or m.fail("the target has more than one open element", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        target = b.const(np.array(_target_of(m), np.int64))
        m.rewriter.set_operand(m.root, 1, target)
        m.rewriter.set_attribute(m.root, "allowzero", None)
        return None


def _target_of(m: Match) -> list[int] | None:
    """A constant operand with the meaning of Reshape's computed one; None if there is none."""
    shape, elements, result = m.shape(m.root.operands[0]), m.symbolic(m.root.operands[1]), _result_shape(m)
    if shape is None or elements is None or result is None:
        return None
    return reshape_target(shape, result, _open_positions(m.root, elements.flat))


def _open_positions(op: Operation, target: Iterable[Any]) -> list[int]:
    """Where the target of a reshape is -1, beside which no other dim can be 0 (unless it has allowzero)."""
    if op.attr("allowzero"):
        return []
    return [position for position, item in enumerate(target) if isinstance(item, int) and item == -1]


class ReshapeOfReshape(OpRule):
    """reshape(reshape(x)) -> reshape(x), likewise for flatten, squeeze and unsqueeze"""

    root = RESHAPING
    proves_types = True

    def when(self, m: Match) -> Verdict:
        inner = made_by(m.root.operands[0], *RESHAPING)
        if inner is None:
            return m.fail("its operand is not reshaped", m.root)
        if _result_shape(m) is None or m.shape(inner.operands[0]) is None:
            return m.fail("a rank is not known", m.value)
        if not (checks_nothing(m.root, m.inference) and checks_nothing(inner, m.inference)):
            return m.fail("only a run shows whether a target fits", m.root)
        if same_dims(m.shape(inner.operands[0]), _result_shape(m)):
            return True
        if inner.results[0].use_count != 1:
            return m.fail("the inner shape has another user", inner)
        if _squeeze_axes(m, inner) is not None or _target_through(m, inner) is not None:
            return True
        return m.fail("the last shape cannot be written as a constant", m.value)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        inner = made_by(m.root.operands[0], *RESHAPING)
        assert inner is not None
        x = inner.operands[0]
        assert x is not None
        if same_dims(m.shape(x), _result_shape(m)):
            return x
        axes = _squeeze_axes(m, inner)
        if axes is not None:
            squeezed: Value = getattr(b, m.root.name)(x, np.array(axes, np.int64))
            return squeezed
        target = _target_through(m, inner)
        result: Value = b.reshape(x, np.array(target, np.int64))
        return result


def _result_shape(m: Match) -> tuple[Dim, ...] | None:
    """The root's result shape as it follows from its operands."""
    result = inferred(m.root, m.inference)[0]
    return result.shape if isinstance(result, TensorType) else None


def _squeeze_axes(m: Match, inner: Operation) -> list[int] | None:
    """The axes of one squeeze (or unsqueeze) with the effect of two; None for other operations."""
    if m.root.name != inner.name or m.root.name not in ("squeeze", "unsqueeze"):
        return None
    first, second = ints(m, inner.input(1)), ints(m, m.root.input(1))
    ranks = [m.rank(inner.operands[0]), m.rank(inner.results[0]), m.rank(m.value)]
    if first is None or second is None or None in ranks:
        return None
    start, middle, end = (rank for rank in ranks if rank is not None)
    if m.root.name == "squeeze":
        first, second = normalized(first, start), normalized(second, middle)
        left = [axis for axis in range(start) if axis not in first]
        return sorted([*first, *(left[axis] for axis in second)])
    first, second = normalized(first, middle), normalized(second, end)
    left = [axis for axis in range(end) if axis not in second]
    return sorted([*second, *(left[axis] for axis in first)])


def _target_through(m: Match, inner: Operation) -> list[int] | None:
    """The target with which Reshape of what `inner` reshapes gives the root's result; None if there is none."""
    shape = m.shape(inner.operands[0])
    dims = _result_shape(m)
    if shape is None or dims is None:
        return None
    open_positions: list[int] = []
    if m.root.name == "reshape":
        given = ints(m, m.root.operands[1])
        open_positions = [] if given is None else _open_positions(m.root, given)
    return reshape_target(shape, dims, open_positions)


class MergeReshapes(RulePass):
    """One Reshape in place of several, and constant targets in place of computed ones."""

    name = "merge-reshapes"
    rules = (ConstantTarget, ReshapeOfReshape)
