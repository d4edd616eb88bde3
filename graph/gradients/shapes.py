"""Derivatives of operators that keep all elements and only change dims, or repeat and sum them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .rules import Adjoint, gradient_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


@gradient_of("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    grad, x = grads[0], op.operand_values[0]
    assert grad is not None
    return [b.reshape_like(grad, x)]


@gradient_of("Expand")
def expand(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    grad, x = grads[0], op.operand_values[0]
    assert grad is not None
    return [b.sum_to(grad, x)]


@gradient_of("Transpose")
def transpose(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    rank = b.rank(op.operands[0])
    perm = op.attr("perm") or tuple(reversed(range(rank)))
    return [b.transpose(grads[0], perm=b.inverse_permutation(perm))]


@gradient_of("Tile")
def tile(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The sum of the copies: [r0 * d0, ...] is taken apart into [r0, d0, ...] and summed over the counts."""
    x, repeats = op.operand_values
    pairs = b.concat(*[b.unsqueeze(each, b.ints([1])) for each in (repeats, b.dims(x))], axis=1)
    apart = b.reshape(grads[0], b.reshape(pairs, b.ints([-1])))
    rank = b.rank(x)
    if not rank:
        return [grads[0]]
    return [b.reshape_like(b.reduce_sum(apart, b.ints(range(0, 2 * rank, 2)), keepdims=0), x)]


@gradient_of("Trilu")
def trilu(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.trilu(grads[0], *op.operands[1:], upper=op.attr("upper"))]


@gradient_of("ReverseSequence")
def reverse_sequence(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.create(op.definition, [grads[0], op.operands[1]], op.attributes).result]


@gradient_of("DepthToSpace")
def depth_to_space(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """Undone by SpaceToDepth; in CRD order its channels are [block, block, depth] and must be [depth, block, block]."""
    size, x = op.attr("blocksize"), op.operand_values[0]
    found = b.space_to_depth(grads[0], blocksize=size)
    if op.attr("mode") == "CRD":
        tail = b.create("shape", [found], {"start": 2}).result
        head = b.create("shape", [found], {"end": 1}).result
        apart = b.reshape(found, b.concat(head, b.ints([size * size, -1]), tail, axis=0))
        found = b.reshape_like(b.transpose(apart, perm=[0, 2, 1, 3, 4]), x)
    return [found]


@gradient_of("SpaceToDepth")
def space_to_depth(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.depth_to_space(grads[0], blocksize=op.attr("blocksize"), mode=op.attr("mode") or "DCR")]
