"""`KernelBuilder`: builds operators of the level "kernel"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Region, Value
from ..data import TensorData, UnresolvedData
from ..dims import Dim
from ..dtypes import ALL, DType, i64
from ..kernel.bodies import ElementFunction, trace
from ..types import TensorType, Type

# What kernels load, store and compute with.
NATIVE = frozenset(dtype for dtype in ALL if dtype.bits >= 8 and dtype.kind in ("int", "uint", "bool")) | {
    dtype for dtype in ALL if dtype.name in ("f16", "bf16", "f32", "f64")
}


class KernelBuilder(OpBuilder):
    """An `OpBuilder` with a method for each kernel. The last argument is the result's type unless it follows."""

    def kernel(
        self,
        name: str,
        operands: Sequence[Value | None],
        type: Type | Sequence[Type],
        regions: dict[str, Region] | None = None,
        **attributes: Any,
    ) -> Value:
        """The (first) result of the operator `kernel.<name>`."""
        types_ = [type] if isinstance(type, Type) else list(type)
        op = self.create(f"kernel.{name}", operands, attributes, result_types=types_, regions=regions)
        return op.results[0]

    def map(self, function: ElementFunction, operands: Sequence[Value | None], type: TensorType) -> Value:
        """`function(s, *elements)` for each element of the operands; a missing operand is None to it.

        Constants of one element become numbers in the body. An operand that makes the result larger is always kept.
        """
        ranks = [rank_of(value) for value in operands if value is not None and number_of(value) is None]
        rank = max(ranks, default=-1)
        kept = [
            value
            for value in dict.fromkeys(operands)
            if value is not None and (number_of(value) is None or rank_of(value) > rank)
        ]

        select = sum(value is not None and number_of(value) is not None for value in operands) > 1

        def typed(s: Any, value: Value) -> Any:
            """The number; where there are several, they say themselves of which dtype they are."""
            number = number_of(value)
            return s.number(number, dtype_of(value), None) if select and number is not None else number

        def body(s: Any, *elements: Any) -> Any:
            known = dict(zip(kept, elements, strict=True))
            given = [None if v is None else known[v] if v in known else typed(s, v) for v in operands]
            return s.cast(function(s, *given), type.dtype)

        block = trace(body, [dtype_of(value) for value in kept])
        return self.kernel("map", kept, type, {"body": Region(block)})

    def reduce(self, x: Value, kind: str, axes: Sequence[int], keepdims: bool, type: TensorType) -> Value:
        return self.kernel("reduce", [x], type, kind=kind, axes=tuple(sorted(axes)), keepdims=int(keepdims))

    def rows(self, x: Value, kind: str, epsilon: float = 0.0) -> Value:
        return self.kernel("rows", [x], x.type, kind=kind, epsilon=epsilon)

    def gemm(self, a: Value, b: Value, type: TensorType) -> Value:
        return self.kernel("gemm", [a, b], type)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        shape = shape_of(x)
        type = tensor_type(x).with_shape([shape[axis] for axis in perm])
        return self.kernel("transpose", [x], type, perm=tuple(perm))

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """`axes` of the result, not negative, are of size 1."""
        rest = iter(shape_of(x))
        shape = [1 if axis in axes else next(rest) for axis in range(rank_of(x) + len(axes))]
        return self.kernel("reshape", [x], tensor_type(x).with_shape(shape), how="unsqueeze", axes=tuple(axes))

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        shape = [dim for axis, dim in enumerate(shape_of(x)) if axis not in axes]
        return self.kernel("reshape", [x], tensor_type(x).with_shape(shape), how="squeeze", axes=tuple(axes))

    def split_axis(self, x: Value, axis: int, sizes: Sequence[int]) -> Value:
        """Dim `axis` as several; one of `sizes` may be -1."""
        shape = shape_of(x)
        known = math.prod(size for size in sizes if size != -1)
        dims = [shape[axis] // known if size == -1 else size for size in sizes]
        type = tensor_type(x).with_shape([*shape[:axis], *dims, *shape[axis + 1 :]])
        return self.kernel("reshape", [x], type, how="split", axis=axis, axes=tuple(sizes))

    def merge_axes(self, x: Value, axis: int) -> Value:
        """Dim `axis` and the one after it as one."""
        shape = shape_of(x)
        type = tensor_type(x).with_shape([*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]])
        return self.kernel("reshape", [x], type, how="merge", axis=axis)

    def bits(self, x: Value, dtype: DType) -> Value:
        """The bytes of x as elements of another dtype."""
        return self.kernel("bits", [x], tensor_type(x).with_dtype(dtype))

    def reshape(self, x: Value, shape: Value | Sequence[int], type: TensorType, is_exact: bool = False) -> Value:
        """A 0 in `shape` copies a dim, unless it `is_exact`."""
        target = shape if isinstance(shape, Value) else self.const(np.array(shape, np.int64), i64)
        return self.kernel("reshape", [x, target], type, allowzero=int(is_exact))


def tensor_type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def dtype_of(value: Value) -> DType:
    return tensor_type(value).dtype


def shape_of(value: Value) -> tuple[Dim, ...]:
    """The dims of a value of known rank."""
    shape = tensor_type(value).shape
    assert shape is not None
    return shape


def rank_of(value: Value) -> int:
    return len(shape_of(value))


def data_of(value: Value) -> TensorData | None:
    """The constant behind a value, if it is one."""
    producer = value.producer
    if producer is None or producer.name != "const":
        return None
    data = producer.attributes.get("value")
    return data if isinstance(data, TensorData) and not isinstance(data, UnresolvedData) else None


def number_of(value: Value) -> float | int | bool | None:
    """The number of a constant of one element: it becomes part of the code."""
    data = data_of(value)
    if data is None or any(size != 1 for size in data.shape) or data.dtype not in NATIVE:
        return None
    array = data.numpy().reshape(())
    number: float | int | bool = (array.astype(np.float64) if data.dtype.is_float else array).item()
    return number


def is_native(value: Value | None) -> bool:
    """Whether kernels can take or make the value: a tensor of known rank and a dtype of theirs. None is."""
    if value is None:
        return True
    return isinstance(value.type, TensorType) and value.type.shape is not None and value.type.dtype in NATIVE


def all_native(op: Operation) -> bool:
    return all(is_native(value) for value in (*op.operands, *op.results))


def is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def constant_ints(value: Value | None) -> list[int] | None:
    """The elements of a constant of integers."""
    data = None if value is None else data_of(value)
    return None if data is None else [int(item) for item in data.numpy().reshape(-1)]
