"""Normalizations with the residual sum before them, as ONNX Runtime's operators. Rules of fuse-for-onnxruntime.

SkipLayerNormalization and SkipSimplifiedLayerNormalization normalize input + skip + bias over the last dim, where both
terms have the same two or three dims. They could give that sum as a further result, but are slower than the sum and the
normalization by themselves (the first by a factor of 3 to 6, see benchmarks/fused_operators.py). So they are used only
where nobody else needs the sum, and rows are narrow: there a node less matters, and ONNX Runtime puts them into a
session unasked. For wide rows the sum is written as Sum, which it leaves alone.
"""

from __future__ import annotations

from typing import ClassVar

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.opdef import lookup
from .fuse_for_onnxruntime_activations import DOMAIN, WIDE, is_row, is_wide
from .pattern import PatternBuilder, PatternValue
from .proofs import is_positive, same_dims
from .rules import Match, Mismatch, OpRule, Rule, Verdict

# Element types that the kernels take; they compute in f32.
_FLOATS = ("f32", "f16")
_NORMS = ("layer_normalization", "rms_normalization")
# The first opset that has RMSNormalization.
_RMS_OPSET = 23
_MAYBE_EMPTY = "a normalized dim may be 0, and ONNX Runtime refuses rows without elements"


class _SkipNorm(Rule):
    """normalization(add(x, skip)) -> the operator that does both, for rows of less than `wide` numbers"""

    exactness = "reassociates"
    operator: ClassVar[str]

    def __init__(self, wide: int = WIDE) -> None:
        self.wide = wide

    def when(self, m: Match) -> Verdict:
        norm = m.root
        if is_wide(m, m.x, self.wide):
            return m.fail("ONNX Runtime runs the sum and the normalization faster than its operator for both", norm)
        if len(norm.results) > 1:
            return m.fail("mean or deviation are results, too", norm)
        if str(m.dtype(m.x)) not in _FLOATS or str(m.dtype(norm.result)) != str(m.dtype(m.x)):
            return m.fail(f"ONNX Runtime's kernel takes f32 and f16, not {m.dtype(m.x)}", norm)
        if norm.attr("stash_type", 1) != 1:
            return m.fail("it is not computed in f32", norm)
        shape = m.shape(m.x)
        if shape is None or len(shape) not in (2, 3):
            return m.fail("what is normalized has neither two nor three dims", m.x)
        if norm.attr("axis") not in (-1, len(shape) - 1):
            return m.fail("it does not run over the last dim alone", norm)
        if not is_positive(shape[-1:]):
            return m.fail(_MAYBE_EMPTY, m.x)
        if not same_dims(shape, m.shape(m.skip)):
            return m.fail("the terms are not known to have the same dims", m.x, m.skip)
        for value in norm.operands[1:]:
            if value is not None and isinstance(is_row(m, value, m.x), Mismatch):
                return m.fail("scale and bias are no vectors as long as the last dim", value)
        return True

    def build(self, b: OpBuilder, m: Match) -> Value:
        operands = [m.x, m.skip, *m.root.operands[1:]]
        return b.create(
            lookup(DOMAIN, self.operator), operands, {"epsilon": m.root.attr("epsilon")}, outputs=1
        ).results[0]


class SkipLayerNorm(_SkipNorm):
    """layer_normalization(add(x, skip)) -> SkipLayerNormalization(x, skip)"""

    name = "skip-layer-normalization"
    operator = "SkipLayerNormalization"

    def match(self, p: PatternBuilder, x: PatternValue, skip: PatternValue) -> PatternValue:
        total = p.add(x, skip)
        result: PatternValue = p.layer_normalization(total, p.any_value, p.optional(p.any_value))
        return result


class SkipRmsNorm(_SkipNorm):
    """rms_normalization(add(x, skip)) -> SkipSimplifiedLayerNormalization(x, skip)"""

    name = "skip-rms-normalization"
    operator = "SkipSimplifiedLayerNormalization"

    def match(self, p: PatternBuilder, x: PatternValue, skip: PatternValue) -> PatternValue:
        total = p.add(x, skip)
        result: PatternValue = p.rms_normalization(total, p.any_value)
        return result


class SkipNormBias(OpRule):
    """SkipLayerNormalization(add(x, bias), skip) -> SkipLayerNormalization(x, skip, bias), the simplified one too"""

    name = "skip-normalization-bias"
    exactness = "reassociates"
    root: ClassVar[tuple[str, ...]] = (
        "com.microsoft.SkipLayerNormalization",
        "com.microsoft.SkipSimplifiedLayerNormalization",
    )

    def when(self, m: Match) -> Verdict:
        found = self._find(m)
        return found if isinstance(found, Mismatch) else True

    def _find(self, m: Match) -> tuple[int, Value, Value] | Mismatch:
        """Which operand is x + bias, x, and the bias."""
        place = _bias_place(m.root)
        if m.root.input(place) is not None:
            return m.fail("it has a bias", m.root)
        for index in (0, 1):
            total = m.root.operands[index]
            producer = total.producer if total is not None else None
            if total is None or producer is None or producer.name != "add" or total.use_count != 1:
                continue
            left, right = producer.operands
            for x, bias in ((left, right), (right, left)):
                if x is None or bias is None or not same_dims(m.shape(x), m.shape(total)):
                    continue
                if is_row(m, bias, x) is True:
                    return index, x, bias
        return m.fail("no term has a bias", m.root)

    def build(self, b: OpBuilder, m: Match) -> None:
        found = self._find(m)
        assert not isinstance(found, Mismatch)
        index, x, bias = found
        root = m.root
        operands = [*root.operands, *[None] * (_bias_place(root) - len(root.operands)), bias]
        operands[index] = x
        if index == 1 and root.operands[0] is not None:
            # The kernel adds the bias to the first operand, as the model did.
            operands[:2] = [x, root.operands[0]]
        names = ["" if result.name == "" else None for result in root.results]
        new = b.create(root.definition, operands, root.attributes, outputs=len(names), result_names=names)
        for old, result in zip(root.results, new.results, strict=True):
            m.rewriter.set_type(result, old.type)
        m.rewriter.replace(root, new.results)


