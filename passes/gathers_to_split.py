"""gathers-to-split: parts of a packed tensor, taken one by one, are the results of one Split. Level onnx.

torch's multi-head attention makes query, key and value in one product, splits the last dim in three by a reshape, moves
the new dim to the front and takes the three parts from there. They are columns of the product.

Invariant: indices are constant and each part is taken once; axes are followed through the reshape, transposes,
unsqueezes and squeezes, and what is left of them is in the order of the packed tensor.

    %0 = reshape %x, [s, b, 3, 8] : f32[s, b, 3, 8]
    %1 = transpose %0 {perm=[2, 0, 1, 3]} : f32[3, s, b, 8]
    %2 = gather %1, 0 : f32[s, b, 8]
    %3 = gather %1, 1 : f32[s, b, 8]
    %4 = gather %1, 2 : f32[s, b, 8]               ->      %2, %3, %4 = split %x {axis=-1} : f32[s, b, 8] ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dims import prove_equal
from .base import RulePass
from .proofs import ints, made_by, normalized, same_dims
from .rules import Match, Mismatch, OpRule, Verdict

# Between the reshape and a gather; more than torch writes.
_MAX_STEPS = 6


@dataclass(frozen=True)
class Packed:
    """`source` holds `count` parts of `width` columns side by side."""

    source: Value
    count: int
    width: int


class GathersToSplit(OpRule):
    """gather(transpose(reshape(x)), i) for each i -> split(x)"""

    root: ClassVar[str] = "gather"

    def when(self, m: Match) -> Verdict:
        packed = _packed(m)
        if isinstance(packed, Mismatch):
            return packed
        parts = _parts(m, packed.count)
        if parts is None:
            return m.fail("the parts are not taken each once", m.root)
        return all(part.parent is m.root.parent for part in parts) or m.fail("a part is taken in another block", m.root)

    def build(self, b: OpBuilder, m: Match) -> None:
        packed = _packed(m)
        assert not isinstance(packed, Mismatch)
        parts = _parts(m, packed.count)
        assert parts is not None
        first = parts[0]
        for part in parts:
            first = part if part.is_before(first) else first
        place = m.rewriter.before(first, b.location)
        sizes = [packed.width] * packed.count
        results = place.split(packed.source, sizes, axis=-1, outputs=packed.count)
        for part, result in zip(parts, results, strict=True):
            m.rewriter.set_type(result, part.result.type)
            m.rewriter.replace(part, [result])


def _parts(m: Match, count: int) -> list[Operation] | None:
    """The gathers of the parts in order, each there once."""
    data, axis = m.root.operands[0], m.root.attr("axis", 0)
    assert data is not None
    found: dict[int, Operation] = {}
    for use in data.uses:
        index = _index(m, use.user)
        if use.user.name != "gather" or use.position != 0 or use.user.attr("axis", 0) != axis or index is None:
            return None
        index = index + count if index < 0 else index
        if index in found:
            return None
        found[index] = use.user
    return [found[index] for index in range(count)] if found.keys() == set(range(count)) else None


def _index(m: Match, gather: Operation) -> int | None:
    """The place that a Gather of one element takes, which drops the axis."""
    value = gather.input(1)
    found = ints(m, value)
    return found[0] if found is not None and m.rank(value) == 0 and len(found) == 1 else None


def _packed(m: Match) -> Packed | Mismatch:
    """What the root takes a part of."""
    data = m.root.operands[0]
    assert data is not None
    if _index(m, m.root) is None:
        return m.fail("the index is not one number", m.root)
    steps: list[Operation] = []
    value: Value | None = data
    while (step := made_by(value, "transpose", "squeeze", "unsqueeze")) is not None and len(steps) < _MAX_STEPS:
        steps.append(step)
        value = step.operands[0]
    reshape = made_by(value, "reshape")
    shape, source = m.shape(value), reshape.operands[0] if reshape is not None else None
    if shape is None or source is None or len(shape) < 2:
        return m.fail("it does not come from a reshape", m.root)
    # Axes of size 1 come and go; the others are numbered.
    axes = _followed(m, list(reversed(steps)), [-1 if dim == 1 else place for place, dim in enumerate(shape)])
    if axes is None:
        return m.fail("the axes cannot be followed", m.root)
    axis = normalized([m.root.attr("axis", 0)], len(axes))[0]
    split = len(shape) - 2
    rest = [place for place in axes[:axis] + axes[axis + 1 :] if place != -1]
    if not 0 <= axis < len(axes) or axes[axis] != split or rest != sorted(rest):
        return m.fail("the parts are not in the order of the packed tensor", m.root)
    own, (count, width) = m.shape(source), shape[-2:]
    if own is None or not isinstance(count, int) or not isinstance(width, int) or min(count, width) < 2:
        return m.fail("the number of parts or their width is not known", m.root)
    fits = same_dims([dim for dim in own[:-1] if dim != 1], [dim for dim in shape[:-2] if dim != 1])
    if not fits or prove_equal(own[-1], count * width) is not True:
        return m.fail("the reshape does more than to split the last dim", reshape or m.root)
    if not same_dims(m.shape(m.root.result), (*own[:-1], width)):
        return m.fail("the parts have other dims of size 1", m.root)
    return Packed(source, count, width)


def _followed(m: Match, steps: list[Operation], axes: list[int]) -> list[int] | None:
    """Where the axes of the first operand are after the steps; -1 stands for one of size 1."""
    for step in steps:
        if step.name == "transpose":
            perm = step.attr("perm") or tuple(reversed(range(len(axes))))
            axes = [axes[place] for place in perm]
            continue
        places = ints(m, step.input(1))
        if places is None:
            return None
        if step.name == "unsqueeze":
            for place in sorted(normalized(places, len(axes) + len(places))):
                axes.insert(place, -1)
            continue
        dropped = normalized(places, len(axes))
        if any(axes[place] != -1 for place in dropped):
            return None
        axes = [axis for place, axis in enumerate(axes) if place not in dropped]
    return axes


class GathersToSplitPass(RulePass):
    """Take the parts of a packed tensor by one Split."""

    name = "gathers-to-split"
    rules = (GathersToSplit,)


__all__ = ["GathersToSplit", "GathersToSplitPass"]
