"""matmul-to-gemm: a matrix product and the addition after it are one Gemm. Level onnx.

Invariant: both factors are matrices, and the addend broadcasts to the product without widening it (ONNX's
"unidirectional broadcasting"), which is shown from types. Runtimes add in another order, so rounding may differ.

    %0 = matmul %x, %w : f32[n, 10]
    %1 = add %0, %b : f32[n, 10]          // %b : f32[10]      ->      %1 = gemm %x, %w, %b : f32[n, 10]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.dims import prove_equal
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Rule, Verdict

# Element types that Gemm takes (ONNX operator Gemm, type constraint T), but for the integers, which runtimes multiply
# in MatMul only.
GEMM_TYPES = ("f16", "f32", "f64", "bf16")


class MatMulAddToGemm(Rule):
    """add(matmul(x, w), c) -> gemm(x, w, c)"""

    name = "matmul-add-to-gemm"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, w: PatternValue, c: PatternValue) -> PatternValue:
        result: PatternValue = p.add(p.named("product", p.matmul(x, w)), c)
        return result

    def when(self, m: Match) -> Verdict:
        if m.rank(m.x) != 2 or m.rank(m.w) != 2:
            return m.fail("the factors are not both known to be matrices", m.x, m.w)
        dtype = m.dtype(m.product)
        if dtype is None or dtype.name not in GEMM_TYPES:
            return m.fail(f"Gemm does not take {dtype}", m.product)
        return broadcasts_into(m, m.c, m.product) or m.fail("the addend widens the product", m.c)

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create("gemm", [m.x, m.w, m.c]).result


class GemmAdd(Rule):
    """add(gemm(x, w), c) -> gemm(x, w, c), where gemm has no addend yet"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, w: PatternValue, c: PatternValue) -> PatternValue:
        result: PatternValue = p.add(p.named("product", p.gemm(x, w, p.absent)), c)
        return result

    def when(self, m: Match) -> Verdict:
        return broadcasts_into(m, m.c, m.product) or m.fail("the addend widens the product", m.c)

    def build(self, b: OpBuilder, m: Match) -> Value:
        gemm = m.op("gemm")
        assert gemm is not None
        attributes = {name: value for name, value in gemm.attributes.items() if name != "beta"}
        return b.create("gemm", [m.x, m.w, m.c], attributes).result


def broadcasts_into(m: Match, value: Value, target: Value) -> bool:
    """Whether `value` provably broadcasts to the shape of `target` without changing it."""
    shape, wanted = m.shape(value), m.shape(target)
    if shape is None or wanted is None or len(shape) > len(wanted):
        return False
    aligned = wanted[len(wanted) - len(shape) :]
    return all(have == 1 or prove_equal(have, want) is True for have, want in zip(shape, aligned, strict=True))


class MatMulToGemm(RulePass):
    """Turn matrix products with an addition into Gemm."""

    name = "matmul-to-gemm"
    exactness = "reassociates"
    fuses = True
    rules = (MatMulAddToGemm, GemmAdd)
