"""Maps with several results: one that reads what another makes is joined with it, though others read that, too.

Level kernel.

%0 = kernel.map %m, %g  body {add}                 %0, %1 = kernel.map %m, %g, %w  body {
%1 = kernel.map %w, %0  body {sub}          ->       %2 = add %m, %g;  %3 = sub %w, %2;  return %2, %3 }
return %1, %0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.core import Block, Operation, Region, Value
from ..graph.kernel.bodies import interpret, trace
from ..graph.location import fuse
from ..graph.lowerings.builder import KernelBuilder, dtype_of
from ..graph.types import TensorType

if TYPE_CHECKING:
    from .fuse_kernels import Fuser

# More operands and results than this make a kernel's addresses take all registers.
MAX_TENSORS = 12
# A body of so many operations is busy for longer than its tensors take to read and write, so that nothing is gained by
# making it longer; and what is done once more with each fusion stays little, however long a chain is.
MAX_OPERATIONS = 64


def is_short(*regions: Region | None) -> bool:
    """Whether these bodies may be one."""
    return sum(len(region.block) for region in regions if region is not None) <= MAX_OPERATIONS


def join_with_source(op: Operation, fuser: Fuser) -> bool:
    """Make one map of the map `op` and a map that it reads, of the same shape, which others read, too."""
    if op.name != "kernel.map":
        return False
    for inner in dict.fromkeys(value.producer for value in op.operand_values):
        if inner is None or inner.name != "kernel.map" or inner.parent is not op.parent:
            continue
        results = [*inner.results, *op.results]
        users = {user for result in inner.results for user in result.users if user is not op}
        if len({_shape(result) for result in results}) > 1 or any(is_before(user, op) for user in users):
            continue
        kept = [value for value in op.operand_values if value.producer is not inner]
        merged = list(dict.fromkeys([*inner.operand_values, *kept]))
        if len(merged) + len(results) > MAX_TENSORS or not is_short(inner.regions["body"], op.regions["body"]):
            continue
        _join(fuser, inner, merged)
        return True
    return False


def _join(fuser: Fuser, other: Operation, operands: Sequence[Value]) -> None:
    """One map with the results of `other`, which comes before, and of the map that is looked at, in its place."""
    op, regions = fuser.op, {"body": Region(_both(other, fuser.op, operands))}
    with fuser.context.rewrite(fuser.module, "fuse-kernels", op) as rewriter:
        assert op.parent is not None
        location = fuse("fuse-kernels", [other.location, op.location])
        builder = KernelBuilder(op.parent, fuser.module.symbols, op, location, rewriter.on_create)
        types = [result.type for result in (*other.results, *op.results)]
        fuser.made = builder.create(op.definition, operands, {}, result_types=types, regions=regions)
        made = fuser.made.results
        rewriter.replace(op, made[len(other.results) :])
        rewriter.replace(other, made[: len(other.results)])


def _both(inner: Operation, op: Operation, merged: Sequence[Value]) -> Block:
    """What two maps make, as a function of `merged`."""

    def body(s: Any, *elements: Any) -> Any:
        known = dict(zip(merged, elements, strict=True))
        made = interpret(inner.regions["body"].block, s, [known[v] for v in inner.operand_values])
        known.update(zip(inner.results, made, strict=True))
        return [*made, *interpret(op.regions["body"].block, s, [known[v] for v in op.operand_values])]

    return trace(body, [dtype_of(v) for v in merged])


def _shape(value: Value) -> Any:
    return value.type.shape if isinstance(value.type, TensorType) else None


def is_before(user: Operation, op: Operation) -> bool:
    """Whether `user`, or the operation around it in the block of `op`, comes before `op`."""
    while user.parent is not op.parent:
        outer = user.parent_op
        assert outer is not None
        user = outer
    return user.is_before(op)
