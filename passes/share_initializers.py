"""share-initializers: keep one of several constants that are equal bit for bit. Takes and leaves any level.

Constants are told apart by dtype, shape and a sample of their bytes first (of what they follow from, if they are
computed), so that the weights of a large model are read in full only where two of them may really be equal.

Invariant: dtype, shape and every bit agree (0.0 and -0.0 differ). A constant in a region may give way to one of a block
around it. Constants that an old form of an operator held as an attribute stay with that operator.

    %a = const [0, 1] : i64[2]
    %b = const [0, 1] : i64[2]
    %0 = reshape %x, %a : f32[0, 1]            ->      %0 = reshape %x, %a : f32[0, 1]
    %1 = reshape %y, %b : f32[0, 1]                    %1 = reshape %y, %a : f32[0, 1]
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..graph.core import Block, Operation
from ..graph.data import ComputedData, SparseData, TensorData, UnresolvedData
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

# Bytes of the sample: some from the start, the middle and the end.
SAMPLE_BYTES = 48


@dataclass
class _Scope:
    """The constants of one block that were met first, by sample; and the scope around it."""

    block: Block
    outer: _Scope | None
    place: Operation | None  # the operation of the outer block that holds this one
    seen: dict[Hashable, list[Operation]] = field(default_factory=dict)


class ShareInitializers(Pass):
    """Keep one of several constants that are equal bit for bit."""

    name = "share-initializers"
    level_in = None
    level_out = None

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for function in module.all_functions():
            pending = [_Scope(function.block, None, None)]
            while pending:
                scope = pending.pop()
                for op in scope.block:
                    pending.extend(_Scope(region.block, scope, op) for region in op.regions.values())
                    if op.name == "const" and not context.may_apply:
                        return context.applications > before
                    _share(module, context, scope, op)
        return context.applications > before


def _share(module: Module, context: PassContext, scope: _Scope, op: Operation) -> None:
    data = op.attributes.get("value") if op.name == "const" else None
    if not isinstance(data, TensorData) or "from_attribute" in op.metadata or not op.results[0].use_count:
        return
    key = _sample(data)
    first = _find(scope, key, data)
    if first is None:
        scope.seen.setdefault(key, []).append(op)
        return
    with context.rewrite(module, "share-equal", op, f"the same bits as %{first.result.name or '?'}") as rewriter:
        rewriter.replace(op, first.results)


def _find(scope: _Scope, key: Hashable, data: TensorData) -> Operation | None:
    current: _Scope | None = scope
    place: Operation | None = None
    while current is not None:
        for op in current.seen.get(key, ()):
            # Outer blocks were walked to their end before this one, so there the order must be asked for.
            if (place is None or op.is_before(place)) and data.same_as(op.attributes["value"]):
                return op
        place, current = current.place, current.outer
    return None


def _sample(data: TensorData) -> Hashable:
    """Equal for constants that are equal and have been made alike; cheap."""
    if isinstance(data, UnresolvedData):
        return (id(data.dtype), data.shape, data.sha256)
    if isinstance(data, ComputedData):  # not computed for this
        return (id(data.dtype), data.shape, *map(_sample, data.sources))
    if isinstance(data, SparseData) or data.dtype.kind == "string":
        return (id(data.dtype), data.shape)
    raw = data.raw()
    third = SAMPLE_BYTES // 3
    middle = len(raw) // 2
    sample = bytes(raw[:third]) + bytes(raw[middle : middle + third]) + bytes(raw[-third:])
    return (id(data.dtype), data.shape, sample)
