"""Attribute values that came later than their attribute."""

from __future__ import annotations

from ....graph.core import AttributeReference, Value
from ....graph.dims import prove_equal
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, Node, constant, shape, tensor_type

# (operator, version that brought them) -> attribute, the values of before.
_OLDER_VALUES = {
    ("ScatterElements", 18): ("reduction", ("none", "add", "mul")),
    ("ScatterND", 18): ("reduction", ("none", "add", "mul")),
}


def _register_values() -> None:
    for (op_type, version), (name, allowed) in _OLDER_VALUES.items():

        @step_down(version, op_type)
        def down(
            node: Node, facts: Facts, name: str = name, allowed: tuple[str, ...] = allowed, version: int = version
        ) -> None:
            value = node.attributes.get(name, allowed[0])
            if not isinstance(value, AttributeReference) and value not in allowed:
                raise CannotDowngrade(f"{node.op_type} has no {name} {value!r} before opset {version}")


_register_values()


@step_up(19, "Pad")
def _pad_up(node: Node, facts: Facts) -> None:
    """Mode "wrap" came with opset 19, but ONNX Runtime and onnx.reference know it under all: such a file stays so."""
    if node.attributes.get("mode") == "wrap":
        node.legacy["early_wrap"] = True


@step_down(19, "Pad")
def _pad_down(node: Node, facts: Facts) -> None:
    if node.attributes.get("mode") == "wrap" and "early_wrap" not in node.legacy:
        raise CannotDowngrade("Pad has no mode 'wrap' before opset 19")


@step_down(28, "Mod")
def _float_mod_down(node: Node, facts: Facts) -> None:
    """For floats there was only the remainder of a truncated quotient."""
    data = tensor_type(facts, node.input(0))
    if data is not None and data.dtype.is_float and node.attributes.get("fmod", 0) == 0:
        raise CannotDowngrade("Mod of floats has only fmod=1 before opset 28")


@step_down(14, "Reshape")
def _allow_zero_down(node: Node, facts: Facts) -> None:
    """A zero copies the dim of the data at its place, which says the same where that dim is what was meant; and
    without a zero in the shape, it does not matter what a zero means."""
    if node.attributes.get("allowzero", 0) == 0:
        return
    target, dims = node.input(1), shape(facts, node.input(0)) or ()
    known = constant(facts, target)
    elements = facts.elements(target) if known is None and isinstance(target, Value) else known
    if elements is None or not all(
        prove_equal(item, 0) is False or (index < len(dims) and prove_equal(item, dims[index]) is True)
        for index, item in enumerate(elements.ravel().tolist())
    ):
        raise CannotDowngrade("a zero in the shape of Reshape copies a dim before opset 14")
    del node.attributes["allowzero"]


@step_up(13, "QuantizeLinear", "DequantizeLinear")
def _per_axis_up(node: Node, facts: Facts) -> None:
    node.legacy["whole_tensor"] = True


@step_down(13, "QuantizeLinear", "DequantizeLinear")
def _per_axis_down(node: Node, facts: Facts) -> None:
    """Only whole tensors were quantized before opset 13; then the axis does not matter."""
    scale = shape(facts, node.input(1))
    if "whole_tensor" not in node.legacy and scale != ():
        raise CannotDowngrade(f"{node.op_type} has one scale for the whole tensor before opset 13")
    node.attributes.pop("axis", None)
