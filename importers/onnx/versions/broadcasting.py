"""Operators that broadcast by `broadcast` and `axis` attributes before opset 7, and by numpy's rules since."""

from __future__ import annotations

from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, Input, Node, rank, tensor_type

_BINARY = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Greater", "Less", "Pow")


@step_up(7, *_BINARY)
def _binary_up(node: Node, facts: Facts) -> None:
    """`broadcast=1` without `axis` aligns the last dims, as numpy does; `axis` aligns elsewhere and has no such form
    unless it happens to name the last dims."""
    broadcast = node.attributes.pop("broadcast", 0)
    axis = node.attributes.pop("axis", None)
    if axis is not None and broadcast and not _is_suffix(node, axis, facts):
        node.keep_old(6)
        return
    node.legacy["broadcast"] = broadcast
    if axis is not None:
        node.legacy["axis"] = axis


def _is_suffix(node: Node, axis: int, facts: Facts) -> bool:
    left, right = rank(facts, node.input(0)), rank(facts, node.input(1))
    if left is None or right is None:
        return False
    return (axis + left if axis < 0 else axis) + right == left


@step_down(7, *_BINARY)
def _binary_down(node: Node, facts: Facts) -> None:
    left, right = tensor_type(facts, node.input(0)), tensor_type(facts, node.input(1))
    if "broadcast" in node.legacy:
        node.attributes["broadcast"] = node.legacy["broadcast"]
        if "axis" in node.legacy:
            node.attributes["axis"] = node.legacy["axis"]
        return
    if left is None or right is None or left.shape is None or right.shape is None:
        raise CannotDowngrade("its operands' shapes are unknown, and broadcasting must be said before opset 7")
    if left.shape == right.shape:
        return
    if len(right.shape) > len(left.shape) or left.shape[len(left.shape) - len(right.shape) :] != right.shape:
        raise CannotDowngrade(f"{left} and {right} broadcast in a way that does not exist before opset 7")
    node.attributes["broadcast"] = 1


@step_up(7, "Gemm")
def _gemm_up(node: Node, facts: Facts) -> None:
    node.legacy["broadcast"] = node.attributes.pop("broadcast", 0)


@step_down(7, "Gemm")
def _gemm_down(node: Node, facts: Facts) -> None:
    node.attributes["broadcast"] = node.legacy.get("broadcast", 1)


@step_up(7, "PRelu")
def _prelu_up(node: Node, facts: Facts) -> None:
    """Before opset 7 a slope vector runs along axis 1; since then it broadcasts like numpy."""
    if not _same_meaning(node.input(0), node.input(1), facts):
        node.keep_old(6)


@step_down(7, "PRelu")
def _prelu_down(node: Node, facts: Facts) -> None:
    if not _same_meaning(node.input(0), node.input(1), facts):
        raise CannotDowngrade("its slope broadcasts in a way that does not exist before opset 7")


def _same_meaning(data: Input, slope: Input, facts: Facts) -> bool:
    slope_type, data_rank = tensor_type(facts, slope), rank(facts, data)
    if slope_type is None or slope_type.shape is None:
        return False
    return slope_type.shape in ((), (1,)) or (slope_type.rank == 1 and data_rank == 2)


for _name in ("Max", "Min", "Sum", "Mean"):

    @step_down(8, _name)
    def _variadic_down(node: Node, facts: Facts) -> None:
        """Before opset 8 all operands have one shape."""
        shapes = [found.shape if (found := tensor_type(facts, value)) is not None else None for value in node.inputs]
        if node.legacy.get("one_shape"):
            return
        if len(set(shapes)) > 1 or None in shapes:
            raise CannotDowngrade(f"{node.op_type} does not broadcast before opset 8")

    @step_up(8, _name)
    def _variadic_up(node: Node, facts: Facts) -> None:
        node.legacy["one_shape"] = True
