"""Gradient operators of our own, in the domain "tilewright": what standard operators say in many steps, or slowly.

Each has a body in standard operators, which is what a file gets; targets with a kernel for one run that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cached import cached_property
from ..core import Operation
from ..dims import Dim, product
from ..opdef import AttributeSpec, OpDefinition, lookup, op
from .common import (
    TensorOp,
    element_dim,
    length_of,
    operand_size,
    require_rank,
    shape_of,
    times,
    unknown_dims,
    vector_elements,
)

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Value
    from ..infer import InferenceContext
    from ..types import Type

DOMAIN = "tilewright"


def _dims_of(op: Operation, index: int, context: InferenceContext) -> Sequence[Dim] | None:
    """The dims that vector operand `index` gives."""
    elements = vector_elements(op, index, context)
    if elements is None:
        return unknown_dims(length_of(op, index), context)
    return [element_dim(item, context) for item in elements]


@op("EmbeddingGrad", domain=DOMAIN)
class EmbeddingGrad(TensorOp):
    """Zeros of shape `shape` with the rows of `grad` added: result[indices[i]] += grad[i]. The adjoint of Gather along
    axis 0; negative indices count from the end."""

    inputs = ("grad", "indices", "shape")
    outputs = ("result",)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return _dims_of(op, 2, context)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        grad, indices, shape = operands
        result = np.zeros(tuple(shape), grad.dtype)
        np.add.at(result, indices, grad)
        return result

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        grad, indices, shape = op.operand_values
        zeros = _zeros(builder, grad, shape)
        places = builder.unsqueeze(indices, np.array([-1], np.int64))
        return [builder.scatter_nd(zeros, places, grad, reduction="add")]

    def flops(self, op: Operation) -> Dim | None:
        return operand_size(op)


@op("MaxPoolGrad", domain=DOMAIN)
class MaxPoolGrad(TensorOp):
    """Zeros of shape `shape` with each element of `grad` added at its index in the flattened result: the adjoint of
    MaxPool, whose second result the indices are.

    The attributes are MaxPool's and change nothing: they say which windows may name an element, if that is known."""

    inputs = ("grad", "indices", "shape")
    outputs = ("result",)
    attributes = {"kernel_shape": (), "strides": (), "dilations": (), "pads": ()}  # noqa: RUF012

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return _dims_of(op, 2, context)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        grad, indices, shape = operands
        flat = np.zeros(int(np.prod(shape)), grad.dtype)
        np.add.at(flat, indices.reshape(-1), grad.reshape(-1))
        return flat.reshape(tuple(shape))

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        grad, indices, shape = op.operand_values
        flat = np.array([-1], np.int64)
        zeros = _zeros(builder, grad, builder.reduce_prod(shape, keepdims=1))
        added = builder.scatter_elements(
            zeros, builder.reshape(indices, flat), builder.reshape(grad, flat), axis=0, reduction="add"
        )
        return [builder.reshape(added, shape)]

    def flops(self, op: Operation) -> Dim | None:
        return operand_size(op)


def _zeros(builder: OpBuilder, like: Value, shape: Value) -> Value:
    from ..types import TensorType

    assert isinstance(like.type, TensorType)
    filling = np.zeros(1, like.type.dtype.numpy)
    result: Value = builder.constant_of_shape(shape, value=filling)
    return result


@op("ConvWeightGrad", domain=DOMAIN)
class ConvWeightGrad(TensorOp):
    """The adjoint of Conv's weight: x [n, c, *spatial] and grad [n, m, *places] give [m, c / group, *kernel].

    Element [m, c, k] sums x at place * stride + k * dilation - pad times the adjoint at that place. In standard
    operators this is a convolution of x with the adjoint, in which batch and channels are exchanged, and strides and
    dilations too.
    """

    inputs = ("x", "grad")
    outputs = ("result",)
    attributes = {"kernel_shape": None, "strides": (), "dilations": (), "pads": (), "group": 1}  # noqa: RUF012

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, grad, kernel = shape_of(op, 0), shape_of(op, 1), op.attr("kernel_shape")
        for index, shape in ((0, x), (1, grad)):
            if shape is not None:
                require_rank(op, index, shape, len(kernel) + 2)
        channels = context.fresh() if x is None else x[1] // op.attr("group")
        return [context.fresh() if grad is None else grad[1], channels, *kernel]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        from .conv_numeric import conv_weight_gradient

        return conv_weight_gradient(op, *operands)

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x, grad = op.operand_values
        kernel, group = op.attr("kernel_shape"), op.attr("group")
        spatial = list(range(2, len(kernel) + 2))
        exchanged = [1, 0, *spatial]
        images = builder.transpose(x, perm=exchanged)
        if group > 1:
            channels = shape_of(op, 0)
            if channels is None or not isinstance(channels[1], int):
                return None
            # [n, group, c / group, ...] to [c / group, group * n, ...]: each group is a group of the new convolution.
            head = builder.concat(
                np.array([group, channels[1] // group], np.int64), builder.shape(x, end=1), builder.shape(x, start=2),
                axis=0,
            )  # fmt: skip
            apart = builder.reshape(images, head)
            apart = builder.transpose(apart, perm=[1, 0, 2, *[axis + 1 for axis in spatial]])
            merged = builder.concat(np.array([channels[1] // group, -1], np.int64), builder.shape(x, start=2), axis=0)
            images = builder.reshape(apart, merged)
        ones = (1,) * len(kernel)
        found = builder.conv(
            images, builder.transpose(grad, perm=exchanged), group=group, pads=op.attr("pads") or None,
            strides=op.attr("dilations") or ones, dilations=op.attr("strides") or ones,
        )  # fmt: skip
        # What the window left over at the end would be further places of the kernel.
        begin, end = np.zeros(len(kernel), np.int64), np.array(kernel, np.int64)
        cut = builder.slice(found, begin, end, np.array(spatial, np.int64))
        return [builder.transpose(cut, perm=exchanged)]

    def flops(self, op: Operation) -> Dim | None:
        x, elements = shape_of(op, 0), operand_size(op, 1)
        if x is None or elements is None:
            return None
        return times(2, elements * (x[1] // op.attr("group")) * product(op.attr("kernel_shape")))


@op("AttentionGrad", domain=DOMAIN)
class AttentionGrad(OpDefinition):
    """The adjoints of Attention's query, key and value, given that of its result; attributes as Attention's.

    Without past, sequence lengths or further results. The weights are computed again from query, key and mask, so that
    nothing of the size of the scores is kept from the forward pass (Dao et al. 2022, arXiv 2205.14135).
    """

    inputs = ("query", "key", "value", "grad", "mask?")
    outputs = ("query_grad", "key_grad", "value_grad")

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        return lookup("", "Attention").attribute_specs

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return [op.operand_values[index].type for index in range(3)]

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """The parts of Attention, differentiated."""
        from ..gradients.sweep import pulled_back

        query, key, value, grad, mask = (*op.operands, None)[:5]
        sources = [each for each in (query, key, value) if each is not None]
        twin = Operation(
            lookup("", "Attention"), [*sources, *([] if mask is None else [mask])], op.attributes,
            [op.operand_values[3].type], location=op.location,
        )  # fmt: skip
        try:
            return pulled_back(twin, [grad], sources, builder)
        finally:
            twin._drop_operands()

    def flops(self, op: Operation) -> Dim | None:
        """Twice the two products of the forward pass, and the scores once more."""
        query, key = shape_of(op, 0), shape_of(op, 1)
        if query is None or key is None:
            return None
        return times(10, product(query) * key[-2])
