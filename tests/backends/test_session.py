"""`InferenceSession` next to ONNX Runtime's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.backends.host_value import HostValue
from tilewright.backends.session import InferenceSession, SessionWarning
from tilewright.graph import types
from tilewright.graph.diagnostics import ExecutionError, ModelError, UsageError
from tilewright.graph.dtypes import f16

F32 = np.float32


def model() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["y"]),
        helper.make_node("Identity", ["u"], ["v"]),
        helper.make_node("SequenceLength", ["s"], ["length"]),
    ]
    inputs = [
        info("x", TensorProto.FLOAT, ["n", None, 3]), info("u", TensorProto.INT64, None),
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT16, ["k"]), info("scale", TensorProto.FLOAT, [1]),
    ]  # fmt: skip
    outputs = [
        info("y", TensorProto.FLOAT, ["n", None, 3]), info("v", TensorProto.INT64, None),
        info("length", TensorProto.INT64, []),
    ]  # fmt: skip
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [1], [2.0])
    graph = helper.make_graph(nodes, "scaled", inputs, outputs, [scale], doc_string="about the graph")
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="me", domain="my.domain",
        doc_string="about the model", model_version=3,
    )  # fmt: skip
    made.metadata_props.add(key="author", value="you")
    return made


FEEDS: dict[str, Any] = {"x": np.ones((2, 1, 3), F32), "u": np.array([1, 2]), "s": [np.zeros(4, np.float16)]}


def test_outputs_come_in_the_order_asked_for() -> None:
    session = InferenceSession(model().SerializeToString())
    y, v, length = session.run(None, FEEDS)
    np.testing.assert_array_equal(y, np.full((2, 1, 3), 2))
    np.testing.assert_array_equal(v, [1, 2])
    assert int(length) == 1
    length, y = session.run(["length", "y"], FEEDS)
    assert (int(length), y.shape) == (1, (2, 1, 3))
    (y,) = session.run(["y"], {**FEEDS, "scale": np.array([5], F32)}, None)
    np.testing.assert_array_equal(y, np.full((2, 1, 3), 5))


@pytest.mark.parametrize("kind", ["path", "text path", "bytes", "proto", "module"])
def test_it_is_made_from_what_holds_a_model(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    source = {
        "path": path, "text path": str(path), "bytes": path.read_bytes(), "proto": model(),
        "module": tilewright.load(path),
    }[kind]  # fmt: skip
    assert [item.name for item in InferenceSession(source).get_outputs()] == ["y", "v", "length"]


def test_it_describes_the_model_as_onnxruntime_does() -> None:
    runtime = pytest.importorskip("onnxruntime")
    theirs = runtime.InferenceSession(model().SerializeToString(), providers=["CPUExecutionProvider"])
    ours = InferenceSession(model().SerializeToString())
    for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        found = [(item.name, item.shape, item.type) for item in getattr(ours, method)()]
        assert found == [(item.name, item.shape, item.type) for item in getattr(theirs, method)()]
    facts = ours.get_modelmeta()
    for name in (
        "producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map",
    ):  # fmt: skip
        assert getattr(facts, name) == getattr(theirs.get_modelmeta(), name), name


def test_it_prints_what_goes_in_and_comes_out() -> None:
    text = repr(InferenceSession(model()))
    assert text.startswith("<InferenceSession on cpu (x: f32[n, ?, 3], u: i64[*], s: ")
    assert text.endswith(") -> (y: f32[n, ?, 3], v: i64[*], length: i64[])>")


def test_type_names_are_those_of_onnx() -> None:
    text = """
    func @main(%a: bf16[2], %b: optional<sequence<i64[*]>>, %c: string[], %d: f8e4m3fn[1], %e: bool[], %f: f64[]) -> (
      %g: bool[]
    ) {
      return %e
    }"""
    kinds = [item.type for item in InferenceSession(tilewright.parse(text)).get_inputs()]
    assert kinds == [
        "tensor(bfloat16)", "optional(seq(tensor(int64)))", "tensor(string)", "tensor(float8e4m3fn)", "tensor(bool)",
        "tensor(double)",
    ]  # fmt: skip


def test_the_provider_names_the_target() -> None:
    session = InferenceSession(model(), target="reference", threads=1)
    assert session.get_providers() == ["TilewrightReferenceExecutionProvider"]
    assert session.get_provider_options() == {"TilewrightReferenceExecutionProvider": {}}


class Options:
    """An options object as ONNX Runtime has them: attributes with defaults, and methods."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.log_severity_level = 2

    def add_session_config_entry(self, key: str, value: str) -> None:
        raise AssertionError("nobody calls this")


