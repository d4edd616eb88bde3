"""merge-products: matrix products with constants that can be one product. Level onnx.

A product of a product, (x A) B, is x (A B) where that takes less arithmetic; a sum of products of the same matrix,
x A + x B, is x (A + B). Biases of Gemm go along.

Invariant: A and B are constant matrices that nobody else uses, and so is no inner product. The new weights are computed
in float64 and rounded once; results are summed in another order.

    %0 = matmul %x, %a : f32[n, 64]          // %a : f32[8, 64]
    %1 = matmul %0, %b : f32[n, 8]           // %b : f32[64, 8]     ->     %1 = matmul %x, %ab : f32[n, 8]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.data import TensorData, UnresolvedData
from .affine import is_in_range
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, OpRule, Rule, Verdict

# Arithmetic that one rewrite may take while a model is optimized: about a second.
MOST_ARITHMETIC = 1 << 34
_TOO_FAR = "the product of the weights is beyond the range of their type"


class Factor(NamedTuple):
    """A product with a constant: x @ weight + bias, in float64."""

    x: Value
    weight: np.ndarray
    bias: np.ndarray | None


class ProductOfProduct(OpRule):
    """matmul(matmul(x, a), b) -> matmul(x, a @ b) where that is less arithmetic, likewise for gemm"""

    root = ("matmul", "gemm")
    exactness = "reassociates"

    def when(self, m: Match) -> Verdict:
        inner = m.root.operands[0].producer if m.root.operands[0] is not None else None
        if inner is None or inner.name not in self.root:
            return m.fail("the left factor is no product", m.root)
        if inner.result.use_count != 1:
            return m.fail("the inner product has other users", inner)
        shapes = [_weight_shape(m, op) for op in (inner, m.root)]
        for shape in shapes:
            if isinstance(shape, Mismatch):
                return shape
        (rows, middle), (_, columns) = (shape for shape in shapes if not isinstance(shape, Mismatch))
        if rows * columns >= rows * middle + middle * columns:
            return m.fail(
                f"{rows} * {columns} weights are not fewer than {rows} * {middle} + {middle} * {columns}", m.root
            )
        if 2 * rows * middle * columns > MOST_ARITHMETIC:
            return m.fail("multiplying the weights takes too long", m.root)
        for op in (inner, m.root):
            if (bias := _bias_shape(m, op)) is not None:
                return bias
        return True

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        assert m.root.operands[0] is not None
        inner = m.root.operands[0].producer
        assert inner is not None
        first, second = _factor(m, inner), _factor(m, m.root)
        bias = second.bias
        if first.bias is not None:
            moved = first.bias @ second.weight
            bias = moved if bias is None else bias + moved
        return _product(b, m, Factor(first.x, first.weight @ second.weight, bias))


class ConstantTimesProduct(Rule):
    """matmul(a, matmul(b, x)) -> matmul(a @ b, x) where that is less arithmetic"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, a: PatternValue, b: PatternValue, x: PatternValue) -> PatternValue:
        result: PatternValue = p.matmul(p.const(a), p.matmul(p.const(b), x))
        return result

    def when(self, m: Match) -> Verdict:
        for value in (m.a, m.b):
            refusal = _refusal(m, value)
            if refusal is not None:
                return refusal
        if (m.rank(m.x) or 0) < 2:
            return m.fail("the right factor is not known to be a matrix", m.x)
        (rows, middle), (_, columns) = m.data(m.a).shape, m.data(m.b).shape  # type: ignore[union-attr]
        if rows * columns >= rows * middle + middle * columns:
            return m.fail("that is not less arithmetic", m.root)
        return 2 * rows * middle * columns <= MOST_ARITHMETIC or m.fail("it takes too long", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        a, second = (m.constant(value) for value in (m.a, m.b))
        assert a is not None
        assert second is not None
        product = a.astype(np.float64) @ second.astype(np.float64)
        dtype = m.dtype(m.a)
        assert dtype is not None
        if not is_in_range(float(np.abs(product).max(initial=0.0)), dtype):
            return m.fail(_TOO_FAR, m.root)
        return b.create("matmul", [b.const(product.astype(a.dtype)), m.x]).result


class SumOfProducts(Rule):
    """add(matmul(x, a), matmul(x, b)) -> matmul(x, a + b), likewise for gemm"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        linear = [p.op(("matmul", "gemm"), x, p.const(), p.optional(p.const())) for _ in range(2)]
        result: PatternValue = p.add(p.named("first", linear[0]), p.named("second", linear[1]))
        return result

    def when(self, m: Match) -> Verdict:
        products = (m.op("first"), m.op("second"))
        if products[0] is products[1]:
            return m.fail("it is one product, twice", m.root)
        shapes = []
        for op in products:
            assert op is not None
            shape = _weight_shape(m, op)
            if isinstance(shape, Mismatch):
                return shape
            if (bias := _bias_shape(m, op)) is not None:
                return bias
            shapes.append(shape)
        return shapes[0] == shapes[1] or m.fail("the weights are of different shapes", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        first, second = (_factor(m, op) for op in (m.op("first"), m.op("second")) if op is not None)
        biases = [factor.bias for factor in (first, second) if factor.bias is not None]
        bias = sum(biases[1:], biases[0]) if biases else None
        return _product(b, m, Factor(first.x, first.weight + second.weight, bias))


# ---- reading and building --------------------------------------------------------------------------------------------


def _refusal(m: Match, weight: Value | None) -> Mismatch | None:
    """Why a value is no constant matrix of floats that only one operation uses; None if it is."""
    data = m.data(weight)
    if weight is None or data is None or isinstance(data, UnresolvedData):
        return m.fail("the weights are not a constant, or not loaded", m.root)
    if len(data.shape) != 2 or not data.dtype.is_float:
        return m.fail("the weights are not a matrix of floats", weight)
    return m.fail("the weights have other users", weight) if weight.use_count != 1 else None


def _weight_shape(m: Match, op: Operation) -> tuple[int, int] | Mismatch:
    """Rows and columns of the right factor of `op` as it is multiplied."""
    weight = op.operands[1]
    refusal = _refusal(m, weight)
    if refusal is not None:
        return refusal
    if op.attr("transA", 0):
        return m.fail("the left factor is transposed", op)
    data = m.data(weight)
    assert isinstance(data, TensorData)
    rows, columns = data.shape[::-1] if op.attr("transB", 0) else data.shape
    return rows, columns


def _bias_shape(m: Match, op: Operation) -> Mismatch | None:
    """Why the addend of `op` is not a constant row; None if it is, or there is none."""
    bias = op.input(2) if op.name == "gemm" else None
    if bias is None:
        return None
    data = m.data(bias)
    if data is None or isinstance(data, UnresolvedData):
        return m.fail("the addend is not a constant", bias)
    return None if len(data.shape) < 2 or data.shape[0] == 1 else m.fail("the addend differs from row to row", bias)


def _factor(m: Match, op: Operation) -> Factor:
    x = op.operands[0]
    weight = m.constant(op.operands[1])
    assert x is not None
    assert weight is not None
    weight = weight.astype(np.float64) * float(op.attr("alpha", 1.0))
    weight = weight.T if op.attr("transB", 0) else weight
    bias = m.constant(op.input(2)) if op.name == "gemm" and op.input(2) is not None else None
    if bias is not None:
        bias = bias.astype(np.float64).reshape(-1) * float(op.attr("beta", 1.0))
        bias = np.broadcast_to(bias, weight.shape[1:])
    return Factor(x, weight, bias)


def _product(b: OpBuilder, m: Match, factor: Factor) -> Value | Mismatch:
    dtype = m.dtype(factor.x)
    assert dtype is not None
    if not is_in_range(float(np.abs(factor.weight).max(initial=0.0)), dtype):
        return m.fail(_TOO_FAR, m.root)
    weight = b.const(factor.weight.astype(dtype.numpy), dtype)
    if factor.bias is None:
        return b.create("matmul", [factor.x, weight]).result
    return b.create("gemm", [factor.x, weight, b.const(factor.bias.astype(dtype.numpy), dtype)]).result


class MergeProducts(RulePass):
    """Multiply or add constant factors of matrix products beforehand."""

    name = "merge-products"
    exactness = "reassociates"
    fuses = True
    rules = (ProductOfProduct, ConstantTimesProduct, SumOfProducts)
