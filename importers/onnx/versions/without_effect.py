"""Attributes that have no effect on a certain node: they can be left out for an opset that does not know them."""

from __future__ import annotations

import numpy as np

from ....graph.data import ArrayData
from ....graph.dtypes import BY_ONNX_CODE, DType, u8
from ....graph.types import TensorType
from .engine import step_down
from .node import CannotDowngrade, Facts, Node, shape, tensor_type


@step_down(19, "AveragePool")
@step_down(18, "LpPool")
@step_down(10, "MaxPool")
def _dilations_down(node: Node, facts: Facts) -> None:
    """Dilations of 1 are none."""
    if not node.has_reference("dilations") and all(step == 1 for step in node.attributes.get("dilations", ())):
        node.attributes.pop("dilations", None)


@step_down(8, "MaxPool")
def _storage_order_down(node: Node, facts: Facts) -> None:
    """It says how the indices in the second output count."""
    if node.output_count == 1:
        node.attributes.pop("storage_order", None)


@step_down(27, "Range")
def _range_down(node: Node, facts: Facts) -> None:
    """`stash_type` is for f16 and bf16, which Range does not take before."""
    node.attributes.pop("stash_type", None)


@step_down(11, "TopK")
def _topk_down(node: Node, facts: Facts) -> None:
    """Sorted results are also right where any order would do."""
    node.attributes.pop("sorted", None)


def _target(node: Node, facts: Facts) -> DType | None:
    """The element type that a cast or quantization gives."""
    position = {"CastLike": 1, "QuantizeLinear": 2}.get(node.op_type)
    found: TensorType | None = tensor_type(facts, node.input(position)) if position is not None else None
    code = node.attributes.get("to", node.attributes.get("output_dtype", 0))
    if found is not None:
        return found.dtype
    if isinstance(code, int) and code:
        return BY_ONNX_CODE.get(code)
    return u8 if node.op_type == "QuantizeLinear" and node.input(2) is None else None


@step_down(24, "Cast", "CastLike")
def _round_mode_down(node: Node, facts: Facts) -> None:
    """It is about casts to f8e8m0."""
    target = _target(node, facts)
    if target is not None and target.name != "f8e8m0":
        node.attributes.pop("round_mode", None)


@step_down(19, "Cast", "CastLike", "QuantizeLinear")
def _saturate_down(node: Node, facts: Facts) -> None:
    """It is about casts to 8-bit floats."""
    target = _target(node, facts)
    if target is not None and not target.name.startswith("f8"):
        node.attributes.pop("saturate", None)


@step_down(23, "DequantizeLinear")
def _dequantized_type_down(node: Node, facts: Facts) -> None:
    """Without `output_dtype` the result has the type of the scale."""
    scale = tensor_type(facts, node.input(1))
    if scale is not None and node.attributes.get("output_dtype") == scale.dtype.onnx_code:
        del node.attributes["output_dtype"]


@step_down(23, "QuantizeLinear")
def _precision_down(node: Node, facts: Facts) -> None:
    """Without `precision` the division is done in the type of the scale."""
    scale = tensor_type(facts, node.input(1))
    if scale is not None and node.attributes.get("precision") == scale.dtype.onnx_code:
        del node.attributes["precision"]


@step_down(21, "QuantizeLinear")
def _quantized_type_down(node: Node, facts: Facts) -> None:
    """Before opset 21 only the zero point says the result's type: u8 without one."""
    code = node.attributes.get("output_dtype", 0)
    if not isinstance(code, int) or code == 0:
        return
    del node.attributes["output_dtype"]
    wanted, scale = BY_ONNX_CODE[code], shape(facts, node.input(1))
    if node.input(2) is not None or wanted is u8:
        return
    dims = [dim for dim in scale or () if isinstance(dim, int)]
    if scale is None or len(dims) < len(scale):
        raise CannotDowngrade("QuantizeLinear needs a zero point before opset 21, and its shape is unknown")
    node.set_input(2, ArrayData(np.zeros(dims, wanted.numpy), wanted))
