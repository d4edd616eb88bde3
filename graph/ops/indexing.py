"""Gather, scatter and selection: where elements go, or how many there are, depends on the data."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, types
from ..dims import Dim
from ..opdef import OpDefinition, Trait, op
from ..types import Type
from .common import (
    SameShape,
    TensorOp,
    constant_ints,
    dtype_of,
    element_dim,
    elements_of,
    error,
    format_shape,
    normalize_axis,
    operand_elements,
    operand_size,
    require_rank,
    same_dim,
    shape_of,
    tensor_of,
    unknown_dims,
)
from .movement import replaced
from .unique_numeric import unique_rows

if TYPE_CHECKING:
    from ..core import Operation
    from ..dtypes import DType
    from ..infer import InferenceContext, SymbolicArray

INJECTIVE = frozenset({Trait.INJECTIVE})


@op("Gather")
class Gather(TensorOp):
    """The entries of `data` along `axis` at each of `indices`, whose dims replace that axis."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        data, indices = shape_of(op, 0), shape_of(op, 1)
        if data is None:
            return None
        axis = normalize_axis(op.attr("axis", 0), len(data), op)
        return None if indices is None else replaced(data, axis, *indices)

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements, places = operand_elements(op, 0, context), operand_elements(op, 1, context)
        if elements is None or places is None or not all(isinstance(place, int) for place in places.flat):
            return None
        axis = normalize_axis(op.attr("axis", 0), elements.ndim, op)
        size = elements.shape[axis]
        if any(not -size <= place < size for place in places.flat):
            return None
        taken = np.take(elements, places.astype(np.int64), axis)
        # numpy gives a bare element where the result is a scalar.
        result = np.empty(np.shape(taken), object)
        result[...] = taken
        return result

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.take(operands[0], operands[1], op.attr("axis", 0))


@op("GatherElements")
class GatherElements(TensorOp):
    """Result element i is the element of `data` at i, but at indices[i] along `axis`."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        data, indices = shape_of(op, 0), shape_of(op, 1)
        if indices is None:
            return unknown_dims(None if data is None else len(data), context)
        if data is not None:
            require_rank(op, 1, indices, len(data))
            normalize_axis(op.attr("axis", 0), len(data), op)
        return indices

    def evaluate(self, op: Operation, data: Any, indices: Any) -> Any:
        axis = op.attr("axis", 0) % data.ndim
        # Off the axis, `data` may be larger than `indices`: only its beginning is read.
        read = tuple(slice(None) if each == axis else slice(size) for each, size in enumerate(indices.shape))
        return np.take_along_axis(data[read], indices, axis)


@op("GatherND")
class GatherND(TensorOp):
    """Each vector in the last dim of `indices` names a slice of `data`; the first batch_dims dims run in step."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        data, indices, batch = shape_of(op, 0), shape_of(op, 1), op.attr("batch_dims", 0)
        if data is None or indices is None:
            return None
        require_rank(op, 1, indices, 1, at_least=True)
        depth = indices[-1]
        if not isinstance(depth, int):
            return None
        if not 1 <= depth <= len(data) - batch:
            raise error(
                "shape/gather-nd", f"gather_nd of {format_shape(data)} has {depth} indices after {batch} batch dims"
            )
        return [*indices[:-1], *data[batch + depth :]]

    def evaluate(self, op: Operation, data: Any, indices: Any) -> Any:
        lead, batch = indices.shape[:-1], op.attr("batch_dims", 0)
        if not indices.shape[-1]:
            raise ValueError("each place is named by no index at all")
        batches = [
            np.expand_dims(grid, tuple(range(batch, len(lead)))) for grid in np.indices(lead[:batch], sparse=True)
        ]
        found = data[(*batches, *np.moveaxis(indices, -1, 0))]
        return np.broadcast_to(found, (*lead, *data.shape[batch + indices.shape[-1] :])).copy()


