"""`tilewright.gradient` and its relatives: names, outputs, errors, higher derivatives, export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gradient_checks import compare, model, normal

import tilewright
from tilewright import Builder, Module, OpDefinition, f32, i64
from tilewright.graph import opdef
from tilewright.graph.diagnostics import DiagnosticLog, UsageError
from tilewright.graph.gradients.rules import gradient_of
from tilewright.graph.verifier import verify
from tilewright.passes.training.check import check_gradients
from tilewright.passes.training.derivation import GradientError

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"


def run(module: Module, **feeds: Any) -> dict[str, Any]:
    return tilewright.compile(module, target="reference").run(feeds)


def network() -> Module:
    b = Builder("network")
    x, t = b.input("x", f32["n", 3]), b.input("t", i64["n"])
    w = b.const(normal(3, 4).astype(np.float32), name="w")
    bias = b.const(normal(4).astype(np.float32), name="bias")
    hidden = b.tanh(x @ w + bias)
    b.output(hidden, "hidden")
    b.output(b.softmax_cross_entropy_loss(hidden, t), "loss")
    return b.build()


FEEDS = {"x": normal(5, 3).astype(np.float32), "t": np.array([0, 1, 2, 3, 0])}


def test_outputs_are_the_old_ones_then_one_for_each_variable() -> None:
    module = network()
    before = str(module)
    graph = tilewright.gradient(module, of="loss", wrt=["bias", "x", "w"])
    assert str(module) == before
    assert list(graph.main.output_names) == ["hidden", "loss", "bias_grad", "x_grad", "w_grad"]
    verify(graph, types=True)
    found = run(graph, **FEEDS)
    assert found["w_grad"].shape == (3, 4)
    np.testing.assert_array_equal(found["loss"], run(module, **FEEDS)["loss"])
    assert tilewright.train.check_gradients(module, FEEDS, of="loss").passed


def test_intermediate_tensors_are_variables_too() -> None:
    graph = tilewright.gradient(network(), "loss", ["hidden"])
    found = run(graph, **FEEDS)
    scores = np.exp(found["hidden"].astype(np.float64))
    expected = (scores / scores.sum(1, keepdims=True) - np.eye(4)[FEEDS["t"]]) / 5
    np.testing.assert_allclose(found["hidden_grad"], expected, rtol=1e-5, atol=1e-7)


def test_structured_parameters() -> None:
    graph = tilewright.gradient(network(), "loss", {"layer": ("w", "bias"), "data": ["x"]})
    assert list(graph.main.output_names)[2:] == ["w_grad", "bias_grad", "x_grad"]


def test_names_that_are_taken_stay_apart() -> None:
    b = Builder("names")
    x = b.input("x", f32[2])
    b.output(b.exp(x), "x_grad")
    b.output(b.reduce_sum(x * x, keepdims=0), "loss")
    assert list(tilewright.gradient(b.build(), "loss", ["x"]).main.output_names) == ["x_grad", "loss", "x_grad_2"]


def test_as_a_pass() -> None:
    module = network()
    tilewright.PassManager.parse("gradient{of=loss wrt=[x, w]},cse,dce").run(module)
    assert list(module.main.output_names)[2:] == ["x_grad", "w_grad"]


def test_files_of_old_opsets_are_raised() -> None:
    proto = tilewright.to_proto(network(), opset=13)
    graph = tilewright.gradient(tilewright.load(proto), "loss", ["w"])
    written = tilewright.to_proto(graph)
    assert written.opset_import[0].version == 18
    onnx.checker.check_model(written)


# ---- refusals --------------------------------------------------------------------------------------------------------


def refused(build: Any, of: str = "loss", wrt: Any = ("x",), **options: Any) -> Any:
    b = Builder("refused")
    x, n = b.input("x", f32[2, 2]), b.input("n", i64[2])
    b.output(build(b, x, n), "loss")
    with pytest.raises(UsageError) as caught:
        tilewright.gradient(b.build(), of, list(wrt), **options)
    assert isinstance(caught.value, GradientError) or caught.value.code == "gradient/unknown-tensor"
    return caught.value


def total(b: Any, x: Any) -> Any:
    return b.reduce_sum(x, keepdims=0)


def test_a_loss_must_be_one_number() -> None:
    error = refused(lambda b, x, n: b.exp(x))
    assert error.code == "gradient/not-scalar"
    assert "f32[2, 2]" in str(error)


def test_names_must_exist() -> None:
    error = refused(lambda b, x, n: total(b, x), wrt=["xx"])
    assert error.code == "gradient/unknown-tensor"
    assert "did you mean x" in str(error)


def test_integers_have_no_derivative() -> None:
    error = refused(lambda b, x, n: total(b, x) + b.cast(total(b, n), to=1), wrt=["n", "x"])
    assert error.code == "gradient/not-float"
    assert "'n' is i64[2]" in str(error)


def test_a_variable_that_does_not_matter() -> None:
    error = refused(lambda b, x, n: b.cast(total(b, n), to=1))
    assert error.code == "gradient/unreachable"
    b = Builder("zeros")
    x, y = b.input("x", f32["n"]), b.input("y", f32[3])
    b.output(total(b, x), "loss")
    graph = tilewright.gradient(b.build(), "loss", ["y", "x"], unconnected="zeros")
    assert run(graph, x=np.ones(2, np.float32), y=np.ones(3, np.float32))["y_grad"].tolist() == [0, 0, 0]
    del y


def test_paths_that_end() -> None:
    def build(b: Any, x: Any, n: Any) -> Any:
        return total(b, b.floor(x)) + total(b, x) + b.cast(total(b, b.argmax(x)), to=1)

    error = refused(build, stops="error")
    assert {diagnostic.code for diagnostic in error.diagnostics} == {"gradient/stop"}
    assert "floor" in str(error)
    assert "argmax" in str(error)
    b = Builder("stops")
    x = b.input("x", f32[2, 2])
    b.output(build(b, x, None), "loss")
    log = DiagnosticLog()
    graph = tilewright.gradient(b.build(), "loss", ["x"], log=log)
    assert {d.message.split()[0] for d in log.diagnostics} == {"floor", "argmax"}
    assert run(graph, x=np.ones((2, 2), np.float32))["x_grad"].tolist() == [[1, 1], [1, 1]]
    log = DiagnosticLog()
    tilewright.gradient(b.build(), "loss", ["x"], stops="stop", log=log)
    assert not log.diagnostics
    error = refused(lambda b, x, n: total(b, b.floor(x)))
    assert error.code == "gradient/unreachable"
    assert re.search(r"the path ends at .*: floor has no derivative", str(error))


def test_quantized_models_are_refused() -> None:
    """The derivative with respect to the scale that is computed exists, but is none to train with."""

    def build(b: Any, x: Any) -> Any:
        quantized, scale, zero = b.dynamic_quantize_linear(b.tanh(x))
        return b.mul(b.cast(b.sub(b.cast(quantized, to=i64), b.cast(zero, to=i64)), to=f32), scale)

    x = np.ones((2, 3), np.float32)
    with pytest.raises(
        GradientError, match=r"dynamic_quantize_linear cannot be differentiated: .*quantize it afterwards"
    ):
        tilewright.vjp(model(build, {"x": x}), ["y0"], ["x"])

    def fixed(b: Any, x: Any) -> Any:
        return b.dequantize_linear(b.quantize_linear(x, np.float32(0.1)), np.float32(0.1))

    loss = model(lambda b, x: b.reduce_sum(fixed(b, x), keepdims=0), {"x": x})
    with pytest.raises(GradientError, match="quantize it afterwards"):
        tilewright.gradient(loss, "y0", ["x"])


def test_all_operators_without_a_rule_are_named_at_once() -> None:
    def build(b: Any, x: Any, n: Any) -> Any:
        return total(b, b.hardmax(x)) + total(b, b.unique(x, outputs=1))

    error = refused(build)
    assert [d.code for d in error.diagnostics] == ["gradient/no-rule"] * 2
    assert "hardmax" in str(error)
    assert "unique" in str(error)
    assert "test_gradient_interface.py" in str(error.diagnostics[0].location)


# ---- conventions -----------------------------------------------------------------------------------------------------


def test_equal_operands_share() -> None:
    x = np.array([[1.0, 3.0, 3.0]])
    graph = tilewright.gradient(model(lambda b, x: total(b, b.reduce_max(x)), {"x": x}), "y0", ["x"])
    assert run(graph, x=x)["x_grad"].tolist() == [[0.0, 0.5, 0.5]]
    graph = tilewright.gradient(model(lambda b, x, y: total(b, b.max(x, y)), {"x": x, "y": x}), "y0", ["x", "y"])
    assert run(graph, x=x, y=x)["x_grad"].tolist() == [[0.5, 0.5, 0.5]]


def test_a_norm_at_zero_has_the_subgradient_zero() -> None:
    x = np.zeros((1, 3))
    graph = tilewright.gradient(model(lambda b, x: total(b, b.reduce_l2(x)), {"x": x}), "y0", ["x"])
    assert run(graph, x=x)["x_grad"].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", ["sqrt", "log", "reciprocal", "asin"])
def test_what_was_not_chosen_brings_in_no_nan(name: str) -> None:
    x = np.array([-2.0, 0.0, 0.25])
    build: Any = lambda b, x: total(b, b.where(b.greater(x, 0.0), b.create(name, x), 1.0))  # noqa: E731
    found = run(tilewright.gradient(model(build, {"x": x}), "y0", ["x"]), x=x)["x_grad"]
    assert found[:2].tolist() == [0.0, 0.0]
    assert np.isfinite(found).all()
    assert found[2] != 0


# ---- higher derivatives ----------------------------------------------------------------------------------------------


def trace(b: Any, a: Any, c: Any) -> Any:
    """ln(a) + a c - sin(c), the worked example of Baydin et al. 2018 (arXiv 1502.05767)."""
    return b.log(a) + a * c - b.sin(c)


def test_the_worked_example_in_both_modes() -> None:
    point = {"a": np.array(2.0), "c": np.array(5.0)}
    module = model(trace, point)
    found = run(tilewright.gradient(module, "y0", ["a", "c"]), **point)
    assert found["a_grad"] == pytest.approx(5.5)
    assert found["c_grad"] == pytest.approx(2 - np.cos(5))
    assert found["c_grad"] == pytest.approx(1.716, abs=1e-3)
    forward = tilewright.jvp(module, ["y0"], ["a", "c"])
    for direction in ((1.0, 0.0), (0.0, 1.0)):
        tangents = {"a_tangent": np.array(direction[0]), "c_tangent": np.array(direction[1])}
        value = run(forward, **point, **tangents)["y0_tangent"]
        assert value == pytest.approx(5.5 if direction[0] else 2 - np.cos(5))


def rosenbrock(b: Any, x: Any) -> Any:
    left, right = x[:-1], x[1:]
    return total(b, (right - left * left) ** 2.0 * 100.0 + (1.0 - left) ** 2.0)


def test_products_with_the_hessian() -> None:
    x, v = normal(4), normal(4, seed=1)
    module = model(rosenbrock, {"x": x})
    product = tilewright.hvp(module, "y0", ["x"])
    assert list(product.main.output_names) == ["y0", "x_hvp"]
    found = run(product, x=x, x_vector=v)["x_hvp"]
    graph = tilewright.gradient(module, "y0", ["x"])
    step = 1e-5
    expected = (run(graph, x=x + step * v)["x_grad"] - run(graph, x=x - step * v)["x_grad"]) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    # Of a linear function there is none.
    flat = tilewright.hvp(model(lambda b, x: total(b, x), {"x": x}), "y0", ["x"])
    assert not run(flat, x=x, x_vector=v)["x_hvp"].any()


def test_forward_and_reverse_mode_agree() -> None:
    feeds = {"x": normal(3, 4), "w": normal(4, 2)}
    build: Any = lambda b, x, w: (b.softmax(x @ w), b.relu(x))  # noqa: E731
    module = model(build, feeds)
    u = {"y0_cotangent": normal(3, 2), "y1_cotangent": normal(3, 4, seed=2)}
    v = {"x_tangent": normal(3, 4, seed=3), "w_tangent": normal(4, 2, seed=4)}
    backward = run(tilewright.vjp(module, ["y0", "y1"], ["x", "w"]), **feeds, **u)
    forward = run(tilewright.jvp(module, ["y0", "y1"], ["x", "w"]), **feeds, **v)
    left = sum(np.sum(u[f"{name}_cotangent"] * forward[f"{name}_tangent"]) for name in ("y0", "y1"))
    right = sum(np.sum(v[f"{name}_tangent"] * backward[f"{name}_grad"]) for name in ("x", "w"))
    assert left == pytest.approx(right)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: total(b, b.softmax(x) * x),
        lambda b, x: total(b, b.layer_normalization(x, np.ones(4), stash_type=11) ** 3.0),
        lambda b, x: total(b, b.gelu(x)),
        lambda b, x: total(b, b.gather(x, np.array([1, 1, 0])) ** 2.0),
        lambda b, x: total(b, b.tanh(b.slice(x, [0], [4], [1], [2]))),
        lambda b, x: total(b, b.reduce_log_sum_exp(x, [1])),
        lambda b, x: total(b, b.conv(b.reshape(x, [1, 1, 3, 4]), b.reshape(x[:2, :2], [1, 1, 2, 2])) ** 2.0),
        lambda b, x: total(b, b.max_pool(b.reshape(x, [1, 1, 3, 4]), kernel_shape=[2, 2], outputs=2)[0] ** 2.0),
        lambda b, x: total(b, b.softmax_cross_entropy_loss(x, np.array([1, 0, 2]))),
    ],
)
def test_gradients_of_gradients(build: Any) -> None:
    x = normal(3, 4)
    graph = tilewright.gradient(model(build, {"x": x}), "y0", ["x"])
    report = check_gradients(graph, {"x": x}, of=["x_grad"], wrt=["x"])
    assert report.passed, report


# ---- elsewhere -------------------------------------------------------------------------------------------------------


@pytest.fixture
def doubled() -> Any:
    """An operator of somebody else's, with a rule in its class."""

    @tilewright.op(domain="test.gradients", name="Cube")
    class Cube(OpDefinition):
        inputs = ("x",)
        outputs = ("y",)

        def infer(self, op: Any, context: Any) -> Any:
            return [op.operands[0].type]

        def evaluate(self, op: Any, *operands: Any) -> Any:
            return operands[0] ** 3

        def gradient(self, op: Any, grads: Any, builder: Any) -> Any:
            x = op.operands[0]
            return [builder.mul(grads[0], builder.mul(builder.mul(x, x), 3.0))]

    yield
    opdef.unregister("test.gradients", "Cube")


