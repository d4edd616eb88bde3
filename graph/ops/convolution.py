"""Windows that slide over spatial dims: convolutions and pools.

Shapes are [batch, channels, *spatial]; `Window` holds what the attributes say about each spatial dim.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import dtypes, types
from ..dims import Dim, bounds, ceildiv, dim_max, dim_min, product
from ..opdef import OpDefinition, Trait, op
from ..types import Type
from .common import (
    Shape,
    TensorOp,
    constant_ints,
    dtype_of,
    error,
    format_shape,
    has_operand,
    require_rank,
    result_elements,
    same_dim,
    shape_of,
    unknown_dims,
)
from .conv_numeric import conv, conv_transpose
from .numeric import reduce_max, reduce_mean
from .pooling_numeric import average_pool, lp_norm, lp_pool, max_pool
from .values import is_non_negative, is_positive

if TYPE_CHECKING:
    from ..core import Operation
    from ..dtypes import DType
    from ..infer import InferenceContext


@dataclass(frozen=True)
class Window:
    """Kernel size, stride, dilation and padding per spatial dim; `auto_pad` as in ONNX.

    `is_cut`: a window larger than the padded dim, by less than the stride, is cut to it, as pools do it. The standard
    rounds (size + pads - span) / stride down, which gives -1 and so no place; ONNX Runtime's pools and ONNX's own type
    inference round towards 0, which gives one place, and ONNX Runtime computes it over the elements that there are.
    (onnx.reference gives no element then. Convolutions of ONNX Runtime refuse such an operand.)
    """

    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    auto_pad: str
    ceil_mode: bool
    is_cut: bool = False

    @classmethod
    def of(cls, op: Operation, kernel: Sequence[Dim]) -> Window:
        """The window that the attributes of `op` describe. Raises `shape/window` if one has a wrong length."""
        rank = len(kernel)
        ones, zeros = (1,) * rank, (0,) * (2 * rank)
        strides = tuple(op.attr("strides") or ones)
        dilations = tuple(op.attr("dilations") or ones)
        auto_pad = op.attr("auto_pad") or "NOTSET"
        pads = tuple(op.attr("pads") or zeros) if auto_pad == "NOTSET" else zeros
        if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank):
            raise error(
                "shape/window",
                f"{op.name} has {rank} spatial dims, but strides={strides}, dilations={dilations}, pads={pads}",
            )
        ceil_mode, is_cut = bool(op.attr("ceil_mode", 0)), Trait.REDUCTION in op.definition.traits
        return cls(tuple(kernel), strides, dilations, pads[:rank], pads[rank:], auto_pad, ceil_mode, is_cut)

    def span(self, axis: int) -> Dim:
        """Elements from the first to the last that the window touches."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def positions(self, axis: int, size: Dim) -> Dim:
        """How many places the window takes along a dim of `size` (ONNX "Conv", "MaxPool")."""
        stride, before, after = self.strides[axis], self.before[axis], self.after[axis]
        if self.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            return ceildiv(size, stride)
        room = size + before + after - self.span(axis)
        if not self.ceil_mode:
            # ONNX Runtime's pools take no dims of 0.
            least = max(bounds(size)[0] or 0, 1) + room - size
            if not self.is_cut or stride == 1 or is_non_negative(least):
                return room // stride + 1
            one = 1 if is_positive(least + stride) else dim_min(ceildiv(room, stride) + 1, 1)
            return dim_max(room // stride + 1, one)
        count = ceildiv(room, stride) + 1
        # A window that would start in the padding after the end is left out; it cannot if the window is wide.
        starts = ceildiv(size + before, stride)
        reach = self.span(axis) - stride - after
        return count if isinstance(reach, int) and reach >= 0 else dim_min(count, starts)

    def keeps(self, axis: int) -> bool:
        """Whether there are as many places along a dim as it has elements, whatever its size."""
        if self.strides[axis] != 1:
            return False
        padded = self.before[axis] + self.after[axis]
        return self.auto_pad in ("SAME_UPPER", "SAME_LOWER") or self.span(axis) == padded + 1

    def output(self, op: Operation, spatial: Sequence[Dim]) -> Shape:
        """The spatial dims of the result. Raises `shape/window` if the window is larger than a padded dim."""
        result = tuple(self.positions(axis, size) for axis, size in enumerate(spatial))
        if any(isinstance(dim, int) and dim < 0 for dim in result):
            raise error(
                "shape/window", f"{op.name}: kernel {format_shape(self.kernel)} is larger than {format_shape(spatial)}"
            )
        return result


# ---- convolutions ----------------------------------------------------------------------------------------------------


class Convolution(TensorOp):
    """x[n, c, *spatial] with w[m, c / group, *kernel] gives [n, m, *places of the window]."""

    traits = frozenset({Trait.CONTRACTION})
    weight = 1

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, w = shape_of(op, 0), shape_of(op, self.weight)
        kernel = op.attr("kernel_shape")
        for index, shape in ((0, x), (self.weight, w)):
            if shape is not None:
                require_rank(op, index, shape, 3, at_least=True)
        if x is None:
            return None if w is None else [context.fresh(), w[0], *[context.fresh() for _ in w[2:]]]
        if w is None and kernel is None:
            return [x[0], *[context.fresh() for _ in x[1:]]]
        if w is not None:
            require_rank(op, self.weight, w, len(x))
            self._check(op, x, w, context)
        window = Window.of(op, kernel or (w or ())[2:])
        if len(window.kernel) != len(x) - 2:
            raise error("shape/window", f"{op.name} has kernel_shape={list(kernel)} for {len(x) - 2} spatial dims")
        return [x[0], context.fresh() if w is None else w[0], *window.output(op, x[2:])]

    def _check(self, op: Operation, x: Shape, w: Shape, context: InferenceContext) -> None:
        group = op.attr("group", 1)
        mismatch = functools.partial(
            error,
            "shape/conv-channels",
            f"{op.name} of {format_shape(x)} with weight {format_shape(w)} and group={group}: "
            f"{x[1]} channels, the weight takes {w[1] * group}",
        )
        same_dim(x[1], w[1] * group, context, mismatch)
        if isinstance(w[0], int) and w[0] % group:
            raise error("shape/conv-channels", f"{op.name} has {w[0]} filters, not divisible into {group} groups")

    def flops(self, op: Operation) -> Dim | None:
        elements, w = result_elements(op), shape_of(op, self.weight)
        return None if elements is None or w is None else 2 * elements * product(w[1:])


@op("Conv")
class Conv(Convolution):
    """Convolution (cross-correlation), with an optional bias per filter."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, w, bias = (*operands, None)[:3]
        return conv(Window.of(op, op.attr("kernel_shape") or w.shape[2:]), op.attr("group"), x, w, bias)


@op("DeformConv")
class DeformConv(Convolution):
    """Convolution at learned offsets."""


@op("ConvInteger")
class ConvInteger(Convolution):
    """Convolution of 8-bit tensors, each less its zero point, summed in i32."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i32


@op("QLinearConv")
class QLinearConv(Convolution):
    """Convolution of quantized tensors, quantized again."""

    weight = 3

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 7)


