"""What a file becomes in memory: types, dims, constants, regions, functions, old forms, locations."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sample_models import SAMPLES, info, model, text

import tilewright
from tilewright.graph import dtypes, types
from tilewright.graph.core import AttributeReference, Operation
from tilewright.graph.data import MappedData, SparseData
from tilewright.graph.dims import is_symbol, prove_equal
from tilewright.graph.location import NodeLocation
from tilewright.graph.module import INTERNAL_OPSET, FunctionKey, Module
from tilewright.graph.verifier import verify


def operations(module: Module, name: str) -> list[Operation]:
    return [op for op in module.walk() if op.name == name]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_loaded_is_well_formed(name: str) -> None:
    verify(tilewright.load(SAMPLES[name]()))


def test_a_declared_type_stays_and_others_are_inferred() -> None:
    proto = text("g (float[2, 3] x) => (float[N, M] y) { a = Neg(x) b = Shape(a) c = Relu(a) y = Abs(c) }")
    proto.graph.value_info.append(info("c", ["rows", 3]))
    module = tilewright.load(proto)
    found = {value.name: str(value.type) for op in module.main.block for value in op.results}
    assert found == {"a": "f32[2, 3]", "b": "i64[2]", "c": "f32[rows, 3]", "y": "f32[N, M]"}


def test_every_occurrence_of_a_dim_name_is_its_own_symbol() -> None:
    """The same name in two places is a claim of the file, not a proof."""
    module = tilewright.load(text("g (float[N, N] x, float[N] z) => (float[N, N] y) { y = Add(x, z) }"))
    dims = [dim for value in module.main.inputs for dim in value.type.shape]
    assert [dim.label for dim in dims] == ["N", "N", "N"]
    assert len(set(dims)) == 3
    assert prove_equal(dims[0], dims[1]) is None


def test_unnamed_dims_are_unlike_any_other() -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", ["?", "", -1, None, "None"])], [info("y", None)])
    (x,) = tilewright.load(proto).main.inputs
    assert len(set(x.type.shape)) == 5
    assert all(is_symbol(dim) and dim.label.startswith("?") for dim in x.type.shape)


def test_initializers_are_constants_and_nodes_say_where_they_are_from() -> None:
    proto = text("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add(x, w) y = Relu(a) }")
    proto.graph.node[1].name = "act"
    module = tilewright.load(proto)
    constant, add, relu, _ = module.main.block
    assert constant.name == "const"
    assert constant.attributes["value"].numpy().tolist() == [1, 2]
    assert add.operands == (module.main.inputs[0], constant.result)
    assert [add.location, relu.location] == [NodeLocation("", 0), NodeLocation("act", 1)]


@pytest.mark.parametrize(("ir_version", "inputs"), [(3, ["x"]), (4, ["x", "w"])])
def test_initializers_that_are_inputs(ir_version: int, inputs: list[str]) -> None:
    """Overridable from IR version 4 on, constants before."""
    proto = text("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", ir_version, opset=8)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([3, 4], np.float32), "w"))
    module = tilewright.load(proto)
    assert [value.name for value in module.main.inputs] == inputs
    defaults = {value.name: data.numpy().tolist() for value, data in module.main.defaults.items()}
    assert defaults == ({} if ir_version == 3 else {"w": [3, 4]})
    assert len(operations(module, "const")) == (1 if ir_version == 3 else 0)


def test_old_forms_become_those_of_today() -> None:
    module = tilewright.load(text("g (float[2, 1] x) => (float[2] y) { y = Squeeze <axes = [1]> (x) }", opset=11))
    constant, squeeze, _ = module.main.block
    assert constant.metadata == {"from_attribute": "axes"}
    assert constant.attributes["value"].numpy().tolist() == [1]
    assert squeeze.attributes == {}
    assert squeeze.definition.schema.since_version <= INTERNAL_OPSET
    assert module.opsets == {"": 11}


def test_a_form_without_equivalent_stays_and_knows_its_version() -> None:
    module = tilewright.load(
        text("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax <axis = 1> (x) }", opset=11)
    )
    assert [op.name for op in module.main.block] == ["softmax.v11", "return"]


def test_subgraphs_are_regions_that_use_outer_values() -> None:
    module = tilewright.load(SAMPLES["nested_subgraphs"]())
    (loop,) = operations(module, "loop")
    choices = operations(module, "if")
    assert list(loop.regions) == ["body"]
    assert [sorted(op.regions) for op in choices] == [["else_branch", "then_branch"]] * 2
    (sub,) = operations(module, "sub")
    assert sub.operands == (loop.regions["body"].block.arguments[2], module.main.inputs[0])


def test_arguments_of_bodies_take_their_types_from_the_node() -> None:
    module = tilewright.load(SAMPLES["untyped_body"]())
    (loop,) = operations(module, "loop")
    assert [str(value.type) for value in loop.regions["body"].block.arguments] == ["i64[]", "bool[]", "f32[*]"]


def test_scan_slices_have_the_scanned_axis_taken_out() -> None:
    proto = SAMPLES["scan_and_sequences"]()
    for value in proto.graph.node[0].attribute[0].g.input:
        value.ClearField("type")
    body = next(a.g for a in proto.graph.node[0].attribute if a.name == "body")
    for value in body.input:
        value.ClearField("type")
    (scan,) = operations(tilewright.load(proto), "scan")
    assert [str(value.type) for value in scan.regions["body"].block.arguments] == ["f32[*]", "f32[2]"]


def test_functions_are_kept_apart() -> None:
    module = tilewright.load(SAMPLES["model_local_functions"]())
    assert list(module.functions) == [
        FunctionKey("local", "Scaled"), FunctionKey("local", "Twice"), FunctionKey("local", "Either"),
        FunctionKey("unused", "Softened"),
    ]  # fmt: skip
    scaled = module.functions[FunctionKey("local", "Scaled")]
    assert scaled.attributes == {"by": 2.0}
    assert scaled.opsets == {"": 21}
    constant = scaled.block.first
    assert constant.attributes["value"] == AttributeReference("by", "float")
    assert all(value.type is types.UNKNOWN for value in scaled.inputs)
    assert [op.name for op in module.main.block][:2] == ["local.Scaled", "local.Scaled"]


def test_constants_of_all_kinds_hold_their_values() -> None:
    module = tilewright.load(SAMPLES["constant_nodes"]())
    constants = {op.result.name: op.attributes["value"] for op in operations(module, "const")}
    assert constants["value_float"].numpy().tolist() == 1.5
    assert constants["value_ints"].numpy().tolist() == [1, 2, 3]
    assert constants["value_strings"].numpy().tolist() == ["a", b"\xff", ""]
    assert isinstance(constants["sparse_value"], SparseData)
    assert constants["sparse_value"].numpy().tolist() == [0, 1, 0, 0, 2, 0]
    assert constants["value_int"].type == dtypes.i64[()]


def test_every_dtype_has_the_right_elements() -> None:
    proto = SAMPLES["every_dtype"]()
    constants = {op.result.name: op.attributes["value"] for op in tilewright.load(proto).walk() if op.name == "const"}
    assert len(constants) == len(proto.graph.initializer)
    for tensor in proto.graph.initializer:
        found = constants[tensor.name].numpy()
        if tensor.data_type == TensorProto.STRING:
            assert found.tolist() == ["é", b"\xfe"]  # bytes where they are no text
            continue
        expected = numpy_helper.to_array(tensor)
        assert found.dtype == expected.dtype
        numbers = [array.astype(np.complex128) for array in (found, expected)]
        assert np.array_equal(*numbers, equal_nan=True), tensor.name


def test_a_file_can_be_replaced_while_its_weights_are_in_use(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(SAMPLES["large_weights"](), path)
    module = tilewright.load(path)
    tilewright.save(module, path)
    other = tmp_path / "other.onnx"
    onnx.save(SAMPLES["every_fact"](), other)
    os.replace(other, path)
    mapped = [op.attributes["value"] for op in module.walk() if op.name == "const"]
    assert sum(isinstance(data, MappedData) for data in mapped) >= 5
    assert all(np.isfinite(data.numpy()).all() for data in mapped)


def test_loading_is_deterministic() -> None:
    proto = SAMPLES["nested_subgraphs"]()
    assert str(tilewright.load(proto)) == str(tilewright.load(proto.SerializeToString()))