def test_operators_of_others_bring_their_rules(doubled: Any) -> None:
    compare(lambda b, x: b.create("test.gradients.Cube", x), {"x": normal(3)})
    with pytest.raises(ValueError, match=r"derivative of ai\.onnx\.Tanh"):
        gradient_of("Tanh")(lambda op, grads, builder: [None])


def test_the_document_on_new_operators_is_right() -> None:
    """The definition in docs/adding-an-op.md, with its parts and then with its rule."""
    text = (DOCUMENTS / "adding-an-op.md").read_text(encoding="utf-8")
    definition = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    rule = re.findall(r"```py\n(.*?)```", text, re.DOTALL)[0]
    for code in (definition, definition + rule):
        try:
            exec(code, {})
            compare(lambda b, x: b.create("my.ops.HardTanh", x, low=-0.5), {"x": normal(5)})
        finally:
            opdef.unregister("my.ops", "HardTanh")


def test_the_document_on_training_is_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    text = (DOCUMENTS / "training.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert "w " in capsys.readouterr().out


def test_stock_runtimes_run_it(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    b = Builder("cnn")
    x, t = b.input("x", f32["n", 3, 8, 9]), b.input("t", i64["n"])
    w = b.const(normal(4, 3, 3, 3).astype(np.float32) / 3, name="w")
    h = b.max_pool(b.relu(b.conv(x, w, strides=[2, 2], pads=[1, 1, 1, 1])), kernel_shape=[2, 2], outputs=2)[0]
    h = b.average_pool(b.resize(h, None, np.array([1, 1, 2, 2], np.float32)), kernel_shape=[2, 2], strides=[2, 2])
    h = b.layer_normalization(h, np.ones(4, np.float32))
    table = b.const(normal(5, 48).astype(np.float32), name="table")
    scores = b.reshape(h, [0, -1]) @ b.transpose(b.gather(table, np.array([0, 1, 1, 3, 4])))
    b.output(b.softmax_cross_entropy_loss(scores, t), "loss")
    graph = tilewright.gradient(b.build(), "loss", ["x", "w", "table"])
    feeds = {"x": normal(2, 3, 8, 9).astype(np.float32), "t": np.array([1, 3])}
    expected = run(graph, **feeds)
    for level in (0, 2):
        tilewright.optimize(graph, level=level)
        path = tmp_path / f"O{level}.onnx"
        tilewright.save(graph, path)
        onnx.checker.check_model(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(value, expected[output.name], rtol=1e-3, atol=1e-5)


# ---- the check itself ------------------------------------------------------------------------------------------------


def test_the_check_finds_a_wrong_rule(doubled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = opdef.lookup("test.gradients", "Cube")
    module = model(lambda b, x: b.create("test.gradients.Cube", x), {"x": normal(3)})
    assert check_gradients(module, {"x": normal(3)}).passed
    wrong: Any = lambda self, op, grads, b: [b.mul(grads[0], b.mul(op.operands[0], 3.0))]  # noqa: E731
    monkeypatch.setattr(type(definition), "gradient", wrong)
    report = check_gradients(module, {"x": normal(3)})
    assert not report.passed
    assert "WRONG" in str(report)
    assert report.failures[0].name == "x"


def test_the_check_knows_kinks() -> None:
    report = check_gradients(model(lambda b, x: b.relu(x), {"x": normal(2)}), {"x": np.array([0.0, 1.0])})
    assert all(each.kink for each in report.checks)
    assert not report.failures
    assert not report.passed, "nothing was compared"
    assert "kink" in str(report)


def test_the_check_holds_what_is_drawn() -> None:
    def build(b: Any, x: Any, w: Any) -> Any:
        return b.matmul(b.dropout(b.tanh(x), np.array(0.5), np.array(True)), w)

    feeds = {"x": normal(5, 4), "w": normal(4, 3)}
    report = check_gradients(model(build, feeds), feeds)
    assert report.passed
    assert not any(each.kink for each in report.checks)
    noisy = model(lambda b, x: b.add(x, b.random_normal_like(x)), {"x": normal(3)})
    with pytest.raises(UsageError, match="random_normal_like draws other numbers in each run"):
        check_gradients(noisy, {"x": normal(3)})


def test_the_check_makes_up_a_point() -> None:
    report = tilewright.train.check_gradients(network(), of=["loss"])
    assert report.passed
    assert [each.name for each in report.checks][::2] == ["x", "w", "bias"]


def test_nothing_to_check() -> None:
    module = model(lambda b, n: b.neg(n), {"n": np.array([1, 2])})
    with pytest.raises(UsageError) as caught:
        check_gradients(module, {"n": np.array([1, 2])})
    assert caught.value.code == "gradient/nothing-to-check"
