"""Every fault of a model is found at once and explained: code, sentence, node, hint; never a traceback."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from sample_models import SAMPLES, info, model, text

import tilewright
from tilewright.graph.diagnostics import DiagnosticLog, ModelError, TilewrightError, UsageError

BAD: dict[str, tuple[str, Callable[[], ModelProto]]] = {}


def bad(code: str) -> Callable[[Callable[[], ModelProto]], Callable[[], ModelProto]]:
    """Register a model whose first finding has the code `code`."""

    def register(build: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
        BAD[build.__name__] = code, build
        return build

    return register


def plain(body: str = "y = Neg(x)", **options: int) -> ModelProto:
    return text(f"g (float[2, 3] x) => (float[2, 3] y) {{ {body} }}", **options)


# ---- values and order ------------------------------------------------------------------------------------------------


@bad("onnx/cycle")
def cyclic() -> ModelProto:
    return plain("a = Add(x, b) b = Neg(a) y = Relu(b)")


@bad("onnx/cycle")
def feeds_itself() -> ModelProto:
    return plain("y = Add(x, y)")


@bad("onnx/cycle")
def cyclic_through_a_subgraph() -> ModelProto:
    return text("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] r) { r = Neg (z) },
                    else_branch = e () => (float[2] r) { r = Neg (x) }>
        z = Neg (y)
    }""")


@bad("onnx/undefined-value")
def undefined_input() -> ModelProto:
    return plain("y = Add(x, weihgt)")


@bad("onnx/undefined-value")
def undefined_output() -> ModelProto:
    return plain("z = Neg(x)")


@bad("onnx/undefined-value")
def use_of_an_inner_value() -> ModelProto:
    return text("""g (float[2] x, bool c) => (float[2] y) {
        z = If (c) <then_branch = t () => (float[2] r) { r = Neg (x) },
                    else_branch = e () => (float[2] r) { r = Relu (x) }>
        y = Neg (r)
    }""")


@bad("onnx/duplicate-value")
def duplicate_names() -> ModelProto:
    return plain("a = Neg(x) a = Relu(x) y = Neg(a)")


@bad("onnx/duplicate-value")
def result_named_like_an_input() -> ModelProto:
    return plain("x = Neg(x) y = Neg(x)")


@bad("onnx/duplicate-value")
def duplicate_inputs() -> ModelProto:
    return text("g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }")


@bad("onnx/duplicate-value")
def duplicate_initializers() -> ModelProto:
    proto = plain("y = Add(x, w)")
    proto.graph.initializer.extend([numpy_helper.from_array(np.ones(3, np.float32), "w")] * 2)
    return proto


@bad("onnx/empty-graph")
def empty_graph() -> ModelProto:
    return text("g (float[2] x) => () { }")


# ---- operators -------------------------------------------------------------------------------------------------------


@bad("onnx/unknown-op")
def misspelt_operator() -> ModelProto:
    return plain("y = Rleu(x)")


@bad("onnx/unknown-op")
def operator_from_a_later_opset() -> ModelProto:
    return plain("y = Gelu(x)", opset=17)


@bad("onnx/unknown-op")
def removed_operator() -> ModelProto:
    return text("g (float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, 4, 4] y) { y = Upsample(x, s) }", opset=12)


@bad("onnx/opset-unknown")
def opset_of_the_future() -> ModelProto:
    return plain(opset=999)


@bad("onnx/opset-missing")
def no_opset() -> ModelProto:
    proto = plain()
    del proto.opset_import[:]
    return proto


@bad("onnx/opset-missing")
def ml_without_import() -> ModelProto:
    return plain("y = ai.onnx.ml.Scaler(x)")


@bad("onnx/ir-version")
def no_ir_version() -> ModelProto:
    proto = plain()
    proto.ClearField("ir_version")
    return proto


@bad("onnx/ir-version")
def ir_version_of_the_future() -> ModelProto:
    return plain(ir_version=99)


@bad("onnx/operand-missing")
def too_few_inputs() -> ModelProto:
    return plain("y = Add(x)")


