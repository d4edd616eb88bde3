"""Sample nodes of every operator of the default domain at every version, made from ONNX's schemas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.defs
from onnx import AttributeProto, NodeProto

from tilewright.graph import dtypes, types
from tilewright.graph.core import Block, Value
from tilewright.graph.data import ArrayData, TensorData
from tilewright.graph.infer import SymbolicArray
from tilewright.graph.onnx_values import attribute_proto
from tilewright.importers.onnx.versions import Node
from tilewright.importers.onnx.versions.conformance import schema_at

OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""})


class Facts:
    """Types of values, and the elements of those in `constants`."""

    def __init__(self) -> None:
        self.constants: dict[Value, np.ndarray] = {}

    def type(self, value: Value) -> types.Type:
        return value.type

    def constant(self, value: Value) -> np.ndarray | None:
        return self.constants.get(value)

    def elements(self, value: Value) -> SymbolicArray | None:
        return None


# ---- sample nodes of every operator at every version -----------------------------------------------------------------

_KIND_SAMPLES: dict[str, tuple[Any, ...]] = {
    "int": (1, 0), "float": (0.5,), "string": ("x",), "ints": ((1, 2),), "floats": ((0.5, 2.0),),
    "strings": (("a", "b"),), "tensor": (ArrayData(np.array([1.5], np.float32)),),
}  # fmt: skip

# Where a sample of the right kind is not a legal value: by (operator, attribute), or by attribute.
_SAMPLES: dict[Any, tuple[Any, ...]] = {
    "axes": ((1, 2), (-1,)), "axis": (1, 0, -1), "auto_pad": ("SAME_UPPER", "VALID"), "kernel_shape": ((2, 2),),
    "strides": ((2, 1),), "pads": ((1, 0, 1, 1),), "dilations": ((1, 1),), "dtype": (1, 10), "perm": ((3, 0, 2, 1),),
    "direction": ("reverse",), "reduction": ("none",), "output_datatype": (1,), "hidden_size": (4,),
    "consumed_inputs": ((1, 0),), "broadcast": (1, 0), "equation": ("ij->ji",), "activations": (("Tanh", "Relu"),),
    "scales": ((1.0, 1.0, 2.0, 1.5),), "output_dtype": (0,), "precision": (0,), "round_mode": ("up",),
    "coordinate_transformation_mode": ("asymmetric", "align_corners"), "nearest_mode": ("floor", "ceil"),
    "sparse_value": (), "mode": ("TF",), "dim": (1,), "seed": (), "stash_type": (1,), "p": (2, 1),
    ("Cast", "to"): (7, 11), ("Pad", "pads"): ((0, 0, 1, 1, 0, 0, 2, 0),),
    ("Pad", "paddings"): ((0, 0, 1, 1, 0, 0, 2, 0),), ("Pad", "mode"): ("reflect", "constant"),
    ("Slice", "axes"): ((1, 2), (-1, 0)), ("Split", "split"): ((1, 1, 1),), ("Split", "num_outputs"): (3,),
    ("Split", "axis"): (1, -3), ("BatchNormalization", "consumed_inputs"): ((0, 0, 0, 1, 1),),
    ("LpPool", "p"): (2.0, 1.5), ("GlobalLpPool", "p"): (2.0, 1.5), ("Upsample", "mode"): ("nearest", "linear"),
    ("Resize", "mode"): ("nearest", "linear"), ("GridSample", "mode"): ("bilinear", "nearest", "bicubic"),
    ("DepthToSpace", "mode"): ("DCR",), ("Resize", "axes"): ((2, 3), (0, 1, 2, 3)),
    ("BitShift", "direction"): ("LEFT",), ("GRU", "direction"): ("foward", "reverse"),
    ("GroupNormalization", "num_groups"): (3, 1), ("Reshape", "shape"): ((6, 20),), ("Clip", "min"): (-0.1,),
    ("Clip", "max"): (0.3,), ("TopK", "k"): (2,), ("Squeeze", "axes"): ((1,), (-3,)), ("Gemm", "alpha"): (0.5,),
    ("Scan", "num_scan_inputs"): (1,), ("Scan", "directions"): ((1,),), ("Upsample", "height_scale"): (2.0,),
    ("Upsample", "width_scale"): (1.5,), ("Concat", "axis"): (0, 2, -1), ("Multinomial", "dtype"): (7, 6),
    ("Mod", "fmod"): (1,), ("Constant", "value_strings"): (("a",),), ("Attention", "softmax_precision"): (1,),
    ("Loop", "num"): (),
}  # fmt: skip

# Constant inputs by (operator, position).
_CONSTANTS: dict[tuple[str, int], Any] = {
    ("Squeeze", 1): [1], ("Unsqueeze", 1): [0, -1], ("Slice", 1): [0, 1], ("Slice", 2): [2, 3], ("Slice", 3): [0, 2],
    ("Slice", 4): [1, 1], ("Reshape", 1): [6, 20], ("Pad", 1): [0, 0, 1, 1, 0, 0, 2, 0], ("Pad", 2): 0.5,
    ("Pad", 3): [0, 1, 2, 3], ("Clip", 1): -0.1, ("Clip", 2): 0.3, ("TopK", 1): [2], ("Split", 1): [1, 1, 1],
    ("Dropout", 1): 0.25, ("Dropout", 2): False, ("Upsample", 1): [1.0, 1.0, 2.0, 1.5], ("DFT", 2): 1,
    ("Resize", 1): [1.0, 1.0, 2.0, 1.5], ("Resize", 2): [1.0, 1.0, 2.0, 1.5], ("Gather", 1): [0, -1],
    ("ReduceSum", 1): [1, 2],
    **{(name, 1): [-1] for name in OPERATORS if name.startswith("Reduce") and name != "ReduceSum"},
}  # fmt: skip


_DIMS: dict[Any, list[int]] = {
    "Gemm": [3, 3], ("Attention", 3): [2, 3, 4, 8], "Attention": [2, 3, 4, 4], "QuantizeLinear": [],
    "DequantizeLinear": [],
}  # fmt: skip


@cache
def schema_of(op_type: str, version: int) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(op_type, version, "")


def sample_attributes(op_type: str, version: int) -> Iterator[dict[str, Any]]:
    """The required attributes alone, then each optional one with each of its samples, then many at once."""
    schema = schema_at("", op_type, version)
    assert schema is not None
    options: dict[str, tuple[Any, ...]] = {}
    required: dict[str, Any] = {}
    for name, spec in schema.attributes.items():
        values = _SAMPLES.get((op_type, name), _SAMPLES.get(name, _KIND_SAMPLES.get(spec.kind, ())))
        if op_type == "Cast" and version < 6:
            values = ("INT64", "DOUBLE")
        if op_type == "Upsample" and name == "mode" and version == 1:
            values = ("nearest", "bilinear")
        if spec.kind == "int" and values and isinstance(values[0], float):
            values = tuple(int(item) for item in values if item == int(item))
        if spec.kind == "float":
            values = tuple(map(float, values))
        if spec.required and spec.kind not in ("graph", "graphs"):
            required[name] = values[0]
        options[name] = values
    yield dict(required)
    for name, values in options.items():
        for value in values:
            yield {**required, name: value}
    if op_type != "Constant":
        yield {**required, **{name: values[0] for name, values in options.items() if values and name != "auto_pad"}}


def sample_nodes(op_type: str, version: int) -> Iterator[tuple[Node, Facts]]:
    """Nodes that ONNX's checker takes at this version: attribute samples, and with or without optional inputs."""
    schema = schema_of(op_type, version)
    variadic = bool(schema.inputs) and schema.inputs[-1].option.name == "Variadic"
    full = len(schema.inputs) + variadic
    least = max(schema.min_input, 2 * variadic)
    for attributes, count in itertools.product(sample_attributes(op_type, version), sorted({least, full})):
        facts = Facts()
        inputs = [_input(op_type, schema, index, facts) for index in range(count)]
        outputs = 3 if op_type == "Split" else max(schema.min_output, 1)
        yield Node("", op_type, dict(attributes), inputs, outputs), facts


