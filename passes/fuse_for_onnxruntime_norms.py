"""Normalizations with the residual sum before them, as ONNX Runtime's operators. Rules of fuse-for-onnxruntime.

SkipLayerNormalization and SkipSimplifiedLayerNormalization normalize input + skip + bias over the last dim, and give
that sum as a further result. Both tensors have the same two or three dims.
"""

from __future__ import annotations

from typing import ClassVar

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.location import fuse
from ..graph.opdef import lookup
from .fuse_for_onnxruntime_activations import DOMAIN, is_row
from .pattern import PatternBuilder, PatternValue
from .proofs import same_dims
from .rules import Match, Mismatch, OpRule, Rule, Verdict

# Element types that the kernels take; they compute in f32.
_FLOATS = ("f32", "f16")
# The first opset that has RMSNormalization.
_RMS_OPSET = 23
# Where the results of the fused operators have the sum.
_SUM = 3


class _SkipNorm(Rule):
    """normalization(add(x, skip)) -> the operator that does both."""

    exactness = "reassociates"
    operator: ClassVar[str]

    def when(self, m: Match) -> Verdict:
        norm = m.root
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
        if not same_dims(shape, m.shape(m.skip)):
            return m.fail("the terms are not known to have the same dims", m.x, m.skip)
        total = m.op("total")
        assert total is not None
        for value in norm.operands[1:]:
            if value is None:
                continue
            fits = is_row(m, value, m.x)
            if isinstance(fits, Mismatch):
                return m.fail("scale and bias are no vectors as long as the last dim", value)
            if total.result.use_count > 1 and not _is_defined_at(value, total) and m.data(value) is None:
                return m.fail("scale or bias are computed after the sum, which others use", value)
        return True

    def build(self, b: OpBuilder, m: Match) -> Value:
        total = m.op("total")
        assert total is not None
        needed = total.result.use_count > 1
        # Where others use the sum, too, it must be there for them.
        place = m.rewriter.before(total, fuse(self.name, [total.location, m.root.location])) if needed else b
        rows = [value if value is None else _defined_at(place, m, value, total) for value in m.root.operands[1:]]
        operands = [m.x, m.skip, *rows]
        new = place.create(
            lookup(DOMAIN, self.operator),
            operands,
            {"epsilon": m.root.attr("epsilon")},
            outputs=_SUM + 1 if needed else 1,
            result_names=(None, "", "") if needed else (),
        )
        if needed:
            m.rewriter.set_type(new.results[_SUM], total.result.type)
            m.rewriter.replace_uses(total.result, new.results[_SUM])
        return new.results[0]


def _is_defined_at(value: Value, place: Operation) -> bool:
    """Whether `value` may be used right before `place`, which is in the block of an operation that uses it."""
    producer = value.producer
    return producer is None or producer.parent is not place.parent or producer.is_before(place)


def _defined_at(place: OpBuilder, m: Match, value: Value, total: Operation) -> Value:
    """`value`, or a constant equal to it, for use at `place`."""
    data = m.data(value)
    return value if data is None or _is_defined_at(value, total) else place.const(data)


class SkipLayerNorm(_SkipNorm):
    """layer_normalization(add(x, skip)) -> SkipLayerNormalization(x, skip)"""

    name = "skip-layer-normalization"
    operator = "SkipLayerNormalization"

    def match(self, p: PatternBuilder, x: PatternValue, skip: PatternValue) -> PatternValue:
        total = p.named("total", p.shared(p.add(x, skip)))
        result: PatternValue = p.layer_normalization(total, p.any_value, p.optional(p.any_value))
        return result


class SkipRmsNorm(_SkipNorm):
    """rms_normalization(add(x, skip)) -> SkipSimplifiedLayerNormalization(x, skip)"""

    name = "skip-rms-normalization"
    operator = "SkipSimplifiedLayerNormalization"

    def match(self, p: PatternBuilder, x: PatternValue, skip: PatternValue) -> PatternValue:
        total = p.named("total", p.shared(p.add(x, skip)))
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
        return m.root.attr("stash_type", 1) == 1 or m.fail("it is not computed in f32", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        # ONNX Runtime defines it in the standard's own domain.
        attributes = {name: m.root.attr(name) for name in ("axis", "epsilon", "stash_type")}
        new = b.create(lookup("", "SimplifiedLayerNormalization"), m.root.operands, attributes)
        return new.result


NORM_RULES = (SkipLayerNorm, SkipRmsNorm, SkipNormBias)

__all__ = ["NORM_RULES", "OwnRmsNorm", "SkipLayerNorm", "SkipNormBias", "SkipRmsNorm"]