@bad("onnx/operand-count")
def too_many_inputs() -> ModelProto:
    return plain("y = Neg(x, x)")


@bad("onnx/result-count")
def too_many_outputs() -> ModelProto:
    return plain("y, z = Neg(x)")


@bad("onnx/unknown-attribute")
def misspelt_attribute() -> ModelProto:
    return plain("y = Softmax <axes = 1> (x)")


@bad("onnx/attribute-type")
def attribute_of_the_wrong_type() -> ModelProto:
    return plain('y = Softmax <axis = "last"> (x)')


@bad("onnx/attribute-missing")
def missing_attribute() -> ModelProto:
    return plain("y = Concat(x)")


@bad("onnx/duplicate-attribute")
def attribute_given_twice() -> ModelProto:
    proto = plain("y = Softmax <axis = 1> (x)")
    proto.graph.node[0].attribute.append(proto.graph.node[0].attribute[0])
    return proto


@bad("onnx/attribute-reference")
def reference_outside_of_a_function() -> ModelProto:
    proto = plain("y = Softmax <axis = 1> (x)")
    proto.graph.node[0].attribute[0].ref_attr_name = "axis"
    return proto


@bad("onnx/constant")
def constant_without_value() -> ModelProto:
    return plain("k = Constant() y = Add(x, k)")


# ---- types and shapes ------------------------------------------------------------------------------------------------


@bad("onnx/operand-type")
def type_that_the_operator_does_not_take() -> ModelProto:
    return text("g (string[2] x) => (string[2] y) { y = Relu(x) }")


@bad("onnx/operand-type")
def two_types_where_one_is_wanted() -> ModelProto:
    return text("g (float[2] x, int64[2] i) => (float[2] y) { y = Add(x, i) }")


@bad("onnx/output-type")
def output_of_another_type() -> ModelProto:
    return text("g (float[2] x) => (int64[2] y) { y = Neg(x) }")


@bad("shape/broadcast")
def shapes_that_do_not_fit() -> ModelProto:
    return text("g (float[2] x, float[3] z) => (float[2] y) { y = Add(x, z) }")


@bad("onnx/negative-dim")
def negative_dim_of_an_input() -> ModelProto:
    return model([helper.make_node("Neg", ["x"], ["y"])], [info("x", [2, -3])], [info("y", [2, None])])


@bad("onnx/negative-dim")
def negative_dim_of_a_weight() -> ModelProto:
    proto = plain("y = Add(x, w)")
    proto.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[-1, 3], raw_data=bytes(12)))
    return proto


@bad("onnx/huge-shape")
def huge_input() -> ModelProto:
    return text("g (float[4294967296, 4294967296] x) => (float[N, M] y) { y = Neg(x) }")


@bad("onnx/tensor-rank")
def input_of_many_dims() -> ModelProto:
    return model([helper.make_node("Neg", ["x"], ["y"])], [info("x", [1] * 65)], [info("y", None)])


@bad("onnx/huge-shape")
def huge_weight() -> ModelProto:
    proto = plain("y = Add(x, w)")
    proto.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2**62, 2], raw_data=bytes(4)))
    return proto


@bad("onnx/tensor-size")
def weight_cut_short() -> ModelProto:
    proto = plain("y = Add(x, w)")
    proto.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2, 3], raw_data=bytes(20)))
    return proto


@bad("onnx/tensor-size")
def large_weight_cut_short() -> ModelProto:
    proto = plain("y = Add(x, w)")
    proto.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2, 3], raw_data=bytes(6000)))
    return proto


@bad("onnx/tensor-dtype")
def weight_of_unknown_type() -> ModelProto:
    proto = plain("y = Add(x, w)")
    proto.graph.initializer.append(TensorProto(name="w", data_type=77, dims=[1], raw_data=bytes(4)))
    return proto


@bad("onnx/initializer-type")
def default_of_another_type() -> ModelProto:
    proto = text("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2), "w"))
    return proto


@bad("onnx/sparse-indices")
def sparse_index_outside() -> ModelProto:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", 1, [1], [1.0]), helper.make_tensor("i", TensorProto.INT64, [1], [9]), [3]
    )
    proto = plain("y = Add(x, w)")
    proto.graph.sparse_initializer.append(sparse)
    return proto


