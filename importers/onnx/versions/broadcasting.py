"""Operators that broadcast by `broadcast` and `axis` attributes before opset 7, and by numpy's rules since."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.data import ArrayData
from ....graph.dims import Dim, prove_equal
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, KeepOldForm, Node, constant, rank, shape, tensor_type

_BINARY = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Greater", "Less", "Pow")
_VARIADIC = ("Max", "Min", "Sum", "Mean")


@step_up(7, *_BINARY)
def _binary_up(node: Node, facts: Facts) -> None:
    """`broadcast=1` without `axis` aligns the last dims, as numpy does; `axis` aligns elsewhere and has no such form
    unless it happens to name the last dims."""
    if node.has_reference("broadcast", "axis"):
        raise KeepOldForm
    broadcast = node.attributes.pop("broadcast", 0)
    axis = node.attributes.pop("axis", None)
    if broadcast and axis is not None and not _aligns_last(node, axis, facts):
        raise KeepOldForm
    node.legacy["broadcast"] = broadcast
    if axis is not None:
        node.legacy["axis"] = axis


def _aligns_last(node: Node, axis: int, facts: Facts) -> bool:
    left, right = rank(facts, node.input(0)), shape(facts, node.input(1))
    if left is None or right is None:
        return False
    one_element = len(right) <= left and all(dim == 1 for dim in right)
    return one_element or (axis + left if axis < 0 else axis) + len(right) == left


@step_down(7, *_BINARY)
def _binary_down(node: Node, facts: Facts) -> None:
    left, right = shape(facts, node.input(0)), shape(facts, node.input(1))
    if "broadcast" in node.legacy and _is_possible(left, right, node.legacy["broadcast"]):
        if node.legacy["broadcast"]:
            node.attributes["broadcast"] = node.legacy["broadcast"]
        if "axis" in node.legacy:
            node.attributes["axis"] = node.legacy["axis"]
        return
    if left is None or right is None:
        raise CannotDowngrade("its operands' shapes are unknown, and broadcasting must be said before opset 7")
    if _are_equal(left, right):
        return
    suffix = left[len(left) - len(right) :]
    one_element = all(dim == 1 for dim in right)
    if len(right) > len(left) or not (one_element or _are_equal(suffix, right)):
        raise CannotDowngrade("its operands broadcast in a way that does not exist before opset 7")
    node.attributes["broadcast"] = 1


def _are_equal(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    return len(left) == len(right) and all(prove_equal(a, b) is True for a, b in zip(left, right, strict=True))


def _is_possible(left: Sequence[Dim] | None, right: Sequence[Dim] | None, broadcast: int) -> bool:
    """Whether what the file said may still hold: a rewrite can have put other operands in place."""
    if left is None or right is None:
        return True
    if broadcast:
        return len(right) <= len(left)
    return len(left) == len(right) and all(prove_equal(a, b) is not False for a, b in zip(left, right, strict=True))


@step_up(7, "Gemm")
def _gemm_up(node: Node, facts: Facts) -> None:
    if node.has_reference("broadcast"):
        raise KeepOldForm
    node.legacy["broadcast"] = node.attributes.pop("broadcast", 0)


@step_down(7, "Gemm")
def _gemm_down(node: Node, facts: Facts) -> None:
    bias = shape(facts, node.input(2))
    if node.legacy.get("broadcast") == 0 and (bias is None or len(bias) == 2):
        return
    node.attributes["broadcast"] = node.legacy.get("broadcast") or 1
    if "broadcast" in node.legacy and (bias is None or len(bias) < 2):
        return
    # Only last dims can be left out: a bias [M, 1], or [1, N] of a larger result, does not broadcast.
    if bias is None or (len(bias) == 2 and 1 in bias and any(dim != 1 for dim in bias)):
        raise CannotDowngrade("its bias broadcasts in a way that does not exist before opset 7")


@step_down(11, "Gemm")
def _gemm_bias(node: Node, facts: Facts) -> None:
    """Gemm needs its bias before opset 11: a zero."""
    if node.input(2) is None:
        data = tensor_type(facts, node.input(0))
        if data is None:
            raise CannotDowngrade("Gemm needs its input C before opset 11, and its element type is unknown")
        import numpy as np

        node.set_input(2, ArrayData(np.zeros(1, data.dtype.numpy), data.dtype))


@step_up(7, "PRelu")
def _prelu_up(node: Node, facts: Facts) -> None:
    """Before opset 7 a slope vector runs along axis 1; since then it broadcasts like numpy."""
    if not _slope_aligns_last(node, facts):
        raise KeepOldForm


@step_down(7, "PRelu")
def _prelu_down(node: Node, facts: Facts) -> None:
    if _widens(shape(facts, node.input(0)), shape(facts, node.input(1))):
        raise CannotDowngrade("its slope broadcasts the other operand, which does not exist before opset 7")
    if _slope_aligns_last(node, facts):
        return
    slope, dims = tensor_type(facts, node.input(1)), shape(facts, node.input(1))
    values, data_rank = constant(facts, node.input(1)), rank(facts, node.input(0))
    per_channel = dims is not None and len(dims) + 1 == data_rank and all(dim == 1 for dim in dims[1:])
    if slope is None or values is None or not per_channel:
        raise CannotDowngrade("its slope broadcasts in a way that does not exist before opset 7")
    node.set_input(1, ArrayData(values.reshape(-1), slope.dtype))


def _widens(data: Sequence[Dim] | None, slope: Sequence[Dim] | None) -> bool:
    """Whether a slope of this shape has dims that the data has not, or are 1 there."""
    if data is None or slope is None:
        return False
    pairs = zip(reversed(data), reversed(slope), strict=False)
    return len(slope) > len(data) or any(ours == 1 and theirs != 1 for ours, theirs in pairs)


def _slope_aligns_last(node: Node, facts: Facts) -> bool:
    slope, data_rank = shape(facts, node.input(1)), rank(facts, node.input(0))
    if slope is None:
        return False
    return slope in ((), (1,)) or (len(slope) == 1 and data_rank == 2)


@step_up(8, *_VARIADIC)
def _variadic_up(node: Node, facts: Facts) -> None:
    node.legacy["one_shape"] = True


@step_down(8, *_VARIADIC)
def _variadic_down(node: Node, facts: Facts) -> None:
    """Before opset 8 all operands have one shape."""
    shapes = [shape(facts, value) for value in node.inputs]
    for other in shapes[1:]:
        hinted = "one_shape" in node.legacy and _is_possible(shapes[0], other, 0)
        if not hinted and (shapes[0] is None or other is None or not _are_equal(shapes[0], other)):
            raise CannotDowngrade(f"{node.op_type} does not broadcast before opset 8")