@op("ConvTranspose")
class ConvTranspose(TensorOp):
    """The transposed convolution: w is [c, m / group, *kernel]; each input element adds a scaled kernel."""

    traits = frozenset({Trait.CONTRACTION})

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, w = shape_of(op, 0), shape_of(op, 1)
        if x is None or w is None:
            rank = len(x) if x is not None else len(w) if w is not None else None
            return unknown_dims(rank, context)
        require_rank(op, 0, x, 3, at_least=True)
        require_rank(op, 1, w, len(x))
        mismatch = functools.partial(
            error,
            "shape/conv-channels",
            f"conv_transpose of {format_shape(x)} with weight {format_shape(w)}: {x[1]} channels, "
            f"the weight takes {w[0]}",
        )
        same_dim(x[1], w[0], context, mismatch)
        window = Window.of(op, op.attr("kernel_shape") or w[2:])
        fixed, extra = op.attr("output_shape"), op.attr("output_padding")
        for name, given in (("kernel_shape", window.kernel), ("output_shape", fixed), ("output_padding", extra)):
            if given and len(given) < len(x) - 2:
                raise error("shape/window", f"conv_transpose has {name}={list(given)} for {len(x) - 2} spatial dims")
        spatial = fixed[-(len(x) - 2) :] if fixed else self._spatial(op, window, x[2:])
        return [x[0], w[1] * op.attr("group", 1), *spatial]

    def _spatial(self, op: Operation, window: Window, spatial: Shape) -> list[Dim]:
        extra = op.attr("output_padding") or (0,) * len(spatial)
        result: list[Dim] = []
        for axis, size in enumerate(spatial):
            stride = window.strides[axis]
            if window.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                result.append(size * stride)
                continue
            full = stride * (size - 1) + extra[axis] + window.span(axis)
            dim = full - window.before[axis] - window.after[axis]
            if isinstance(dim, int) and dim < 0:
                raise error("shape/window", f"conv_transpose pads {format_shape(spatial)} away")
            result.append(dim)
        return result

    def flops(self, op: Operation) -> Dim | None:
        x, w = shape_of(op, 0), shape_of(op, 1)
        return None if x is None or w is None else 2 * product(x) * product(w[1:])

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, w, bias = (*operands, None)[:3]
        return conv_transpose(op, Window.of(op, op.attr("kernel_shape") or w.shape[2:]), x, w, bias)


