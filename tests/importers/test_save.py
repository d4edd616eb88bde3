"""Writing a module that is not as it was loaded: names, constants, opsets, IR versions, decompositions, refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_equality import first_difference
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sample_models import SAMPLES, info, model, text

import tilewright
from tilewright.graph.core import Operation
from tilewright.graph.diagnostics import DiagnosticLog, ExportError, ModelError, UsageError
from tilewright.graph.module import Module
from tilewright.graph.rewriter import Rewriter


def written(module: Module, **options: object) -> ModelProto:
    """The model as written; checked by ONNX, and the module not changed by writing."""
    before = str(module)
    proto = ModelProto.FromString(tilewright.to_bytes(module, **options))
    assert str(module) == before, "writing changed the module"
    onnx.checker.check_model(proto, full_check=True)
    return proto


def operation(module: Module, op_type: str) -> Operation:
    return next(op for op in module.walk() if op.op_type == op_type)


def node_types(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def results(proto: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(proto).run(None, feeds)


CHAIN = "g (float[2] x) => (float[2] y) { a = Neg (x)  b = Relu (a)  y = Abs (b) }"


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_new_value_inherits_name_and_declaration() -> None:
    proto = text(CHAIN)
    proto.graph.value_info.append(info("a"))
    module = tilewright.load(proto)
    neg = operation(module, "Neg")
    rewriter = Rewriter(module.symbols, "test")
    rewriter.replace(neg, [rewriter.before(neg).mul(neg.operands[0], -1.0)])
    again = written(module)
    assert node_types(again) == ["Mul", "Relu", "Abs"]
    assert again.graph.node[0].output[0] == "a"
    assert [value.name for value in again.graph.value_info] == ["a"]
    assert again.graph.initializer[0].name == "c"


def test_new_names_are_free() -> None:
    proto = text("g (float[2] x, float[2] c) => (float[2] y) {  t = Neg (x)  b = Add (t, c)  y = Abs (b) }")
    proto.graph.value_info.append(info("c1"))  # stale, and still not to be taken
    module = tilewright.load(proto)
    add = operation(module, "Add")
    rewriter = Rewriter(module.symbols)
    scaled = rewriter.before(add).mul(add.operands[0], 2.0)
    rewriter.set_operand(add, 0, scaled)
    again = written(module)
    assert [tensor.name for tensor in again.graph.initializer] == ["c2"]
    assert list(again.graph.node[1].output) == ["t1"]


def test_new_nodes_are_named_after_their_sources_uniquely() -> None:
    proto = text("g (float[2] x) => (float[2] y) { a = Neg (x)  b = Relu (a)  y = Abs (b) }")
    for node, name in zip(proto.graph.node, ("/n", "/r", "/n_1"), strict=True):
        node.name = name
    module = tilewright.load(proto)
    neg = operation(module, "Neg")
    rewriter = Rewriter(module.symbols, "twice")
    builder = rewriter.before(neg)
    rewriter.replace(neg, [builder.sub(builder.sub(neg.operands[0], neg.operands[0]), neg.operands[0])])
    names = [node.name for node in written(module).graph.node]
    assert names == ["/n", "/n_2", "/r", "/n_1"]


def test_copies_of_one_node_get_names_of_their_own() -> None:
    proto = text("g (float[2] x) => (float[2] y) { a = Neg (x)  y = Abs (a) }")
    proto.graph.node[0].name = "neg"
    module = tilewright.load(proto)
    neg, absolute = operation(module, "Neg"), operation(module, "Abs")
    rewriter = Rewriter(module.symbols)
    copy = rewriter.before(absolute, neg.location).neg(neg.result)
    copy.name = neg.result.name
    rewriter.set_operand(absolute, 0, copy)
    again = written(module)
    assert [node.name for node in again.graph.node] == ["neg", "neg_1", ""]
    assert [node.output[0] for node in again.graph.node] == ["a", "a_1", "y"]


def bypass(module: Module, op_type: str) -> None:
    """Remove an operation as if it were an identity."""
    op = operation(module, op_type)
    Rewriter(module.symbols).replace(op, [op.operands[0]])


def test_an_output_keeps_its_name() -> None:
    module = tilewright.load(text(CHAIN))
    bypass(module, "Abs")
    again = written(module)
    assert node_types(again) == ["Neg", "Relu"]
    assert again.graph.node[1].output[0] == again.graph.output[0].name == "y"


def test_an_output_that_became_an_input_is_copied() -> None:
    module = tilewright.load(text("g (float[2] x) => (float[2] y) { y = Abs (x) }"))
    bypass(module, "Abs")
    again = written(module)
    assert node_types(again) == ["Identity"]
    assert (again.graph.node[0].input[0], again.graph.node[0].output[0]) == ("x", "y")


def test_two_outputs_of_one_value() -> None:
    module = tilewright.load(text("g (float[2] x) => (float[2] y, float[2] z) { z = Neg (x)  y = Abs (z) }"))
    bypass(module, "Abs")
    again = written(module)
    assert node_types(again) == ["Neg", "Identity"]
    assert again.graph.node[0].output[0] == "z", "the value keeps the output name that it had"
    assert [output.name for output in again.graph.output] == ["y", "z"]


def test_an_output_that_became_constant_is_an_initializer() -> None:
    module = tilewright.load(text("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Neg (w) }"))
    neg = operation(module, "Neg")
    rewriter = Rewriter(module.symbols)
    rewriter.replace(neg, [rewriter.before(neg).const(np.array([-1, -2], np.float32))])
    rewriter.erase(next(op for op in module.walk() if op.name == "const" and op.result.name == "w"))
    again = written(module)
    assert not again.graph.node
    assert [tensor.name for tensor in again.graph.initializer] == ["y"]


def test_an_inner_value_is_not_taken_for_an_outer_one() -> None:
    """A branch whose operations moved out leaves their names in the graph around it."""
    module = tilewright.load(
        text("""g (float[2] x, bool c) => (float[2] y) {
          y = If (c) <then_branch = t () => (float[2] r) { q = Neg (x)  r = Abs (q) },
                      else_branch = e () => (float[2] r) { q = Relu (x)  r = Abs (q) }>
        }""")
    )
    rewriter = Rewriter(module.symbols)
    choice = operation(module, "If")
    rewriter.move(operation(module, "Neg"), choice)
    again = written(module)
    branches = {attribute.name: attribute.g for attribute in again.graph.node[1].attribute}
    assert again.graph.node[0].output[0] == branches["then_branch"].node[0].input[0] == "q"
    assert branches["else_branch"].node[0].output[0] not in ("q", "r")


def test_a_body_that_returns_its_input_needs_no_copy() -> None:
    module = tilewright.load(
        text("""g (float[2] x, bool c, int64 n) => (float[2] y) {
          y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] a) => (bool go_on, float[2] z) {
            go_on = Identity (go)
            z = Neg (a)
          }>
        }""")
    )
    bypass(module, "Identity")
    body = written(module).graph.node[0].attribute[0].g
    assert [node.op_type for node in body.node] == ["Neg"]
    assert body.input[1].name == body.output[0].name == "go_on"


# ---- constants -------------------------------------------------------------------------------------------------------


def test_constants_that_became_attributes_are_not_written() -> None:
    """At opset 11 the axes are an attribute again, whatever made the constant."""
    proto = text(
        "g (float[1, 2] x) => (float[2] y) <int64[1] axes = {0}, int64[1] nobody = {3}> { y = Squeeze (x, axes) }"
    )
    again = written(tilewright.load(proto), opset=11)
    assert [tensor.name for tensor in again.graph.initializer] == ["nobody"]
    assert helper.get_attribute_value(again.graph.node[0].attribute[0]) == [0]
    assert first_difference(proto, written(tilewright.load(again), opset=21)) is not None


def test_an_attribute_that_became_an_input() -> None:
    proto = text("g (float[1, 2] x) => (float[2] y) { y = Squeeze <axes = [0]> (x) }", opset=11)
    proto.graph.node[0].name = "sq"
    again = written(tilewright.load(proto), opset=13)
    assert list(again.graph.node[0].input) == ["x", "c"]
    assert numpy_helper.to_array(again.graph.initializer[0]).tolist() == [0]


def test_shared_constants_are_stored_once_in_a_data_file(tmp_path: Path) -> None:
    module = tilewright.load(text("g (float[512] x) => (float[512] y) { a = Neg (x) b = Neg(a) y = Neg(b) }"))
    weight = np.arange(512, dtype=np.float32)
    rewriter = Rewriter(module.symbols)
    neg = operation(module, "Neg")
    builder = rewriter.before(neg)
    data = builder.const(weight).producer.attributes["value"]
    first, second = builder.const(data), builder.const(data)
    rewriter.set_operand(neg, 0, builder.add(builder.add(neg.operands[0], first), second))
    found = tilewright.save(module, tmp_path / "m.onnx", external=True)
    assert found.data_path.stat().st_size == weight.nbytes
    assert len(onnx.load(tmp_path / "m.onnx").graph.initializer) == 3


@pytest.mark.parametrize("ir_version", [3, 8])
def test_new_constants_of_an_old_file(ir_version: int) -> None:
    """Before IR version 4 each initializer must be an input, too; the others keep their place."""
    proto = text("g (float[2] x, float[2] w) => (float[2] y) { a = Add (x, w)  y = Neg (a) }", ir_version, opset=8)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    module = tilewright.load(proto)
    neg = operation(module, "Neg")
    rewriter = Rewriter(module.symbols)
    rewriter.replace(neg, [rewriter.before(neg).mul(neg.operands[0], -1.0)])
    again = written(module)
    expected = ["x", "w", "c"] if ir_version == 3 else ["x", "w"]
    assert [value.name for value in again.graph.input] == expected
    assert again.ir_version == ir_version


def test_old_constant_nodes_of_other_types_become_initializers() -> None:
    proto = text("g (float[2, 3] x) => (float[3, 2] y) { s = Constant <value_ints = [3, 2]> () y = Reshape (x, s) }")
    again = written(tilewright.load(proto), opset=7)
    assert node_types(again) == ["Reshape"]
    assert [tensor.name for tensor in again.graph.initializer] == ["s"]
    again = written(tilewright.load(proto), opset=11)
    assert node_types(again) == ["Constant", "Reshape"]
    assert again.graph.node[0].attribute[0].name == "value"


# ---- opsets, IR versions, domains ------------------------------------------------------------------------------------


def test_an_op_without_a_form_is_decomposed() -> None:
    proto = text("""g (float[2, 8] x, float[8] s) => (float[2, 8] y) {
      a = LayerNormalization <axis = -1> (x, s)
      y = Gelu (a)
    }""")
    module = tilewright.load(proto)
    again = written(module, opset=13)
    assert not {"LayerNormalization", "Gelu"} & set(node_types(again))
    assert again.opset_import[0].version == 13
    assert {"x", "s"} == {value.name for value in again.graph.input}
    names = [name for node in again.graph.node for name in node.output]
    assert "a" in names, "the result of a decomposed operation keeps its name"
    assert len(set(names)) == len(names)
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32), "s": np.ones(8, np.float32)}
    np.testing.assert_allclose(results(again, feeds)[0], results(proto, feeds)[0], rtol=1e-5, atol=1e-6)


def test_decompositions_in_subgraphs_and_functions() -> None:
    proto = text(
        """g (float[2] x, bool c) => (float[2] y) {
          h = local.F (x)
          y = If (c) <then_branch = t () => (float[2] r) { r = Gelu (x) },
                      else_branch = e () => (float[2] r) { r = Neg (h) }>
        }
        <domain: "local", opset_import: ["" : 21]> F (v) => (r) { r = HardSwish (v) }""",
        more=', "local" : 1',
    )
    module = tilewright.load(proto)
    again = written(module, opset=13)
    assert [item.version for item in again.functions[0].opset_import] == [13]
    feeds = {"x": np.array([0.5, -2], np.float32), "c": np.array(True)}
    np.testing.assert_allclose(results(again, feeds)[0], results(proto, feeds)[0], rtol=1e-5)


def test_everything_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    proto = text(
        """g (float[3, 2] x, int64[1] k) => (seq(float[2]) y, float[3, 2] z) {
      y = SplitToSequence <axis = 0, keepdims = 0> (x)
      i = Trilu (x)
      z = Neg (i)
    }""".replace("      z = Det (i)\n", "      z = NonMaxSuppression (i)\n").replace("NonMaxSuppression (i)", "Neg (i)")
    )
    proto.graph.node[0].name, proto.graph.node[1].name = "split", "tri"
    module = tilewright.load(proto)
    with pytest.raises(ExportError) as caught:
        tilewright.save(module, tmp_path / "out.onnx", opset=7)
    assert [str(item.location) for item in caught.value.diagnostics] == ['"split"#0', '"tri"#1']
    assert all("opset 7" in item.message for item in caught.value.diagnostics)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(("opset", "ir_version"), [(None, 3), (8, 3), (13, 7), (21, 10), (28, 14)])
def test_ir_version_is_raised_only_where_needed(opset: int | None, ir_version: int) -> None:
    proto = text("g (float[2] x) => (float[2] y) { y = Neg (x) }", ir_version=3, opset=8)
    assert written(tilewright.load(proto), opset=opset).ir_version == ir_version


def test_ir_version_follows_new_content() -> None:
    module = tilewright.load(text("g (float[2] x) => (float[2] y) { y = Neg (x) }", ir_version=8, opset=19))
    neg = operation(module, "Neg")
    rewriter = Rewriter(module.symbols)
    builder = rewriter.before(neg)
    small = builder.const(np.ones(2, np.float32).astype("float8_e4m3fn"))
    rewriter.set_operand(neg, 0, builder.add(neg.operands[0], builder.cast(small, to=1)))
    assert written(module).ir_version == 9


def test_domains_that_came_into_use_are_imported() -> None:
    module = tilewright.load(text("g (float[2] x) => (float[2] y) { y = Neg (x) }"))
    neg = operation(module, "Neg")
    rewriter = Rewriter(module.symbols)
    builder = rewriter.before(neg)
    scaled = builder.create("ai.onnx.ml.Scaler", [neg.operands[0]], {"offset": (0.0,), "scale": (2.0,)})
    custom = builder.create(
        tilewright.graph.opdef.lookup("org.example", "Thing"),
        [scaled.result],
        outputs=1,
        result_types=[scaled.result.type],
    )
    rewriter.set_operand(neg, 0, custom.result)
    proto = ModelProto.FromString(tilewright.to_bytes(module))
    assert {item.domain: item.version for item in proto.opset_import} == {"": 21, "ai.onnx.ml": 5, "org.example": 1}


def test_a_model_of_another_domain_needs_no_default_opset() -> None:
    proto = model([helper.make_node("Thing", ["x"], ["y"], domain="org.example")], [info("x")], [info("y")])
    del proto.opset_import[:]
    proto.opset_import.add(domain="org.example", version=2)
    module = tilewright.load(proto)
    again = ModelProto.FromString(tilewright.to_bytes(module))
    assert [(item.domain, item.version) for item in again.opset_import] == [("org.example", 2)]


@pytest.mark.parametrize("wanted", ["a report", "a path", "a proto"])
def test_only_modules_are_written(wanted: str, tmp_path: Path) -> None:
    proto = text(CHAIN)
    given: Any = {"a report": tilewright.optimize(proto), "a path": "model.onnx", "a proto": proto}[wanted]
    with pytest.raises(UsageError, match="only a Module can be written"):
        tilewright.save(given, tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="only a Module can be written"):
        tilewright.to_bytes(given)
    assert not list(tmp_path.iterdir())


def test_wrong_requests_are_refused() -> None:
    module = tilewright.load(text(CHAIN))
    with pytest.raises(UsageError, match="opset 99"):
        tilewright.to_bytes(module, opset=99)
    with pytest.raises(UsageError, match="'tflite'"):
        tilewright.to_bytes(module, target="tflite")
    module.level = "core"
    with pytest.raises(ExportError, match="'core'"):
        tilewright.to_bytes(module)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_with_shapes_lists_every_known_tensor() -> None:
    proto = text(
        "g (float[N, 2] x, float w) => (float[N, 2] y) <float c = {1}> { a = Neg (x)  b = Mul (a, c)  y = Abs (b) }"
    )
    proto.graph.value_info.append(info("b", ["N", 2]))
    module = tilewright.load(proto)
    assert [value.name for value in written(module).graph.value_info] == ["b"]
    listed = written(module, with_shapes=True).graph.value_info
    assert [value.name for value in listed] == ["a", "b"]
    assert [(d.dim_param, d.dim_value) for d in listed[0].type.tensor_type.shape.dim] == [("N", 0), ("", 2)]


def test_dims_nobody_named_have_no_name() -> None:
    proto = text("g (float[N] x) => (float[M] y) { a = NonZero (x)  c = Cast <to = 1> (a)  y = Squeeze (c, z) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "z"))
    listed = written(tilewright.load(proto), with_shapes=True).graph.value_info
    dims = [(d.dim_param, d.dim_value) for d in listed[0].type.tensor_type.shape.dim]
    assert dims == [("", 1), ("", 0)]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(SAMPLES["large_weights"](), path)
    module = tilewright.load(path)
    before = path.read_bytes()
    broken = tilewright.parse(tilewright.graph.printer.print_module(module, weights="none"))
    with pytest.raises(ModelError, match="is not loaded"):
        tilewright.save(broken, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    onnx.save(SAMPLES["large_weights"](), tmp_path / "model.onnx")
    module = tilewright.load(tmp_path / "model.onnx")
    first = tilewright.to_bytes(module)
    assert first == tilewright.to_bytes(module)
    tilewright.save(module, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == first
    assert tilewright.to_proto(module).SerializeToString() == first


@pytest.mark.parametrize("name", SAMPLES)
def test_written_samples_are_as_valid_as_before(name: str) -> None:
    """Some samples are refused by ONNX's checker, on purpose; written again they are refused for the same reason."""
    proto = SAMPLES[name]()
    again = ModelProto.FromString(tilewright.to_bytes(tilewright.load(proto, log=DiagnosticLog())))
    if name == "first_ir_version":  # had no types of attributes, which are written, and no opset, which is not
        assert "No opset import" in complaint(again)
        assert "Mismatched attribute type" in complaint(proto)
    else:
        assert complaint(again) == complaint(proto)


