"""Opset history: steps are complete, going up and down again gives the node back, and the meaning stays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node
import onnx.checker
import onnx.defs
import onnx.numpy_helper
import onnx.reference
import onnxruntime
import pytest
from onnx import AttributeProto, NodeProto

from tilewright.graph import dtypes, types
from tilewright.graph.core import Block, Operation, Value
from tilewright.graph.data import ArrayData, TensorData
from tilewright.graph.evaluation import evaluate_op, type_of
from tilewright.graph.module import INTERNAL_OPSET
from tilewright.graph.onnx_values import attribute_proto, attribute_value, tensor_proto
from tilewright.graph.opdef import lookup
from tilewright.importers.onnx.versions import CannotDowngrade, Node, downgrade, upgrade
from tilewright.importers.onnx.versions.conformance import conform, schema_at
from tilewright.importers.onnx.versions.engine import registered_steps, versions

OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""})


class Facts:
    """Types of values, and the elements of those in `constants`."""

    def __init__(self) -> None:
        self.constants: dict[Value, np.ndarray] = {}

    def type(self, value: Value) -> types.Type:
        return value.type

    def constant(self, value: Value) -> np.ndarray | None:
        return self.constants.get(value)


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
def _schema(op_type: str, version: int) -> onnx.defs.OpSchema:
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
    schema = _schema(op_type, version)
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
    schema = _schema(node.op_type, version)
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


ALL_VERSIONS = [(op_type, version) for op_type in OPERATORS for version in versions(op_type)]
LIVE_VERSIONS = [(op_type, version) for op_type, version in ALL_VERSIONS if not _schema(op_type, version).deprecated]


# ---- completeness ----------------------------------------------------------------------------------------------------


def test_every_step_leads_to_a_version_of_its_operator() -> None:
    assert {step for step in registered_steps() if step[1] not in versions(step[0])} == set()


def is_additive(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    """Whether every node of the old version is one of the new, with the same meaning as far as signatures tell."""
    if new.deprecated or len(new.inputs) < len(old.inputs) or len(new.outputs) < len(old.outputs):
        return False
    for name, spec in old.attributes.items():
        now = new.attributes.get(name)
        if now is None or now.type != spec.type or (now.required and not spec.required):
            return False
        if attribute_text(now) != attribute_text(spec):
            return False
    optional = onnx.defs.OpSchema.FormalParameterOption.Single
    appended = new.inputs[len(old.inputs) :]
    required = [name for name in new.attributes if name not in old.attributes and new.attributes[name].required]
    return not required and not any(item.option == optional for item in appended)


def attribute_text(spec: Any) -> Any:
    return None if spec.default_value.type == AttributeProto.UNDEFINED else attribute_value(spec.default_value)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_every_change_of_a_signature_has_a_step(op_type: str) -> None:
    for old, new in itertools.pairwise(versions(op_type)):
        if not is_additive(_schema(op_type, old), _schema(op_type, new)):
            # Constant is read and written by the importer itself.
            assert (op_type, new) in registered_steps() or op_type == "Constant", f"{op_type} {old} -> {new}"


@pytest.mark.parametrize(("op_type", "version"), LIVE_VERSIONS)
def test_upgraded_nodes_are_nodes_of_today(op_type: str, version: int) -> None:
    for node, facts in sample_nodes(op_type, version):
        check(node, version)
        result = upgrade(node, version, facts)
        if result.version is not None:
            assert result.version == version
            assert plain(result, version) == plain(node, version)
            continue
        conform(result.copy(), None, INTERNAL_OPSET, facts)
        check(result, INTERNAL_OPSET)


@pytest.mark.parametrize(("op_type", "version"), LIVE_VERSIONS)
def test_down_again_gives_the_node_back(op_type: str, version: int) -> None:
    for node, facts in sample_nodes(op_type, version):
        back = downgrade(upgrade(node, version, facts), version, facts)
        assert plain(back, version) == plain(node, version)
        assert back.version is None


@pytest.mark.parametrize(("op_type", "version"), LIVE_VERSIONS)
def test_older_forms_are_nodes_of_their_opset(op_type: str, version: int) -> None:
    for node, facts in sample_nodes(op_type, version):
        now = upgrade(node, version, facts)
        for target in {1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18, 20, 22, 24, 27}:
            try:
                older = downgrade(now, target, facts)
            except CannotDowngrade:
                continue
            check(older, target)


# ---- meaning ---------------------------------------------------------------------------------------------------------

TARGETS = (21, 18, 17, 13, 11, 9, 7)


class Case:
    """A node test of ONNX with one node: its model, inputs by name, expected outputs."""

    def __init__(self, case: Any) -> None:
        self.name = case.name
        self.graph = case.model.graph
        (self.proto,) = self.graph.node
        self.opset = next(item.version for item in case.model.opset_import if item.domain == "")
        inputs, outputs = case.data_sets[0]
        names = [item.name for item in self.graph.input]
        given = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=False))
        self.feeds = {name: array_of(value) for name, value in given.items()}
        self.expected = [array_of(item) for item in (outputs.values() if isinstance(outputs, dict) else outputs)]

    def node(self) -> tuple[Node, Facts]:
        """The node; small operands but the first count as constants, with the numbers that the test feeds."""
        facts, values = Facts(), dict[str, Value]()
        for name in filter(None, self.proto.input):
            array = self.feeds[name]
            values[name] = Value(type_of(array), Block(), 0, name)
            if name != self.proto.input[0] and isinstance(array, np.ndarray) and array.size <= 16:
                facts.constants[values[name]] = array
        attributes = {item.name: attribute_value(item) for item in self.proto.attribute}
        inputs = [values[name] if name else None for name in self.proto.input]
        node = Node("", self.proto.op_type, attributes, list(inputs), len(self.proto.output))
        given = iter(self.expected)
        node.output_types = tuple(type_of(next(given)) if name else types.UNKNOWN for name in self.proto.output)
        return node, facts

    def model(self, node: Node, opset: int) -> onnx.ModelProto:
        proto = to_proto(node, opset)
        del proto.output[:]
        proto.output.extend(self.proto.output)
        initializers = []
        for index, value in enumerate(node.inputs):
            if isinstance(value, TensorData):
                proto.input[index] = f"constant{index}"
                initializers.append(tensor_proto(value, proto.input[index]))
            elif value is not None:
                proto.input[index] = str(value.name)
        used = [item for item in self.graph.input if item.name in proto.input]
        graph = onnx.helper.make_graph([proto], "g", used, list(self.graph.output), initializer=initializers)
        imports = [onnx.helper.make_opsetid("", opset)]
        return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 21 else 10)

    def evaluate(self, node: Node) -> list[Any]:
        """The results of a node of today, by our own definitions."""
        arrays = [
            item.numpy() if isinstance(item, TensorData) else None if item is None else self.feeds[str(item.name)]
            for item in node.inputs
        ]
        values = [None if array is None else Value(type_of(array), Block(), 0) for array in arrays]
        results = [types.UNKNOWN] * node.output_count
        definition = lookup("", node.op_type, node.version)
        op = Operation(definition, values, node.attributes, results, result_names=self.proto.output)
        return [found for found, name in zip(evaluate_op(op, arrays), self.proto.output, strict=True) if name]


def array_of(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def agree(found: list[Any], expected: list[Any]) -> bool:
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list):
            if not agree(mine, theirs):
                return False
            continue
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        if theirs.dtype.kind in "OUSb":
            if not bool((mine == theirs).all()):
                return False
        elif not np.allclose(widened(mine), widened(theirs), rtol=1e-3, atol=1e-4, equal_nan=True):
            return False
    return True


def widened(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """By ONNX Runtime, or by onnx.reference what that does not run."""
    fed = {item.name: feeds[item.name] for item in model.graph.input}
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), OPTIONS, providers=["CPUExecutionProvider"])
        return list(session.run(None, fed))
    except Exception:
        return list(onnx.reference.ReferenceEvaluator(model).run(None, fed))


OPTIONS = onnxruntime.SessionOptions()
OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
OPTIONS.log_severity_level = 4
OPTIONS.intra_op_num_threads = 1


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    """Node tests of one node of the default domain without graphs in attributes, by operator."""
    found: dict[str, list[Case]] = {}
    for case in onnx.backend.test.case.node.collect_testcases(None):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or any(item.type == AttributeProto.GRAPH for item in nodes[0].attribute):
            continue
        if any(item.domain for item in case.model.opset_import) or "bernoulli" in case.name:
            continue
        found.setdefault(nodes[0].op_type, []).append(Case(case))
    return found


# ONNX Runtime wants other element types here, and onnx.reference has no old version.
NOT_RUN = {"test_dequantizelinear": (18, 17, 13, 11)}


@pytest.mark.slow
@pytest.mark.parametrize("op_type", OPERATORS)
def test_older_forms_mean_the_same(op_type: str, cases: dict[str, list[Case]]) -> None:
    """Node tests, taken down to older opsets, give the same numbers in a runtime, and taken up again in ours."""
    for case in cases.get(op_type, ()):
        node, facts = case.node()
        now = upgrade(node, case.opset, facts)
        assert plain(downgrade(now, case.opset, facts), case.opset) == plain(node, case.opset)
        original: bool | None = None
        seen = set()
        for target in TARGETS:
            try:
                older = downgrade(now, target, facts)
            except CannotDowngrade:
                continue
            since = _schema(older.op_type, target).since_version
            if target >= case.opset or since in seen:
                continue
            seen.add(since)
            if target not in NOT_RUN.get(case.name, ()) and not agree(
                run(case.model(older, target), case.feeds), case.expected
            ):
                if original is None:
                    original = agree(run(case.model(node, case.opset), case.feeds), case.expected)
                assert not original, f"{case.name} at opset {target}"
            older.legacy.clear()
            again = upgrade(older, target, facts)
            assert agree(case.evaluate(again), case.expected), f"{case.name} up again from opset {target}"
