"""Kernels of the backward pass that have no counterpart in the forward one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..opdef import Trait, op
from ..ops.conv_numeric import conv_weight_gradient
from .kernel_base import KernelOp, Known

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


@op("conv_weight", domain="kernel")
class ConvWeight(KernelOp):
    """The adjoint [m, c / group, *kernel_shape] of a convolution's filters, for its x [n, c, *spatial] and the adjoint
    of its result [n, m, *places]; attributes as `tilewright.ConvWeightGrad` has them."""

    inputs = ("x", "grad")
    attributes: ClassVar[dict[str, Any]] = {
        "kernel_shape": (), "strides": (), "dilations": (), "pads": (), "group": 1,
    }  # fmt: skip
    traits = frozenset({Trait.CONTRACTION})
    fixed = 2

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        x, grad = shapes
        groups = int(op.attr("group"))
        if x[0] != grad[0] or x[1] % groups or grad[1] % groups:
            raise ValueError(f"x {list(x)} and the adjoint {list(grad)} do not go together in {groups} groups")
        return [(grad[1], x[1] // groups, *op.attr("kernel_shape"))]

    def compute(self, op: Operation, *operands: Any) -> Any:
        return conv_weight_gradient(op, *operands)
