"""merge-squeezes: let an operation keep or drop an axis itself, without an Unsqueeze or Squeeze after it. Level onnx.

Invariant: the axes are the same ones, counted in the same tensor.

    %0 = reduce_mean %x, [2] {keepdims=0} : f32[n, 8]
    %1 = unsqueeze %0, [2] : f32[n, 8, 1]              ->      %1 = reduce_mean %x, [2] : f32[n, 8, 1]
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .base import RulePass
from .proofs import ints, made_by, normalized
from .rules import Match, OpRule, Replacement, Verdict

REDUCTIONS = (
    "reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min", "reduce_l1", "reduce_l2", "reduce_log_sum",
    "reduce_log_sum_exp", "reduce_sum_square", "argmax", "argmin",
)  # fmt: skip


class KeepReducedAxes(OpRule):
    """unsqueeze(reduce(x, axes, keepdims=0), axes) -> reduce(x, axes, keepdims=1), and squeeze the other way round"""

    root = ("squeeze", "unsqueeze")

    def when(self, m: Match) -> Verdict:
        inner, keeps = made_by(m.root.operands[0], *REDUCTIONS), m.root.name == "squeeze"
        if inner is None or inner.results[0].use_count != 1:
            return m.fail("its operand is not reduced, or has another user", m.root)
        if bool(inner.attr("keepdims", 1)) is not keeps:
            return m.fail("the axes are kept (or dropped) already", inner)
        rank, axes, reduced = m.rank(inner.operands[0]), ints(m, m.root.input(1)), _reduced_axes(m, inner)
        if rank is None or axes is None or not reduced:
            return m.fail("the axes are not known", m.root)
        same = sorted(normalized(axes, rank)) == sorted(normalized(reduced, rank))
        return same or m.fail("the axes are others", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        inner = made_by(m.root.operands[0], *REDUCTIONS)
        assert inner is not None
        attributes = {**inner.attributes, "keepdims": int(m.root.name == "unsqueeze")}
        return b.create(inner.definition, inner.operands, attributes).results[0]


def _reduced_axes(m: Match, op: Operation) -> list[int] | None:
    if op.name in ("argmax", "argmin"):
        return [op.attr("axis", 0)]
    return ints(m, op.input(1))


class KeepGatheredAxis(OpRule):
    """unsqueeze(gather(x, i), axis) -> gather(x, [i]), and squeeze the other way round"""

    root = ("squeeze", "unsqueeze")

    def when(self, m: Match) -> Verdict:
        inner = made_by(m.root.operands[0], "gather")
        if inner is None or inner.results[0].use_count != 1:
            return m.fail("its operand is not gathered, or has another user", m.root)
        index, shape = m.data(inner.operands[1]), () if m.root.name == "unsqueeze" else (1,)
        if index is None or index.shape != shape:
            return m.fail("the index is no constant of the right shape", inner)
        rank, axes = m.rank(inner.operands[0]), ints(m, m.root.input(1))
        if rank is None or axes is None or len(axes) != 1:
            return m.fail("the axis is not known", m.root)
        # Both the result of unsqueeze and the operand of squeeze have the rank of what is gathered from.
        same = normalized(axes, rank)[0] == normalized([inner.attr("axis", 0)], rank)[0]
        return same or m.fail("the axis is another", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        inner = made_by(m.root.operands[0], "gather")
        assert inner is not None
        index = m.constant(inner.operands[1])
        assert index is not None
        reshaped = np.reshape(index, (1,) if m.root.name == "unsqueeze" else ())
        result: Value = b.gather(inner.operands[0], reshaped, axis=inner.attr("axis", 0))
        return result


class MergeSqueezes(RulePass):
    """Let an operation keep or drop an axis itself, without an Unsqueeze or Squeeze after it."""

    name = "merge-squeezes"
    rules = (KeepReducedAxes, KeepGatheredAxis)