@op("CausalConvWithState")
class CausalConvWithState(OpDefinition):
    """Depthwise convolution over the past: x[n, c, length], w[c, 1, k]; the second result is the last k - 1 values."""

    traits = frozenset({Trait.CONTRACTION})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, x, w = dtype_of(op, 0, 1), shape_of(op, 0), shape_of(op, 1)
        if dtype is None:
            return [types.UNKNOWN] * len(op.results)
        past = shape_of(op, 3)
        for index, shape in ((0, x), (1, w), (3, past)):
            if shape is not None:
                require_rank(op, index, shape, 3)
        if x is None:
            return [types.tensor(dtype, unknown_dims(3, context)) for _ in range(2)]
        kept = past[2] if past is not None else w[2] - 1 if w is not None else context.fresh()
        return [types.tensor(dtype, x), types.tensor(dtype, [x[0], x[1], kept])]

    def flops(self, op: Operation) -> Dim | None:
        elements, w = result_elements(op), shape_of(op, 1)
        return None if elements is None or w is None else 2 * elements * w[2]


# ---- pools -----------------------------------------------------------------------------------------------------------


class Pool(TensorOp):
    """Each window of [n, c, *spatial] becomes one element."""

    traits = frozenset({Trait.REDUCTION})

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, kernel = shape_of(op, 0), op.attr("kernel_shape")
        if x is None:
            return unknown_dims(len(kernel) + 2, context)
        require_rank(op, 0, x, len(kernel) + 2)
        return [*x[:2], *Window.of(op, kernel).output(op, x[2:])]

    def flops(self, op: Operation) -> Dim | None:
        elements = result_elements(op)
        return None if elements is None else elements * product(op.attr("kernel_shape"))


@op("AveragePool")
class AveragePool(Pool):
    """The mean of each window."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        window = Window.of(op, op.attr("kernel_shape"))
        return average_pool(operands[0], window, bool(op.attr("count_include_pad")))


@op("LpPool")
class LpPool(Pool):
    """The p-norm of each window."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return lp_pool(operands[0], Window.of(op, op.attr("kernel_shape")), op.attr("p"))


@op("MaxPool")
class MaxPool(Pool):
    """The greatest element of each window, and on demand its place in the flattened operand (i64)."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        (values,) = super().infer(op, context)
        shape = values.shape if isinstance(values, types.TensorType) else None
        return [values, types.tensor(dtypes.i64, shape)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return max_pool(operands[0], Window.of(op, op.attr("kernel_shape")), bool(op.attr("storage_order")))


class GlobalPool(TensorOp):
    """All of each channel becomes one element: [n, c, 1, ...]."""

    traits = frozenset({Trait.REDUCTION})

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x = shape_of(op, 0)
        if x is None:
            return None
        require_rank(op, 0, x, 2, at_least=True)
        return [*x[:2], *[1] * (len(x) - 2)]


@op("GlobalAveragePool")
class GlobalAveragePool(GlobalPool):
    """The mean of each channel."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return reduce_mean(operands[0], tuple(range(2, operands[0].ndim)), True)


@op("GlobalMaxPool")
class GlobalMaxPool(GlobalPool):
    """The greatest element of each channel."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return reduce_max(operands[0], tuple(range(2, operands[0].ndim)), True)


@op("GlobalLpPool")
class GlobalLpPool(GlobalPool):
    """The p-norm of each channel."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return lp_norm(operands[0], op.attr("p"), tuple(range(2, operands[0].ndim)), keepdims=True)


@op("MaxUnpool")
class MaxUnpool(TensorOp):
    """Undoes MaxPool: each element goes to its index, the rest is zero."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, kernel = shape_of(op, 0), op.attr("kernel_shape")
        if has_operand(op, 2):
            target = constant_ints(op, 2, context)
            return unknown_dims(len(kernel) + 2, context) if target is None else target
        if x is None:
            return unknown_dims(len(kernel) + 2, context)
        require_rank(op, 0, x, len(kernel) + 2)
        window = Window.of(op, kernel)
        return [*x[:2], *(self._size(window, axis, size) for axis, size in enumerate(x[2:]))]

    def _size(self, window: Window, axis: int, size: Dim) -> Dim:
        return (size - 1) * window.strides[axis] + window.kernel[axis] - window.before[axis] - window.after[axis]

    def flops(self, op: Operation) -> Dim | None:
        return 0
