"""The Python graph builder: models run as numpy does, mistakes name the line that made them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tilewright
from tilewright import Builder, TilewrightError, bool_, f16, f32, f64, i64


def run(build, **feeds):
    """Build a model of inputs with the feeds' types, run it by the reference, return its outputs."""
    b = Builder()
    kinds = {"float32": f32, "float64": f64, "int64": i64, "bool": bool_}
    inputs = [b.input(name, kinds[array.dtype.name][array.shape]) for name, array in feeds.items()]
    result = build(b, *inputs)
    for tensor in result if isinstance(result, tuple) else (result,):
        b.output(tensor)
    model = b.build()
    assert str(tilewright.parse(str(model))) == str(model)
    return list(tilewright.compile(model, target="reference").run(feeds).values())


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "index",
    [
        0, -1, slice(1, 2), (0, 1), (slice(None), -1), (..., 0), (0, ..., slice(1, 3)), (None, 1),
        (slice(None, None, 2), None), (slice(None), slice(None, None, -1)), (..., None), (slice(-2, None), slice(0, 0)),
    ],
)  # fmt: skip
def test_indexing_is_numpys(index):
    (result,) = run(lambda b, x: x[index], x=X)
    np.testing.assert_array_equal(result, X[index])
    assert result.shape == X[index].shape


def test_operators_are_numpys():
    w = np.ones((4, 5), np.float32)
    (result,) = run(
        lambda b, x: ((x @ w + 1.0) * 2 - x[..., :1]) / 3 + 1 / (x[..., :1] + 1) - (2 - -x[..., :1]) ** 2, x=X
    )
    c = X[..., :1]
    np.testing.assert_allclose(result, ((X @ w + 1) * 2 - c) / 3 + 1 / (c + 1) - (2 + c) ** 2, rtol=1e-6)


def test_arrays_on_the_left_are_not_broadcast_by_numpy():
    w = np.ones((5, 3), np.float32)
    (result,) = run(lambda b, x: w @ x + (np.float32(1) + x[:, :1]), x=X)
    np.testing.assert_allclose(result, w @ X + 1 + X[:, :1])


def test_comparisons_and_where():
    results = run(lambda b, x: (b.where(x > 5, x, 0.0), b.where(x <= 5.0, 1.0, x), x < x, x >= x), x=X)
    np.testing.assert_array_equal(results[0], np.where(X > 5, X, 0))
    np.testing.assert_array_equal(results[1], np.where(X <= 5, 1, X))
    assert not results[2].any()
    assert results[3].all()
    equal, other = run(lambda b, x: (x == 5, x[..., :1] != x), x=X)
    np.testing.assert_array_equal(equal, X == 5)
    np.testing.assert_array_equal(other, X[..., :1] != X)


def test_tensors_are_keys_by_themselves():
    b = Builder()
    x, y = b.input("x", f32[2]), b.input("y", f32[2])
    assert {x: "x", y: "y"}[y] == "y"
    assert None not in (x, y)


def test_an_operator_whose_results_may_all_be_left_out_has_one():
    weights = np.ones((1, 32, 4), np.float32), np.ones((1, 32, 8), np.float32)
    (hidden,) = run(lambda b, x: b.lstm(x, *weights, hidden_size=8), x=X)
    assert hidden.shape == (2, 1, 3, 8)


def test_numbers_take_the_dtype_of_their_partner():
    (result,) = run(lambda b, x: b.cast(x, to=f64) * 0.1, x=X)
    np.testing.assert_array_equal(result, X.astype(np.float64) * 0.1)
    (result,) = run(lambda b, x: b.cast(x, to=f16) + 1, x=X)
    assert result.dtype == np.float16


def test_several_results():
    left, right = run(lambda b, x: b.split(x, [1, 3], axis=2, outputs=2), x=X)
    np.testing.assert_array_equal(left, X[..., :1])
    np.testing.assert_array_equal(right, X[..., 1:])


def test_if_captures_what_is_around_it():
    def build(b, x, c):
        y = x + 1.0
        return b.if_(c, lambda: y * 2.0, lambda: (y - x,))

    for condition in (True, False):
        (result,) = run(build, x=X, c=np.array(condition))
        np.testing.assert_array_equal(result, (X + 1) * 2 if condition else np.ones_like(X))


def test_loop_with_state_and_stacked_results():
    def build(b, x):
        return b.loop(3, [x], lambda i, c, s: (c, s * 2.0, s + b.cast(i, to=f32)))

    final, stacked = run(build, x=X)
    np.testing.assert_array_equal(final, X * 8)
    np.testing.assert_array_equal(stacked, np.stack([X, X * 2 + 1, X * 4 + 2]))


def test_loop_whose_state_grows():
    (result,) = run(lambda b, x: b.loop(3, [x], lambda i, c, s: (c, b.concat(s, s, axis=0))), x=X)
    assert result.shape == (16, 3, 4)


def test_loop_whose_state_changes_its_type_is_refused():
    with pytest.raises(TilewrightError, match="loop state is f32"):
        run(lambda b, x: b.loop(3, [x], lambda i, c, s: (c, b.cast(s, to=i64))), x=X)


