"""merge-siblings: products with constants that read the same tensor become one, and a Split. Level onnx; in O3.

Projections of queries, keys and values, gates of a feed-forward layer, 1 x 1 convolutions of a branching block and the
heads of a detector read the same tensor. One product with all their weights reads it once; but the Split copies all
results. So siblings are merged only where that moves fewer bytes: where they are narrow beside what they read. With
`always` all are merged, for runtimes that take a part of a tensor without a copy.

ONNX Runtime 1.32 on one thread: narrow convolutions gain up to a fifth; projections as wide as their input lose up to a
tenth.

Invariant: weights and biases are constants that nobody else uses, and all else about the operations is equal. A runtime
may sum in another order.

    %0 = matmul %x, %w0 : f32[n, 8]            %0 = matmul %x, %w : f32[n, 16]
    %1 = matmul %x, %w1 : f32[n, 8]     ->     %1, %2 = split %0, [8, 8] {axis=1} : f32[n, 8], f32[n, 8]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.core import Block, Operation, Value
from ..graph.data import TensorData, UnresolvedData, derived
from ..graph.types import TensorType
from .base import Pass
from .proofs import made_by

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder
    from ..graph.module import Module
    from .context import PassContext

# A Split reads each result and writes it again.
_MOVED_BY_SPLIT = 2


@dataclass(frozen=True)
class Sibling:
    """A product of the shared tensor with constants: `width` results for each `depth` numbers that it reads."""

    op: Operation
    width: int
    depth: int
    axis: int  # of the weights, along which results lie
    result_axis: int


@dataclass(frozen=True)
class MergeSiblings(Pass):
    """Merge products with constants that read the same tensor, where that moves fewer bytes."""

    name = "merge-siblings"
    exactness = "reassociates"
    fuses = True

    always: bool = False

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        if not context.may_grow:
            return False
        for function in module.all_functions():
            for block in _blocks(function.block):
                for group in list(_families(block)):
                    chosen = group if self.always else _worth_merging(group)
                    if len(chosen) > 1 and context.may_apply:
                        _merge(module, context, chosen)
        return context.applications > before


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in list(block):
        for region in op.regions.values():
            yield from _blocks(region.block)


def _families(block: Block) -> Iterator[list[Sibling]]:
    """Siblings of one kind that read the same tensor, in block order."""
    families: dict[Hashable, list[Sibling]] = {}
    for op in block:
        sibling = _sibling(op)
        if sibling is not None:
            attributes = tuple(sorted((name, str(value)) for name, value in op.attributes.items()))
            weights = op.operands[1]
            assert weights is not None
            key = (op.operands[0], op.name, attributes, len(op.operands), weights.type.rank)  # type: ignore[attr-defined]
            families.setdefault(key, []).append(sibling)
    return (family for family in families.values() if len(family) > 1)


def _sibling(op: Operation) -> Sibling | None:
    """`op` as a product that could be merged; None if it is none."""
    if op.name not in ("matmul", "gemm", "conv") or op.definition.version is not None:
        return None
    result = op.result.type
    data = _constant(op.operands[1])
    if data is None or not isinstance(result, TensorType) or result.rank is None:
        return None
    if op.name == "conv":
        kernel = data.shape[2:]
        if op.attr("group", 1) != 1 or any(size != 1 for size in kernel) or not _has_row(op, data.shape[0]):
            return None
        return Sibling(op, data.shape[0], data.shape[1], 0, 1)
    if len(data.shape) != 2 or op.attr("transA", 0):
        return None
    axis = 0 if op.attr("transB", 0) else 1
    if not _has_row(op, data.shape[axis]):
        return None
    return Sibling(op, data.shape[axis], data.shape[1 - axis], axis, result.rank - 1)


def _constant(value: Value | None) -> TensorData | None:
    """The constant behind a value that has no other user."""
    producer = made_by(value, "const")
    if value is None or producer is None or value.use_count != 1:
        return None
    data = producer.attributes.get("value")
    return data if isinstance(data, TensorData) and not isinstance(data, UnresolvedData) else None


def _has_row(op: Operation, width: int) -> bool:
    """Whether the addend is left out, or a constant with a number for each result."""
    if len(op.operands) < 3:
        return True
    data = _constant(op.operands[2])
    return data is not None and data.shape in ((width,), (1, width))


def _worth_merging(family: list[Sibling]) -> list[Sibling]:
    """The siblings that move fewer bytes as one: for each place, the tensor is read once, the results are split."""
    narrow = [sibling for sibling in family if _MOVED_BY_SPLIT * sibling.width < sibling.depth]
    saved = sum(sibling.depth for sibling in narrow[1:])
    return narrow if saved > _MOVED_BY_SPLIT * sum(sibling.width for sibling in narrow) else []


def _merge(module: Module, context: PassContext, siblings: list[Sibling]) -> None:
    first = siblings[0]
    depth = first.depth
    widths = [sibling.width for sibling in siblings]
    reason = f"{len(siblings)} products read the same {depth} numbers for {widths} results"
    with context.rewrite(module, "merge-siblings", first.op, reason) as rewriter:
        parts = _merged(rewriter.before(first.op), siblings)
        for sibling, part in zip(siblings, parts, strict=True):
            rewriter.replace(sibling.op, [part])


def _merged(b: OpBuilder, siblings: list[Sibling]) -> list[Value]:
    first = siblings[0]
    op = first.op
    operands = [op.operands[0], _joined(b, siblings, 1, first.axis)]
    if len(op.operands) > 2:
        operands.append(_joined(b, siblings, 2, -1))
    product = b.create(op.definition, operands, op.attributes).result
    sizes = b.const(np.array([sibling.width for sibling in siblings], np.int64))
    split = b.create("split", [product, sizes], {"axis": first.result_axis}, outputs=len(siblings))
    return list(split.results)


def _joined(b: OpBuilder, siblings: list[Sibling], operand: int, axis: int) -> Value:
    found = [_constant(sibling.op.operands[operand]) for sibling in siblings]
    parts = [part for part in found if part is not None]
    shapes = [(part.elements,) if axis == -1 else part.shape for part in parts]

    def join(*arrays: np.ndarray) -> np.ndarray:
        return np.concatenate([array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)], axis)

    joined = list(shapes[0])
    joined[axis] = sum(shape[axis] for shape in shapes)
    return b.const(derived(join, *parts, dtype=parts[0].dtype, shape=tuple(joined)))