@bad("onnx/input-type")
def input_without_type() -> ModelProto:
    proto = plain()
    proto.graph.input[0].ClearField("type")
    return proto


@bad("onnx/element-type")
def input_of_unknown_element_type() -> ModelProto:
    proto = plain()
    proto.graph.input[0].type.tensor_type.elem_type = 99
    return proto


# ---- functions and external data -------------------------------------------------------------------------------------


def calling(body: str, functions: str) -> ModelProto:
    return text(f"g (float[2] x) => (float[2] y) {{ {body} }}\n{functions}", more=', "local" : 1')


@bad("onnx/recursive-function")
def function_that_calls_itself() -> ModelProto:
    return calling(
        "y = local.F(x)",
        """<domain: "local", opset_import: ["local" : 1]> F (v) => (r) { r = local.G(v) }
        <domain: "local", opset_import: ["local" : 1]> G (v) => (r) { r = local.F(v) }""",
    )


@bad("onnx/call")
def call_with_too_many_inputs() -> ModelProto:
    return calling("y = local.F(x, x)", '<domain: "local", opset_import: ["" : 21]> F (v) => (r) { r = Neg(v) }')


@bad("onnx/unknown-function")
def call_of_a_missing_overload() -> ModelProto:
    proto = calling("y = local.F(x)", '<domain: "local", opset_import: ["" : 21]> F (v) => (r) { r = Neg(v) }')
    proto.graph.node[0].overload = "other"
    return proto


@bad("onnx/duplicate-function")
def function_defined_twice() -> ModelProto:
    proto = calling("y = local.F(x)", '<domain: "local", opset_import: ["" : 21]> F (v) => (r) { r = Neg(v) }')
    proto.functions.append(proto.functions[0])
    return proto


@bad("onnx/unknown-op")
def fault_in_a_function() -> ModelProto:
    return calling("y = local.F(x)", '<domain: "local", opset_import: ["" : 21]> F (v) => (r) { r = Nge(v) }')


@bad("onnx/external-path")
def data_outside_of_the_folder() -> ModelProto:
    proto = plain("y = Add(x, w)")
    weight = TensorProto(name="w", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../etc/passwd")
    proto.graph.initializer.append(weight)
    return proto


@bad("onnx/external-missing")
def data_file_missing() -> ModelProto:
    proto = plain("y = Add(x, w)")
    weight = TensorProto(name="w", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="nowhere.bin")
    proto.graph.initializer.append(weight)
    return proto


@bad("onnx/too-deep")
def nested_too_deep() -> ModelProto:
    proto = text("g (float[2] x, bool c) => (float[2] y) { y = Neg(x) }")
    graph = proto.graph
    for _ in range(80):
        node = graph.node.add(op_type="If", input=["c"], output=["y"])
        graph = node.attribute.add(name="then_branch", type="GRAPH").g
    return proto


@bad("onnx/not-text")
def name_that_is_no_text() -> ModelProto:
    return ModelProto.FromString(plain().SerializeToString().replace(b"Neg", b"N\xffg"))


@pytest.mark.parametrize("name", BAD)
def test_fault_is_found_and_explained(name: str, tmp_path: Path) -> None:
    code, build = BAD[name]
    proto = build()
    with pytest.raises(ModelError) as caught:
        tilewright.load(proto, folder=tmp_path)
    assert caught.value.code == code
    assert f"error[{code}]: " in str(caught.value)
    if name == "nested_too_deep":
        return  # protobuf itself does not read so deep a file
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError) as caught:
        tilewright.load(path)
    assert caught.value.code == code


def test_all_faults_are_reported_at_once_with_their_places() -> None:
    proto = plain("a = Rleu(x) b = Add(a) c = Softmax <axis = 1.5> (x) d = Sub(b, c) y = Mul(d, missing)")
    for index, node in enumerate(proto.graph.node):
        node.name = f"node_{index}"
    with pytest.raises(ModelError) as caught:
        tilewright.load(proto)
    found = [(item.code, str(item.location)) for item in caught.value.diagnostics]
    assert found == [
        ("onnx/unknown-op", '"node_0"#0'),
        ("onnx/operand-missing", '"node_1"#1'),
        ("onnx/attribute-type", '"node_2"#2'),
        ("onnx/undefined-value", '"node_4"#4'),
    ]
    assert "did you mean 'Relu'?" in str(caught.value)


