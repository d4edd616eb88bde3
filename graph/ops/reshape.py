"""Reshape: what the elements of its target say of the result, of the operand, and of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import ExecutionError
from ..dims import Dim, exact_div, factors_of, product, prove_equal
from ..opdef import Trait, op
from ..types import TensorType
from .common import Shape, elements_of, error, format_shape, length_of, shape_of, unknown_dims, vector_elements
from .shape import KeepsOrder
from .values import is_non_negative, is_positive

if TYPE_CHECKING:
    from ..core import Operation, Value
    from ..infer import InferenceContext

# How far up a dim is followed to where it was made; real networks reshape it soon.
_MAX_STEPS = 64


@op("Reshape")
class Reshape(KeepsOrder):
    """New dims from the elements of `shape`: -1 stands for what is left, 0 (unless allowzero) copies the old dim.

    An element that is only known as a symbol, t, may be 0 at run time and then copies the dim at its position, x.
    ONNX Runtime and onnx.reference agree on what follows (x of 2 dims, t as it is at run time):

        [1, 0] to [0, -1]     [1, 0]      copied: the 0 is not the dim
        [2, 3] to [0, 3]      [2, 3]
        [0, 8] to [0, 0, 4]   [0, 8, 4]   both copied; the number of elements fits, as it is 0
        [0, 8] to [3, 0, 4]   error       3 * 8 * 4 elements are not 0
        [0, 3] to [0, -1]     error       -1 beside a 0 that stays: what is left is not determined
        [2] to [2, 0]         error       there is no dim to copy

    So the dim is t where t cannot be 0, where copying gives 0 as well (x is 0 whenever t is: it is a multiple of t, or
    was broadcast from it), or where t = 0 is an error: beyond the rank of x, beside a -1 and a dim that is then 0, or
    when no other dim can account for there being no elements. Otherwise it is a symbol of its own, the same one for the
    same t and x.

    With allowzero each element is the dim itself. (A -1 beside a 0 is then an error in the standard; ONNX Runtime
    leaves out zeros on both sides, and gets 1 * 3 for [0, 3] to [0, -1].)
    """

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        target = vector_elements(op, 1, context)
        if target is None:
            return unknown_dims(length_of(op, 1), context)
        shape = shape_of(op, 0)
        _check_target(op, target, shape)
        keeps_zero = bool(op.attr("allowzero", 0))
        dims = [None if item == -1 else item for item in target] if keeps_zero else _copied(op, target, shape, context)
        dims = [dim if dim is not None and is_non_negative(dim) else None for dim in dims]
        return _resolve(op, target, dims, shape, context)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        data, target = operands
        dims = [int(dim) for dim in target]
        if min(dims, default=0) < -1:
            raise ExecutionError("run/reshape", f"reshape to {dims}: only -1 stands for a dim to be found")
        if not op.attr("allowzero", 0):
            if 0 in dims[data.ndim :]:
                raise ExecutionError("run/reshape", f"reshape to {dims}: there is no dim {data.ndim} to copy")
            dims = [data.shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
        return data.reshape(dims)


def positive_elements(op: Operation, context: InferenceContext) -> list[Dim]:
    """The elements of Reshape's target that are at least 1 wherever it runs, although their ranges allow 0."""
    target, shape = vector_elements(op, 1, context), shape_of(op, 0)
    if target is None or shape is None or op.attr("allowzero", 0):
        return []
    has_rest = _has_rest(target)
    return [
        item
        for index, item in enumerate(target)
        if not isinstance(item, int) and is_non_negative(item) and not is_positive(item)
        if index >= len(shape)
        or (has_rest and _copies_zero(op, shape[index], item))
        or (is_positive(shape[index]) and _fails_at_zero(target, shape, index))
    ]


def ambiguous_elements(op: Operation, context: InferenceContext) -> list[Dim]:
    """The elements of Reshape's target beside a -1 that may be 0, and then copy a dim that is none."""
    target, shape = vector_elements(op, 1, context), shape_of(op, 0)
    if target is None or shape is None or op.attr("allowzero", 0) or not _has_rest(target):
        return []
    return [
        item
        for index, item in enumerate(target[: len(shape)])
        if not isinstance(item, int) and is_non_negative(item) and not is_positive(item)
        if not _copies_zero(op, shape[index], item)
    ]


def _has_rest(target: list[Any]) -> bool:
    return any(isinstance(item, int) and item == -1 for item in target)


def _check_target(op: Operation, target: list[Any], shape: Shape | None) -> None:
    for index, item in enumerate(target):
        if isinstance(item, int) and item < -1:
            raise error("shape/reshape", f"reshape to {target}: {item} is no dim")
        copies = isinstance(item, int) and item == 0 and not op.attr("allowzero", 0)
        if copies and shape is not None and index >= len(shape):
            raise error("shape/reshape", f"reshape to {target} copies dim {index} of {format_shape(shape)}")
    if sum(isinstance(item, int) and item == -1 for item in target) > 1:
        raise error("shape/reshape", f"reshape to {target}: only one dim can be -1")


