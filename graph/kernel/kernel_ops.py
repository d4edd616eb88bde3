"""Kernels that compute: maps, reductions, rows, products, convolutions, pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import Trait, op
from ..ops.conv_numeric import conv, conv_transpose, transposed_sizes
from ..ops.convolution import Window
from ..ops.numeric import summable
from ..ops.pooling_numeric import average_pool, max_pool, number
from ..ops.scalar import NumpyScalars
from .bodies import interpret, result_dtypes
from .kernel_base import KernelOp, Known, kernel_fault
from .strided import broadcast_shapes
from .tracing import apply

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


@op("map", domain="kernel")
class Map(KernelOp):
    """The region `body` for each element of the operands, which are broadcast against each other."""

    inputs = ("operands*",)
    outputs = ("results*",)
    attributes: ClassVar[dict[str, Any]] = {"body": None}
    traits = frozenset({Trait.ELEMENTWISE, Trait.BROADCAST})

    def check(self, op: Operation) -> None:
        block = op.regions["body"].block
        given = [getattr(value.type, "dtype", None) for value in op.operand_values]
        taken = [getattr(argument.type, "dtype", None) for argument in block.arguments]
        made = [getattr(result.type, "dtype", None) for result in op.results]
        if given != taken or made != result_dtypes(block):
            raise kernel_fault(op, f"of {given} to {made} has a body of {taken} to {result_dtypes(block)}")

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        try:
            return [broadcast_shapes(*shapes)] * len(op.results)
        except ValueError:
            listed = ", ".join(str(list(shape)) for shape in shapes)
            raise ValueError(f"cannot broadcast {listed} to one shape") from None

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        with np.errstate(all="ignore"):
            computed = interpret(op.regions["body"].block, NumpyScalars(), operands)
        dtypes = result_dtypes(op.regions["body"].block)
        arrays = [
            np.broadcast_to(np.asarray(array, dtype.numpy), shape).copy()
            for array, dtype in zip(computed, dtypes, strict=True)
        ]
        return tuple(arrays) if len(arrays) > 1 else arrays[0]


COMBINE: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


@op("reduce", domain="kernel")
class Reduce(KernelOp):
    """Combines elements along `axes`, which are not negative and ascend; the dims stay, as 1, if `keepdims`.

    `kind` is sum, mean, max, min or prod. The region `prologue`, if there is one, makes the elements from those of the
    first `sources` operands, which are broadcast against each other. Nothing at all sums up to 0 and multiplies to 1;
    its max is the least, its min the greatest number of the dtype.
    """

    inputs = ("operands*",)
    attributes: ClassVar[dict[str, Any]] = {
        "kind": None, "axes": (), "keepdims": 1, "sources": 1, "prologue": None, "epilogue": None,
    }  # fmt: skip
    traits = frozenset({Trait.REDUCTION})

    def fixed_count(self, op: Operation) -> int:
        return int(op.attr("sources"))

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        whole = broadcast_shapes(*shapes[: self.fixed_count(op)])
        axes = op.attr("axes")
        if op.attr("keepdims"):
            return [tuple(1 if axis in axes else size for axis, size in enumerate(whole))]
        return [tuple(size for axis, size in enumerate(whole) if axis not in axes)]

    def compute(self, op: Operation, *operands: Any) -> Any:
        x = _elements(op, operands)
        return combined(op.attr("kind"), x, op.attr("axes"), bool(op.attr("keepdims"))).astype(x.dtype)


def combined(kind: str, x: np.ndarray, axes: Sequence[int], keepdims: bool) -> np.ndarray:
    """Elements combined along `axes`, in one of the ways of `COMBINE`."""
    options: dict[str, Any] = {"axis": tuple(axes), "keepdims": keepdims}
    if kind in ("max", "min"):
        options["initial"] = _bound(x.dtype, lowest=kind == "max")
    with np.errstate(all="ignore"):
        return np.asarray(COMBINE[kind](summable(x) if kind in ("sum", "mean", "prod") else x, **options))


def _elements(op: Operation, operands: Sequence[Any]) -> np.ndarray:
    """What the prologue makes of the operands' elements; without one, the elements of the only operand."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    region = op.regions.get("prologue")
    [x] = operands[:1] if region is None else interpret(region.block, NumpyScalars(), operands)
    return np.broadcast_to(x, shape)


def _bound(dtype: np.dtype, lowest: bool) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    if dtype.kind == "b":
        return not lowest
    return -np.inf if lowest else np.inf


@op("rows", domain="kernel")
class Rows(KernelOp):
    """Each row, all elements along the last axis, made from itself.

    `kind` is softmax, log_softmax, layer_norm (less its mean, over its standard deviation) or rms_norm (over the root
    of its mean square), the latter two with `epsilon` added to what the root is taken of. The region `prologue`, if
    there is one, makes the elements from those of the first `sources` operands, which are broadcast.
    """

    inputs = ("operands*",)
    attributes: ClassVar[dict[str, Any]] = {
        "kind": None, "epsilon": 0.0, "sources": 1, "prologue": None, "epilogue": None,
    }  # fmt: skip

    def fixed_count(self, op: Operation) -> int:
        return int(op.attr("sources"))

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        return [broadcast_shapes(*shapes[: self.fixed_count(op)])]

    def compute(self, op: Operation, *operands: Any) -> Any:
        x = _elements(op, operands)
        wide = summable(x)
        kind, epsilon = op.attr("kind"), op.attr("epsilon")
        with np.errstate(all="ignore"):
            if kind in ("softmax", "log_softmax"):
                shifted = wide - wide.max(axis=-1, keepdims=True, initial=-np.inf)
                total = np.exp(shifted).sum(axis=-1, keepdims=True)
                result = np.exp(shifted) / total if kind == "softmax" else shifted - np.log(total)
            else:
                centred = wide - wide.mean(axis=-1, keepdims=True) if kind == "layer_norm" else wide
                result = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon)
        return np.asarray(result).astype(x.dtype)


