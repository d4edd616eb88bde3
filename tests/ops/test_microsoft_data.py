"""ONNX Runtime's operators on data and on weights of a few bits; blocked layouts; what is not known."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from microsoft_cases import check, node_model
from onnx import helper

import tilewright
from tilewright.graph import types
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.opdef import OpDefinition, ParameterKind, op, registered
from tilewright.graph.verifier import verify

RANDOM = np.random.default_rng(2)
F32, I64 = np.float32, np.int64


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(F32)


def test_inverse() -> None:
    check("Inverse", [random(2, 3, 3)], tolerance=1e-3, expands=False)
    check("Inverse", [random(4, 4).astype(np.float64)], outputs=[np.float64], tolerance=1e-3, expands=False)


@pytest.mark.parametrize("attributes", [{}, {"upper": 0}])
def test_trilu(attributes: dict[str, Any]) -> None:
    check("Trilu", [random(2, 4, 5)], attributes)
    check("Trilu", [random(4, 5), np.array(-1)], attributes)


@pytest.mark.parametrize("axis", [0, 1, 3, -1, -4])
def test_expand_dims(axis: int) -> None:
    check("ExpandDims", [random(2, 3, 4), np.array(axis, np.int32)], constants=[1])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode: str) -> None:
    check("Pad", [random(3, 4), np.array([1, 2, 0, 1])], {"mode": mode}, constants=[1])
    check("Pad", [random(3, 4), np.array([[1, 2, 0, 1]]), np.array([2.5], F32)], {"mode": mode}, constants=[1])


def test_unique() -> None:
    check("Unique", [np.array([3, 1, 3, 2, 1, 9, 3], F32)], outputs=[F32, I64, I64], data_dependent=True)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    grid = RANDOM.uniform(-1.3, 1.3, (2, 3, 4, 2)).astype(F32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    check("GridSample", [random(2, 3, 5, 6), grid], attributes, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 3), (1, 2)])
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    regions = np.array([[0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], [-0.2, 0.3, 1.2, 0.35]], F32)
    inputs = [random(2, 3, 6, 7), regions, np.array([0, 1, 1], np.int32), np.array(size, np.int32)]
    attributes = {"mode": mode, "extrapolation_value": 0.5}
    check("CropAndResize", inputs, attributes, constants=[3], tolerance=1e-4, expands=False)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_nd(dtype: Any) -> None:
    check("GatherND", [random(3, 4, 5), np.array([[0, 1], [2, -1]], dtype)])


def test_range() -> None:
    check("Range", [np.array(1, F32), np.array(7, F32), np.array(1.5, F32)], data_dependent=True)
    check("Range", [np.array([2]), np.array([5])], outputs=[I64], data_dependent=True)
    check("Range", [np.array(2), np.array([9]), np.array(3)], outputs=[I64], constants=[0, 1, 2])


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances(metric: str) -> None:
    check("CDist", [random(4, 3), random(5, 3)], {"metric": metric}, tolerance=1e-4)


def test_relative_position_bias() -> None:
    """ONNX Runtime has no CPU kernel; the buckets are those of T5."""
    table = random(8, 2)
    length = np.array([40])
    apart = np.arange(40) - np.arange(40)[:, None]
    for both in (0, 1):
        buckets = 8 // (1 + both)
        distance = np.abs(apart) if both else np.maximum(-apart, 0)
        far = np.log(np.maximum(distance, 1) / (buckets // 2)) / np.log(16 / (buckets // 2)) * (buckets - buckets // 2)
        far = np.minimum(buckets // 2 + far.astype(int), buckets - 1)
        bucket = np.where(distance < buckets // 2, distance, far) + (apart > 0) * buckets * both
        expected = table[bucket].transpose(2, 0, 1)[None]
        attributes = {"max_distance": 16, "is_bidirectional": both}
        inputs = [table, length, length]
        check("RelativePositionBias", inputs, attributes, constants=[0, 1, 2], expected=[expected])


# ---- weights of a few bits -------------------------------------------------------------------------------------------


# ONNX Runtime has no kernel for floating-point zero points of 8-bit weights.
@pytest.mark.parametrize(
    ("bits", "points"),
    [(bits, points) for bits in (2, 4, 8) for points in ("none", "packed", "floating")][:-1],
)
@pytest.mark.parametrize(("columns", "size"), [(32, 16), (64, 32), (40, 16)])
def test_matmul_n_bits(bits: int, points: str, columns: int, size: int) -> None:
    rows, blocks = 6, -(-columns // size)
    weight = RANDOM.integers(0, 256, (rows, blocks, size * bits // 8)).astype(np.uint8)
    scales = RANDOM.uniform(0.1, 1, (rows, blocks)).astype(F32)
    zeros: Any = None
    if points == "packed":
        zeros = RANDOM.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8)
    elif points == "floating":
        zeros = RANDOM.uniform(0, 2**bits - 1, (rows, blocks)).astype(F32)
    inputs = [random(2, 3, columns), weight, scales, zeros, None, random(rows)]
    attributes = {"K": columns, "N": rows, "block_size": size, "bits": bits}
    check("MatMulNBits", inputs, attributes, constants=[1, 2, 3], tolerance=2e-3)


def test_matmul_n_bits_with_blocks_out_of_order() -> None:
    weight = RANDOM.integers(0, 256, (6, 2, 8)).astype(np.uint8)
    order = RANDOM.permutation(np.repeat([0, 1], 16)).astype(np.int32)
    inputs = [random(3, 32), weight, RANDOM.uniform(0.1, 1, (6, 2)).astype(F32), None, order]
    check("MatMulNBits", inputs, {"K": 32, "N": 6, "block_size": 16}, constants=[1, 2, 4], tolerance=2e-3)


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_with_looked_up_weights(kind: int) -> None:
    weight = RANDOM.integers(0, 256, (6 * 32 // 2,)).astype(np.uint8)
    inputs = [random(3, 32), weight, RANDOM.uniform(0.1, 1, (6 * 32 // 16,)).astype(F32)]
    attributes = {"K": 32, "N": 6, "block_size": 16, "quant_type": kind}
    check("MatMulBnb4", inputs, attributes, constants=[1, 2], tolerance=2e-3)


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("form", ["u4", "i4", "u8 of 4", "u8 of 8"])
def test_gather_from_quantized_table(form: str, points: bool) -> None:
    bits = 8 if form == "u8 of 8" else 4
    if form.startswith("u8"):
        data = RANDOM.integers(0, 256, (5, 32 * bits // 8)).astype(np.uint8)
        zeros = RANDOM.integers(0, 256, (5, 2 * bits // 8)).astype(np.uint8)
    else:
        dtype = ml_dtypes.uint4 if form == "u4" else ml_dtypes.int4
        low = 0 if form == "u4" else -8
        data = RANDOM.integers(low, low + 16, (5, 32)).astype(dtype)
        zeros = RANDOM.integers(low, low + 16, (5, 2)).astype(dtype)
    scales = RANDOM.uniform(0.1, 1, (5, 2)).astype(F32)
    inputs = [data, np.array([[0, 4], [2, 2]]), scales, zeros if points else None]
    attributes = {"block_size": 16, "bits": bits, "gather_axis": 0, "quantize_axis": 1}
    check("GatherBlockQuantized", inputs, attributes, constants=[0, 2, 3])


# ---- layouts, and what is not known ----------------------------------------------------------------------------------


def test_blocked_layouts_are_carried_and_typed_but_not_run() -> None:
    x = random(1, 16, 8, 8)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain="com.microsoft.nchwc"),
        helper.make_node("Conv", ["a", "w"], ["b"], domain="com.microsoft.nchwc", kernel_shape=[3, 3]),
        helper.make_node("MaxPool", ["b"], ["c"], domain="com.microsoft.nchwc", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("ReorderOutput", ["c"], ["y"], domain="com.microsoft.nchwc", channels=24),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, x.shape)], [helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(random(32, 16, 3, 3), "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft.nchwc", 1)]
    module = tilewright.load(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    tilewright.PassManager.parse("infer-shapes").run(module)
    (result,) = module.main.block.returned
    assert str(result.type) == "f32[1, 24, 3, 3]"
    with pytest.raises(ExecutionError, match="layout of the machine"):
        tilewright.compile(module, target="reference").run({"x": x})


def test_a_node_with_more_than_is_known_passes_through() -> None:
    """A newer ONNX Runtime may add inputs and attributes; nothing is made of such a node."""
    operands = [random(2, 4), random(2, 4), random(2, 4)]
    model = node_model("Gelu", operands, {"hidden_size": 3, "kinds": ["a", "b"]}, [F32, F32])
    module = tilewright.load(model.SerializeToString())
    (node,) = (op for op in module.main.block if op.domain)
    assert node.definition.is_known
    verify(module)
    again = onnx.ModelProto.FromString(tilewright.to_bytes(module))
    assert again.graph.node == model.graph.node
    assert str(tilewright.parse(str(module))) == str(module)
    optimized = tilewright.optimize(module).module
    assert onnx.ModelProto.FromString(tilewright.to_bytes(optimized)).graph.node[0].input == ["i0", "i1", "i2"]
    with pytest.raises(ExecutionError, match="not known here"):
        tilewright.compile(module, target="reference").run({f"i{index}": x for index, x in enumerate(operands)})


def test_an_operator_that_is_not_known_passes_through() -> None:
    model = node_model("NobodyKnows", [random(2, 4)], {"alpha": 0.5, "names": ["x"]}, [F32])
    module = tilewright.load(model.SerializeToString())
    (node,) = (op for op in module.main.block if op.domain)
    assert not node.definition.is_known
    assert node.results[0].type == types.tensor(tilewright.f32, None)
    assert onnx.ModelProto.FromString(tilewright.to_bytes(module)).graph.node == model.graph.node


def test_a_definition_of_ones_own_may_not_clash() -> None:
    with pytest.raises(ValueError, match="defined already"):

        @op("FusedMatMul", domain="com.microsoft")
        class Mine(OpDefinition):
            inputs = ("x",)
            outputs = ("y",)


# ---- signatures ------------------------------------------------------------------------------------------------------

_OPTIONS = {"Single": ParameterKind.REQUIRED, "Optional": ParameterKind.OPTIONAL, "Variadic": ParameterKind.VARIADIC}


def runtime_schemas() -> dict[tuple[str, str], Any]:
    """The signatures that the installed ONNX Runtime has, by domain and name."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(state, "get_all_operator_schema"):
        pytest.skip("this ONNX Runtime does not tell its schemas")
    return {(item.domain, item.name): item for item in state.get_all_operator_schema()}


def test_signatures_are_those_of_onnx_runtime() -> None:
    """Versions of ONNX Runtime differ in what they added at the end and in the attributes that they have."""
    schemas = runtime_schemas()
    compared = 0
    for definition in registered():
        schema = schemas.get((definition.domain, definition.op_type))
        if definition.closed or schema is None:
            continue
        compared += 1
        for ours, theirs in ((definition.parameters, schema.inputs), (definition.result_parameters, schema.outputs)):
            for mine, other in zip(ours, theirs, strict=False):
                assert mine.name == other.name, definition
                assert mine.kind is _OPTIONS[str(other.option).rsplit(".", 1)[-1]], (definition, mine.name)
        for name, item in schema.attributes.items():
            spec = definition.attribute_specs.get(name)
            if spec is None:
                continue
            assert spec.kind == str(item.type).rsplit(".", 1)[-1].lower(), (definition, name)
            assert spec.required == item.required, (definition, name)
            assert spec.default == default_of(item), (definition, name)
    assert compared > 60


def default_of(item: Any) -> Any:
    stored = onnx.AttributeProto.FromString(item._default_value)
    if not stored.type:
        return None
    value = helper.get_attribute_value(stored)
    return value.decode() if isinstance(value, bytes) else value
