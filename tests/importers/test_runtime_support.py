"""Fused operators that ONNX Runtime runs better in parts are written so, with a remark; others stay as they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f16, f32
from tilewright.graph.diagnostics import DiagnosticLog
from tilewright.importers.onnx import to_proto


def module_of(build: Any, shape: tuple[int, ...] = (2, 8), dtype: Any = f32, opset: int = 28) -> Any:
    b = Builder(opset=opset)
    b.output(build(b, b.input("x", dtype[shape])), "y")
    return b.build()


def nodes(proto: Any) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_an_opset_without_the_operator_is_the_reason() -> None:
    log = DiagnosticLog()
    assert "Erf" in nodes(to_proto(module_of(lambda b, x: b.gelu(x), dtype=f16), opset=17, log=log))
    assert [(item.code, item.message) for item in log.diagnostics] == [
        ("export/newer-opset", "Gelu is written as its parts: opset 17 does not have it, opset 20 does")
    ]


@pytest.mark.parametrize(
    ("build", "dtype", "parts", "fused"),
    [
        (lambda b, x: b.swish(x), f32, ["Sigmoid", "Mul"], ["Swish"]),
        (lambda b, x: b.swiglu(x, x), f32, ["Sigmoid", "Mul", "Mul"], ["SwiGLU"]),
        (lambda b, x: b.gelu(x), f16, ["Div", "Erf", "Add", "Mul", "Mul"], ["Gelu"]),
    ],
)
def test_parts_are_written_with_a_remark(build: Any, dtype: Any, parts: list[str], fused: list[str]) -> None:
    log = DiagnosticLog()
    assert nodes(to_proto(module_of(build, dtype=dtype), log=log)) == parts
    assert [item.code for item in log.diagnostics] == ["export/in-parts"]
    assert "ONNX Runtime" in log.diagnostics[0].message
    log = DiagnosticLog()
    assert nodes(to_proto(module_of(build, dtype=dtype), keep_fused=True, log=log)) == fused
    assert log.diagnostics == []


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda b, x: b.gelu(x), ["Gelu"]),
        (lambda b, x: b.rms_normalization(x, np.ones(8, np.float32)), ["RMSNormalization"]),
        (lambda b, x: b.layer_normalization(x, np.ones(8, np.float32)), ["LayerNormalization"]),
    ],
)
def test_what_has_a_kernel_stays(build: Any, expected: list[str]) -> None:
    log = DiagnosticLog()
    assert nodes(to_proto(module_of(build), log=log)) == expected
    assert log.diagnostics == []


def test_an_operator_of_the_file_stays_as_it_is() -> None:
    file = to_proto(module_of(lambda b, x: b.swish(x)), keep_fused=True)
    assert nodes(to_proto(tilewright.load(file))) == ["Swish"]


def test_decompositions_share_their_constants() -> None:
    def build(b: Any, x: Any) -> Any:
        for _ in range(3):
            x = b.gelu(x)
        return x

    proto = to_proto(module_of(build), opset=17)
    assert Counter(nodes(proto)) == {"Div": 3, "Erf": 3, "Add": 3, "Mul": 6}
    assert len(proto.graph.initializer) == 3


def test_axes_that_become_attributes_are_no_constants() -> None:
    proto = to_proto(module_of(lambda b, x: b.rms_normalization(x, np.ones(1, np.float32))), opset=17)
    assert nodes(proto) == ["Pow", "ReduceMean", "Add", "Sqrt", "Div"]
    assert len(proto.graph.initializer) == 2


def test_caches_that_do_not_fit_are_broadcast_by_parts() -> None:
    def build(b: Any, x: Any) -> Any:
        cache = np.ones((1, 5, 4), np.float32)
        return b.rotary_embedding(x, cache, cache)

    assert "RotaryEmbedding" not in nodes(to_proto(module_of(build, (2, 3, 5, 8)), opset=23))
    assert nodes(to_proto(module_of(build, (1, 3, 5, 8)), opset=23)) == ["RotaryEmbedding"]


def written_out_norm(b: Any, x: Any) -> Any:
    centered = b.sub(x, b.reduce_mean(x, [-1], keepdims=1))
    variance = b.reduce_mean(b.mul(centered, centered), [-1], keepdims=1)
    return b.div(centered, b.sqrt(b.add(variance, b.const(np.float32(1e-5)))))


def written_out_rms_norm(b: Any, x: Any) -> Any:
    return b.div(x, b.sqrt(b.add(b.reduce_mean(b.mul(x, x), [-1], keepdims=1), b.const(np.float32(1e-5)))))


@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize(("build", "count"), [(written_out_norm, 7), (written_out_rms_norm, 5)])
def test_rows_that_may_have_no_elements_are_normalized_by_parts(
    build: Any, count: int, opset: int, target: str
) -> None:
    """ONNX Runtime refuses such rows in its operators, and what the model wrote runs."""
    import onnxruntime

    model = module_of(build, ("n", "m"), opset=opset)
    original = to_proto(model)
    report = tilewright.optimize(original, target=target)
    assert report.module is not None
    log = DiagnosticLog()
    proto = to_proto(report.module, target=target, log=log)
    assert len(nodes(proto)) == count
    has_operator = build is written_out_norm or opset >= 23
    assert ["without elements" in item.message for item in log.diagnostics] == [has_operator]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((3, 0), np.float32)})[0].shape == (3, 0)


@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
@pytest.mark.parametrize("build", [written_out_norm, written_out_rms_norm])
def test_rows_that_have_elements_are_normalized_by_one_operator(build: Any, target: str) -> None:
    """The rows themselves may be none."""
    report = tilewright.optimize(to_proto(module_of(build, ("n", 8), opset=18)), target=target)
    found = nodes(to_proto(report.module, target=target))
    assert len(found) == (1 if build is written_out_norm or target == "onnxruntime" else 5)


def test_a_normalization_of_the_file_stays_as_it_is() -> None:
    file = to_proto(
        module_of(lambda b, x: b.layer_normalization(x, np.ones(1, np.float32)), ("n", "m")), keep_fused=True
    )
    assert nodes(file) == ["LayerNormalization"]
    assert nodes(to_proto(tilewright.optimize(file).module)) == ["LayerNormalization"]


def test_attention_is_written_as_parts_where_no_kernel_takes_it() -> None:
    def build(b: Any, x: Any) -> Any:
        return b.attention(x, x, x)

    module = module_of(build, (1, 2, 4, 8))
    assert nodes(to_proto(module, opset=24)) == ["Attention"]
    log = DiagnosticLog()
    assert nodes(to_proto(module, opset=25, log=log)).count("MatMul") == 2
    assert "up to opset 24" in log.diagnostics[0].message
    assert nodes(to_proto(module, opset=25, keep_fused=True)) == ["Attention"]