def _copied(op: Operation, target: list[Any], shape: Shape | None, context: InferenceContext) -> list[Dim | None]:
    """The dims that Reshape's target says by itself where 0 copies; None for -1 and for what is unknown."""
    has_rest = _has_rest(target)
    dims: list[Dim | None] = []
    for index, item in enumerate(target):
        if isinstance(item, int):
            dims.append(item if item > 0 else None if item < 0 or shape is None else shape[index])
        elif not is_non_negative(item):
            dims.append(None)
        elif is_positive(item):
            dims.append(item)
        elif shape is None:
            dims.append(None)
        elif index >= len(shape) or _copies_zero(op, shape[index], item) or _fails_at_zero(target, shape, index):
            dims.append(item)
        else:
            least = 1 if has_rest or is_positive(shape[index]) else 0
            dims.append(context.derived("reshape", item, shape[index], minimum=least))
    return dims


def _vanishes_with(dim: Dim, other: Dim) -> bool:
    """Whether `dim` is provably 0 whenever `other` is."""
    if isinstance(dim, int):
        return dim == 0
    if exact_div(dim, other) is not None:
        return True
    # A product is 0 when one of its factors is.
    return all(is_positive(factor) or exact_div(dim, factor) is not None for factor in factors_of(other))


def _copies_zero(op: Operation, dim: Dim, item: Dim) -> bool:
    """Whether `dim`, of the operand of Reshape `op`, is 0 whenever element `item` of the target is."""
    return _vanishes_with(dim, item) or _is_broadcast_from(op.operand_values[0], dim, item)


def _is_broadcast_from(value: Value, dim: Dim, other: Dim, depth: int = 3) -> bool:
    """Whether `dim`, a symbol in the shape of `value`, was made by broadcasting one that is 0 whenever `other` is.

    Then so is `dim`: what 0 is broadcast against is 1 or 0, and the result is 0.
    """
    for _ in range(_MAX_STEPS):
        if value.producer is None:
            return False
        source = next((v for v in value.producer.operand_values if dim in _dims_of(v)), None)
        if source is None:
            break
        value = source
    shape, maker = _dims_of(value), value.producer
    if maker is None or Trait.BROADCAST not in maker.definition.traits or dim not in shape:
        return False
    place = len(shape) - shape.index(dim)
    met = [(v, dims[-place]) for v in maker.operand_values if len(dims := _dims_of(v)) >= place]
    return any(
        _vanishes_with(each, other) or (depth > 0 and each != 1 and _is_broadcast_from(v, each, other, depth - 1))
        for v, each in met
    )


def _dims_of(value: Value) -> Shape:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


def _fails_at_zero(target: list[Any], shape: Shape, index: int) -> bool:
    """Whether Reshape of `shape` to `target` is an error if element `index` is 0 but the dim at its place is not."""
    zero = target[index]
    # The other elements that can be 0, each with the dim that it then copies (beyond the rank, 0 is an error).
    others = [
        (item, shape[position])
        for position, item in enumerate(target[: len(shape)])
        if position != index and not (isinstance(item, int) and item)
    ]
    if not all(isinstance(item, int) or is_non_negative(item) for item in target):
        return False
    if _has_rest(target):
        return any(_vanishes_with(dim, zero) and (item == 0 or _vanishes_with(item, zero)) for item, dim in others)
    may_vanish = any(not is_positive(dim) and not is_positive(item) for item, dim in others)
    return not may_vanish and _vanishes_with(product(shape), zero)


def _resolve(
    op: Operation, target: list[Any], dims: list[Dim | None], shape: Shape | None, context: InferenceContext
) -> Shape:
    """Dims with the unknown one computed from the number of elements, if it is the only one."""
    known, total = product(dim for dim in dims if dim is not None), elements_of(shape)
    unknown = sum(dim is None for dim in dims)
    text = format_shape(["?" if dim is None else dim for dim in dims])
    if not unknown and total is not None and prove_equal(total, known) is False:
        raise error(
            "shape/reshape", f"reshape of {format_shape(shape)} to {text}: {total} elements do not become {known}"
        )
    rest: Dim | None = None
    # Beside a -1 no dim is 0 where this runs; an unknown dim beside a 0 can be anything.
    determined = _has_rest(target) or is_positive(known)
    if unknown == 1 and determined and shape is not None and not (isinstance(known, int) and known == 0):
        left, right = _without_common(shape, [dim for dim in dims if dim is not None])
        rest = exact_div(left, right)
        if rest is None and isinstance(right, int):
            if isinstance(left, int):
                raise error("shape/reshape", f"reshape of {format_shape(shape)} to {text}: {total} elements do not fit")
            rest = left // right
    return tuple(dim if dim is not None else context.fresh() if rest is None else rest for dim in dims)


def _without_common(left: Sequence[Dim], right: Sequence[Dim]) -> tuple[Dim, Dim]:
    """The products of both lists, without the symbolic dims that both have."""
    remaining, divisor = list(left), []
    for dim in right:
        if not isinstance(dim, int) and dim in remaining:
            remaining.remove(dim)
        else:
            divisor.append(dim)
    return product(remaining), product(divisor)
