"""recompose-mean: a reduction whose dims of 1 are dropped afterwards does not keep them. Level onnx.

A global average pool is a mean over all dims after the channels; followed by Flatten, Squeeze or Reshape it is a
ReduceMean that drops its axes, likewise for the maximum.

Invariant: the last shape is that of the operand without the reduced axes.

    %0 = global_average_pool %x : f32[n, 8, 1, 1]
    %1 = flatten %0 {axis=1} : f32[n, 8]           ->      %1 = reduce_mean %x, [2, 3] {keepdims=0} : f32[n, 8]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import ints, normalized, same_dims
from .rules import Match, Mismatch, Rule, Verdict

_POOLS = {"global_average_pool": "reduce_mean", "global_max_pool": "reduce_max"}
_REDUCTIONS = (
    "reduce_mean", "reduce_max", "reduce_min", "reduce_sum", "reduce_prod", "reduce_l1", "reduce_l2", "reduce_log_sum",
    "reduce_log_sum_exp", "reduce_sum_square",
)  # fmt: skip
_DROPPING = ("flatten", "squeeze", "reshape")


class DropReducedDims(Rule):
    """flatten(global_average_pool(x)), likewise squeeze(reduce_sum(x)) -> reduce_mean(x) without its axes"""

    name = "drop-reduced-dims"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, axes: PatternValue) -> PatternValue:
        pool = p.op(tuple(_POOLS), x)
        reduced = p.named("reduced", p.either(pool, p.op(_REDUCTIONS, x, p.const(axes), keepdims=1)))
        result: PatternValue = p.either(p.flatten(reduced), p.op(_DROPPING, reduced, p.any_value), p.squeeze(reduced))
        return result

    def when(self, m: Match) -> Verdict:
        axes, shape = _axes(m), m.shape(m.x)
        if isinstance(axes, Mismatch):
            return axes
        assert shape is not None
        left = [dim for position, dim in enumerate(shape) if position not in axes]
        return same_dims(m.shape(m.value), left) or m.fail("it does not drop just the reduced dims", m.value)

    def build(self, b: OpBuilder, m: Match) -> Value:
        axes, reduced = _axes(m), _reduction(m)
        assert not isinstance(axes, Mismatch)
        name = _POOLS.get(reduced.name, reduced.name)
        return b.create(name, [m.x, axes], {"keepdims": 0}).result


def _reduction(m: Match) -> Operation:
    reduced = m.op("reduced")
    assert reduced is not None
    return reduced


def _axes(m: Match) -> list[int] | Mismatch:
    """The axes that are reduced, counted from the front."""
    shape = m.shape(m.x)
    if shape is None:
        return m.fail("the rank is not known", m.x)
    if _reduction(m).name in _POOLS:
        return list(range(2, len(shape)))
    axes = ints(m, m.axes)
    return normalized(axes, len(shape)) if axes else m.fail("the axes are not known", m.root)


class RecomposeMean(RulePass):
    """Recompose reductions that drop their axes, from pools too."""

    name = "recompose-mean"
    exactness = "reassociates"
    fuses = True
    rules = (DropReducedDims,)
