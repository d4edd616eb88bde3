"""Derivatives of gathers and scatters: each is the other's adjoint. Indices have no derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .builder import GradientBuilder
from .rules import Adjoint, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value


@gradient_of("Gather")
def gather(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """Rows that were read several times get the sum."""
    data, indices = op.operand_values
    grad = grads[0]
    assert grad is not None
    axis, count = op.attr("axis") % b.rank(data), b.rank(indices)
    if axis == 0:
        return [embedding_gradient(b, grad, indices, b.dims(data))]
    # The dims of the indices, then of the data before the axis, then after it.
    front = [*range(axis, axis + count), *range(axis), *range(axis + count, b.rank(grad))]
    perm = [axis, *(each for each in range(b.rank(data)) if each != axis)]
    dims = b.gather(b.dims(data), b.ints(perm))
    found = embedding_gradient(b, b.transpose(grad, perm=front), indices, dims)
    return [b.transpose(found, perm=b.inverse_permutation(perm))]


def embedding_gradient(b: GradientBuilder, grad: Value, indices: Value, dims: Value) -> Value:
    """Zeros of shape `dims`, with `grad[i]` added to row `indices[i]`."""
    return b.create("tilewright.EmbeddingGrad", [grad, indices, dims]).result


@gradient_of("EmbeddingGrad", domain="tilewright")
def embedding(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.gather(grads[0], op.operands[1], axis=0)]


@gradient_of("MaxPoolGrad", domain="tilewright")
def max_pool_gradient(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    return [take_flat(b, grads[0], op.operands[1])]


def take_flat(b: GradientBuilder, x: Value | None, places: Value | None) -> Value:
    """The elements of the flattened x at `places`, in the shape of `places`."""
    result: Value = b.gather(b.reshape(x, b.ints([-1])), places, axis=0)
    return result


@gradient_of("GatherElements")
def gather_elements(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    data, indices = op.operand_values
    zeros = b.zeros_like(data)
    return [b.scatter_elements(zeros, indices, grads[0], axis=op.attr("axis"), reduction="add")]


@gradient_of("GatherND")
def gather_nd(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    data, indices = op.operand_values
    batch = op.attr("batch_dims")
    places = _with_batch_places(b, indices, batch) if batch else indices
    return [b.scatter_nd(b.zeros_like(data), places, grads[0], reduction="add")]


def _with_batch_places(b: GradientBuilder, indices: Value, batch: int) -> Value:
    """The indices with those of the batch dims, along which they run in step, before them."""
    rank = b.rank(indices)
    head = b.slice(b.dims(indices), b.ints([0]), b.ints([rank - 1]), b.ints([0]))
    columns: list[Value] = []
    for axis in range(batch):
        places = b.arange(b.dim(indices, axis))
        spread = b.unsqueeze(places, b.ints([each for each in range(rank - 1) if each != axis])) if rank > 2 else places
        columns.append(b.unsqueeze(b.expand(spread, head), b.ints([-1])))
    result: Value = b.concat(*columns, indices, axis=-1)
    return result


@gradient_of("ScatterElements", "Scatter")
def scatter_elements(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    data, indices, _ = op.operand_values
    axis = op.attr("axis")

    def put(target: Value, value: float) -> Value:
        updates = b.filled(b.dims(indices), target, value)
        result: Value = b.scatter_elements(target, indices, updates, axis=axis)
        return result

    def read(source: Value) -> Value:
        result: Value = b.gather_elements(source, indices, axis=axis)
        return result

    def add(updates: Value) -> Value:
        result: Value = b.scatter_elements(b.zeros_like(data), indices, updates, axis=axis, reduction="add")
        return result

    return _scatter_adjoints(op, grads, b, put, read, add)


@gradient_of("ScatterND")
def scatter_nd(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    data, indices, given = op.operand_values

    def put(target: Value, value: float) -> Value:
        result: Value = b.scatter_nd(target, indices, b.filled(b.dims(given), target, value))
        return result

    def read(source: Value) -> Value:
        result: Value = b.gather_nd(source, indices)
        return result

    def add(updates: Value) -> Value:
        result: Value = b.scatter_nd(b.zeros_like(data), indices, updates, reduction="add")
        return result

    return _scatter_adjoints(op, grads, b, put, read, add)


def _scatter_adjoints(
    op: Operation,
    grads: Sequence[Value | None],
    b: GradientBuilder,
    put: Callable[[Value, float], Value],
    read: Callable[[Value], Value],
    add: Callable[[Value], Value],
) -> Sequence[Adjoint]:
    """`put` writes a number, `read` gathers, and `add` adds up, at the places that the scatter wrote."""
    data, _, updates = op.operand_values
    grad, how = grads[0], op.attr("reduction") or "none"
    assert grad is not None
    if how == "none":
        return [put(grad, 0.0) if b.needs(data) else None, None, read(grad) if b.needs(updates) else None]
    if how == "add":
        return [grad, None, read(grad) if b.needs(updates) else None]
    if how == "mul":
        return _product_adjoints(op, grad, b, read, add)
    y = op.results[0]
    # Max and min: all that are equal to the result share.
    own = b.cast(b.equal(data, y), to=b.dtype(grad))
    hits = b.cast(b.equal(updates, read(y)), to=b.dtype(grad))
    share = b.div(grad, b.max(b.add(own, add(hits)), 1.0))
    return [b.mul(share, own), None, b.mul(read(share), hits)]


def _product_adjoints(
    op: Operation,
    grad: Value,
    b: GradientBuilder,
    read: Callable[[Value], Value],
    add: Callable[[Value], Value],
) -> Sequence[Adjoint]:
    """The product of a place's other factors: a quotient of what is not zero, and zero if another factor is."""
    data, indices, updates = op.operand_values
    zeros, factors = zip(*[_without_zeros(b, each) for each in (data, updates)], strict=True)
    product = b.create(op.definition, [factors[0], indices, factors[1]], op.attributes).result
    count = b.add(zeros[0], add(zeros[1]))
    found: list[Adjoint] = []
    for own, factor, here in ((zeros[0], factors[0], lambda x: x), (zeros[1], factors[1], read)):
        none = b.equal(b.sub(here(count), own), 0.0)
        others = b.where(none, b.div(here(product), factor), b.number(factor, 0.0))
        found.append(b.mul(here(grad), others))
    return [found[0], None, found[1]]