def complaint(proto: ModelProto) -> str:
    """The first line of what the checker says against a model; empty if it takes it."""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as refused:
        return str(refused).splitlines()[0]
    return ""


@pytest.mark.parametrize("opset", [13, 18, 28])
def test_old_forms_keep_their_meaning(opset: int) -> None:
    """A model of opset 6, with Add's axis and Softmax over several dims, at opsets where both are gone."""
    proto = SAMPLES["old_forms"]()
    again = written(tilewright.load(proto), opset=opset)
    rng = np.random.default_rng(0)
    x, b = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    summed = np.clip(x, 0, 6) + b[:, None]
    flat = np.exp(summed.reshape(2, 12) - summed.reshape(2, 12).max(1, keepdims=True))
    flat /= flat.sum(1, keepdims=True)
    found = results(again, {"x": x, "b": b})
    np.testing.assert_allclose(found[0], flat.reshape(2, 3, 4), rtol=1e-5)
    np.testing.assert_allclose(found[1], flat, rtol=1e-5)


def test_a_part_of_a_shape_before_opset_15() -> None:
    proto = text("""g (float[A, 3, B] x) => (int64[1] y, int64[2] z) {
      y = Shape <end = 1> (x)
      z = Shape <start = -2> (x)
    }""")
    again = written(tilewright.load(proto), opset=9)
    assert sorted(node_types(again)) == ["Shape", "Slice", "Slice"]  # both parts are cut from one shape
    found = results(again, {"x": np.zeros((5, 3, 7), np.float32)})
    assert [array.tolist() for array in found] == [[5], [3, 7]]


