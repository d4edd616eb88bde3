"""fold-into-gemm: transposes, factors and differences around a matrix product, as attributes of Gemm. Level onnx.

Invariant: all are matrices. A factor is one number, which for f64 the attribute, of 32 bits, holds exactly; an addend
broadcasts to the product without widening it. Rounding may differ.

    %0 = transpose %x {perm=[1, 0]} : f32[4, n]
    %1 = matmul %0, %y : f32[4, 8]
    %2 = mul %1, 0.5 : f32[4, 8]                  ->      %2 = gemm %x, %y {alpha=0.5 transA=1} : f32[4, 8]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import AttributeValue, Operation, Value
from .base import RulePass
from .matmul_to_gemm import GEMM_TYPES, broadcasts_into
from .pattern import PatternBuilder, PatternValue
from .proofs import made_by
from .rules import Match, Mismatch, OpRule, Rule, Verdict

PRODUCTS = ("matmul", "gemm")


class TransposeIntoGemm(OpRule):
    """matmul(transpose(x), y) -> gemm(x, y, transA=1), and likewise for the other factor and for gemm"""

    root = PRODUCTS
    exactness = "reassociates"

    def when(self, m: Match) -> Verdict:
        refusal = _not_matrices(m, m.root)
        if refusal is not None:
            return refusal
        return bool(_transposed(m.root)) or m.fail("no factor is a transposed matrix that is used only here", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        operands, attributes = list(m.root.operands), dict(m.root.attributes)
        for position in _transposed(m.root):
            transpose = made_by(operands[position], "transpose")
            assert transpose is not None
            operands[position] = transpose.operands[0]
            attributes[_TRANSPOSED[position]] = 1 - m.root.attr(_TRANSPOSED[position], 0)
        return _gemm(b, operands, attributes)


class TransposeOfGemm(Rule):
    """transpose(matmul(x, y)) -> gemm(y, x, transA=1, transB=1), and likewise for a gemm without an addend"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, y: PatternValue) -> PatternValue:
        result: PatternValue = p.transpose(p.named("product", p.op(PRODUCTS, x, y, p.absent)))
        return result

    def when(self, m: Match) -> Verdict:
        refusal = _not_matrices(m, m.op("product"))
        if refusal is not None:
            return refusal
        return m.root.attr("perm") in (None, (1, 0)) or m.fail("it moves no axis", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        product = m.op("product")
        assert product is not None
        attributes = dict(product.attributes)
        attributes["transA"] = 1 - product.attr("transB", 0)
        attributes["transB"] = 1 - product.attr("transA", 0)
        return _gemm(b, [m.y, m.x], attributes)


class FactorOfGemm(Rule):
    """mul(matmul(x, y), k) -> gemm(x, y, alpha=k), likewise for div, and for gemm"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, y: PatternValue, k: PatternValue) -> PatternValue:
        product = p.named("product", p.op(PRODUCTS, x, y, p.optional(p.any_value)))
        result: PatternValue = p.either(p.mul(product, p.const(k)), p.div(product, p.const(k)))
        return result

    def when(self, m: Match) -> Verdict:
        refusal = _not_matrices(m, m.op("product"))
        if refusal is not None:
            return refusal
        found = self._scaled(m)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        product = m.op("product")
        found = self._scaled(m)
        assert product is not None
        assert not isinstance(found, Mismatch)
        return _gemm(b, product.operands, {**product.attributes, **found})

    @staticmethod
    def _scaled(m: Match) -> dict[str, AttributeValue] | Mismatch:
        """Gemm's alpha, and beta if it has an addend, times the factor."""
        product = m.op("product")
        assert product is not None
        factor = _factor(m, m.k)
        if isinstance(factor, Mismatch):
            return factor
        if m.root.name == "div":
            if factor == 0.0:
                return m.fail("the divisor is zero", m.k)
            factor = 1.0 / factor
        names = ["alpha", "beta"] if product.input(2) is not None else ["alpha"]
        scaled: dict[str, AttributeValue] = {}
        for name in names:
            number = _attribute(m, product.attr(name, 1.0) * factor)
            if isinstance(number, Mismatch):
                return number
            scaled[name] = number
        return scaled


class FactorOfOperand(Rule):
    """matmul(mul(x, k), y) -> gemm(x, y, alpha=k), likewise for the other factor and for gemm without an addend"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, y: PatternValue, k: PatternValue) -> PatternValue:
        scaled = p.named("scaled", p.mul(x, p.const(k)))
        result: PatternValue = p.either(p.op(PRODUCTS, scaled, y, p.absent), p.op(PRODUCTS, y, scaled, p.absent))
        return result

    def when(self, m: Match) -> Verdict:
        refusal = _not_matrices(m, m.root)
        if refusal is not None:
            return refusal
        if m.rank(m.x) != 2:
            return m.fail("the factor widens a matrix", m.k)
        if m.scaled.use_count != 1:
            return m.fail("both factors are the scaled matrix", m.root)
        alpha = self._alpha(m)
        return alpha if isinstance(alpha, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        alpha = self._alpha(m)
        assert not isinstance(alpha, Mismatch)
        operands = [m.x if operand is m.scaled else operand for operand in m.root.operands]
        return _gemm(b, operands, {**m.root.attributes, "alpha": alpha})

    @staticmethod
    def _alpha(m: Match) -> float | Mismatch:
        factor = _factor(m, m.k)
        return factor if isinstance(factor, Mismatch) else _attribute(m, m.root.attr("alpha", 1.0) * factor)


class DifferenceWithGemm(Rule):
    """sub(matmul(x, y), c) -> gemm(x, y, c, beta=-1), and sub(c, matmul(x, y)) -> gemm(x, y, c, alpha=-1)"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, y: PatternValue, c: PatternValue) -> PatternValue:
        product = p.named("product", p.op(PRODUCTS, x, y, p.absent))
        result: PatternValue = p.either(p.sub(product, c), p.sub(c, product))
        return result

    def when(self, m: Match) -> Verdict:
        product = m.op("product")
        assert product is not None
        refusal = _not_matrices(m, product)
        if refusal is not None:
            return refusal
        if product.result.use_count != 1:
            return m.fail("both operands are the product", m.root)
        return broadcasts_into(m, m.c, product.result) or m.fail("the other operand widens the product", m.c)

    def build(self, b: OpBuilder, m: Match) -> Value:
        product = m.op("product")
        assert product is not None
        alpha, first = product.attr("alpha", 1.0), m.root.operands[0] is product.result
        signs = {"alpha": alpha if first else -alpha, "beta": -1.0 if first else 1.0}
        return _gemm(b, [*product.operands[:2], m.c], {**product.attributes, **signs})


_TRANSPOSED = ("transA", "transB")
_DEFAULTS: dict[str, AttributeValue] = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


def _not_matrices(m: Match, op: Operation | None) -> Mismatch | None:
    """Why the product cannot be a Gemm; None if it can."""
    assert op is not None
    if any(m.rank(operand) != 2 for operand in op.operands[:2]):
        return m.fail("the factors are not both known to be matrices", op)
    dtype = m.dtype(op.result)
    return None if dtype is not None and dtype.name in GEMM_TYPES else m.fail(f"Gemm does not take {dtype}", op)


def _transposed(op: Operation) -> list[int]:
    """Which factors are transposed matrices that nobody else reads."""
    found = []
    for position, operand in enumerate(op.operands[:2]):
        transpose = made_by(operand, "transpose")
        if transpose is not None and transpose.attr("perm") in (None, (1, 0)) and transpose.result.use_count == 1:
            found.append(position)
    return found


def _factor(m: Match, value: Value) -> float | Mismatch:
    """The number that a constant of one element and at most two dims is."""
    number = m.scalar(value)
    if number is None or (m.rank(value) or 0) > 2:
        return m.fail("the factor is not one number", value)
    return float(number) if np.isfinite(number) else m.fail("the factor is not finite", value)


def _attribute(m: Match, number: float) -> float | Mismatch:
    """A factor as an attribute of Gemm, which has 32 bits: fewer than a product of f64 should have."""
    rounded = float(np.float32(number))
    dtype = m.dtype(m.value)
    if not (number == 0.0 or float(np.finfo(np.float32).tiny) <= abs(rounded) < np.inf):
        return m.fail("the factor is too large or too small for an attribute of Gemm", m.root)
    if dtype is not None and dtype.bits > 32 and rounded != number:
        return m.fail("an attribute of Gemm does not hold the factor exactly", m.root)
    return rounded


def _gemm(b: OpBuilder, operands: Sequence[Value | None], attributes: Mapping[str, AttributeValue]) -> Value:
    kept = {name: value for name, value in attributes.items() if value != _DEFAULTS.get(name)}
    return b.create("gemm", list(operands), kept).result


class FoldIntoGemm(RulePass):
    """Fold transposes, factors and differences into Gemm."""

    name = "fold-into-gemm"
    exactness = "reassociates"
    fuses = True
    rules = (TransposeIntoGemm, TransposeOfGemm, FactorOfGemm, FactorOfOperand, DifferenceWithGemm)