def product_shape(a: Shape, b: Shape) -> Shape:
    """The shape of a matrix product. Raises ValueError if the factors do not go together."""
    if a[-1] != b[-2]:
        raise ValueError(f"the rows of {list(a)} are not as long as the columns of {list(b)}")
    return (*broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


@op("gemm", domain="kernel")
class Gemm(KernelOp):
    """The matrix product of the last two dims; the dims before them are broadcast."""

    inputs = ("a", "b", "extras*")
    attributes: ClassVar[dict[str, Any]] = {"epilogue": None}
    traits = frozenset({Trait.CONTRACTION})
    fixed = 2

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        return [product_shape(*shapes[:2])]

    def compute(self, op: Operation, *operands: Any) -> Any:
        a, b = operands
        return np.matmul(summable(a), summable(b)).astype(a.dtype)


class Windowed(KernelOp):
    """What slides a window over the spatial dims of x [n, c, *spatial]; attributes as ONNX has them."""

    def kernel(self, op: Operation, shapes: Sequence[Shape]) -> Shape:
        """The size of the window."""
        raise NotImplementedError

    def channels(self, op: Operation, shapes: Sequence[Shape]) -> int:
        """The channels of the result."""
        raise NotImplementedError

    def window(self, op: Operation, shapes: Sequence[Shape]) -> Window:
        """The window over operands of `shapes`."""
        return Window.of(op, self.kernel(op, shapes))

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        x = shapes[0]
        window = self.window(op, shapes)

        def place(axis: int, *spatial: int) -> int:
            return number(window.output(op, spatial)[axis])

        # Sizes that stay are the same numbers in a trace, and so is what follows from them.
        places = [size if window.keeps(axis) else apply(place, axis, *x[2:]) for axis, size in enumerate(x[2:])]
        return [(x[0], self.channels(op, shapes), *places)]


class Filtering(Windowed):
    """A convolution with filters w [m, c / group, *kernel], the second operand."""

    def kernel(self, op: Operation, shapes: Sequence[Shape]) -> Shape:
        return tuple(shapes[1][2:])

    def channels(self, op: Operation, shapes: Sequence[Shape]) -> int:
        if shapes[0][1] != shapes[1][1] * op.attr("group"):
            raise ValueError(f"{shapes[0][1]} channels, the weights {list(shapes[1])} take another number")
        return shapes[1][0]


class Pooling(Windowed):
    """What looks at each channel by itself, through a window of `kernel_shape`."""

    def kernel(self, op: Operation, shapes: Sequence[Shape]) -> Shape:
        return tuple(op.attr("kernel_shape"))

    def channels(self, op: Operation, shapes: Sequence[Shape]) -> int:
        return shapes[0][1]


_WINDOW: dict[str, Any] = {"strides": (), "pads": (), "dilations": (), "auto_pad": "NOTSET"}


@op("conv", domain="kernel")
class Conv(Filtering):
    """The convolution of x [n, c, *spatial] with w [m, c / group, *kernel]."""

    inputs = ("x", "w", "extras*")
    attributes: ClassVar[dict[str, Any]] = {**_WINDOW, "group": 1, "epilogue": None}
    traits = frozenset({Trait.CONTRACTION})
    fixed = 2

    def compute(self, op: Operation, *operands: Any) -> Any:
        x, w = operands
        return conv(self.window(op, [x.shape, w.shape]), int(op.attr("group")), x, w, None)


@op("conv_transpose", domain="kernel")
class ConvTranspose(Windowed):
    """The transposed convolution of x [n, c, *spatial] with w [c, m / group, *kernel]."""

    inputs = ("x", "w", "extras*")
    attributes: ClassVar[dict[str, Any]] = {
        **_WINDOW, "group": 1, "output_padding": (), "output_shape": (), "epilogue": None,
    }  # fmt: skip
    traits = frozenset({Trait.CONTRACTION})
    fixed = 2

    def kernel(self, op: Operation, shapes: Sequence[Shape]) -> Shape:
        return tuple(shapes[1][2:])

    def channels(self, op: Operation, shapes: Sequence[Shape]) -> int:
        if shapes[0][1] != shapes[1][0]:
            raise ValueError(f"{shapes[0][1]} channels, the weights {list(shapes[1])} take another number")
        return shapes[1][1] * int(op.attr("group"))

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        _, sizes = transposed_sizes(op, self.window(op, shapes), shapes[0][2:])
        return [(shapes[0][0], self.channels(op, shapes), *sizes)]

    def compute(self, op: Operation, *operands: Any) -> Any:
        x, w = operands
        return conv_transpose(op, self.window(op, [x.shape, w.shape]), x, w, None)


@op("pool", domain="kernel")
class Pool(Pooling):
    """The greatest element (`kind` max) or the mean (average) of each window of x [n, c, *spatial]."""

    inputs = ("x", "extras*")
    attributes: ClassVar[dict[str, Any]] = {
        **_WINDOW, "kind": None, "kernel_shape": (), "ceil_mode": 0, "count_include_pad": 0, "epilogue": None,
    }  # fmt: skip
    traits = frozenset({Trait.REDUCTION})
    fixed = 1

    def compute(self, op: Operation, *operands: Any) -> Any:
        window = self.window(op, [operands[0].shape])
        if op.attr("kind") == "max":
            return max_pool(operands[0], window, False)[0]
        return average_pool(operands[0], window, bool(op.attr("count_include_pad")))
