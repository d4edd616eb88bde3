"""fold-scale-shift: put a multiplication or addition by constants into the linear operator before it. Level onnx.

Invariant: the constant is a number, or runs along the output channels and nothing else, so that the result keeps its
shape; the linear operator and its weight have no other users. Rounding differs.

    %0 = conv %x, %w : f32[n, 8, h, w]       // %k : f32[8, 1, 1]
    %1 = mul %0, %k : f32[n, 8, h, w]                              ->      %1 = conv %x, %w', %b' : f32[n, 8, h, w]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .affine import LINEAR, Linear, per_channel, read_linear
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, Rule, Verdict


class ScaleOfLinear(Rule):
    """mul(conv(x, w), k) -> conv(x, w * k), likewise for div, and for conv_transpose, gemm and matmul"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, k: PatternValue) -> PatternValue:
        linear = p.op(LINEAR, x, p.const(), p.optional(p.const()))
        result: PatternValue = p.either(p.mul(linear, p.const(k)), p.div(linear, p.const(k)))
        return result

    def when(self, m: Match) -> Verdict:
        read = _read(m)
        if isinstance(read, Mismatch):
            return read
        if m.root.name == "div" and not read[1].all():
            return m.fail("the divisor has a zero", m.k)
        return True

    def build(self, b: OpBuilder, m: Match) -> Value:
        read = _read(m)
        assert not isinstance(read, Mismatch)
        linear, factor = read
        linear.scale_outputs(1.0 / factor if m.root.name == "div" else factor)
        return linear.build(b)


class ShiftOfLinear(Rule):
    """add(conv(x, w), k) -> conv(x, w, k), likewise for sub, and for conv_transpose, gemm and matmul"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, k: PatternValue) -> PatternValue:
        linear = p.op(LINEAR, x, p.const(), p.optional(p.const()))
        result: PatternValue = p.either(p.add(linear, p.const(k)), p.sub(linear, p.const(k)))
        return result

    def when(self, m: Match) -> Verdict:
        read = _read(m)
        return read if isinstance(read, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        read = _read(m)
        assert not isinstance(read, Mismatch)
        linear, term = read
        linear.shift_outputs(-term if m.root.name == "sub" else term)
        return linear.build(b)


def _read(m: Match) -> tuple[Linear, np.ndarray] | Mismatch:
    linear = read_linear(m, _linear(m))
    if isinstance(linear, Mismatch):
        return linear
    values = per_channel(m, m.k, linear)
    return values if isinstance(values, Mismatch) else (linear, values)


def _linear(m: Match) -> Operation:
    return next(op for op in m.ops if op.name in LINEAR)


@dataclass(frozen=True)
class FoldScaleShift(RulePass):
    """Fold multiplications and additions by constants into the linear operators before them."""

    name = "fold-scale-shift"
    exactness = "reassociates"
    rules = (ScaleOfLinear, ShiftOfLinear)
