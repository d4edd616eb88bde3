"""integer-products: what is computed of quantized tensors is computed of their integers. Level onnx.

A product or convolution of two dequantized tensors is MatMulInteger or ConvInteger, whose exact sums are scaled once.
What only moves elements, or chooses the greatest, moves integers, and is dequantized after that. Quantizing what was
just dequantized, alike, gives back the integers.

Invariant: scales and zero points are one for a tensor, but those of weights may be one for each output. Sums of floats
are rounded, those of integers are not: a result that is quantized again may differ by 1 where the two lie on either
side of the middle between integers. All other rewrites are bit-exact.

    %0 = dequantize_linear %x, 0.02, 128          // %x : u8[n, 64]
    %1 = dequantize_linear %w, 0.01               // %w : i8[64, 10]
    %2 = matmul %0, %1 : f32[n, 10]
                                             ->   %0 = matmul_integer %x, %w, 128 : i32[n, 10]
                                                  %1 = cast %0 {to=f32}
                                                  %2 = mul %1, 0.0002 : f32[n, 10]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dtypes import f32, i8, i32, i64, u8
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, OpRule, Rule, Verdict

# What only moves the elements of its first operand, or chooses among them as their order does.
_MOVES = (
    "reshape", "transpose", "squeeze", "unsqueeze", "flatten", "slice", "gather", "expand", "identity", "max_pool",
    "depth_to_space", "space_to_depth", "tile", "global_max_pool",
)  # fmt: skip


def is_one(m: Match, value: Value | None) -> bool:
    """Whether a scale or zero point is one for the whole tensor (or left out)."""
    return value is None or m.shape(value) in ((), (1,))


def are_alike(m: Match, scale: Value | None, other: Value | None) -> bool:
    """Whether two scales or zero points are surely the same; one that is left out is 0."""
    if scale is other:
        return True
    known = [np.zeros((), np.uint8) if value is None else m.constant(value) for value in (scale, other)]
    x, y = known
    return x is not None and y is not None and x.size == y.size == 1 and bool(x.reshape(()) == y.reshape(()))


def _takes_bytes(m: Match, x: Value, scale: Value, zero: Value | None, op: Operation | None) -> Verdict:
    """Whether a dequantized operand is one of bytes, to f32, without blocks."""
    if m.dtype(x) not in (u8, i8):
        return m.fail(f"{m.dtype(x)} is no byte", x)
    if m.dtype(scale) is not f32 or (op is not None and op.attr("block_size")):
        return m.fail("there are scales of another dtype, or of blocks", scale)
    return zero is None or m.dtype(zero) is m.dtype(x) or m.fail("the zero point has another dtype", zero)


def dequantized(p: PatternBuilder, name: str, x: PatternValue, scale: PatternValue, zero: PatternValue) -> PatternValue:
    """A factor that others may read, too, under a name."""
    result: PatternValue = p.named(name, p.shared(p.dequantize_linear(x, scale, p.optional(zero))))
    return result


class _Product(Rule):
    """What the rules of products share; captures x, w and their scales and zero points, and perhaps a bias."""

    exactness = "reassociates"

    def when(self, m: Match) -> Verdict:
        left, right = m.op("left"), m.op("right")
        for verdict in (
            _takes_bytes(m, m.x, m.x_scale, m.x_zero, left), _takes_bytes(m, m.w, m.w_scale, m.w_zero, right)
        ):  # fmt: skip
            if not verdict:
                return verdict
        if not is_one(m, m.x_scale) or not is_one(m, m.x_zero):
            return m.fail("the left factor has several scales", m.x_scale)
        if is_one(m, m.w_scale) and is_one(m, m.w_zero):
            return True
        if right is None or right.attr("axis") not in self.axes(m) or m.constant(m.w_scale) is None:
            return m.fail("the scales of the right factor do not belong to outputs", m.w_scale)
        return True

    def axes(self, m: Match) -> Sequence[int]:
        """The axis of w, counted from both ends, whose places are the outputs."""
        raise NotImplementedError

    def scaled(self, b: OpBuilder, m: Match, sums: Value, later: int) -> Value:
        """The sums as floats, times both scales; `later` dims lie behind the outputs."""
        x, w = m.constant(m.x_scale), m.constant(m.w_scale)
        if x is not None and w is not None:
            product = x.astype(np.float32).reshape(()) * w.astype(np.float32)
            scale = b.const(product.reshape((-1, *[1] * later)) if product.size > 1 else product.reshape(()), f32)
        else:
            scale = b.mul(*(b.reshape(value, b.const([], i64)) for value in (m.x_scale, m.w_scale)))
        result: Value = b.mul(b.cast(sums, to=f32), scale)
        return result


class _Scalar:
    """Zero points as integer operators take them: scalars, or one for each output; left out if they are all 0."""

    @staticmethod
    def of(b: OpBuilder, m: Match, zero: Value | None) -> Value | None:
        known = m.constant(zero)
        if zero is None or (known is not None and not known.any()):
            return None
        if m.shape(zero) == (1,):
            return b.const(known.reshape(()), m.dtype(zero)) if known is not None else b.reshape(zero, b.const([], i64))
        return zero


class IntegerConv(_Product):
    """conv(dequantize_linear(x), dequantize_linear(w)) -> dequantized conv_integer(x, w)"""

    def match(
        self, p: PatternBuilder, x: PatternValue, x_scale: PatternValue, x_zero: PatternValue, w: PatternValue,
        w_scale: PatternValue, w_zero: PatternValue, bias: PatternValue,
    ) -> PatternValue:  # fmt: skip
        left = dequantized(p, "left", x, x_scale, x_zero)
        right = dequantized(p, "right", w, w_scale, w_zero)
        result: PatternValue = p.conv(left, right, p.optional(bias))
        return result

    def when(self, m: Match) -> Verdict:
        return super().when(m) if m.rank(m.x) == 4 else m.fail("this is no convolution of images", m.x)

    def axes(self, m: Match) -> Sequence[int]:
        return (0, -4)

    def build(self, b: OpBuilder, m: Match) -> Value:
        zeros = [_Scalar.of(b, m, zero) for zero in (m.x_zero, m.w_zero)]
        sums = b.create("conv_integer", [m.x, m.w, *zeros], dict(m.root.attributes)).result
        result = self.scaled(b, m, sums, 2)
        if m.bias is None:
            return result
        added: Value = b.add(result, b.unsqueeze(m.bias, b.const([1, 2], i64)))
        return added


class IntegerMatMul(_Product):
    """matmul(dequantize_linear(x), dequantize_linear(w)) -> dequantized matmul_integer(x, w)"""

    def match(
        self, p: PatternBuilder, x: PatternValue, x_scale: PatternValue, x_zero: PatternValue, w: PatternValue,
        w_scale: PatternValue, w_zero: PatternValue,
    ) -> PatternValue:  # fmt: skip
        left = dequantized(p, "left", x, x_scale, x_zero)
        right = dequantized(p, "right", w, w_scale, w_zero)
        result: PatternValue = p.matmul(left, right)
        return result

    def when(self, m: Match) -> Verdict:
        if min(m.rank(m.x) or 0, m.rank(m.w) or 0) < 2:
            return m.fail("a factor is no matrix", m.x, m.w)
        return super().when(m)

    def axes(self, m: Match) -> Sequence[int]:
        return ((m.rank(m.w) or 0) - 1, -1)

    def build(self, b: OpBuilder, m: Match) -> Value:
        zeros = [_Scalar.of(b, m, zero) for zero in (m.x_zero, m.w_zero)]
        return self.scaled(b, m, b.create("matmul_integer", [m.x, m.w, *zeros]).result, 0)


class IntegerGemm(_Product):
    """gemm(dequantize_linear(x), dequantize_linear(w), bias) -> dequantized matmul_integer(x, w), plus bias"""

    def match(
        self, p: PatternBuilder, x: PatternValue, x_scale: PatternValue, x_zero: PatternValue, w: PatternValue,
        w_scale: PatternValue, w_zero: PatternValue, bias: PatternValue,
    ) -> PatternValue:  # fmt: skip
        left = dequantized(p, "left", x, x_scale, x_zero)
        right = dequantized(p, "right", w, w_scale, w_zero)
        result: PatternValue = p.gemm(left, right, p.optional(bias), alpha=1.0, transA=0)
        return result

    def when(self, m: Match) -> Verdict:
        if m.bias is not None and m.root.attr("beta") != 1:
            return m.fail("the bias is scaled", m.bias)
        return super().when(m)

    def axes(self, m: Match) -> Sequence[int]:
        return (0, -2) if m.root.attr("transB") else (1, -1)

    def build(self, b: OpBuilder, m: Match) -> Value:
        w, known = m.w, m.constant(m.w)
        if m.root.attr("transB"):
            turned = None if known is None else np.ascontiguousarray(known.T)
            w = b.transpose(w, perm=[1, 0]) if turned is None else b.const(turned, m.dtype(m.w))
        zeros = [_Scalar.of(b, m, zero) for zero in (m.x_zero, m.w_zero)]
        result = self.scaled(b, m, b.create("matmul_integer", [m.x, w, *zeros]).result, 0)
        if m.bias is None:
            return result
        added: Value = b.add(result, m.bias)
        return added


class MoveIntegers(OpRule):
    """move(dequantize_linear(x)) -> dequantize_linear(move(x)), for what only moves elements or chooses the greatest"""

    root = _MOVES

    def when(self, m: Match) -> Verdict:
        source = m.root.operand_values[0].producer
        if source is None or source.name != "dequantize_linear" or len(m.root.results) != 1:
            return m.fail("what is moved was not dequantized")
        x, scale, zero = source.operand_values[0], source.operand_values[1], source.input(2)
        if not (verdict := _takes_bytes(m, x, scale, zero, source)):
            return verdict
        if not is_one(m, scale) or not is_one(m, zero):
            return m.fail("there are several scales", scale)
        found = m.constant(scale)
        return (found is not None and bool((found > 0).all())) or m.fail("the scale may turn the order around", scale)

    def build(self, b: OpBuilder, m: Match) -> Value:
        source = m.root.operand_values[0].producer
        assert source is not None
        moved = b.create(m.root.name, [source.operand_values[0], *m.root.operands[1:]], dict(m.root.attributes)).result
        return b.create("dequantize_linear", [moved, *source.operands[1:]], dict(source.attributes)).result


class JoinIntegers(OpRule):
    """concat(dequantize_linear(x), ...) -> dequantize_linear(concat(x, ...)), if all have one scale and zero point"""

    root = ("concat",)

    def when(self, m: Match) -> Verdict:
        sources = [value.producer for value in m.root.operand_values]
        first = sources[0]
        for source in sources:
            if source is None or first is None or source.name != "dequantize_linear":
                return m.fail("a part was not dequantized")
            x, scale, zero = source.operand_values[0], source.operand_values[1], source.input(2)
            if not (verdict := _takes_bytes(m, x, scale, zero, source)):
                return verdict
            if m.dtype(x) is not m.dtype(first.operand_values[0]) or not is_one(m, scale) or not is_one(m, zero):
                return m.fail("the parts are not quantized alike", x)
            if not are_alike(m, scale, first.operand_values[1]) or not are_alike(m, zero, first.input(2)):
                return m.fail("the parts are not quantized alike", scale)
        return True

    def build(self, b: OpBuilder, m: Match) -> Value:
        sources = [value.producer for value in m.root.operand_values]
        parts = [source.operand_values[0] for source in sources if source is not None]
        first = sources[0]
        assert first is not None
        joined = b.create("concat", parts, dict(m.root.attributes)).result
        return b.create("dequantize_linear", [joined, *first.operands[1:]], dict(first.attributes)).result


class QuantizeParts(OpRule):
    """quantize_linear(concat(x, ...)) -> concat(quantize_linear(x), ...), if a part was dequantized"""

    exactness = "bit-exact"
    root = ("quantize_linear",)

    def when(self, m: Match) -> Verdict:
        joined = m.root.operand_values[0].producer
        if joined is None or joined.name != "concat" or joined.result.use_count != 1:
            return m.fail("what is quantized was not joined for that alone")
        if not is_one(m, m.root.operand_values[1]) or not is_one(m, m.root.input(2)):
            return m.fail("there are several scales", m.root.operand_values[1])
        names = [value.producer.name for value in joined.operand_values if value.producer is not None]
        return "dequantize_linear" in names or m.fail("no part was dequantized")

    def build(self, b: OpBuilder, m: Match) -> Value:
        joined = m.root.operand_values[0].producer
        assert joined is not None
        parts = [
            b.create("quantize_linear", [part, *m.root.operands[1:]], dict(m.root.attributes)).result
            for part in joined.operand_values
        ]
        return b.create("concat", parts, dict(joined.attributes)).result


class QuantizedAgain(Rule):
    """quantize_linear(dequantize_linear(x)) -> x, if both have one scale and zero point"""

    def match(
        self, p: PatternBuilder, x: PatternValue, scale: PatternValue, zero: PatternValue, again: PatternValue,
        zero_again: PatternValue,
    ) -> PatternValue:  # fmt: skip
        inner = dequantized(p, "inner", x, scale, zero)
        result: PatternValue = p.quantize_linear(inner, again, p.optional(zero_again))
        return result

    def when(self, m: Match) -> Verdict:
        if not (verdict := _takes_bytes(m, m.x, m.scale, m.zero, m.op("inner"))):
            return verdict
        if m.dtype(m.value) is not m.dtype(m.x) or m.root.attr("block_size"):
            return m.fail("the integers are of another dtype", m.x)
        if not is_one(m, m.scale) or not are_alike(m, m.scale, m.again) or not are_alike(m, m.zero, m.zero_again):
            return m.fail("the scales or zero points differ", m.scale)
        found = m.constant(m.scale)
        normal = found is not None and bool((found >= np.finfo(np.float32).tiny).all() and np.isfinite(found).all())
        return normal or m.fail("the scale is no plain number", m.scale)

    def build(self, b: OpBuilder, m: Match) -> Value:
        x: Value = m.x
        return x


class DequantizedConstant(Rule):
    """dequantize_linear(constant) -> constant, where it takes no more memory: one number, or integers of 32 bits"""

    exactness = "bit-exact"

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue, zero: PatternValue) -> PatternValue:
        result: PatternValue = p.dequantize_linear(p.const(x), scale, p.optional(zero))
        return result

    def when(self, m: Match) -> Verdict:
        if any(value is not None and m.constant(value) is None for value in (m.scale, m.zero)):
            return m.fail("the scale is not constant", m.scale)
        data = m.data(m.x)
        is_small = data is not None and (data.elements == 1 or data.dtype is i32)
        return is_small or m.fail("floats would take more memory", m.x)

    def build(self, b: OpBuilder, m: Match) -> Value:
        operands = [None if value is None else m.constant(value) for value in m.root.operands]
        while operands[-1] is None:
            operands.pop()
        return b.const(np.asarray(m.root.definition.evaluate(m.root, *operands)), m.dtype(m.value))


class IntegerProducts(RulePass):
    """Compute with the integers of quantized tensors."""

    name = "integer-products"
    exactness = "reassociates"
    rules = (
        IntegerConv, IntegerMatMul, IntegerGemm, MoveIntegers, JoinIntegers, QuantizeParts, QuantizedAgain,
        DequantizedConstant,
    )  # fmt: skip
