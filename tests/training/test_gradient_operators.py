"""Gradient operators: ONNX's own `Gradient`, and those of the domain "tilewright"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gradient_checks import model, normal
from onnx import numpy_helper

import tilewright
from tilewright.graph.diagnostics import UsageError
from tilewright.passes.training.check import check_gradients

SIMPLE = Path(onnx.__file__).parent / "backend" / "test" / "data" / "simple"


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
@pytest.mark.parametrize("level", [None, 0, 2])
def test_the_suite_of_onnx(name: str, level: int | None) -> None:
    folder = SIMPLE / name / "test_data_set_0"
    arrays = {
        kind: [numpy_helper.to_array(onnx.load_tensor(str(path))) for path in sorted(folder.glob(f"{kind}_*.pb"))]
        for kind in ("input", "output")
    }
    module = tilewright.load(SIMPLE / name / "model.onnx")
    if level is not None:
        tilewright.optimize(module, level=level)
    found = tilewright.compile(module, target="reference")(*arrays["input"])
    for value, expected in zip(found, arrays["output"], strict=True):
        np.testing.assert_array_equal(value, expected)


def text(body: str) -> tilewright.Module:
    return tilewright.load(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]> g {body}'
        ).SerializeToString()
    )


def test_named_tensors_are_independent_and_may_have_other_values() -> None:
    """h = exp(w), y = h * w: dy/dw with h held, dy/dh where h is something else; and the derivative of a derivative."""
    module = text(
        """(double w, double other) => (double y, double a, double b, double second) {
          h = Exp (w)
          y = Mul (h, w)
          a = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["h"], y = "y"> (w, h)
          b = ai.onnx.preview.training.Gradient <xs = ["h"], zs = ["w"], y = "y"> (h, other)
          first = ai.onnx.preview.training.Gradient <xs = ["w"], y = "y"> (w)
          second = ai.onnx.preview.training.Gradient <xs = ["w"], y = "first"> (w)
        }"""
    )
    found = tilewright.compile(module, target="reference").run({"w": np.array(0.5), "other": np.array(3.0)})
    assert found["a"] == pytest.approx(np.exp(0.5))
    assert found["b"] == pytest.approx(3.0)
    assert found["second"] == pytest.approx(np.exp(0.5) * 2.5)


def test_names_that_are_not_there() -> None:
    module = text(
        '(double w) => (double a) { h = Exp (w) a = ai.onnx.preview.training.Gradient <xs = ["w"], y = "z"> (w) }'
    )
    with pytest.raises(UsageError, match="'z'"):
        tilewright.compile(module, target="reference")


# ---- Attention -------------------------------------------------------------------------------------------------------


def attention(**attributes: Any) -> tuple[tilewright.Module, dict[str, np.ndarray]]:
    feeds = {"q": normal(1, 4, 3, 2), "k": normal(1, 2, 5, 2), "v": normal(1, 2, 5, 3)}
    build: Any = lambda b, q, k, v: b.reduce_sum(b.tanh(b.attention(q, k, v, **attributes)), keepdims=0)  # noqa: E731
    return model(build, feeds), feeds


def test_attention_is_one_operation_backwards() -> None:
    module, feeds = attention(is_causal=1, scale=0.4)
    graph = tilewright.gradient(module, "y0", ["q", "k", "v"])
    assert [op.name for op in graph.walk() if "softmax" in op.name or op.name.startswith("tilewright")] == [
        "tilewright.AttentionGrad"
    ]
    assert str(tilewright.parse(str(graph))) == str(graph)
    written = tilewright.load(tilewright.to_bytes(graph))
    assert not any(op.domain == "tilewright" for op in written.walk())
    expected = tilewright.compile(graph, target="reference").run(feeds)
    found = tilewright.compile(written, target="reference").run(feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-8)  # a file holds attributes in f32


def test_its_gradient_is_differentiated_again() -> None:
    module, feeds = attention(softcap=2.0)
    graph = tilewright.gradient(module, "y0", ["q", "k", "v"])
    report = check_gradients(graph, feeds, of=["q_grad", "v_grad"], wrt=["q", "k", "v"], directions=1)
    assert report.passed, report


@pytest.mark.parametrize("name", ["EmbeddingGrad", "MaxPoolGrad"])
def test_bodies_say_the_same(name: str) -> None:
    grad, places = normal(3, 2), np.array([[0, 5], [5, 3], [1, 0]])
    shape = np.array([6]) if name == "MaxPoolGrad" else np.array([4, 2])
    places = places if name == "MaxPoolGrad" else np.array([1, -1, 1])
    module = model(lambda b, g: b.create(f"tilewright.{name}", g, places, shape), {"g": grad})
    written = tilewright.load(tilewright.to_bytes(module))
    assert not any(op.domain == "tilewright" for op in written.walk())
    results = [tilewright.compile(each, target="reference").run({"g": grad})["y0"] for each in (module, written)]
    np.testing.assert_array_equal(*results)
    assert check_gradients(module, {"g": grad}).passed