def _without_zeros(b: GradientBuilder, x: Value) -> tuple[Value, Value]:
    """1 where x is zero, else 0; and x with 1 in the place of zeros."""
    zero = b.equal(x, 0.0)
    return b.cast(zero, to=b.dtype(x)), b.where(zero, b.number(x, 1.0), x)


@gradient_of("TensorScatter")
def tensor_scatter(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The cache loses what was overwritten; the update has it."""
    past, update, starts = (*op.operands, None)[:3]
    assert past is not None
    assert update is not None
    axis = op.attr("axis") % b.rank(past)
    without = b.create(op.definition, [grads[0], b.zeros_like(update), starts], op.attributes).result
    if not b.needs(update):
        return [without]
    places = b.arange(b.dim(update, axis))
    if starts is not None:
        places = b.add(b.unsqueeze(starts, b.ints([1])), b.unsqueeze(places, b.ints([0])))
    else:
        places = b.unsqueeze(places, b.ints([0]))
    if op.attr("mode") == "circular":
        places = b.mod(places, b.dim(past, axis))
    others = [each for each in range(1, b.rank(past)) if each != axis]
    if others:
        places = b.unsqueeze(places, b.ints(others))
    return [without, b.gather_elements(grads[0], b.expand(places, b.dims(update)), axis=axis)]


@parts_of("Compress")
def compress(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """The entries at the places where the condition is true."""
    x, condition = op.operand_values
    axis = op.attr("axis")
    places = b.reshape(b.nonzero(condition), b.ints([-1]))
    return [b.gather(x if axis is not None else b.reshape(x, b.ints([-1])), places, axis=axis or 0)]


@gradient_of("TopK")
def topk(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    x = op.operand_values[0]
    zeros, places = b.zeros_like(x), op.results[1]
    return [b.scatter_elements(zeros, places, grads[0], axis=op.attr("axis"))]


@gradient_of("OneHot")
def one_hot(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The two values: the off value has what the other has not."""
    indices, depth, _ = op.operand_values
    grad = grads[0]
    assert grad is not None
    ends = b.const([0.0, 1.0], b.dtype(grad))
    hot = b.one_hot(indices, depth, ends, axis=op.attr("axis"))
    on = b.reduce_sum(b.mul(grad, hot), keepdims=0)
    off = b.sub(b.reduce_sum(grad, keepdims=0), on)
    return [None, None, b.concat(*[b.unsqueeze(each, b.ints([0])) for each in (off, on)], axis=0)]
