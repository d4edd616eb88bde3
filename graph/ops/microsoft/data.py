"""Operators on data that ONNX Runtime had before the standard, or beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import dtypes, types
from ...dims import Dim
from ...opdef import Trait, op
from ..common import SameShape, TensorOp, constant_ints, dtype_of, error, require_rank, shape_of
from .base import DOMAIN, MicrosoftOp, TypedByParts, operand, present, rank_of, tensor_dtype

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext
    from ...types import Type


@op("Inverse", domain=DOMAIN)
class Inverse(MicrosoftOp, SameShape):
    """The inverse of each matrix of a stack."""

    inputs = ("X",)
    outputs = ("Y",)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x = operands[0]
        wide = x.astype(np.float64) if x.dtype == np.float64 else x.astype(np.float32)
        return np.linalg.inv(wide).astype(x.dtype)


@op("Trilu", domain=DOMAIN)
class Trilu(MicrosoftOp, SameShape):
    """The upper or lower triangle, from the k-th diagonal on; the rest is zero."""

    inputs = ("X", "k?")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"upper": 1}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [builder.trilu(present(op, 0), operand(op, 1), upper=op.attr("upper"))]


@op("ExpandDims", domain=DOMAIN)
class ExpandDims(MicrosoftOp, TensorOp):
    """A new dim of 1 at `axis` (an i32 operand) of the result."""

    inputs = ("X", "axis")
    outputs = ("Y",)
    traits = frozenset({Trait.INJECTIVE})

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, axis = shape_of(op, 0), constant_ints(op, 1, context)
        if shape is None:
            return None
        if axis is None:
            return [context.fresh() for _ in range(len(shape) + 1)]
        if not -len(shape) - 1 <= axis[0] <= len(shape):
            raise error("shape/axis", f"{op.name} has axis {axis[0]}, but the rank is {len(shape)}")
        place = axis[0] % (len(shape) + 1)
        return [*shape[:place], 1, *shape[place:]]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        axis = builder.reshape(builder.cast(present(op, 1), to=dtypes.i64), [1])
        return [builder.unsqueeze(present(op, 0), axis)]


@op("Pad", domain=DOMAIN)
class Pad(TypedByParts):
    """The standard's Pad; `pads` may be [1, 2 * rank]."""

    inputs = ("data", "pads", "value?")
    outputs = ("output",)
    traits = frozenset({Trait.INJECTIVE})
    attributes: ClassVar[dict[str, Any]] = {"mode": "constant"}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        pads, value = present(op, 1), operand(op, 2)
        if rank_of(pads) != 1:
            pads = builder.reshape(pads, [-1])
        if value is not None and rank_of(value) != 0:
            value = builder.reshape(value, np.zeros(0, np.int64))
        return [builder.pad(present(op, 0), pads, value, mode=op.attr("mode"))]


@op("Unique", domain=DOMAIN)
class Unique(MicrosoftOp):
    """The distinct elements of a vector in order of appearance, where each element's is, and how many there are."""

    inputs = ("x",)
    outputs = ("y", "idx", "counts")

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, shape, count = dtype_of(op, 0), shape_of(op, 0), context.fresh()
        if shape is not None:
            require_rank(op, 0, shape, 1)
        distinct: Type = types.UNKNOWN if dtype is None else types.tensor(dtype, [count])
        places = types.tensor(dtypes.i64, [context.fresh()] if shape is None else shape)
        return [distinct, places, types.tensor(dtypes.i64, [count])]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        distinct, _, places, counts = builder.unique(present(op, 0), sorted=0, outputs=4)
        return [distinct, places, counts]


@op("GridSample", domain=DOMAIN)
class GridSample(TypedByParts):
    """The standard's GridSample, its modes by their first names."""

    inputs = ("X", "Grid")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(op.attr("mode"), op.attr("mode"))
        options = {name: op.attr(name) for name in ("align_corners", "padding_mode")}
        return [builder.grid_sample(present(op, 0), present(op, 1), mode=mode, **options)]