_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class Scatter(SameShape):
    """`data` with some elements replaced, or combined with others if `reduction` says how."""

    def flops(self, op: Operation) -> Dim | None:
        return 0 if op.attr("reduction", "none") == "none" else operand_size(op, 2)

    def scattered(self, op: Operation, data: Any, places: tuple[Any, ...], updates: Any) -> Any:
        """A copy of `data` with `updates` at `places`, one after another."""
        result, combine = data.copy(), _COMBINE.get(op.attr("reduction", "none"))
        if combine is None:
            result[places] = updates
        else:
            combine.at(result, places, updates)
        return result


@op("ScatterElements")
class ScatterElements(Scatter):
    """`data` with updates[i] put (or added, ...) at i, but at indices[i] along `axis`."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        data, indices, updates = shape_of(op, 0), shape_of(op, 1), shape_of(op, 2)
        if data is not None:
            normalize_axis(op.attr("axis", 0), len(data), op)
        if indices is not None and updates is not None and len(indices) == len(updates):
            mismatch = functools.partial(
                error,
                "shape/scatter",
                f"scatter_elements has indices {format_shape(indices)} and updates {format_shape(updates)}",
            )
            for left, right in zip(indices, updates, strict=True):
                same_dim(left, right, context, mismatch)
        return data

    def evaluate(self, op: Operation, data: Any, indices: Any, updates: Any) -> Any:
        places = list(np.indices(indices.shape, sparse=True))
        places[op.attr("axis", 0) % data.ndim] = indices
        return self.scattered(op, data, tuple(places), updates)


@op("ScatterND")
class ScatterND(Scatter):
    """`data` with slices replaced (or added to, ...): each vector in the last dim of `indices` names one."""

    def evaluate(self, op: Operation, data: Any, indices: Any, updates: Any) -> Any:
        if not indices.shape[-1]:  # each names all of `data`
            return super().evaluate(op, data, indices, updates)
        return self.scattered(op, data, tuple(np.moveaxis(indices, -1, 0)), updates)


@op("TensorScatter")
class TensorScatter(Scatter):
    """A cache with `update` written at write_indices along `axis`."""


@op("Compress")
class Compress(TensorOp):
    """The entries along `axis` (of the flattened tensor, without one) where the condition is true."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, axis = shape_of(op, 0), op.attr("axis")
        if axis is None:
            return [context.fresh()]
        return None if shape is None else replaced(shape, normalize_axis(axis, len(shape), op), context.fresh())

    def evaluate(self, op: Operation, x: Any, condition: Any) -> Any:
        return np.compress(condition, x, op.attr("axis"))


