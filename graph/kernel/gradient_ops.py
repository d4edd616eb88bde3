"""Kernels of the backward pass that have no counterpart in the forward one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import Trait, op
from ..ops.conv_numeric import conv_weight_gradient
from ..ops.numeric import summable
from ..ops.pooling_numeric import max_pool
from .kernel_base import KernelOp, Known
from .kernel_ops import Pooling
from .strided import broadcast_shapes

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


@op("attention_grad", domain="kernel")
class AttentionGrad(KernelOp):
    """The adjoints of q, k and v, for that of the result of `kernel.attention`, whose attributes and mask it takes;
    without `offset`. `masking` is "plain" or "zero".

    With weights P = softmax(S), S = q k^T * scale, masked, and dP = grad v^T: dv = P^T grad, dq = dS k, dk = dS^T q,
    where dS = P (dP - rowsum(P dP)) * scale, times what cap and mask make of it (Dao et al. 2022, arXiv 2205.14135).
    """

    inputs = ("q", "k", "v", "grad", "mask?")
    outputs = ("dq", "dk", "dv")
    attributes: ClassVar[dict[str, Any]] = {
        "scale": 1.0, "softcap": 0.0, "causal": 0, "masked_score": -math.inf, "masking": "plain",
    }  # fmt: skip
    traits = frozenset({Trait.CONTRACTION})
    fixed = 5

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        q, k, v, grad = shapes[:4]
        if q[3] != k[3] or k[:3] != v[:3] or q[0] != k[0] or not k[1] or q[1] % k[1] or grad != (*q[:3], v[3]):
            raise ValueError(f"q {list(q)}, k {list(k)}, v {list(v)} and the adjoint {list(grad)} do not go together")
        if op.input(4) is not None and broadcast_shapes(shapes[4], (*q[:3], k[2])) != (*q[:3], k[2]):
            raise ValueError(f"a mask of {list(shapes[4])} for scores of {[*q[:3], k[2]]}")
        return [q, k, v]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        q, k, v, grad = (summable(operand) for operand in operands[:4])
        batch, heads = k.shape[:2]
        # [batch, heads of keys, repeats, queries or keys, size]
        q, grad = (each.reshape(batch, heads, -1, *each.shape[2:]) for each in (q, grad))
        k, v = k[:, :, None], v[:, :, None]
        with np.errstate(all="ignore"):
            scores = q @ np.swapaxes(k, 3, 4) * q.dtype.type(op.attr("scale"))
            factor = np.ones_like(scores)
            if cap := op.attr("softcap"):
                scores = np.tanh(scores / q.dtype.type(cap)) * q.dtype.type(cap)
                factor = 1 - np.square(scores / q.dtype.type(cap))
            if len(operands) > 4 and operands[4] is not None:
                whole = np.broadcast_to(operands[4], (batch, heads * q.shape[2], *scores.shape[3:]))
                mask = whole.reshape(scores.shape)
                is_kept = mask if mask.dtype.kind == "b" else True
                added = scores if mask.dtype.kind == "b" else scores + mask
                scores = np.where(is_kept, added, q.dtype.type(op.attr("masked_score")))
                factor = np.where(is_kept, factor, 0)
            if op.attr("causal"):
                scores = np.where(np.tri(*scores.shape[3:]) > 0, scores, -np.inf)
            highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
            weights = np.exp(scores - highest)
            weights = weights / weights.sum(axis=-1, keepdims=True)
            if op.attr("masking") == "zero":
                weights = np.where(highest == -np.inf, 0, weights)
            slopes = grad @ np.swapaxes(v, 3, 4)
            slopes = weights * (slopes - (weights * slopes).sum(axis=-1, keepdims=True))
            slopes = slopes * factor * q.dtype.type(op.attr("scale"))
        dq = (slopes @ k).reshape(operands[0].shape)
        dk = (np.swapaxes(slopes, 3, 4) @ q).sum(axis=2)
        dv = (np.swapaxes(weights, 3, 4) @ grad).sum(axis=2)
        return tuple(each.astype(operands[0].dtype) for each in (dq, dk, dv))


@op("max_pool", domain="kernel")
class MaxPool(Pooling):
    """The greatest element of each window of x [n, c, *spatial], and its number in the flattened x (i64)."""

    inputs = ("x",)
    outputs = ("result", "places")
    attributes: ClassVar[dict[str, Any]] = {
        "strides": (), "pads": (), "dilations": (), "auto_pad": "NOTSET", "kernel_shape": (), "ceil_mode": 0,
    }  # fmt: skip
    traits = frozenset({Trait.REDUCTION})
    fixed = 1

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        return super().result_shapes(op, shapes, known) * 2

    def compute(self, op: Operation, *operands: Any) -> Any:
        return max_pool(operands[0], self.window(op, [operands[0].shape]), False)


@op("max_pool_grad", domain="kernel")
class MaxPoolGrad(KernelOp):
    """Zeros of shape `shape` with each element of `grad` added at its number among `places`: the adjoint of
    `kernel.max_pool` with these attributes."""

    inputs = ("grad", "places", "shape")
    attributes: ClassVar[dict[str, Any]] = {"kernel_shape": (), "strides": (), "dilations": (), "pads": ()}
    known_operands = (2,)
    fixed = 3

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        return [tuple(known(2).tolist())]

    def compute(self, op: Operation, *operands: Any) -> Any:
        grad, places, shape = operands
        flat = np.zeros(math.prod(shape), grad.dtype)
        np.add.at(flat, places.reshape(-1), grad.reshape(-1))
        return flat.reshape(tuple(shape))
