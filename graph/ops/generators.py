"""Tensors made from nothing, or from the shape of another: ranges, random numbers, identity matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..diagnostics import ExecutionError
from ..dims import Dim, ceildiv, dim_max
from ..opdef import Trait, op
from ..quotient import Quotient
from . import values
from .common import (
    SameShape,
    TensorOp,
    dtype_attribute,
    dtype_of,
    element_dim,
    error,
    operand_elements,
    require_rank,
    shape_of,
)

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dtypes import DType
    from ..infer import InferenceContext, SymbolicArray


# Beyond any machine's memory.
_MOST_ELEMENTS = 1 << 48


@op("Range")
class Range(TensorOp):
    """start, start + delta, ... up to but without limit: max(ceil((limit - start) / delta), 0) elements."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 0, 1, 2)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        numbers = [context.constant(operand) for operand in op.operands]
        if all(number is not None and number.size == 1 for number in numbers):
            start, limit, delta = [np.ravel(number)[0].item() for number in numbers if number is not None]
            if delta == 0:
                raise error("shape/range", "range has a step of 0")
            if isinstance(delta, float):
                return [max(math.ceil((limit - start) / delta), 0)]
            return [max(-((start - limit) // delta), 0)]
        known = self._known(op, context)
        return [context.fresh() if known is None else dim_max(_steps(*known), 0)]

    def _known(self, op: Operation, context: InferenceContext) -> tuple[Any, Any, Any] | None:
        """Start, limit and delta as dims or quotients; None if one is not known or the sign of delta is not."""
        found = [operand_elements(op, index, context) for index in range(3)]
        items = [elements.reshape(-1)[0] for elements in found if elements is not None and elements.size == 1]
        if len(items) < 3:
            return None
        delta = items[2].dividend if isinstance(items[2], Quotient) else items[2]
        return (items[0], items[1], items[2]) if isinstance(delta, int) and _steps(*items) is not None else None

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        known, shape = self._known(op, context), self.result_shape(op, context)
        if known is None or shape is None or not isinstance(shape[0], int) or shape[0] > 1024:
            return None
        elements = [known[0]]
        while len(elements) < shape[0]:
            elements.append(values.add(elements[-1], known[2]))
        return values.as_elements(elements[: shape[0]])

    def flops(self, op: Operation) -> Dim | None:
        return 0

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        start, limit, delta = [operand.reshape(()) for operand in operands]
        if not delta:
            raise ExecutionError("run/range", "range has a step of 0")
        if start.dtype.kind in "iu":
            count = max(-((int(start) - int(limit)) // int(delta)), 0)
            if count > _MOST_ELEMENTS:  # numpy gives nothing where the count itself overflows
                raise ExecutionError("run/range", f"a range of {count} elements fits into no memory")
            return np.arange(int(start), int(limit), int(delta), dtype=start.dtype)
        if start.dtype.itemsize < 4:
            return super().evaluate(op, *operands)
        count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
        return (float(start) + np.arange(count) * float(delta)).astype(start.dtype)


def _steps(start: Any, limit: Any, delta: Any) -> Any:
    """ceil((limit - start) / delta); None if it is not known."""
    distance = values.sub(limit, start)
    if isinstance(distance, Quotient):
        steps = distance.over(delta)
        return None if steps is None else steps.ceil()
    if delta == 0:
        raise error("shape/range", "range has a step of 0")
    return ceildiv(distance, delta) if delta > 0 else ceildiv(-distance, -delta)


class WindowFunction(TensorOp):
    """A vector of as many samples as the operand says."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "output_datatype", dtypes.f32)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        size = operand_elements(op, 0, context)
        return [context.fresh() if size is None or size.size != 1 else element_dim(size.reshape(-1)[0], context)]


@op("HannWindow")
class HannWindow(WindowFunction):
    """Raised cosine."""


@op("HammingWindow")
class HammingWindow(WindowFunction):
    """Raised cosine on a pedestal."""


@op("BlackmanWindow")
class BlackmanWindow(WindowFunction):
    """Two cosine terms."""


@op("EyeLike")
class EyeLike(SameShape):
    """Ones on diagonal `k` of a matrix shaped like the operand."""

    traits = frozenset({Trait.SHAPE_ONLY})

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "dtype", dtype_of(op, 0))

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is not None:
            require_rank(op, 0, shape, 2)
        return shape

    def evaluate(self, op: Operation, like: Any) -> Any:
        dtype = self.result_dtype(op)
        rows, columns = like.shape
        kind: np.dtype = like.dtype if dtype is None else dtype.numpy
        return np.eye(rows, columns, k=int(op.attr("k", 0)), dtype=kind)


# ---- random numbers --------------------------------------------------------------------------------------------------


def random_numbers(seed: float | None) -> np.random.Generator:
    """What draws: the same numbers for the same seed, others each time without one."""
    return np.random.default_rng(None if seed is None else np.float32(seed).view(np.uint32))


class Drawn(TensorOp):
    """Numbers of a distribution."""

    def draw(self, op: Operation, shape: Sequence[int]) -> np.ndarray:
        """Drawn in f32 at least."""
        dtype = self.result_dtype(op)
        assert dtype is not None
        wide: Any = np.float64 if dtype is dtypes.f64 else np.float32
        random, name = random_numbers(op.attr("seed")), op.definition.op_type
        if name.startswith("RandomNormal"):
            drawn, factor, least = random.standard_normal(shape, wide), op.attr("scale"), op.attr("mean")
        else:
            drawn, least = random.random(shape, wide), op.attr("low")
            factor = op.attr("high") - least
        drawn = np.asarray(drawn)
        drawn *= wide(factor)
        drawn += wide(least)
        return drawn.astype(dtype.numpy, copy=False)


class RandomOfShape(Drawn):
    """Random numbers in a tensor of the shape that attribute `shape` gives."""

    traits = frozenset({Trait.RANDOM})

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return self.draw(op, op.attr("shape"))

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "dtype", dtypes.f32)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return tuple(op.attr("shape"))

    def flops(self, op: Operation) -> Dim | None:
        return 0


@op("RandomNormal")
class RandomNormal(RandomOfShape):
    """Normally distributed."""


@op("RandomUniform")
class RandomUniform(RandomOfShape):
    """Evenly distributed between `low` and `high`."""


class RandomLike(Drawn, SameShape):
    """Random numbers in a tensor shaped like the operand."""

    traits = frozenset({Trait.RANDOM, Trait.SHAPE_ONLY})

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return self.draw(op, np.shape(operands[0]))

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "dtype", dtype_of(op, 0))


@op("RandomNormalLike")
class RandomNormalLike(RandomLike):
    """Normally distributed."""


@op("RandomUniformLike")
class RandomUniformLike(RandomLike):
    """Evenly distributed between `low` and `high`."""


@op("Bernoulli")
class Bernoulli(SameShape):
    """1 with the probability that the operand's element says, else 0."""

    traits = frozenset({Trait.RANDOM, Trait.ELEMENTWISE})

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "dtype", dtype_of(op, 0))

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """ONNX's function body for it compares the other way round, which gives 1 with the opposite probability."""
        chance, dtype = op.operands[0], self.result_dtype(op)
        if dtype is None:
            return None
        drawn = builder.random_uniform_like(chance, seed=op.attr("seed"))
        return [builder.cast(builder.less(drawn, chance), to=dtype.onnx_code)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        chance, dtype = operands[0], self.result_dtype(op)
        assert dtype is not None
        wide: Any = np.float64 if chance.dtype == np.float64 else np.float32
        return (random_numbers(op.attr("seed")).random(chance.shape, wide) < chance).astype(dtype.numpy)


@op("Multinomial")
class Multinomial(TensorOp):
    """[batch, sample_size] classes drawn with the (unnormalized log) probabilities in [batch, classes]."""

    traits = frozenset({Trait.RANDOM})

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "dtype", dtypes.i32)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is not None:
            require_rank(op, 0, shape, 2)
        return [context.fresh() if shape is None else shape[0], op.attr("sample_size", 1)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """Draws by inverting the cumulative distribution; the same `seed` gives the same draws."""
        logits, seed, dtype = operands[0].astype(np.float64), op.attr("seed"), self.result_dtype(op)
        assert dtype is not None
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        cumulative = np.cumsum(chances, axis=1)
        drawn = random_numbers(seed).random((len(logits), op.attr("sample_size", 1))) * cumulative[:, -1:]
        return (drawn[:, :, None] >= cumulative[:, None, :]).sum(axis=2).astype(dtype.numpy)
