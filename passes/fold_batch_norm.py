"""fold-batch-norm: put a batch normalization into the linear operator before or after it. Level onnx.

Inference-mode BatchNormalization is s * x + t per channel, with s = scale / sqrt(var + epsilon) and
t = B - mean * s (Ioffe & Szegedy, 2015). After Conv, ConvTranspose, Gemm or a matrix product it scales output channels
and shifts the bias. Before Conv it scales input channels and shifts the bias, provided that nothing is padded: padding
adds zeros behind the normalization, which are not what it would make of zeros.

Invariant: the linear operator, its weight and the normalization have no other users; weights and bias stay in the range
of their type. Rounding differs.

    %0 = conv %x, %w : f32[n, 8, h, w]
    %1 = batch_normalization %0, %s, %b, %m, %v : f32[n, 8, h, w]   ->   %1 = conv %x, %w', %b' : f32[n, 8, h, w]
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .affine import LINEAR, TOO_FAR, Linear, read_linear
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, Rule, Verdict


class BatchNormAfterLinear(Rule):
    """batch_normalization(conv(x, w)) -> conv(x, w', b'), likewise for conv_transpose, gemm and matmul"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        linear = p.named("linear", p.op(LINEAR, x, p.const(), p.optional(p.const())))
        result: PatternValue = p.batch_normalization(linear, p.const(), p.const(), p.const(), p.const())
        return result

    def when(self, m: Match) -> Verdict:
        linear, affine = _read(m)
        if isinstance(affine, Mismatch):
            return affine
        if isinstance(linear, Mismatch):
            return linear
        if len(affine[0]) != linear.channels:
            return m.fail("the channels differ", m.root)
        return linear.can_scale_outputs(affine[0]) or m.fail(TOO_FAR, m.root)

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        linear, affine = _read(m)
        assert isinstance(linear, Linear)
        assert not isinstance(affine, Mismatch)
        linear.scale_outputs(affine[0])
        linear.shift_outputs(affine[1])
        return linear.build(b) if linear.bias_fits else m.fail(TOO_FAR, m.root)


class BatchNormBeforeLinear(Rule):
    """conv(batch_normalization(x), w) -> conv(x, w', b') without padding, likewise for gemm"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        normal = p.named("normal", p.batch_normalization(x, p.const(), p.const(), p.const(), p.const()))
        result: PatternValue = p.op(("conv", "gemm"), normal, p.const(), p.optional(p.const()))
        return result

    def when(self, m: Match) -> Verdict:
        if m.root.name == "conv" and not is_unpadded(m.root):
            return m.fail("the convolution pads, and zeros are not what the normalization makes of zeros", m.root)
        if m.root.name == "gemm" and m.root.attr("transA", 0):
            return m.fail("the normalized axis is not the one that is summed over", m.root)
        affine = batch_norm_affine(m, m.matched("batch_normalization"))
        if isinstance(affine, Mismatch):
            return affine
        linear = read_linear(m, m.root)
        if isinstance(linear, Mismatch):
            return linear
        return linear.can_scale_inputs(affine[0]) or m.fail(TOO_FAR, m.root)

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        affine = batch_norm_affine(m, m.matched("batch_normalization"))
        linear = read_linear(m, m.root)
        assert isinstance(linear, Linear)
        assert not isinstance(affine, Mismatch)
        linear.transform_inputs(*affine)
        if not linear.bias_fits:
            return m.fail(TOO_FAR, m.root)
        # The rewrite reads what the normalization read.
        linear_input = m.matched("batch_normalization").operands[0]
        built = linear.build(b)
        assert built.producer is not None
        m.rewriter.set_operand(built.producer, 0, linear_input)
        return built


def _read(m: Match) -> tuple[Linear | Mismatch, tuple[np.ndarray, np.ndarray] | Mismatch]:
    return read_linear(m, m.matched(*LINEAR)), batch_norm_affine(m, m.root)


def batch_norm_affine(m: Match, op: Operation) -> tuple[np.ndarray, np.ndarray] | Mismatch:
    """The s and t, each [channels] in float64, of an inference-mode BatchNormalization; or why it has none."""
    if op.attr("training_mode", 0) or len(op.results) > 1:
        return m.fail("it is in training mode", op)
    scale, shift, mean, variance = (m.constant(value) for value in op.operands[1:5])
    if scale is None or shift is None or mean is None or variance is None:
        return m.fail("its parameters are not constants", op)
    if scale.ndim != 1 or len({each.shape for each in (scale, shift, mean, variance)}) != 1:
        return m.fail("its parameters do not have one length", op)
    s = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + float(op.attr("epsilon")))
    return s, shift.astype(np.float64) - mean.astype(np.float64) * s


def is_unpadded(op: Operation) -> bool:
    """Whether a Conv or pool adds no padding at all."""
    automatic = op.attr("auto_pad", "NOTSET")
    return automatic == "VALID" or (automatic == "NOTSET" and not any(op.attr("pads") or ()))


class FoldBatchNorm(RulePass):
    """Fold batch normalizations into the linear operators before or after them."""

    name = "fold-batch-norm"
    exactness = "reassociates"
    rules = (BatchNormAfterLinear, BatchNormBeforeLinear)
