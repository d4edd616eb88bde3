"""Products and convolutions of bytes: exact sums in i32, zero points taken off both factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import types
from ..dtypes import DType, i8, i32, u8
from ..opdef import Trait, op
from ..ops.conv_numeric import conv
from .kernel_base import KernelOp, Known, epilogue_of, kernel_fault
from .kernel_ops import _WINDOW, Filtering, product_shape
from .strided import broadcast_shapes

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape

# Kernels whose sums are i32, whatever their epilogues make of them.
INTEGER_PRODUCTS = frozenset({"kernel.integer_gemm", "kernel.integer_conv"})


def check_bytes(op: Operation) -> None:
    """Raise TypeInferenceError unless both factors are bytes, their zero points are like them, and sums are i32."""
    dtypes = [getattr(value.type, "dtype", None) for value in op.operand_values[:4]]
    if len(dtypes) < 4 or dtypes[0] not in (u8, i8) or dtypes[1] not in (u8, i8) or dtypes[2:] != dtypes[:2]:
        raise kernel_fault(op, f"needs two tensors of bytes and zero points of their dtypes, got {dtypes}")
    block = epilogue_of(op)
    summed = op.results[0].type if block is None else block.arguments[0].type
    if getattr(summed, "dtype", None) is not i32:
        raise kernel_fault(op, f"makes sums of i32, not {summed}")


class _Integers(KernelOp):
    def check(self, op: Operation) -> None:
        check_bytes(op)
        super().check(op)


@op("integer_gemm", domain="kernel")
class IntegerGemm(_Integers):
    """(a - a_zero) (b - b_zero) of the last two dims; the dims before them are broadcast, sums are i32 and wrap.

    A zero point is broadcast to its factor; that of a is alike along its last dim, that of b along the one before it.
    """

    inputs = ("a", "b", "a_zero", "b_zero", "extras*")
    attributes: ClassVar[dict[str, Any]] = {"epilogue": None}
    traits = frozenset({Trait.CONTRACTION})
    fixed = 4

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        a, b = shapes[:2]
        whole = product_shape(a, b)
        broadcast_shapes(a, shapes[2])
        broadcast_shapes(b, shapes[3])
        return [whole]

    def compute(self, op: Operation, *operands: Any) -> Any:
        a, b, a_zero, b_zero = (operand.astype(np.float64) for operand in operands)
        return _wrapped(np.matmul(a - a_zero, b - b_zero))


@op("integer_conv", domain="kernel")
class IntegerConv(_Integers, Filtering):
    """The convolution of x - x_zero [n, c, *spatial] with w - w_zero [m, c / group, *kernel]; sums are i32 and wrap.

    Around the image lies x_zero, which is one number. w_zero is one, or one for each of the m outputs.
    """

    inputs = ("x", "w", "x_zero", "w_zero", "extras*")
    attributes: ClassVar[dict[str, Any]] = {**_WINDOW, "group": 1, "epilogue": None}
    traits = frozenset({Trait.CONTRACTION})
    fixed = 4

    def compute(self, op: Operation, *operands: Any) -> Any:
        x, w, x_zero, w_zero = (operand.astype(np.float64) for operand in operands)
        window = self.window(op, [x.shape, w.shape])
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
        return _wrapped(conv(window, int(op.attr("group")), x - x_zero.reshape(()), w - w_zero, None))


def _wrapped(sums: np.ndarray) -> np.ndarray:
    """Whole numbers as i32."""
    return np.asarray(sums).astype(np.int64).astype(np.int32)


def sums_type(type: types.TensorType) -> types.TensorType:
    """The type of the sums of a result."""
    return type.with_dtype(i32)


def all_bytes(dtype: DType) -> np.ndarray:
    """The 256 numbers of a dtype of bytes, in the order of their bits."""
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


@op("table", domain="kernel")
class Table(KernelOp):
    """table[x] for each byte of x, whose bits are the place in the table of 256 bytes."""

    inputs = ("x", "table")
    traits = frozenset({Trait.ELEMENTWISE})

    def fixed_count(self, op: Operation) -> int:
        return 2

    def check(self, op: Operation) -> None:
        dtypes = [getattr(value.type, "dtype", None) for value in (*op.operand_values, *op.results)]
        if dtypes[0] not in (u8, i8) or dtypes[1] not in (u8, i8) or dtypes[2] is not dtypes[1]:
            raise kernel_fault(op, f"looks bytes up among bytes, not {dtypes}")

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        if shapes[1] != (256,):
            raise ValueError(f"a table of {list(shapes[1])} does not have an entry for each byte")
        return [shapes[0]]

    def compute(self, op: Operation, *operands: Any) -> Any:
        x, table = operands
        return table[x.view(np.uint8)]