@op("CropAndResize", domain=DOMAIN)
class CropAndResize(MicrosoftOp, TensorOp):
    """Regions of [n, c, height, width], each resized to `crop_size`.

    A region is (y1, x1, y2, x2), where 0 and 1 are the centres of the first and the last pixel; `batch_indices` says
    of which image. A sample outside of the image is `extrapolation_value`.
    """

    inputs = ("X", "rois", "batch_indices", "crop_size")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"extrapolation_value": 0.0, "mode": "bilinear"}

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, regions, size = shape_of(op, 0), shape_of(op, 1), constant_ints(op, 3, context)
        count = context.fresh() if regions is None else regions[0]
        channels = context.fresh() if x is None else x[1]
        return [count, channels, *(size if size is not None else [context.fresh(), context.fresh()])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, regions, images, size = operands
        result = np.empty((len(regions), x.shape[1], int(size[0]), int(size[1])), x.dtype)
        for index, (region, image) in enumerate(zip(regions, images, strict=True)):
            rows, columns = (
                _sample_places(region[axis], region[axis + 2], x.shape[2 + axis], int(size[axis])) for axis in (0, 1)
            )
            result[index] = _sampled(x[image], rows, columns, op.attr("mode"), op.attr("extrapolation_value"))
        return result


def _sample_places(start: Any, stop: Any, length: int, count: int) -> np.ndarray:
    """Where `count` samples of a region lie, in pixels; a single one lies in the middle."""
    if count == 1:
        return np.array([0.5 * (start + stop) * (length - 1)], np.float32)
    step = (stop - start) * (length - 1) / (count - 1)
    return np.asarray(start * (length - 1) + np.arange(count) * step, np.float32)


def _sampled(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, mode: str, outside: float) -> np.ndarray:
    """[c, rows, columns] of an image [c, height, width]."""
    height, width = image.shape[1:]
    inside = ((rows >= 0) & (rows <= height - 1))[:, None] & ((columns >= 0) & (columns <= width - 1))
    y, x = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
    if mode == "nearest":
        # Halves go away from zero, as the C function `round` does.
        picked = image[:, np.floor(y + 0.5).astype(int)[:, None], np.floor(x + 0.5).astype(int)]
        return np.where(inside, picked, outside).astype(image.dtype)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    bottom, right = np.ceil(y).astype(int), np.ceil(x).astype(int)
    down, across = (y - top)[:, None], x - left
    upper = image[:, top[:, None], left] * (1 - across) + image[:, top[:, None], right] * across
    lower = image[:, bottom[:, None], left] * (1 - across) + image[:, bottom[:, None], right] * across
    return np.where(inside, upper * (1 - down) + lower * down, outside).astype(image.dtype)


@op("MemcpyFromHost")
@op("MemcpyToHost")
class Memcpy(MicrosoftOp, SameShape):
    """The same, in the memory of another device. ONNX Runtime puts these into the standard's own domain."""

    inputs = ("X",)
    outputs = ("Y",)
    traits = frozenset({Trait.ELEMENTWISE, Trait.INJECTIVE})

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [builder.identity(present(op, 0))]


@op("GatherND", domain=DOMAIN)
class GatherND(TypedByParts):
    """The standard's GatherND without batch dims; indices may be i32."""

    inputs = ("data", "indices")
    outputs = ("output",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [builder.gather_nd(present(op, 0), builder.cast(present(op, 1), to=dtypes.i64))]


@op("Range", domain=DOMAIN)
class Range(TypedByParts):
    """The standard's Range; delta defaults to 1, and all may be vectors of one element."""

    inputs = ("start", "limit", "delta?")
    outputs = ("Y",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        start, limit, delta = present(op, 0), present(op, 1), operand(op, 2)
        step = builder.const(np.ones((), tensor_dtype(start).numpy)) if delta is None else delta
        scalars = [x if rank_of(x) == 0 else builder.reshape(x, np.zeros(0, np.int64)) for x in (start, limit, step)]
        return [builder.range(*scalars)]


@op("CDist", domain=DOMAIN)
class CDist(MicrosoftOp, TensorOp):
    """The distance, or its square, of each row of A from each row of B."""

    inputs = ("A", "B")
    outputs = ("C",)
    traits = frozenset({Trait.CONTRACTION})
    attributes: ClassVar[dict[str, Any]] = {"metric": "sqeuclidean"}

    def refusal(self, op: Operation) -> str | None:
        metric = op.attr("metric")
        return None if metric in ("sqeuclidean", "euclidean") else f"with metric {metric!r} is not known here"

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        a, b = shape_of(op, 0), shape_of(op, 1)
        return [context.fresh() if a is None else a[0], context.fresh() if b is None else b[0]]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        difference = builder.sub(builder.unsqueeze(present(op, 0), [1]), builder.unsqueeze(present(op, 1), [0]))
        square = builder.reduce_sum_square(difference, [2], keepdims=0)
        return [builder.sqrt(square) if op.attr("metric") == "euclidean" else square]


@op("RelativePositionBias", domain=DOMAIN)
class RelativePositionBias(MicrosoftOp, TensorOp):
    """Raffel et al. 2020 (arXiv 1910.10683): a bias [1, heads, queries, keys] by how far key and query are apart.

    The table is [buckets, heads]. Near distances have a bucket each, far ones share buckets that grow with the
    logarithm; from `max_distance` on all share the last.
    """

    inputs = ("bias_table", "query_length", "key_length")
    outputs = ("output",)
    attributes: ClassVar[dict[str, Any]] = {"is_bidirectional": 0}
    required: ClassVar[dict[str, str]] = {"max_distance": "int"}

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        table = shape_of(op, 0)
        lengths = [constant_ints(op, index, context) for index in (1, 2)]
        sizes = [context.fresh() if length is None else length[0] for length in lengths]
        return [1, context.fresh() if table is None else table[1], *sizes]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        table = shape_of(op, 0)
        if table is None or not isinstance(table[0], int):
            return None
        rows, columns = (
            builder.range(0, builder.reshape(present(op, index), np.zeros(0, np.int64)), 1) for index in (1, 2)
        )
        apart = builder.sub(columns, builder.unsqueeze(rows, [1]))
        buckets = table[0] // 2 if op.attr("is_bidirectional") else table[0]
        near = buckets // 2
        distance = builder.abs(apart) if op.attr("is_bidirectional") else builder.max(builder.neg(apart), 0)
        ratio = builder.div(builder.cast(builder.max(distance, 1), to=dtypes.f32), float(near))
        growth = builder.mul(builder.log(ratio), (buckets - near) / float(np.log(op.attr("max_distance") / near)))
        far = builder.min(builder.add(builder.cast(growth, to=dtypes.i64), near), buckets - 1)
        bucket = builder.where(builder.less(distance, near), distance, far)
        if op.attr("is_bidirectional"):
            bucket = builder.add(bucket, builder.where(builder.greater(apart, 0), buckets, 0))
        found = builder.gather(present(op, 0), bucket)
        return [builder.unsqueeze(builder.transpose(found, perm=[2, 0, 1]), [0])]
