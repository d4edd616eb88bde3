"""casts: of casts in a row, keep what matters. Level onnx.

Invariant: a cast is only skipped if it changes no value, so that the casts after it give the same bits. (f32 to i32 to
bool is not f32 to bool: 0.2 is true, but its integer part is not.)

    %0 = cast %x {to=f32} : f32[n]       // %x : f16[n]
    %1 = cast %0 {to=i64} : i64[n]             ->      %1 = cast %x {to=i64} : i64[n]
"""

from __future__ import annotations

from ..graph import dtypes
from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.dtypes import DType
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Rule, Verdict

# Bits of precision: every integer of that many bits is exact.
_PRECISION: dict[DType, int] = {dtypes.f16: 11, dtypes.bf16: 8, dtypes.f32: 24, dtypes.f64: 53}
# Floating-point types, and those that hold each of their values exactly.
_WIDER: dict[DType, tuple[DType, ...]] = {
    dtypes.f16: (dtypes.f32, dtypes.f64),
    dtypes.bf16: (dtypes.f32, dtypes.f64),
    dtypes.f32: (dtypes.f64,),
    dtypes.f8e4m3fn: (dtypes.f16, dtypes.f32, dtypes.f64),
    dtypes.f8e5m2: (dtypes.f16, dtypes.f32, dtypes.f64),
}


def is_lossless(source: DType, target: DType) -> bool:
    """Whether every value of `source` is also one of `target`."""
    if source is target:
        return True
    if source.kind == "bool":
        return target.is_integer or target in _PRECISION
    if source.is_float:
        return target in _WIDER.get(source, ())
    if not source.is_integer or not (target.is_integer or target in _PRECISION):
        return False
    value_bits = source.bits - (source.kind == "int")
    if target in _PRECISION:
        # The most negative number is a power of two, which needs no further bit.
        return value_bits <= _PRECISION[target]
    if source.kind == "int" and target.kind == "uint":
        return False
    return value_bits <= target.bits - (target.kind == "int")


class SkipLosslessCast(Rule):
    """cast(cast(x)), the inner one to a wider type -> cast(x), or x if that is its type"""

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.cast(p.named("inner", p.shared(p.cast(x))))
        return result

    def when(self, m: Match) -> Verdict:
        source, middle, target = m.dtype(m.x), m.dtype(m.inner), m.dtype(m.value)
        if source is None or middle is None or target is None:
            return m.fail("a dtype is not known", m.x)
        if target.kind == "string" or source.kind == "string":
            return m.fail("the text of a number depends on its type")
        return is_lossless(source, middle) or m.fail(f"{middle} does not hold every value of {source}", m.inner)

    def build(self, b: OpBuilder, m: Match) -> Value:
        x: Value = m.x
        if m.dtype(x) is m.dtype(m.value):
            return x
        result: Value = b.cast(x, to=m.root.attr("to"), saturate=m.root.attributes.get("saturate"))
        return result


class MergeCasts(RulePass):
    """Of casts in a row, keep what matters."""

    name = "merge-casts"
    rules = (SkipLosslessCast,)