# ---- operators of other domains --------------------------------------------------------------------------------------


def with_bias_gelu() -> Module:
    """A module in which a pass has made an operator of ONNX Runtime."""
    module = tilewright.load(text("g (float[2, 4] x, float[4] b) => (float[2, 4] y) { a = Add (x, b)  y = Gelu (a) }"))
    gelu = operation(module, "Gelu")
    rewriter = Rewriter(module.symbols)
    fused = rewriter.before(gelu).create("com.microsoft.BiasGelu", [*module.main.inputs])
    rewriter.replace(gelu, [fused.result])
    rewriter.erase(operation(module, "Add"))
    return module


def test_other_domains_are_written_as_standard_operators() -> None:
    again = written(with_bias_gelu())
    assert {node.domain for node in again.graph.node} == {""}
    assert [item.domain for item in again.opset_import] == [""]
    feeds = {"x": np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4), "b": np.ones(4, np.float32)}
    original = text("g (float[2, 4] x, float[4] b) => (float[2, 4] y) { a = Add (x, b)  y = Gelu (a) }")
    np.testing.assert_allclose(results(again, feeds)[0], results(original, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"target": "onnxruntime"}, {"keep_fused": True}], ids=["onnxruntime", "keep_fused"]
)
def test_other_domains_are_written_as_they_are_where_allowed(options: dict[str, object]) -> None:
    proto = ModelProto.FromString(tilewright.to_bytes(with_bias_gelu(), **options))
    assert [(node.domain, node.op_type) for node in proto.graph.node] == [("com.microsoft", "BiasGelu")]
    assert {item.domain: item.version for item in proto.opset_import} == {"": 21, "com.microsoft": 1}


def test_what_the_file_had_stays() -> None:
    proto = text("g (float[2, 4] x, float[4] b) => (float[2, 4] y) { y = com.microsoft.BiasGelu (x, b) }",
                 more=', "com.microsoft" : 1')  # fmt: skip
    assert first_difference(proto, tilewright.to_proto(tilewright.load(proto))) is None
