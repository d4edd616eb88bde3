"""cse: of operations that compute the same, keep the first. Takes and leaves any level.

The same: definition, operands (the first two in either order where that does not matter), attributes and regions; no
random draws, no effects. An operation in a region may give way to one of a block around it. Constants are compared by
their bits up to 4 KB; sharing equal weights is left to `share-initializers`.

    %0 = exp %x : f32[n]
    %1 = exp %x : f32[n]          ->      %0 = exp %x : f32[n]
    %2 = add %0, %1 : f32[n]              %2 = add %0, %0 : f32[n]
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from ..graph.core import Block, Operation
from ..graph.infer import refine
from ..graph.location import UNKNOWN
from .base import Pass
from .keys import operation_key

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


class _Scope(NamedTuple):
    """The first operation of each kind in one block, and the scopes of the blocks around it."""

    block: Block
    first: dict[Hashable, Operation]
    outer: _Scope | None


class CommonSubexpressions(Pass):
    """Of operations that compute the same, keep the first."""

    name = "cse"
    level_in = None
    level_out = None

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for function in module.all_functions():
            pending = [_Scope(function.block, {}, None)]
            while pending:
                scope = pending.pop()
                for op in scope.block:
                    key = None if op.is_terminator else operation_key(op)
                    first = None if key is None else _find(scope, key, op)
                    if first is not None:
                        if not context.may_apply:
                            return context.applications > before
                        _merge(module, context, op, first)
                        continue
                    if key is not None:
                        scope.first[key] = op
                    pending.extend(_Scope(region.block, {}, scope) for region in op.regions.values())
        return context.applications > before


def _find(scope: _Scope, key: Hashable, op: Operation) -> Operation | None:
    """An operation with this key that has run wherever `op` runs."""
    current: _Scope | None = scope
    place: Operation | None = op
    while current is not None and place is not None:
        found = current.first.get(key)
        # Outer blocks were walked to their end before this one, so there the order must be asked for.
        if found is not None and (current is scope or found.is_before(place)):
            return found
        current, place = current.outer, place.parent_op
    return None


def _merge(module: Module, context: PassContext, op: Operation, first: Operation) -> None:
    known, name = first.location is not UNKNOWN, first.results[0].name
    place = first.location if known else f"%{name}" if name else "a constant"
    with context.rewrite(module, "merge-equal", op, f"computes the same as {place}") as rewriter:
        for kept, gone in zip(first.results, op.results, strict=True):
            merged = refine(kept.type, gone.type)
            if merged is not None:
                rewriter.set_type(kept, merged)
        rewriter.replace(op, first.results)
