"""Operators that move elements: views, and tensors put together."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Operation, Value
from .builder import KernelBuilder, constant_ints, is_native, rank_of
from .rules import lowers


@lowers("Transpose")
def transpose(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x = op.operand_values[0]
    if not is_native(x):
        return None
    perm = op.attr("perm") or tuple(reversed(range(rank_of(x))))
    return [k.kernel("transpose", [x], op.result.type, perm=tuple(perm))]


@lowers("Reshape")
def reshape(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not is_native(op.operands[0]) or not is_native(op.result):
        return None
    return [k.kernel("reshape", op.operands, op.result.type, allowzero=op.attr("allowzero"))]


@lowers("Flatten")
def flatten(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not is_native(op.operands[0]):
        return None
    return [k.kernel("reshape", op.operands, op.result.type, how="flatten", axis=op.attr("axis"))]


@lowers("Squeeze", "Unsqueeze")
def squeeze(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Axes must be constants."""
    x, axes = op.operand_values[0], constant_ints(op.input(1))
    if not is_native(x) or not is_native(op.result) or (axes is None and op.input(1) is not None):
        return None
    return [k.kernel("reshape", [x], op.result.type, how=op.name, axes=tuple(axes or ()))]


@lowers("Expand")
def expand(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not is_native(op.operands[0]) or not is_native(op.result):
        return None
    return [k.kernel("broadcast", op.operands, op.result.type)]


@lowers("Slice")
def slice_(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not is_native(op.operands[0]) or not is_native(op.result):
        return None
    return [k.kernel("slice", op.operands, op.result.type)]


@lowers("Split")
def split(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """A view of each part."""
    x = op.operand_values[0]
    if not is_native(x) or not all(is_native(result) for result in op.results):
        return None
    axis, count = op.attr("axis"), len(op.results)
    return [
        k.kernel("part", [x, op.input(1)], result.type, axis=axis, index=index, count=count)
        for index, result in enumerate(op.results)
    ]


@lowers("Concat")
def concat(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not all(is_native(value) for value in (*op.operands, op.result)):
        return None
    return [k.kernel("concat", op.operands, op.result.type, axis=op.attr("axis"))]
