"""merge-transposes: one Transpose in place of two in a row. Level onnx.

Invariant: axis i of the result is axis inner[outer[i]] of the operand (numpy's convention, which ONNX shares).

    %0 = transpose %x {perm=[1, 0, 2]} : f32[b, a, c]
    %1 = transpose %0 {perm=[0, 2, 1]} : f32[b, c, a]          ->      %1 = transpose %x {perm=[1, 2, 0]} : f32[b, c, a]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .cancel_transposes import permutation
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Rule, Verdict


class TransposeOfTranspose(Rule):
    """transpose(transpose(x)) -> transpose(x), or x where both cancel"""

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.transpose(p.named("inner", p.shared(p.transpose(x))))
        return result

    def when(self, m: Match) -> Verdict:
        return self._merged(m) is not None or m.fail("the rank is not known", m.x)

    def build(self, b: OpBuilder, m: Match) -> Value:
        perm = self._merged(m)
        assert perm is not None
        x: Value = m.x
        return x if perm == tuple(range(len(perm))) else b.create("transpose", [x], {"perm": perm}).result

    @staticmethod
    def _merged(m: Match) -> tuple[int, ...] | None:
        inner = m.op("inner")
        first = permutation(inner) if inner is not None else None
        second = permutation(m.root)
        return None if first is None or second is None else tuple(first[axis] for axis in second)


class MergeTransposes(RulePass):
    """Merge transposes in a row."""

    name = "merge-transposes"
    rules = (TransposeOfTranspose,)