def _bias_place(norm: Operation) -> int:
    return [parameter.name for parameter in norm.definition.parameters].index("bias")


class OwnRmsNorm(OpRule):
    """rms_normalization(x) -> SimplifiedLayerNormalization(x), where the opset has no RMSNormalization"""

    name = "own-rms-normalization"
    exactness = "reassociates"
    root: ClassVar[str] = "rms_normalization"

    def __init__(self, opset: int = 1) -> None:
        self.opset = opset

    def when(self, m: Match) -> Verdict:
        x = m.root.operands[0]
        if self.opset >= _RMS_OPSET:
            return m.fail("the opset has RMSNormalization", m.root)
        if str(m.dtype(x)) not in _FLOATS or str(m.dtype(m.root.result)) != str(m.dtype(x)):
            return m.fail(f"ONNX Runtime's kernel takes f32 and f16, not {m.dtype(x)}", m.root)
        if m.root.attr("stash_type", 1) != 1:
            return m.fail("it is not computed in f32", m.root)
        shape = m.shape(x)
        return (shape is not None and is_positive(shape[m.root.attr("axis") :])) or m.fail(_MAYBE_EMPTY, m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        # ONNX Runtime defines it in the standard's own domain.
        attributes = {name: m.root.attr(name) for name in ("axis", "epsilon", "stash_type")}
        new = b.create(lookup("", "SimplifiedLayerNormalization"), m.root.operands, attributes)
        return new.result


class SumOfThree(Rule):
    """add(add(x, row), y) -> sum(row, x, y), which is one operator, and as fast; for rows of `wide` numbers or more"""

    name = "sum-of-three"

    def __init__(self, wide: int = 0) -> None:
        self.wide = wide

    def match(self, p: PatternBuilder, x: PatternValue, row: PatternValue, y: PatternValue) -> PatternValue:
        result: PatternValue = p.add(p.add(x, row), y)
        return result

    def when(self, m: Match) -> Verdict:
        if str(m.dtype(m.x)) not in ("f32", "f64"):
            return m.fail(f"ONNX Runtime's kernel takes f32 and f64, not {m.dtype(m.x)}", m.root)
        if not is_wide(m, m.x, self.wide):
            return m.fail("its rows are narrow, and an operator for what follows may take the sum along", m.root)
        row = is_row(m, m.row, m.x)
        if isinstance(row, Mismatch):
            return row
        return same_dims(m.shape(m.x), m.shape(m.y)) or m.fail("the terms are not known to have the same dims", m.y)

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create("sum", [m.row, m.x, m.y]).result


class SumBeforeNorm(OpRule):
    """normalization(add(x, y)) -> normalization(sum(x, y)), which ONNX Runtime does not fuse into a slower operator"""

    name = "sum-before-normalization"
    root: ClassVar[str] = "add"

    def __init__(self, wide: int = WIDE) -> None:
        self.wide = wide

    def when(self, m: Match) -> Verdict:
        if not is_wide(m, m.root.result, self.wide):
            return m.fail("its rows are narrow, and the normalization takes the sum along", m.root)
        if str(m.dtype(m.root.result)) not in ("f32", "f64"):
            return m.fail("ONNX Runtime's kernel takes f32 and f64", m.root)
        users = [use.user.name for use in m.root.result.uses]
        if len(users) != 1:
            return m.fail("it has other users, so ONNX Runtime leaves it alone", m.root)
        return users[0] in _NORMS or m.fail("no normalization follows", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create("sum", m.root.operands).result


NORM_RULES = (SkipLayerNorm, SkipRmsNorm, SkipNormBias, SumBeforeNorm)


def norm_rules(wide: int) -> tuple[Rule | OpRule, ...]:
    """Rules for sums and normalizations, where rows of `wide` numbers are those for which time counts most."""
    return (SkipLayerNorm(wide), SkipRmsNorm(wide), SkipNormBias(), SumOfThree(wide), SumBeforeNorm(wide))


__all__ = [
    "NORM_RULES", "OwnRmsNorm", "SkipLayerNorm", "SkipNormBias", "SkipRmsNorm", "SumBeforeNorm", "SumOfThree",
    "norm_rules",
]  # fmt: skip
