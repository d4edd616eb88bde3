"""Operators and attribute values that only changed their names or defaults, and attributes that meant nothing."""

from __future__ import annotations

from onnx import TensorProto

from ....graph.ops.legacy.movement import GRID_MODES, type_code
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, KeepOldForm, Node, rank

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


@step_up(6, "Cast")
def _cast_up(node: Node, facts: Facts) -> None:
    """Cast-1 names the type as TensorProto does: "FLOAT", "INT64"."""
    wanted = node.attributes.get("to")
    code = None if node.has_reference("to") else type_code(wanted)
    if code is None:
        raise KeepOldForm
    node.attributes["to"] = code
    if wanted != TensorProto.DataType.Name(code):
        node.legacy["to"] = wanted


@step_down(6, "Cast")
def _cast_down(node: Node, facts: Facts) -> None:
    code = node.attributes["to"]
    if node.has_reference("to"):
        raise CannotDowngrade("Cast names its type before opset 6")
    written = node.legacy.get("to")
    node.attributes["to"] = written if type_code(written) == code else TensorProto.DataType.Name(code)


@step_up(20, "GridSample")
def _grid_up(node: Node, facts: Facts) -> None:
    if node.has_reference("mode"):
        raise KeepOldForm
    mode = node.attributes.get("mode", "bilinear")
    node.attributes["mode"] = GRID_MODES.get(mode, mode)


@step_down(20, "GridSample")
def _grid_down(node: Node, facts: Facts) -> None:
    if rank(facts, node.input(0)) not in (4, None):
        raise CannotDowngrade("GridSample takes only 4-D data before opset 20")
    if node.has_reference("mode"):
        raise CannotDowngrade("GridSample has other names for its modes before opset 20")
    mode = node.attributes.get("mode", "linear")
    node.attributes["mode"] = {new: old for old, new in GRID_MODES.items()}.get(mode, mode)


@step_up(11, "Scatter")
def _scatter_up(node: Node, facts: Facts) -> None:
    node.op_type = "ScatterElements"


@step_down(11, "ScatterElements")
def _scatter_down(node: Node, facts: Facts) -> None:
    """Scatter-9 is ScatterElements under its first name."""
    node.op_type = "Scatter"


@step_up(6, "Selu")
def _selu_up(node: Node, facts: Facts) -> None:
    """Selu-1's defaults have fewer digits."""
    node.imply("alpha", 1.673200011253357)
    node.imply("gamma", 1.0506999492645264)


@step_down(6, "Selu")
def _selu_down(node: Node, facts: Facts) -> None:
    node.attributes.setdefault("alpha", 1.6732631921768188)
    node.attributes.setdefault("gamma", 1.0507010221481323)


@step_up(4, "Concat")
def _concat_up(node: Node, facts: Facts) -> None:
    """Concat-1's axis is 1 where it is left out."""
    node.imply("axis", 1)


@step_down(4, "Concat")
def _concat_down(node: Node, facts: Facts) -> None:
    node.forget("axis", 1)


@step_up(7, "LSTM", "GRU", "RNN")
def _output_sequence_up(node: Node, facts: Facts) -> None:
    """`output_sequence=0` let the first output be left out; whether it is listed says the same."""
    node.legacy["output_sequence"] = node.attributes.pop("output_sequence", 0)


@step_down(7, "LSTM", "GRU", "RNN")
def _output_sequence_down(node: Node, facts: Facts) -> None:
    node.attributes["output_sequence"] = node.legacy.get("output_sequence", 1)


@step_up(3, "GRU")
def _gru_direction_up(node: Node, facts: Facts) -> None:
    """GRU-1's default direction is misspelt."""
    if node.attributes.get("direction") == "foward":
        del node.attributes["direction"]
