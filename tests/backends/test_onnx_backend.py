"""`tilewright.backend` as onnx.backend.base describes it, also under ONNX's own test runner."""

from __future__ import annotations

import io
import unittest
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from node_cases import node_cases
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep

import tilewright
from tilewright.backends import onnx_backend
from tilewright.graph.diagnostics import ModelError, UsageError

F32 = np.float32


def model() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Neg", ["d"], ["0"])], "two",
        [info("a", TensorProto.FLOAT, [2]), info("b", TensorProto.FLOAT, [2])],
        [info("d", TensorProto.FLOAT, [2]), info("0", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


A, B = np.array([5, 6], F32), np.array([1, 2], F32)


def test_the_public_name_is_the_module() -> None:
    assert tilewright.backend is onnx_backend
    assert issubclass(onnx_backend.TilewrightBackend, Backend)


def test_a_prepared_model_runs_lists_and_dicts() -> None:
    prepared = tilewright.backend.prepare(model(), "CPU")
    assert isinstance(prepared, BackendRep)
    for inputs in ([A, B], (A, B), {"a": A, "b": B}):
        d, negated = prepared.run(inputs)
        np.testing.assert_array_equal(d, [4, 4])
        np.testing.assert_array_equal(negated, [-4, -4])
    results = prepared.run([A, B])
    np.testing.assert_array_equal(results["d"], [4, 4])  # type: ignore[call-overload]
    np.testing.assert_array_equal(results["0"], [-4, -4])  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="2 inputs, got 3"):
        prepared.run([A, B, A])


def test_models_and_nodes_run_at_once() -> None:
    np.testing.assert_array_equal(tilewright.backend.run_model(model(), [A, B])[0], [4, 4])
    node = helper.make_node("Add", ["x", "y"], ["z"])
    np.testing.assert_array_equal(tilewright.backend.run_node(node, [A, B])[0], [6, 8])
    clip = helper.make_node("Clip", ["x", "", "high"], ["z"])
    np.testing.assert_array_equal(tilewright.backend.run_node(clip, [A, np.array(5.5, F32)])[0], [5, 5.5])
    squeeze = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    (squeezed,) = tilewright.backend.run_node(squeeze, A.reshape(1, 2), opset_version=11)
    assert squeezed.shape == (2,)
    scaler = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=5.5)
    np.testing.assert_array_equal(tilewright.backend.run_node(scaler, [A])[0], [0, 1])


def test_devices_and_options() -> None:
    assert tilewright.backend.supports_device("CPU")
    assert tilewright.backend.supports_device("CPU:0")
    assert not tilewright.backend.supports_device("ABACUS")
    assert not tilewright.backend.is_compatible(model(), "ABACUS")
    with pytest.raises(UsageError, match="no device 'ABACUS'"):
        tilewright.backend.prepare(model(), "ABACUS")
    with pytest.raises(UsageError, match="no option 'fast'"):
        tilewright.backend.prepare(model(), fast=True)
    with pytest.raises(UsageError, match="no option 'fast'"):
        tilewright.backend.prepare(model()).run([A, B], fast=True)


def test_a_bad_model_is_an_error() -> None:
    broken = model()
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match="nowhere"):
        tilewright.backend.prepare(broken)


NAMES = (
    "test_add",
    "test_relu",
    "test_softmax_axis_1",
    "test_lstm_defaults",
    "test_loop11",
    "test_split_equal_parts_1d_opset18",
)


def test_onnxs_own_runner_accepts_it(request: pytest.FixtureRequest) -> None:
    request.config.addinivalue_line("markers", "onnx_coverage: given by ONNX's runner to its tests")
    cases: dict[str, Any] = node_cases()
    assert set(NAMES) <= set(cases)
    runner = onnx.backend.test.BackendTest(tilewright.backend, __name__)
    for name in NAMES:
        runner.include(f"^{name}_cpu$")
    suite = runner.enable_report().test_suite
    result = unittest.TextTestRunner(stream=io.StringIO(), resultclass=Passed).run(suite)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.passed == len(NAMES)


class Passed(unittest.TextTestResult):
    """Counts what passed: whether `testsRun` counts what was skipped depends on the version of Python."""

    passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1