def test_place_in_nested_graphs_is_named() -> None:
    proto = text("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] r) { r = Ngea (x) },
                    else_branch = e () => (float[2] r) { r = Neg (x) }>
    }""")
    proto.graph.node[0].name = "choice"
    with pytest.raises(ModelError, match='in then_branch of the If "choice"#0'):
        tilewright.load(proto)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("y = Gelu(x)", "exists from opset 20 on"),
        ("y = Scatter(x, x, x)", "removed in opset 11"),
        ("y = MatMull(x, x)", "did you mean 'MatMul'"),
        ("y = Zzz(x)", "a domain of its own"),
    ],
)
def test_hints_for_unknown_operators(body: str, hint: str) -> None:
    with pytest.raises(ModelError, match=hint):
        tilewright.load(plain(body, opset=17))


# ---- files that are no models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "onnx/not-a-model", "empty"),
        (b"just some text, in a file\n", "onnx/not-a-model", "text"),
        (b'{"graph": {}}', "onnx/not-a-model", "JSON"),
        (b"PK\x03\x04" + bytes(100), "onnx/not-a-model", "zip"),
        (b"\x80\x02}q\x00" + bytes(100), "onnx/not-a-model", "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "onnx/not-a-model", "Git LFS"),
        (b"\x12\x07backend", "onnx/not-a-model", "no graph"),
    ],
)
def test_other_files_are_recognised(content: bytes, code: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (path, str(path), content):
        with pytest.raises(ModelError, match=words) as caught:
            tilewright.load(source)
        assert caught.value.code == code
        named = f"the file is {path}" in caught.value.diagnostics[0].notes
        assert named is (source is not content)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    onnx.save(plain(), tmp_path / "resnet50.onnx")
    with pytest.raises(ModelError, match=r"did you mean .*resnet50.onnx") as caught:
        tilewright.load(tmp_path / "resnet5.onnx")
    assert caught.value.code == "file/missing"
    with pytest.raises(ModelError, match=r"it holds resnet50.onnx") as caught:
        tilewright.load(tmp_path)
    assert caught.value.code == "file/folder"
    with pytest.raises(UsageError, match="not int"):
        tilewright.load(3)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders on Windows")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="write the model to a file first") as caught:
        tilewright.load(tmp_path / "pipe.onnx")
    assert caught.value.code == "file/kind"


@pytest.mark.parametrize("name", ["every_fact", "nested_subgraphs", "large_weights", "model_local_functions"])
def test_truncated_files(name: str, tmp_path: Path) -> None:
    """A file cut anywhere is either refused with a message, or (cut between two fields) still a model."""
    whole = SAMPLES[name]().SerializeToString()
    path = tmp_path / "model.onnx"
    refused = 0
    for length in {*range(min(len(whole), 400)), *range(0, len(whole), max(len(whole) // 200, 1))}:
        path.write_bytes(whole[:length])
        try:
            tilewright.load(path, log=DiagnosticLog())
        except ModelError:
            refused += 1
    assert refused > 120


def test_damaged_files_never_crash() -> None:
    """Bytes changed at random in the structure of the samples: a model or a message, never another exception."""
    rng = random.Random(20)
    names = [name for name in SAMPLES if not name.startswith("opset_")]
    wholes = {name: SAMPLES[name]().SerializeToString() for name in names}
    refused = 0
    for _ in range(600):
        damaged = bytearray(wholes[rng.choice(names)])
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.randrange(min(len(damaged), 3000))
            damaged[place] = rng.choice([0, 255, rng.randrange(256), damaged[place] ^ 1 << rng.randrange(8)])
        try:
            tilewright.load(bytes(damaged), log=DiagnosticLog())
        except TilewrightError:
            refused += 1
    assert refused > 200


# ---- what is accepted, with a warning --------------------------------------------------------------------------------


def warnings_of(proto: ModelProto) -> list[str]:
    log = DiagnosticLog()
    tilewright.load(proto, log=log)
    return [item.code for item in log.warnings]


def test_unsorted_nodes_are_sorted() -> None:
    proto = plain("y = Relu(b) b = Neg(a) c = Neg(x) a = Neg(x)")
    log = DiagnosticLog()
    module = tilewright.load(proto, log=log)
    assert [item.code for item in log.warnings] == ["onnx/unsorted"]
    assert [op.results[0].name for op in module.main.block if op.results] == ["a", "b", "y", "c"]
    onnx.checker.check_model(tilewright.to_proto(module), full_check=True)


def test_unsorted_subgraph_users_are_sorted() -> None:
    proto = text("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] r) { r = Neg (z) },
                    else_branch = e () => (float[2] r) { r = Neg (x) }>
        z = Relu (x)
    }""")
    assert warnings_of(proto) == ["onnx/unsorted"]