def test_options_that_are_at_their_defaults_say_nothing(recwarn: pytest.WarningsRecorder) -> None:
    options = Options()
    session = InferenceSession(model(), options, ["CPUExecutionProvider"], [{}])
    session.run(None, FEEDS, Options())
    assert session.get_session_options() is options
    assert not recwarn.list


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}, ["provider 'CUDAExecutionProvider'"]),
        ({"providers": [("CPUExecutionProvider", {"arena": 1})]}, ["CPUExecutionProvider option arena=1"]),
        (
            {"providers": ["CPUExecutionProvider"], "provider_options": [{"arena": 2}]},
            ["CPUExecutionProvider option arena=2"],
        ),
        ({"sess_options": {"enable_profiling": True}}, ["sess_options['enable_profiling']=True"]),
        ({"disabled_optimizers": ["Fold"], "nonsense": 1}, ["disabled_optimizers=['Fold']", "nonsense=1"]),
    ],
)
def test_options_without_effect_are_named(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.warns(SessionWarning) as caught:
        InferenceSession(model(), **settings)
    (warning,) = caught
    for word in words:
        assert word in str(warning.message)
    assert warning.filename == __file__


def test_changed_attributes_of_an_options_object_are_named() -> None:
    options = Options()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    with pytest.warns(SessionWarning, match=r"sess_options\.log_severity_level=4") as caught:
        session = InferenceSession(model(), options)
    assert "intra_op_num_threads" not in str(caught[0].message)
    with pytest.warns(SessionWarning, match=r"run_options\.log_severity_level=4"):
        session.run(None, FEEDS, options)


def test_a_session_without_options_says_so_too() -> None:
    session = InferenceSession(model(), threads=3)
    assert session.get_session_options().intra_op_num_threads == 3
    session.disable_fallback()
    session.enable_fallback()
    session.set_providers(["CPUExecutionProvider"])
    with pytest.warns(SessionWarning, match="CUDAExecutionProvider"):
        session.set_providers(["CUDAExecutionProvider"])
    everything = session.run(None, FEEDS)
    assert len(session.run([], FEEDS)) == len(everything)  # as onnxruntime has it


def test_real_options_of_onnxruntime_are_understood() -> None:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    InferenceSession(model(), options).run(None, FEEDS, runtime.RunOptions())
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.warns(SessionWarning, match=r"graph_optimization_level"):
        InferenceSession(model(), options)
    stop = runtime.RunOptions()
    stop.terminate = True
    with pytest.warns(SessionWarning, match=r"run_options.terminate=True"):
        InferenceSession(model()).run(None, FEEDS, stop)


def test_values_of_onnxruntime_are_read_where_they_are() -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = InferenceSession(model())
    arrays = {"x": FEEDS["x"], "u": FEEDS["u"]}
    values = {name: runtime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    values["s"] = HostValue(FEEDS["s"], types.sequence(types.tensor(f16, None)))
    for wanted in (None, ["v"]):
        found = session.run_with_ort_values(wanted, values)
        for value, expected in zip(found, session.run(wanted, FEEDS), strict=True):
            np.testing.assert_array_equal(value.numpy(), expected)
            assert value.shape() == list(expected.shape)
    names = [output.type for output in session.get_outputs()]
    assert [value.data_type() for value in session.run_with_ort_values([], values)] == names


def test_errors_are_ours_and_name_the_trouble(tmp_path: Path) -> None:
    session = InferenceSession(model())
    with pytest.raises(ExecutionError, match="'x'"):
        session.run(None, {**FEEDS, "x": np.zeros((2, 1, 4), F32)})
    with pytest.raises(UsageError, match="no output 'z'"):
        session.run(["z"], FEEDS)
    with pytest.raises(UsageError, match=r"a list of names, \['y'\], not 'y'"):
        session.run("y", FEEDS)
    with pytest.raises(UsageError, match="no target called 'abacus'"):
        InferenceSession(model(), target="abacus")
    with pytest.raises(UsageError, match="not from int"):
        InferenceSession(3)
    with pytest.raises((ModelError, OSError)):
        InferenceSession(tmp_path / "missing.onnx")
