"""share-kernels: small kernels that differ in numbers only become one. Level kernel, after all other fusion.

Layers of a quantized model differ in their scales and zero points, which are numbers in the bodies of kernels. Each
body is compiled, which takes a thousand times as long as running it on a small tensor. So where there are several of
one kind, the numbers in which they differ become operands.

Invariant: an operand that holds one number means the same as that number in the body.

    %2 = kernel.map %0 : f32[8] body {mul 0.5, add 1}         %2 = kernel.map %0, %half : f32[8] body {mul, add 1}
    %3 = kernel.map %1 : f32[8] body {mul 0.2, add 1}   ->    %3 = kernel.map %1, %fifth : f32[8] body {mul, add 1}
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.core import Operation, Region
from ..graph.dtypes import DType, f32, i32
from ..graph.kernel.bodies import signature, with_numbers
from ..graph.lowerings.builder import KernelBuilder
from ..graph.types import ScalarType, TensorType, Type
from .base import Pass
from .fuse_kernels import MAX_OPERANDS, copied, kernel_blocks

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

# With more elements a kernel runs often enough to have its numbers in its code; an open dim counts as this many.
MOST_ELEMENTS, OPEN_DIM = 1 << 15, 16
# Which region holds the numbers of a kernel.
_REGIONS = {
    "kernel.map": "body", "kernel.gemm": "epilogue", "kernel.integer_gemm": "epilogue", "kernel.conv": "epilogue",
    "kernel.integer_conv": "epilogue", "kernel.rows": "epilogue",
}  # fmt: skip
# Operations that are the same code for a number and for an operand.
_SAME = frozenset({"add", "sub", "mul", "div", "quotient", "maximum", "minimum"})


class ShareKernels(Pass):
    """Make numbers in which small kernels differ operands, so that one kernel does for all of them."""

    name = "share-kernels"
    level_in = "kernel"
    level_out = "kernel"

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        groups: dict[Hashable, list[_Kernel]] = {}
        for block in kernel_blocks(module):
            for op in block:
                kernel = _Kernel.of(op)
                if kernel is not None:
                    groups.setdefault(kernel.key, []).append(kernel)
        for group in groups.values():
            _share(group, module, context)
        return context.applications > before


@dataclass(frozen=True)
class _Kernel:
    """An operation with numbers in its body; those with equal keys are one kernel but for the numbers."""

    op: Operation
    numbers: Sequence[Operation]
    key: Hashable

    @staticmethod
    def of(op: Operation) -> _Kernel | None:
        """None if the operation is no small kernel with numbers."""
        region = op.regions.get(_REGIONS.get(op.name, ""))
        if region is None or any(_elements(result.type) > MOST_ELEMENTS for result in op.results):
            return None
        numbers = [each for each in region.block if _is_number(each)]
        if not numbers:
            return None
        masked = with_numbers(region.block, {number: index for index, number in enumerate(numbers)})
        others = [(name, signature(other.block)) for name, other in sorted(op.regions.items()) if other is not region]
        attributes = [(name, repr(value)) for name, value in sorted(op.attributes.items())]
        facts = [_facts(value.type) for value in (*op.operand_values, *op.results)]
        return _Kernel(op, numbers, (op.name, *attributes, *others, *facts, signature(masked)))

    @property
    def values(self) -> list[tuple[Any, DType]]:
        """The numbers, with their dtypes."""
        return [(number.attributes["value"], _dtype(number)) for number in self.numbers]


def _share(group: Sequence[_Kernel], module: Module, context: PassContext) -> None:
    """Make the numbers in which kernels differ operands; those that are alike in each kernel are one."""
    columns = list(zip(*(kernel.values for kernel in group), strict=True))
    varying = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    if not varying or len(group[0].op.operands) + len(varying) > MAX_OPERANDS:
        return
    for place, kernel in enumerate(group):
        if not context.may_apply:
            return
        chosen = {
            number: varying.index(column)
            for number, column in zip(kernel.numbers, columns, strict=True)
            if column in varying
        }
        _replace(kernel.op, chosen, [column[place] for column in varying], module, context)


def _replace(
    op: Operation,
    chosen: Mapping[Operation, int],
    values: Sequence[tuple[Any, DType]],
    module: Module,
    context: PassContext,
) -> None:
    """Build `op` with the `chosen` numbers of its body as operands, which have these values."""
    assert op.parent is not None
    changed = _REGIONS[op.name]
    with context.rewrite(module, "share-kernels", op) as rewriter:
        builder = KernelBuilder(op.parent, module.symbols, op, op.location, rewriter.on_create)
        constants = [builder.const(np.asarray(value, dtype.numpy), dtype) for value, dtype in values]
        regions = {
            name: Region(with_numbers(region.block, chosen) if name == changed else copied(region.block))
            for name, region in op.regions.items()
        }
        types = [result.type for result in op.results]
        operands = [*op.operands, *constants]
        made = builder.create(op.definition, operands, dict(op.attributes), result_types=types, regions=regions)
        rewriter.replace(op, made.results)


def _is_number(op: Operation) -> bool:
    """Whether an operation of a body is a constant that only arithmetic reads."""
    is_constant = op.op_type == "constant" and _dtype(op) in (f32, i32)
    return is_constant and all(user.op_type in _SAME for user in op.result.users)


def _dtype(op: Operation) -> DType:
    assert isinstance(op.result.type, ScalarType)
    return op.result.type.dtype


def _elements(type: Type) -> int:
    """How many elements a tensor may have; those of unknown rank many."""
    if not isinstance(type, TensorType) or type.shape is None:
        return MOST_ELEMENTS + 1
    return math.prod(size if isinstance(size, int) else OPEN_DIM for size in type.shape)


def _facts(type: Type) -> Hashable:
    """What a kernel's code may depend on: dtype and sizes, where they are known."""
    assert isinstance(type, TensorType)
    assert type.shape is not None
    return type.dtype.name, tuple(size if isinstance(size, int) else None for size in type.shape)
