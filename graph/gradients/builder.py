"""`GradientBuilder`: what rules build with. An `OpBuilder` that also knows which values a derivative is wanted of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..builder import OpBuilder
from ..core import Block, BlockOutput, Operation, Value
from ..data import TensorData
from ..diagnostics import UsageError
from ..dims import Dim, prove_equal
from ..dtypes import DType
from ..evaluation import evaluate_op
from ..infer import InferenceContext
from ..location import UNKNOWN, Location
from ..opdef import Trait
from ..types import TensorType

if TYPE_CHECKING:
    from ..dims import FreshSymbols
    from .sweep import Sweep

# Constants of at most this many elements are made once per block.
_SHARED_ELEMENTS = 64


class GradientBuilder(OpBuilder):
    """Builds adjoints at one place of a block. Shapes of operands are constants where they are numbers, and read with
    Shape at run time where they are not.
    """

    def __init__(
        self,
        block: Block,
        symbols: FreshSymbols,
        sweep: Sweep,
        before: Operation | None = None,
        location: Location = UNKNOWN,
        on_create: Callable[[Operation], None] | None = None,
    ) -> None:
        super().__init__(block, symbols, before, location, on_create)
        self.sweep = sweep
        self._constants: dict[tuple[Any, ...], Value] = {}

    # ---- what is wanted ------------------------------------------------------------------------------------------

    def needs(self, value: Value | None) -> bool:
        """Whether anything depends on the adjoint of `value`; a rule need not build those that nobody needs."""
        return value is not None and value in self.sweep.active

    def add_adjoint(self, value: Value, grad: Value) -> None:
        """A contribution to the adjoint of a value that is no operand: one that a region captures."""
        self.sweep.add(value, grad)

    def result(self, op: Operation, index: int) -> Value:
        """Result `index` of an operation of the forward pass, which gives it from now on if it did not."""
        return self.sweep.result(op, index)

    # ---- types ---------------------------------------------------------------------------------------------------

    def known_shape(self, value: Value | None) -> tuple[Dim, ...]:
        """The dims of `value`. Raises UsageError if not even its rank is known."""
        type = value.type if value is not None else None
        if not isinstance(type, TensorType) or type.shape is None:
            name = value.name if value is not None else None
            raise UsageError("gradient/unranked", f"the rank of %{name or '?'} is not known; run infer-shapes first")
        return type.shape

    def rank(self, value: Value | None) -> int:
        return len(self.known_shape(value))

    def sizes(self, value: Value | None) -> tuple[int, ...] | None:
        """The dims as numbers; None if one is symbolic."""
        static = [dim for dim in self.known_shape(value) if isinstance(dim, int)]
        return tuple(static) if len(static) == self.rank(value) else None

    def dtype(self, value: Value | None) -> DType:
        """The element type of `value`. Raises UsageError if it is not known."""
        if value is None or not isinstance(value.type, TensorType):
            name = value.name if value is not None else None
            raise UsageError("gradient/untyped", f"the type of %{name or '?'} is not known; run infer-shapes first")
        return value.type.dtype

    def elements(self, value: Value | None) -> np.ndarray | None:
        """The numbers of an operand that constants and shapes alone make: its own, or those of a few operations on
        such, as exporters write scales; None if a run decides them."""
        known = None if value is None else InferenceContext(self.symbols).constant(value)
        if known is not None or value is None or value.producer is None:
            return known
        op = value.producer
        if len(op.results) > 1 or op.regions or op.definition.traits & {Trait.RANDOM, Trait.EFFECT}:
            return None
        operands = [None if operand is None else self.elements(operand) for operand in op.operands]
        if any(operand is not None and array is None for operand, array in zip(op.operands, operands, strict=True)):
            return None
        if op.name == "const" or sum(array.size for array in operands if array is not None) > _SHARED_ELEMENTS:
            return None
        found: np.ndarray = evaluate_op(op, operands)[0]
        return found

    # ---- constants and shapes as values --------------------------------------------------------------------------

    def const(self, value: Any, dtype: DType | None = None, name: str | None = None) -> Value:
        array = None if isinstance(value, TensorData) else np.asarray(value, None if dtype is None else dtype.numpy)
        if array is None or name is not None or array.size > _SHARED_ELEMENTS or array.dtype == object:
            return super().const(value, dtype, name)
        if dtype is None and not isinstance(value, np.ndarray | np.generic) and array.dtype == np.float64:
            array = array.astype(np.float32)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = super().const(array, None, None)
        return self._constants[key]

    def ints(self, items: Sequence[int]) -> Value:
        """A vector of i64."""
        return self.const(np.array(items, np.int64))

    def number(self, like: Value, number: float) -> Value:
        """A scalar of the element type of `like`."""
        return self.const(np.array(number, self.dtype(like).numpy))

    def dims(self, value: Value) -> Value:
        """The dims of `value` as a vector of i64."""
        type = value.type
        static = type.static_shape if isinstance(type, TensorType) else None
        if static is not None:
            return self.ints(static)
        return self.create("shape", [value]).result

    def dim(self, value: Value, axis: int) -> Value:
        """One dim of `value` as a vector of one i64."""
        axis %= self.rank(value)
        known = self.known_shape(value)[axis]
        if isinstance(known, int):
            return self.ints([known])
        return self.create("shape", [value], {"start": axis, "end": axis + 1}).result

    def filled(self, dims: Value, like: Value, number: float = 0.0) -> Value:
        """A tensor of shape `dims` and the element type of `like`, all elements `number`."""
        value = np.array([number], self.dtype(like).numpy)
        return self.create("constant_of_shape", [dims], {"value": value}).result

    def zeros_like(self, value: Value) -> Value:
        return self.filled(self.dims(value), value)

    def arange(self, count: Value) -> Value:
        """0, 1, ... as i64; `count` is a vector of one i64."""
        result: Value = self.range(self.integer(0), self.squeeze(count, self.ints([0])), self.integer(1))
        return result

    def integer(self, item: int) -> Value:
        """A scalar of i64."""
        return self.const(np.array(item, np.int64))

    # ---- common steps --------------------------------------------------------------------------------------------

    def same_shape(self, left: Value, right: Value) -> bool:
        """Whether two values provably have one shape."""
        a, b = self.known_shape(left), self.known_shape(right)
        return len(a) == len(b) and all(x is y or prove_equal(x, y) is True for x, y in zip(a, b, strict=True))

    def reshape_like(self, grad: Value, value: Value) -> Value:
        """`grad` with the dims of `value`, which has as many elements."""
        if self._ranked(grad, value) and self.same_shape(grad, value):
            return grad
        result: Value = self.reshape(grad, self.dims(value), allowzero=1 if 0 in (self.sizes(value) or ()) else None)
        return result

    def expand_like(self, grad: Value, value: Value) -> Value:
        """`grad` broadcast to the dims of `value`."""
        if self._ranked(grad, value) and self.same_shape(grad, value):
            return grad
        result: Value = self.expand(grad, self.dims(value))
        return result

    def sum_to(self, grad: Value, value: Value) -> Value:
        """Undo broadcasting: `grad` summed over the axes along which `value` was repeated."""
        if not self._ranked(grad, value):
            return self._sum_to_dims(grad, value)
        have, want = self.known_shape(grad), self.known_shape(value)
        extra = len(have) - len(want)
        pairs = list(zip(have[extra:], want, strict=True))
        equal = [a is b or prove_equal(a, b) is True for a, b in pairs]
        if not all(same or want_dim == 1 for same, (_, want_dim) in zip(equal, pairs, strict=True)):
            return self._sum_to_dims(grad, value)
        repeated = [extra + axis for axis, same in enumerate(equal) if not same]
        if repeated:
            grad = self.reduce_sum(grad, self.ints(repeated), keepdims=1)
        if extra:
            grad = self.reduce_sum(grad, self.ints(range(extra)), keepdims=0)
        return grad

    def _sum_to_dims(self, grad: Value, value: Value) -> Value:
        """`sum_to` where only the run shows which axes were repeated."""
        have, want = self.create("shape", [grad]).result, self.dims(value)
        missing = self.sub(self.dims_count(have), self.dims_count(want))
        ones = self.create("constant_of_shape", [missing], {"value": np.array([1], np.int64)}).result
        repeated = self.not_(self.equal(self.concat(ones, want, axis=0), have))
        axes = self.reshape(self.nonzero(repeated), self.ints([-1]))
        summed = self.reduce_sum(grad, axes, keepdims=1, noop_with_empty_axes=1)
        result: Value = self.reshape(summed, want)
        return result

    def dims_count(self, dims: Value) -> Value:
        """The length of a vector of dims, as a vector of one i64."""
        return self.create("shape", [dims]).result

    def keep_where(self, condition: Value, grad: Value) -> Value:
        """`grad` where the condition holds, else zero."""
        result: Value = self.where(condition, grad, self.number(grad, 0.0))
        return self.sweep.mark_masked(result)

    def chain(self, grad: Value, derivative: Value, singular: bool = False) -> Value:
        """`grad * derivative`.

        A `singular` derivative may be infinite or NaN where its operand is on (or beyond) the border of the domain.
        Where a Where, a Relu or the like chose something else there, `grad` is zero, and so must the product be.
        """
        if singular and self.sweep.is_masked(grad):
            zero = self.number(grad, 0.0)
            finite = self.less(self.abs(derivative), self.number(grad, np.inf))
            derivative = self.where(self.or_(finite, self.not_(self.equal(grad, zero))), derivative, zero)
        result: Value = self.mul(grad, derivative)
        return result

    def inverse_permutation(self, perm: Sequence[int]) -> list[int]:
        return [int(axis) for axis in np.argsort(list(perm))]

    def _ranked(self, *values: Value) -> bool:
        return all(isinstance(value.type, TensorType) and value.type.shape is not None for value in values)

    # ---- regions -------------------------------------------------------------------------------------------------

    def inside(self, block: Block) -> GradientBuilder:
        """A builder at the end of a nested block."""
        return GradientBuilder(block, self.symbols, self.sweep, None, self.location)


def close_block(builder: OpBuilder, values: Sequence[Value]) -> None:
    """End the builder's block: it returns `values`."""
    builder.returns(values)
    builder.block.outputs = [BlockOutput(f"result_{index}", value.type) for index, value in enumerate(values)]
