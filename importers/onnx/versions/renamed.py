"""Operators and attribute values that only changed their names, and attributes that meant nothing."""

from __future__ import annotations

import numpy as np

from ....graph.core import AttributeReference
from ....graph.data import ArrayData
from ....graph.dtypes import ALL, f32
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, Node, constant

_CONSUMED = (
    "Abs", "Add", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid", "InstanceNormalization",
    "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sqrt",
    "Sub", "Sum", "Tanh", "BatchNormalization",
)  # fmt: skip


@step_up(6, *_CONSUMED)
@step_up(5, "Reshape")
def _consumed_up(node: Node, facts: Facts) -> None:
    """`consumed_inputs` was a hint for in-place execution; it has no effect on results."""
    if "consumed_inputs" in node.attributes:
        node.legacy["consumed_inputs"] = node.attributes.pop("consumed_inputs")


@step_down(6, *_CONSUMED)
@step_down(5, "Reshape")
def _consumed_down(node: Node, facts: Facts) -> None:
    if "consumed_inputs" in node.legacy:
        node.attributes["consumed_inputs"] = node.legacy["consumed_inputs"]
    elif node.op_type == "BatchNormalization":
        node.attributes["consumed_inputs"] = (0, 0, 0, 1, 1)


# Cast-1 names the type as TensorProto does: "FLOAT", "INT64".
_CAST_NAMES = {
    "f32": "FLOAT", "f64": "DOUBLE", "f16": "FLOAT16", "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64",
    "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64", "bool": "BOOL", "string": "STRING",
}  # fmt: skip


@step_up(6, "Cast")
def _cast_up(node: Node, facts: Facts) -> None:
    names = {text: dtype.onnx_code for dtype in ALL if (text := _CAST_NAMES.get(dtype.name))}
    wanted = node.attributes.get("to")
    if isinstance(wanted, AttributeReference) or str(wanted).upper() not in names:
        node.keep_old(1)
        return
    node.attributes["to"] = names[str(wanted).upper()]


@step_down(6, "Cast")
def _cast_down(node: Node, facts: Facts) -> None:
    names = {dtype.onnx_code: _CAST_NAMES.get(dtype.name) for dtype in ALL}
    wanted = names.get(node.attributes["to"])
    if wanted is None:
        raise CannotDowngrade("Cast to that type does not exist before opset 6")
    node.attributes["to"] = wanted


_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@step_up(20, "GridSample")
def _grid_up(node: Node, facts: Facts) -> None:
    mode = node.attributes.get("mode", "bilinear")
    node.attributes["mode"] = _GRID_MODES.get(mode, mode)


@step_down(20, "GridSample")
def _grid_down(node: Node, facts: Facts) -> None:
    mode = node.attributes.get("mode", "linear")
    node.attributes["mode"] = {new: old for old, new in _GRID_MODES.items()}.get(mode, mode)


@step_up(11, "Scatter")
def _scatter_up(node: Node, facts: Facts) -> None:
    node.op_type = "ScatterElements"
    node.legacy["operator"] = "Scatter"


@step_down(11, "ScatterElements")
def _scatter_down(node: Node, facts: Facts) -> None:
    """Scatter-9 is ScatterElements under its first name."""
    node.op_type = "Scatter"


@step_up(7, "Upsample")
def _upsample_one_up(node: Node, facts: Facts) -> None:
    """Upsample-1 scales height and width of an NCHW tensor."""
    height, width = node.attributes.pop("height_scale", 1.0), node.attributes.pop("width_scale", 1.0)
    node.attributes["scales"] = (1.0, 1.0, height, width)


@step_down(7, "Upsample")
def _upsample_one_down(node: Node, facts: Facts) -> None:
    scales = node.attributes.pop("scales")
    if len(scales) != 4 or scales[:2] != (1.0, 1.0):
        raise CannotDowngrade("Upsample scales only height and width before opset 7")
    node.attributes["height_scale"], node.attributes["width_scale"] = scales[2:]


@step_up(10, "Upsample")
def _upsample_up(node: Node, facts: Facts) -> None:
    """Upsample became Resize; its coordinates follow Resize-10's rule, see `_resize_ten_up`."""
    node.op_type = "Resize"
    node.legacy["operator"] = "Upsample"


@step_down(10, "Resize")
def _upsample_down(node: Node, facts: Facts) -> None:
    scales = constant(facts, node.input(1))
    if node.legacy.get("operator") != "Upsample" and (scales is None or not bool((scales >= 1).all())):
        raise CannotDowngrade("Upsample, which Resize was before opset 10, never makes a tensor smaller")
    node.op_type = "Upsample"


@step_up(11, "Resize")
def _resize_ten_up(node: Node, facts: Facts) -> None:
    """Resize-10 maps coordinates by plain scaling and rounds down (ONNX changelog, Resize-11)."""
    scales = node.inputs[1] if len(node.inputs) > 1 else None
    node.inputs[1:] = [None, scales]
    if 1 in node.from_attribute:
        node.from_attribute[2] = node.from_attribute.pop(1)
    node.attributes["coordinate_transformation_mode"] = "asymmetric"
    node.attributes["nearest_mode"] = "floor"


@step_down(11, "Resize")
def _resize_ten_down(node: Node, facts: Facts) -> None:
    attributes = node.attributes
    if node.input(3) is not None or node.input(2) is None:
        raise CannotDowngrade("Resize to given sizes does not exist before opset 11")
    if attributes.pop("coordinate_transformation_mode", "half_pixel") != "asymmetric":
        raise CannotDowngrade("Resize maps coordinates only in the 'asymmetric' way before opset 11")
    rounding = attributes.pop("nearest_mode", "round_prefer_floor")
    if attributes.get("mode", "nearest") == "nearest" and rounding != "floor":
        raise CannotDowngrade("Resize rounds coordinates down before opset 11")
    if attributes.get("mode") == "cubic":
        raise CannotDowngrade("cubic Resize does not exist before opset 11")
    for name in ("cubic_coeff_a", "exclude_outside", "extrapolation_value"):
        attributes.pop(name, None)
    node.inputs[1:] = [node.inputs[2]]


@step_down(13, "Resize")
def _resize_thirteen_down(node: Node, facts: Facts) -> None:
    """Resize-11 wants `roi` and `scales` present; an empty tensor says that they are not used."""
    empty = ArrayData(np.zeros(0, np.float32), f32)
    for position in (1, 2):
        if node.input(position) is None:
            node.set_input(position, empty)


@step_down(18, "Resize")
def _resize_eighteen_down(node: Node, facts: Facts) -> None:
    if node.attributes.get("axes") is not None:
        raise CannotDowngrade("Resize over some axes does not exist before opset 18")
