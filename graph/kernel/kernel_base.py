"""What the operators of the level "kernel" have in common (domain `kernel`).

They work on tensors. Result types are given when they are built, by whoever lowers an operation whose types are known;
the sizes of a run follow from `result_shapes`, from the sizes of the operands and the elements of small ones.

A kernel computes its elements, then may apply the region `epilogue` to each: a function of that element and of those of
further operands, which are broadcast to the result's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from .. import types
from ..cached import cached_property
from ..core import Block, Operation, Value
from ..diagnostics import TypeInferenceError
from ..opdef import AttributeSpec, Trait
from ..ops.scalar import NumpyScalars
from .base import LoopOp
from .bodies import interpret
from .strided import Shape, Strided

if TYPE_CHECKING:
    from ..infer import InferenceContext
    from ..types import Type

# The elements of operand i of the operation, as an array: of a constant, or of what follows from shapes.
Known: TypeAlias = Callable[[int], np.ndarray]


class KernelOp(LoopOp):
    """`fixed` operands belong to the kernel itself, those after them to the epilogue."""

    outputs: ClassVar[tuple[str, ...]] = ("result",)
    fixed: ClassVar[int] = 0
    # Operands whose elements must be known before the kernel can be planned.
    known_operands: ClassVar[tuple[int, ...]] = ()
    # Results of which one dim (result to dim) is only counted when the kernel runs; the last result is that count.
    counted: ClassVar[dict[int, int]] = {}

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        """Regions other than a map's body can be left out."""
        regions: tuple[str, ...] = ("prologue", "epilogue")
        optional = {name: AttributeSpec(name, "graph") for name in regions if name in self.attributes}
        return {**super().attribute_specs, **optional}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        self.check(op)
        return [result.type for result in op.results]

    def check(self, op: Operation) -> None:
        """Raise TypeInferenceError if operands, regions and results do not fit."""
        block = epilogue_of(op)
        if block is None:
            if op.operands[self.fixed_count(op) :] and "epilogue" in self.attributes:
                raise kernel_fault(op, "has operands for an epilogue, but none")
            return
        extras = op.operands[self.fixed_count(op) :]
        arguments = [argument.type for argument in block.arguments]
        wanted = [types.scalar(_dtype(value)) for value in extras]
        if arguments[1:] != wanted:
            raise kernel_fault(op, f"has an epilogue of {arguments[1:]}, its operands give {wanted}")
        if [value.type for value in block.returned] != [types.scalar(_dtype(result)) for result in op.results[:1]]:
            raise kernel_fault(op, "has an epilogue of another dtype than its result")

    def fixed_count(self, op: Operation) -> int:
        """How many operands come before those of the epilogue."""
        return self.fixed

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        """The sizes of the results, for operands of `shapes`. Raises ValueError for sizes that do not fit."""
        raise NotImplementedError(self.name)

    def compute(self, op: Operation, *operands: Any) -> Any:
        """The numpy meaning without the epilogue."""
        raise NotImplementedError(self.name)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        count = self.fixed_count(op)
        result = self.compute(op, *operands[:count])
        block = epilogue_of(op)
        if block is None:
            return result
        first, *others = result if isinstance(result, tuple) else (result,)
        with np.errstate(all="ignore"):
            [finished] = interpret(block, NumpyScalars(), [first, *operands[count:]])
        finished = np.broadcast_to(np.asarray(finished), np.shape(first))
        return (finished, *others) if others else finished


class ViewOp(KernelOp):
    """Another way to see the elements of the first operand: nothing is computed."""

    traits = frozenset({Trait.INJECTIVE})

    def fixed_count(self, op: Operation) -> int:
        return len(op.operands)

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        """How the result lies in the memory of the operand; None if it must be copied first."""
        raise NotImplementedError(self.name)

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        view = self.view(op, Strided.contiguous(shapes[0]), known)
        assert view is not None, "every view of contiguous elements is one"
        return [view.shape]

    def compute(self, op: Operation, *operands: Any) -> Any:
        source = np.ascontiguousarray(operands[0])
        view = self.view(op, Strided.contiguous(source.shape), lambda index: operands[index])
        assert view is not None
        return take(source.reshape(-1), view)


def take(flat: np.ndarray, view: Strided) -> np.ndarray:
    """The elements of `view` in a flat array, as an array of its own."""
    size = flat.dtype.itemsize
    strides = [stride * size for stride in view.strides]
    if view.size == 0:
        return np.empty(view.shape, flat.dtype)
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides).copy()


def epilogue_of(op: Operation) -> Block | None:
    """The region applied to each element of the result, if there is one."""
    region = op.regions.get("epilogue")
    return None if region is None else region.block


def extras_of(op: Operation) -> tuple[Value, ...]:
    """The operands of the epilogue, beside the element."""
    definition = op.definition
    assert isinstance(definition, KernelOp)
    return tuple(value for value in op.operands[definition.fixed_count(op) :] if value is not None)


def kernel_fault(op: Operation, message: str) -> TypeInferenceError:
    return TypeInferenceError("kernel/type", f"{op.name} {message}")


def checked_axis(axis: int, rank: int) -> int:
    """The dim that an axis of ONNX names, which may count from the end. Raises ValueError if there is none."""
    if not -rank <= axis < rank:
        raise ValueError(f"there is no dim {axis} among {rank}")
    return axis % rank


def product_of(shape: Sequence[int]) -> int:
    return math.prod(shape)


def _dtype(value: Value | None) -> Any:
    if value is None or not isinstance(value.type, types.TensorType):
        raise TypeInferenceError("kernel/type", f"a kernel works on tensors, not on {value and value.type}")
    return value.type.dtype