@op("OneHot")
class OneHot(TensorOp):
    """A new dim of `depth` at `axis`, with values[1] at the index and values[0] elsewhere."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 2)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        indices = shape_of(op, 0)
        if indices is None:
            return None
        axis = normalize_axis(op.attr("axis", -1), len(indices) + 1, op)
        return [*indices[:axis], self._depth(op, context), *indices[axis:]]

    def _depth(self, op: Operation, context: InferenceContext) -> Dim:
        constant = constant_ints(op, 1, context)
        if constant is not None and len(constant) == 1:
            return constant[0]
        elements = operand_elements(op, 1, context)
        dtype = dtype_of(op, 1)
        if elements is None or elements.size != 1 or dtype is None or not dtype.is_integer:
            return context.fresh()
        return element_dim(elements.reshape(-1)[0], context)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """Indices count from the end where negative; one beyond `depth` has no values[1]. (onnx.reference does not take
        a scalar depth.)"""
        indices, depth, values = operands
        count = int(np.asarray(depth).reshape(-1)[0])
        places = np.asarray(indices).astype(np.int64)
        places = np.where(places < 0, places + count, places)
        axis = normalize_axis(op.attr("axis", -1), places.ndim + 1, op)
        steps = np.arange(count).reshape([-1 if k == axis else 1 for k in range(places.ndim + 1)])
        return np.where(np.expand_dims(places, axis) == steps, values[1], values[0]).astype(values.dtype, copy=False)

    def flops(self, op: Operation) -> Dim | None:
        return 0


@op("TopK")
class TopK(OpDefinition):
    """The k greatest (or least) elements along `axis`, and their places (i64)."""

    traits = frozenset({Trait.REDUCTION})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        data = tensor_of(op, 0)
        if data is None:
            return [types.UNKNOWN, types.tensor(dtypes.i64, None)]
        if data.shape is None:
            return [data, types.tensor(dtypes.i64, None)]
        axis = normalize_axis(op.attr("axis", -1), len(data.shape), op)
        elements = operand_elements(op, 1, context)
        count = context.fresh()
        if elements is not None and elements.size == 1:
            count = element_dim(elements.reshape(-1)[0], context)
        size = data.shape[axis]
        if isinstance(count, int) and isinstance(size, int) and count > size:
            raise error("shape/topk", f"topk wants {count} of {size} elements along axis {axis}")
        shape = replaced(data.shape, axis, count)
        return [types.tensor(data.dtype, shape), types.tensor(dtypes.i64, shape)]


@op("NonZero")
class NonZero(TensorOp):
    """The places of the non-zero elements: [rank, count], i64."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i64

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        rank: Dim = context.fresh() if shape is None else len(shape)
        return [rank, self._count(op, context)]

    def _count(self, op: Operation, context: InferenceContext) -> Dim:
        """All elements if they are one non-zero constant: exporters write `arange(n)` that way."""
        value = op.operands[0]
        producer = None if value is None else value.producer
        if producer is not None and producer.name == "constant_of_shape":
            filling, total = producer.attr("value"), elements_of(shape_of(op, 0))
            if filling is not None and total is not None and bool(filling.numpy().reshape(-1)[0]):
                return total
        return context.fresh()

    def flops(self, op: Operation) -> Dim | None:
        return operand_size(op)

    def evaluate(self, op: Operation, x: Any) -> Any:
        # A scalar has no dims, so that no place of it has numbers; numpy refuses one.
        return np.array(np.nonzero(x), np.int64) if x.ndim else np.zeros((0, np.count_nonzero(x)), np.int64)


@op("Unique")
class Unique(OpDefinition):
    """The different elements (or slices along `axis`); first places, the way back, and counts on demand (i64)."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        data, axis, count = tensor_of(op, 0), op.attr("axis"), context.fresh()
        counts = types.tensor(dtypes.i64, [count])
        if data is None:
            return [types.UNKNOWN, counts, types.tensor(dtypes.i64, [context.fresh()]), counts]
        if axis is None:
            total = elements_of(data.shape)
            inverse = types.tensor(dtypes.i64, [context.fresh() if total is None else total])
            return [types.tensor(data.dtype, [count]), counts, inverse, counts]
        if data.shape is None:
            return [data, counts, types.tensor(dtypes.i64, [context.fresh()]), counts]
        axis = normalize_axis(axis, len(data.shape), op)
        inverse = types.tensor(dtypes.i64, [data.shape[axis]])
        return [types.tensor(data.dtype, replaced(data.shape, axis, count)), counts, inverse, counts]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        (data,), axis = operands, op.attr("axis")
        rows = data.reshape(-1, 1) if axis is None else np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
        first, inverse, counts = unique_rows(rows, bool(op.attr("sorted")))
        values = np.take(data if axis is not None else data.reshape(-1), first, axis or 0)
        return values, first, inverse, counts


@op("NonMaxSuppression")
class NonMaxSuppression(TensorOp):
    """[count, 3] of (batch, class, box): the boxes that no better box of their class overlaps too much."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i64

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        for index in (0, 1):
            shape = shape_of(op, index)
            if shape is not None:
                require_rank(op, index, shape, 3)
        return [context.fresh(), 3]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        boxes, scores, limit, overlap, least = (*operands, None, None, None)[:5]
        limit = np.zeros(1, np.int64) if limit is None else np.maximum(np.ravel(limit), 0)
        overlap = np.zeros(1, np.float32) if overlap is None else np.ravel(overlap)
        given = [] if least is None else [np.ravel(least)]
        return super().evaluate(op, boxes, scores, limit, overlap, *given)
