"""merge-slices: Slice of Slice, Concat of Concat, and Split that Concat undoes (or the reverse). Level onnx.

Invariant: bounds that count from the end or are clamped are resolved against the dim that they apply to; where that is
not known, nothing is merged.

    %0 = slice %x, [2], [9], [0] : f32[7, 8]       // %x : f32[10, 8]
    %1 = slice %0, [1], [3], [1] : f32[7, 2]       ->      %1 = slice %x, [2, 1], [9, 3], [0, 1] : f32[7, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dims import Dim
from ..graph.ops.movement import TO_THE_END
from .base import RulePass
from .proofs import ints, made_by, normalized, same_dims
from .rules import Match, OpRule, Replacement, Verdict


class Range(NamedTuple):
    """What a Slice takes along one axis."""

    start: int
    end: int
    step: int


class SliceOfSlice(OpRule):
    """slice(slice(x)) -> slice(x), for other axes or forward bounds in steps of 1"""

    root = "slice"
    proves_types = True

    def when(self, m: Match) -> Verdict:
        inner = made_by(m.root.operands[0], "slice")
        if inner is None:
            return m.fail("its operand is not sliced", m.root)
        if inner.results[0].use_count != 1:
            return m.fail("the inner slice has another user", inner)
        return _merged(m, inner) is not None or m.fail("the bounds cannot be added", inner)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        inner = made_by(m.root.operands[0], "slice")
        assert inner is not None
        merged = _merged(m, inner)
        assert merged is not None
        axes = sorted(merged)
        ranges = [merged[axis] for axis in axes]
        columns = [[item.start for item in ranges], [item.end for item in ranges], axes]
        if any(item.step != 1 for item in ranges):
            columns.append([item.step for item in ranges])
        result: Value = b.slice(inner.operands[0], *(np.array(column, np.int64) for column in columns))
        return result


def _merged(m: Match, inner: Operation) -> dict[int, Range] | None:
    """Axis -> range of one Slice with the effect of `inner` and then the root; None if there is none."""
    first, second = _ranges(m, inner), _ranges(m, m.root)
    shape = m.shape(inner.operands[0])
    if first is None or second is None or shape is None:
        return None
    merged = dict(first)
    for axis, outer in second.items():
        if axis not in first:
            merged[axis] = outer
            continue
        combined = _compose(first[axis], outer, shape[axis])
        if combined is None:
            return None
        merged[axis] = combined
    return merged


def _compose(first: Range, second: Range, dim: Dim) -> Range | None:
    """The range that takes `second` of what `first` takes of `dim` elements; None if it is not plain addition."""
    if first.step != 1 or second.step != 1:
        return None
    if isinstance(dim, int):
        low, high, _ = slice(first.start, first.end).indices(dim)
        start, end, _ = slice(second.start, second.end).indices(max(high - low, 0))
        return Range(low + start, low + max(start, end), 1)
    if min(*first, *second) < 0:
        return None
    end = first.end if second.end >= TO_THE_END else min(first.end, first.start + second.end)
    return Range(first.start + second.start, end, 1)


def _ranges(m: Match, op: Operation) -> dict[int, Range] | None:
    rank, starts, ends = m.rank(op.operands[0]), ints(m, op.input(1)), ints(m, op.input(2))
    if rank is None or starts is None or ends is None:
        return None
    axes: list[int] | None = list(range(len(starts))) if op.input(3) is None else ints(m, op.input(3))
    steps: list[int] | None = [1] * len(starts) if op.input(4) is None else ints(m, op.input(4))
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    ranges = [Range(*item) for item in zip(starts, ends, steps, strict=True)]
    return dict(zip(normalized(axes, rank), ranges, strict=True))


class ConcatOfConcat(OpRule):
    """concat(a, concat(b, c)) along one axis -> concat(a, b, c)"""

    root = "concat"

    def when(self, m: Match) -> Verdict:
        return any(_as_part(m, value) for value in m.root.operands) or m.fail("no operand is concatenated likewise")

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        parts: list[Value | None] = []
        for value in m.root.operands:
            inner = _as_part(m, value)
            parts.extend([value] if inner is None else inner.operands)
        result: Value = b.concat(*parts, axis=m.root.attr("axis"))
        return result


def _as_part(m: Match, value: Value | None) -> Operation | None:
    """The Concat along the root's axis that makes `value`, if only the root uses it, once."""
    inner, rank = made_by(value, "concat"), m.rank(m.value)
    if inner is None or rank is None or inner.results[0].use_count != 1:
        return None
    axis, other = normalized([m.root.attr("axis"), inner.attr("axis")], rank)
    return inner if axis == other else None


class ConcatOfSplit(OpRule):
    """concat of all parts of split(x), in order and along its axis -> x"""

    root = "concat"
    proves_types = True

    def when(self, m: Match) -> Verdict:
        split = made_by(m.root.operands[0], "split")
        if split is None or m.root.operands != split.results:
            return m.fail("the operands are not all parts of one split", m.root)
        rank = m.rank(split.operands[0])
        if rank is None or split.attr("axis", 0) % rank != m.root.attr("axis") % rank:
            return m.fail("the axes differ", split)
        return True

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        split = made_by(m.root.operands[0], "split")
        assert split is not None
        return split.operands[0]


class SplitOfConcat(OpRule):
    """split(concat(a, b)) into parts of the sizes of a and b -> a, b"""

    root = "split"
    proves_types = True

    def when(self, m: Match) -> Verdict:
        concat, rank = made_by(m.root.operands[0], "concat"), m.rank(m.root.operands[0])
        if concat is None or len(concat.operands) != len(m.root.results) or rank is None:
            return m.fail("its operand is not a concat of as many parts", m.root)
        axis = m.root.attr("axis", 0) % rank
        if concat.attr("axis") % rank != axis:
            return m.fail("the axes differ", concat)
        sizes = _sizes(m)
        parts = [m.shape(operand) for operand in concat.operands]
        if sizes is None or any(shape is None for shape in parts):
            return m.fail("the sizes are not known", m.root)
        return same_dims(sizes, [shape[axis] for shape in parts if shape is not None]) or m.fail("the sizes differ")

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        concat = made_by(m.root.operands[0], "concat")
        assert concat is not None
        return concat.operands


def _sizes(m: Match) -> Sequence[Dim] | None:
    """The sizes of the parts of the root, a Split; None if they are not known."""
    given = m.root.input(1)
    if given is not None:
        return ints(m, given)
    axis = m.root.attr("axis", 0)
    shapes = [m.shape(result) for result in m.root.results]
    sizes = [shape[axis] for shape in shapes if shape is not None]
    return sizes if len(sizes) == len(shapes) and all(isinstance(size, int) for size in sizes) else None


class MergeSlices(RulePass):
    """Slice of Slice, Concat of Concat, and Split that Concat undoes."""

    name = "merge-slices"
    rules = (ConcatOfSplit, SplitOfConcat, SliceOfSlice, ConcatOfConcat)
