"""no-ops: drop operations that give back their operand as it is. Level onnx.

Invariant: what is dropped copies its operand bit for bit, and the operand provably has the dtype and shape of the
result. A dim name that merely repeats in the file proves nothing.

    %0 = cast %x {to=f32} : f32[n, 8]
    %1 = reshape %0, [-1, 8] : f32[n, 8]       ->      %2 = relu %x : f32[n, 8]
    %2 = relu %1 : f32[n, 8]
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .proofs import checks_nothing, exact_constant, ints, is_everywhere, keeps_type, made_by, normalized, same_dims
from .rules import Match, OpRule, Verdict


class _GivesOperandBack(OpRule):
    """Base: the root's (only used) result is its first operand; `when` proves that it is."""

    proves_types = True

    def build(self, b: OpBuilder, m: Match) -> Value:
        x = m.root.operands[0]
        assert x is not None
        return x


class CastToSameType(_GivesOperandBack):
    """cast(x), to the dtype that x has -> x"""

    root = ("cast", "cast_like")

    def when(self, m: Match) -> Verdict:
        x, target = m.root.operands[0], m.dtype(m.root.results[0])
        return (target is not None and m.dtype(x) is target) or m.fail("the dtype changes", m.root)


class TransposeByIdentity(_GivesOperandBack):
    """transpose(x), all axes where they are -> x"""

    root = "transpose"

    def when(self, m: Match) -> Verdict:
        perm, rank = m.root.attr("perm"), m.rank(m.root.operands[0])
        if perm is None:
            return (rank is not None and rank <= 1) or m.fail("the axes are reversed")
        return list(perm) == list(range(len(perm))) or m.fail("axes change places")


class SameShape(_GivesOperandBack):
    """reshape, flatten, squeeze, unsqueeze or expand of x to the shape that x has -> x"""

    root = ("reshape", "flatten", "squeeze", "unsqueeze", "expand")

    def when(self, m: Match) -> Verdict:
        if not checks_nothing(m.root, m.inference):
            return m.fail("only a run shows whether the target fits", m.root)
        return keeps_type(m, m.root.operands[0]) or m.fail("the shape is not known to stay", m.root.results[0])


class SliceOfEverything(_GivesOperandBack):
    """slice(x), forward, in steps of 1, of all elements -> x"""

    root = "slice"

    def when(self, m: Match) -> Verdict:
        steps = m.root.input(4)
        # Backwards, the shape may stay although the order does not.
        if steps is not None and not is_everywhere(m, steps, 1):
            return m.fail("the steps are not known to be 1", steps)
        return keeps_type(m, m.root.operands[0]) or m.fail("the shape is not known to stay", m.root.results[0])


class PadByNothing(_GivesOperandBack):
    """pad(x), nothing on all sides -> x"""

    root = "pad"

    def when(self, m: Match) -> Verdict:
        return is_everywhere(m, m.root.input(1), 0) or m.fail("the pads are not known to be 0", m.root)


class TileOnce(_GivesOperandBack):
    """tile(x), once along each axis -> x"""

    root = "tile"

    def when(self, m: Match) -> Verdict:
        return is_everywhere(m, m.root.input(1), 1) or m.fail("the repeats are not known to be 1", m.root)


class OneOperand(_GivesOperandBack):
    """concat, sum, mean, max or min of one operand -> that operand"""

    root = ("concat", "sum", "mean", "max", "min")

    def when(self, m: Match) -> Verdict:
        return len(m.root.operands) == 1 or m.fail("there are several operands")


class SplitIntoOne(_GivesOperandBack):
    """split(x), into one part -> x"""

    root = "split"

    def when(self, m: Match) -> Verdict:
        if len(m.root.results) != 1:
            return m.fail("there are several parts")
        return keeps_type(m, m.root.operands[0]) or m.fail("the part is not known to be all", m.root.results[0])


class DropoutInInference(_GivesOperandBack):
    """dropout(x), not training, its mask unused -> x"""

    root = "dropout"

    def when(self, m: Match) -> Verdict:
        training = m.root.input(2)
        if training is not None and not is_everywhere(m, training, 0):
            return m.fail("it may be training", training)
        if len(m.root.results) > 1 and m.root.results[1].use_count:
            return m.fail("its mask is used", m.root.results[1])
        return True


class ReduceOverNothing(_GivesOperandBack):
    """a sum, mean, product, maximum or minimum over no axes, or over axes of size 1 that are kept -> x"""

    root = ("reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min")

    def when(self, m: Match) -> Verdict:
        shape = m.shape(m.root.operands[0])
        axes = ints(m, m.root.input(1)) if m.root.input(1) is not None else []
        if axes is None or shape is None or not all(-len(shape) <= axis < len(shape) for axis in axes):
            return m.fail("the axes or the rank are not known", m.root)
        if not axes and m.root.attr("noop_with_empty_axes"):
            return True
        if not m.root.attr("keepdims", 1):
            return m.fail("the axes are dropped")
        chosen = normalized(axes, len(shape)) if axes else list(range(len(shape)))
        if not same_dims([shape[axis] for axis in chosen], [1] * len(chosen)):
            return m.fail("an axis is not known to have size 1", m.root)
        return True


class ResizeToSameSize(_GivesOperandBack):
    """resize(x), nearest, to the size that x has -> x"""

    root = "resize"

    def when(self, m: Match) -> Verdict:
        if m.root.attr("mode") != "nearest":
            return m.fail("interpolation may not give back what it is given")  # inf * 0 is nan
        if m.root.attr("coordinate_transformation_mode") not in ("half_pixel", "asymmetric", "align_corners"):
            return m.fail("the coordinates may be shifted")
        scales = exact_constant(m, m.root.input(2))
        if scales is not None and scales.size and not np.all(scales == 1):
            return m.fail("the scales are not 1", m.root)
        if (scales is None or not scales.size) and m.root.input(3) is None:
            return m.fail("the size is not known", m.root)
        return keeps_type(m, m.root.operands[0]) or m.fail("the shape is not known to stay", m.root.results[0])


class SequenceElement(OpRule):
    """sequence_at(sequence_construct(a, b, ...), i) -> the i-th"""

    root = "sequence_at"
    proves_types = True

    def when(self, m: Match) -> Verdict:
        return _sequence_element(m) is not None or m.fail("the elements or the index are not known", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        element = _sequence_element(m)
        assert element is not None
        return element


def _sequence_element(m: Match) -> Value | None:
    made, index = made_by(m.root.operands[0], "sequence_construct"), ints(m, m.root.operands[1])
    if made is None or index is None or not -len(made.operands) <= index[0] < len(made.operands):
        return None
    return made.operands[index[0]]


class NoOps(RulePass):
    """Drop operations that give back their operand as it is."""

    name = "no-ops"
    rules = (
        CastToSameType,
        TransposeByIdentity,
        SameShape,
        SliceOfEverything,
        PadByNothing,
        TileOnce,
        OneOperand,
        SplitIntoOne,
        DropoutInInference,
        ReduceOverNothing,
        ResizeToSameSize,
        SequenceElement,
    )