def test_equal_names_are_equal_dims():
    b = Builder()
    x, y = b.input("x", f32["n", 4]), b.input("y", f32["n", 4])
    assert (x + y).shape == x.shape
    assert b.concat(x, y, axis=0).shape[0] == 2 * x.shape[0]


@pytest.mark.parametrize(
    ("mistake", "code", "words"),
    [
        (lambda b, x: x @ np.zeros((3, 3), np.float32), "shape/matmul-k", "4 columns do not fit 3 rows"),
        (lambda b, x: x + np.zeros(7, np.float32), "shape/broadcast", "4"),
        (lambda b, x: b.rellu(x), "op/unknown", "did you mean relu"),
        (lambda b, x: b.relu(x, x), "op/operand-count", "at most 1"),
        (lambda b, x: b.softmax(x, axes=1), "op/attribute-unknown", "axes"),
        (lambda b, x: b.transpose(x, perm=(0, 0, 1)), "shape/", "perm"),
        (lambda b, x: x[0, 0, 0, 0], "builder/index", "rank 3"),
        (lambda b, x: bool(x > 1), "builder/truth-value", "b.where or b.if_"),
        (lambda b, x: list(x), "builder/iteration", "b.split"),
        (lambda b, x: b.concat(x, b.cast(x, to=i64), axis=0), "dtype/", "i64"),
    ],
)
def test_mistakes_name_their_line(mistake, code, words):
    b = Builder()
    x = b.input("x", f32[2, 3, 4])
    with pytest.raises(TilewrightError) as caught:
        mistake(b, x)
    assert caught.value.code.startswith(code)
    assert words in str(caught.value)
    location = caught.value.diagnostics[0].location
    if location is not None:
        assert location.path == __file__
        assert location.line == inspect.getsourcelines(mistake)[1]


def test_names_of_inputs_and_outputs_are_unique():
    b = Builder()
    x = b.input("x", f32[2])
    with pytest.raises(TilewrightError, match="an input called 'x'"):
        b.input("x", f32[2])
    b.output(x * 2.0, "y")
    with pytest.raises(TilewrightError, match="an output called 'y'"):
        b.output(x, "y")


def test_a_model_needs_an_output_and_is_built_once():
    b = Builder()
    x = b.input("x", f32[2])
    with pytest.raises(TilewrightError, match="no output"):
        b.build()
    b.output(x * 2.0)
    assert b.build() is b.build()
    with pytest.raises(TilewrightError, match="built already"):
        b.relu(x)


def test_a_built_model_is_written_and_read_back(tmp_path):
    onnx = pytest.importorskip("onnx")
    b = Builder("mlp")
    x = b.input("x", f32["batch", 4])
    b.output(b.relu(x @ np.ones((4, 3), np.float32)), "y")
    tilewright.save(b.build(), tmp_path / "mlp.onnx")
    proto = onnx.load(tmp_path / "mlp.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 21
    assert [dim.dim_param or dim.dim_value for dim in proto.graph.output[0].type.tensor_type.shape.dim] == ["batch", 3]
    assert proto.graph.name == "mlp"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda b, x: b.concat([x, x], axis=0), "one by one, not in a list"),
        (lambda b, x: b.add(x, (x,)), "one by one, not in a list"),
        (lambda b, x: b.reshape(x, [b.shape(x), -1]), "join tensors of one dim: b.concat("),
        (lambda b, x: Builder().relu(x), "<Tensor %x : f32[4]> was made by another Builder"),
        (lambda b, x: b.const([x]), "numbers or strings"),
        (lambda b, x: b.const({1: 2}), "numbers or strings"),
        (lambda b, x: b.const([[1, 2], [3]]), "lists of equal lengths"),
        (lambda b, x: x + "a", "'a' is no constant of f32"),
        (lambda b, x: b.cast(x, to="float64"), "cast takes an int as 'to', not 'float64'"),
        (lambda b, x: b.softmax(x, axis=1.0), "softmax takes an int as 'axis', not 1.0"),
        (lambda b, x: b.transpose(x, perm=0), "transpose takes a list of ints as 'perm', not 0"),
        (lambda b, x: b.input("z", (2, 3)), "the type of an input"),
        (lambda b, x: b.output("x"), "a tensor that this builder made, not 'x'"),
        (lambda b, x: x[4], "4 is out of range: dim 0 of f32"),
        (lambda b, x: x[-5], "-5 is out of range"),
        (lambda b, x: x[x > 0], "numbers and slices"),
        (lambda b, x: x[[0, 1]], "numbers and slices"),
    ],
)
def test_what_is_no_tensor_and_no_constant(mistake, message):
    b = Builder()
    x = b.input("x", f32[4])
    with pytest.raises(TilewrightError) as caught:
        mistake(b, x)
    assert message in str(caught.value)


def test_numpys_types_are_types_of_attributes():
    (wide, small) = run(lambda b, x: (b.cast(x, to=np.float64), b.cast(x, to=np.dtype("int64"))), x=X)
    assert (wide.dtype, small.dtype) == (np.float64, np.int64)


def test_a_builder_says_what_it_has():
    b = Builder("net")
    b.output(b.input("x", f32[4]) * 2)
    assert repr(b) == "<Builder 'net': 1 inputs, 2 operations, 1 outputs>"