def _input(op_type: str, schema: onnx.defs.OpSchema, index: int, facts: Facts) -> Value:
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    preferred = ("tensor(int64)",) if op_type == "Mod" else ()
    preferred += ("tensor(float)", "tensor(int64)", "tensor(bool)", "tensor(uint8)", *sorted(formal.types))
    text = next(item for item in preferred if item in formal.types)
    constant = _CONSTANTS.get((op_type, index))
    type_: types.Type = types.UNKNOWN
    if text.startswith("tensor("):
        dtype = dtypes.BY_ONNX_CODE[onnx.TensorProto.DataType.Value(text[7:-1].upper())]
        dims = (
            _DIMS.get((op_type, index), _DIMS.get(op_type, [2, 3, 4, 5]))
            if constant is None
            else list(np.shape(constant))
        )
        type_ = types.tensor(dtype, dims)
    value = Value(type_, Block(), 0, f"x{index}")
    if constant is not None and isinstance(type_, types.TensorType):
        facts.constants[value] = np.array(constant, type_.dtype.numpy)
    return value


def to_proto(node: Node, version: int) -> NodeProto:
    proto = NodeProto(op_type=node.op_type, domain=node.domain, output=[f"y{i}" for i in range(node.output_count)])
    proto.input.extend("" if value is None else f"x{index}" for index, value in enumerate(node.inputs))
    schema = schema_of(node.op_type, version)
    for name, value in node.attributes.items():
        kind = schema.attributes[name].type.name.lower() if name in schema.attributes else None
        proto.attribute.append(attribute_proto(name, value, kind))
    for name, spec in schema.attributes.items():
        if spec.type.name == "GRAPH" and spec.required:
            graph = onnx.GraphProto(name="body")
            proto.attribute.append(AttributeProto(name=name, type=AttributeProto.GRAPH, g=graph))
    return proto


def check(node: Node, opset: int) -> None:
    """Raises ValidationError unless ONNX's checker takes the node at `opset`."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {"": opset}
    proto = to_proto(node, opset)
    if any(item.type == AttributeProto.GRAPH for item in proto.attribute):
        return  # the checker would look into the body, which there is none of
    onnx.checker.check_node(proto, context)


def plain(node: Node, version: int) -> tuple[Any, ...]:
    """What the node says, attributes that equal their default left out."""
    schema = schema_at("", node.op_type, version)
    assert schema is not None
    defaults = {name: spec.default for name, spec in schema.attributes.items()}
    attributes = {
        name: value.numpy().tolist() if isinstance(value, TensorData) else value
        for name, value in node.attributes.items()
        if defaults.get(name) is None or defaults[name] != value
    }
    return node.op_type, attributes, node.inputs, node.output_count
