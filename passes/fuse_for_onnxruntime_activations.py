"""Activations as ONNX Runtime's operators: Gelu with its bias, x * sigmoid(alpha * x). Rules of fuse-for-onnxruntime.

Its CPU kernels of these take f32. Gelu of the standard has one too, from opset 20 on.
"""

from __future__ import annotations

from typing import ClassVar

from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.dims import prove_equal
from ..graph.opdef import lookup
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, OpRule, Rule, Verdict

DOMAIN = "com.microsoft"
# The first opset that has Gelu.
_GELU_OPSET = 20
# From how many numbers on a row is wide: ONNX Runtime's operators for several steps cost more than the steps, by 7 us
# for a normalization of 32 rows of 64, by 0.2 ms for 128 of 256, and by 0.9 ms for 197 of 768 (one thread).
WIDE, NEVER_WIDE = 256, 1 << 62


def is_f32(m: Match, value: Value | None) -> Verdict:
    """Whether ONNX Runtime has the kernel for this element type."""
    return str(m.dtype(value)) == "f32" or m.fail(f"ONNX Runtime's kernel takes f32, not {m.dtype(value)}", m.root)


def is_row(m: Match, bias: Value, x: Value) -> Verdict:
    """Whether `bias` is a vector that goes with the last dim of `x`."""
    own, shape = m.shape(bias), m.shape(x)
    if own is None or not shape or len(own) != 1 or prove_equal(own[0], shape[-1]) is not True:
        return m.fail("the bias is no vector as long as the last dim", bias)
    return True


def is_wide(m: Match, value: Value, wide: int) -> bool:
    """Whether the rows of `value` are known to have `wide` numbers or more."""
    if wide == 0:
        return True
    width = (m.shape(value) or (None,))[-1]
    return isinstance(width, int) and width >= wide


class BiasGelu(Rule):
    """gelu(add(x, bias)) -> BiasGelu(x, bias), or FastGelu(x, bias) where it is approximated by tanh"""

    name = "bias-gelu"
    exactness = "reassociates"

    def __init__(self, wide: int = WIDE) -> None:
        self.wide = wide

    def match(self, p: PatternBuilder, x: PatternValue, bias: PatternValue) -> PatternValue:
        result: PatternValue = p.gelu(p.add(x, bias))
        return result

    def when(self, m: Match) -> Verdict:
        if is_wide(m, m.x, self.wide):
            return m.fail("ONNX Runtime makes the bias of a product part of it, which costs less", m.root)
        kernel = is_f32(m, m.x)
        return kernel if isinstance(kernel, Mismatch) else is_row(m, m.bias, m.x)

    def build(self, b: OpBuilder, m: Match) -> Value:
        name = "FastGelu" if m.root.attr("approximate") == "tanh" else "BiasGelu"
        return b.create(lookup(DOMAIN, name), [m.x, m.bias]).result


class OwnGelu(OpRule):
    """gelu(x) -> Gelu(x), or FastGelu(x), where the opset has no Gelu"""

    name = "own-gelu"
    exactness = "reassociates"
    root: ClassVar[str] = "gelu"

    def __init__(self, opset: int = 1) -> None:
        self.opset = opset

    def when(self, m: Match) -> Verdict:
        if self.opset >= _GELU_OPSET:
            return m.fail("the opset has Gelu", m.root)
        return is_f32(m, m.root.operands[0])

    def build(self, b: OpBuilder, m: Match) -> Value:
        name = "FastGelu" if m.root.attr("approximate") == "tanh" else "Gelu"
        return b.create(lookup(DOMAIN, name), [m.root.operands[0]]).result


class QuickGelu(OpRule):
    """swish(x) -> QuickGelu(x), which is x * sigmoid(alpha * x)"""

    name = "quick-gelu"
    exactness = "reassociates"
    root: ClassVar[str] = "swish"

    def when(self, m: Match) -> Verdict:
        return is_f32(m, m.root.operands[0])

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create(lookup(DOMAIN, "QuickGelu"), [m.root.operands[0]], {"alpha": m.root.attr("alpha")}).result


class GatedQuickGelu(OpRule):
    """swiglu(gate, x) -> mul(QuickGelu(gate), x)"""

    name = "gated-quick-gelu"
    exactness = "reassociates"
    root: ClassVar[str] = "swiglu"

    def when(self, m: Match) -> Verdict:
        return is_f32(m, m.root.operands[0])

    def build(self, b: OpBuilder, m: Match) -> Value:
        gate, x = m.root.operands
        swish = b.create(lookup(DOMAIN, "QuickGelu"), [gate], {"alpha": m.root.attr("alpha")}).result
        result: Value = b.mul(swish, x)
        return result


ACTIVATION_RULES = (BiasGelu, QuickGelu, GatedQuickGelu)


def activation_rules(wide: int) -> tuple[Rule | OpRule, ...]:
    """Rules for activations, where rows of `wide` numbers are those for which time counts most."""
    return (BiasGelu(wide), QuickGelu(), GatedQuickGelu())


__all__ = [
    "ACTIVATION_RULES", "DOMAIN", "WIDE", "BiasGelu", "GatedQuickGelu", "OwnGelu", "QuickGelu",
    "activation_rules", "is_f32",
    "is_row", "is_wide",
]  # fmt: skip
