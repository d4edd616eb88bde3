"""recompose-depth-to-space: reshape, transpose, reshape between channels and blocks become one operation. Level onnx.

DepthToSpace and SpaceToDepth move blocks of b x b places into channels and back; "DCR" and "CRD" say which part of the
channels is the block. Bit-exact, since elements only move.

Invariant: the shapes in the middle and at the end are exactly those of the operator.

    %0 = reshape %x, [n, 2, 2, 4, 8, 8] : f32[n, 2, 2, 4, 8, 8]
    %1 = transpose %0 {perm=[0, 3, 4, 1, 5, 2]} : f32[n, 4, 8, 2, 8, 2]
    %2 = reshape %1, [n, 4, 16, 16] : f32[n, 4, 16, 16]  ->  %2 = depth_to_space %x {blocksize=2} : f32[n, 4, 16, 16]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..graph.builder import OpBuilder
from ..graph.core import AttributeValue, Value
from ..graph.dims import Dim
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import same_dims
from .rules import Match, Mismatch, Rule, Verdict


class _Form(NamedTuple):
    """One way to move blocks: the operation, its permutation, and its shapes for [n, c, h, w] and a block size."""

    op: str
    attributes: dict[str, AttributeValue]
    perm: tuple[int, ...]
    block_dim: int  # where the middle shape has the block size
    middle: Callable[[Dim, Dim, Dim, Dim, int], list[Dim]]


_FORMS = (
    _Form(
        "depth_to_space", {"mode": "DCR"}, (0, 3, 4, 1, 5, 2), 1,
        lambda n, c, h, w, b: [n, b, b, c // (b * b), h, w],
    ),
    _Form(
        "depth_to_space", {"mode": "CRD"}, (0, 1, 4, 2, 5, 3), 2,
        lambda n, c, h, w, b: [n, c // (b * b), b, b, h, w],
    ),
    _Form(
        "space_to_depth", {}, (0, 3, 5, 1, 2, 4), 3,
        lambda n, c, h, w, b: [n, c, h // b, b, w // b, b],
    ),
)  # fmt: skip


class MoveBlocks(Rule):
    """reshape(transpose(reshape(x))) -> depth_to_space(x), or space_to_depth(x)"""

    name = "recompose-depth-to-space"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        middle = p.named("middle", p.reshape(x, p.any_value))
        result: PatternValue = p.reshape(p.transpose(middle, perm=p.attr("perm")), p.any_value)
        return result

    def when(self, m: Match) -> Verdict:
        found = _form(m)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        found = _form(m)
        assert not isinstance(found, Mismatch)
        form, size = found
        return b.create(form.op, [m.x], {"blocksize": size, **form.attributes}).result


def _form(m: Match) -> tuple[_Form, int] | Mismatch:
    shape, middle, end = m.shape(m.x), m.shape(m.middle), m.shape(m.value)
    if shape is None or middle is None or end is None or (len(shape), len(middle), len(end)) != (4, 6, 4):
        return m.fail("the shapes are not [n, c, h, w], six dims, and four again", m.x)
    n, c, h, w = shape
    for form in _FORMS:
        size = middle[form.block_dim]
        if form.perm != m.perm or not isinstance(size, int) or size < 2:
            continue
        if form.op == "depth_to_space":
            divides, wanted = isinstance(c, int) and c % (size * size) == 0, [n, c // (size * size), h * size, w * size]
        else:
            divides = all(not isinstance(dim, int) or dim % size == 0 for dim in (h, w))
            wanted = [n, c * size * size, h // size, w // size]
        if divides and same_dims(middle, form.middle(n, c, h, w, size)) and same_dims(end, wanted):
            return form, size
    return m.fail("it moves no blocks between space and channels", m.middle)


class RecomposeDepthToSpace(RulePass):
    """Recompose DepthToSpace and SpaceToDepth."""

    name = "recompose-depth-to-space"
    fuses = True
    rules = (MoveBlocks,)