def test_nodes_without_a_name_are_told_by_their_number() -> None:
    with pytest.raises(tilewright.TilewrightError, match="Add at node#0 <- Neg at node#1 <- Add at node#0"):
        tilewright.load(plain("a = Add(x, b) b = Neg(a) y = Relu(b)"))
    with pytest.raises(tilewright.TilewrightError, match="Add's input 'z' is not defined anywhere"):
        tilewright.load(plain("y = Add(x, z)"))


def test_wrong_declarations_are_corrected() -> None:
    proto = text("g (float[2, 3] x) => (float[7] y) { a = Neg(x) b = Neg(a) y = Neg(b) }")
    proto.graph.value_info.append(info("a", [3, 2]))
    proto.graph.value_info.append(info("b", [2, 3], TensorProto.INT64))
    log = DiagnosticLog()
    module = tilewright.load(proto, log=log)
    assert [item.code for item in log.warnings] == ["onnx/declared-shape", "onnx/declared-type", "onnx/declared-shape"]
    again = tilewright.to_proto(module)
    assert [v.type.tensor_type.elem_type for v in again.graph.value_info] == [1, 1]
    assert [d.dim_value for d in again.graph.output[0].type.tensor_type.shape.dim] == [2, 3]
    onnx.checker.check_model(again, full_check=True)


def test_shadowed_names_are_told_apart() -> None:
    proto = text("""g (float[2] x, bool c) => (float[2] y) {
        a = Neg (x)
        y = If (c) <then_branch = t () => (float[2] r) { b = Relu (a)  a = Abs (b)  r = Neg (a) },
                    else_branch = e () => (float[2] r) { r = Relu (a) }>
    }""")
    log = DiagnosticLog()
    module = tilewright.load(proto, log=log)
    assert [item.code for item in log.warnings] == ["onnx/shadowed-value"]
    again = tilewright.to_proto(module)
    onnx.checker.check_model(again, full_check=True)
    branch = again.graph.node[1].attribute[0].g
    assert branch.node[0].input[0] == "a"
    assert branch.node[1].output[0] != "a"


def test_shapes_in_a_branch_that_is_never_taken() -> None:
    proto = text("""g (float[5] x, bool c) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] r) { k = Constant <value_ints = [2, 2]> ()  r = Reshape (x, k) },
                    else_branch = e () => (float[N] r) { r = Neg (x) }>
    }""")
    assert warnings_of(proto) == ["shape/reshape"]


def test_unknown_domains_are_no_error() -> None:
    assert warnings_of(text("g (float[2] x) => (float[2] y) { y = any.Thing(x) }", more=', "any" : 1')) == []
    assert warnings_of(text("g (float[2] x) => (float[2] y) { y = any.Thing(x) }")) == ["onnx/opset-missing"]


def test_without_a_log_warnings_are_python_warnings() -> None:
    with pytest.warns(tilewright.importers.onnx.ModelWarning, match="onnx/unsorted"):
        tilewright.load(plain("y = Relu(a) a = Neg(x)"))
