"""Passes that work on islands: collapse-batch and cancel-transposes; and the small rules around them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import Builder, PassManager, f32

RANDOM = np.random.default_rng(11)


def values(*shape: int) -> np.ndarray:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def names(model) -> list[str]:
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


def check(model, feeds, pipeline, expected_names):
    """Run a pipeline, and compare operators, results, and the interface before and after."""
    interface = [(str(v.type), v.name) for v in model.main.inputs], model.main.output_names
    before = tilewright.compile(model, target="reference").run(feeds)
    PassManager.parse(pipeline).run(model)
    after = tilewright.compile(model, target="reference").run(feeds)
    assert names(model) == expected_names
    assert ([(str(v.type), v.name) for v in model.main.inputs], model.main.output_names) == interface
    for name, expected in before.items():
        assert after[name].shape == expected.shape
        assert after[name].dtype == expected.dtype
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-5)


def model_of(build, *shapes, opset=21):
    """A model with inputs x0, x1, ... of the given shapes and the outputs that `build` returns."""
    b = Builder(opset=opset)
    inputs = [b.input(f"x{index}", f32[shape]) for index, shape in enumerate(shapes)]
    outputs = build(b, *inputs)
    for index, tensor in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        b.output(tensor, f"y{index}")
    return b.build()


def feeds_for(*shapes):
    return {f"x{index}": values(*shape) for index, shape in enumerate(shapes)}


COLLAPSE = "collapse-batch,matmul-to-gemm,dce"


def mlp(b, x):
    return b.relu(x @ values(8, 16) + values(16)) @ values(16, 8) + values(8)


def test_two_layers_of_an_mlp_become_gemms():
    """Two biases saved for two reshapes would not pay; a third layer makes the difference."""
    shape = (2, 5, 8)
    two = ["matmul", "add", "relu", "matmul", "add"]
    check(model_of(mlp, shape), feeds_for(shape), COLLAPSE, two)
    three = ["reshape", "gemm", "relu", "gemm", "relu", "gemm", "reshape"]
    check(model_of(lambda b, x: b.relu(mlp(b, x)) @ values(8, 4) + values(4), shape), feeds_for(shape), COLLAPSE, three)


def test_one_open_dim_is_enough_to_come_back():
    model = model_of(lambda b, x: b.relu(mlp(b, x)) @ values(8, 4) + values(4), ("n", 5, 8))
    check(model, feeds_for((3, 5, 8)), COLLAPSE, ["reshape", "gemm", "relu", "gemm", "relu", "gemm", "reshape"])


def test_two_open_dims_cannot_come_back_by_a_constant_reshape():
    model = model_of(lambda b, x: b.relu(mlp(b, x)) @ values(8, 4) + values(4), ("n", "m", 8))
    before = names(model)
    check(model, feeds_for((3, 5, 8)), COLLAPSE, before)


def test_residual_normalization_softmax_and_split():
    def build(b, x):
        y = x + mlp(b, b.layer_normalization(x, values(8), values(8), axis=-1))
        y = y + mlp(b, b.layer_normalization(y, values(8), axis=2))
        left, right = b.split(y, [3, 5], axis=-1, outputs=2)
        return b.concat(b.softmax(left, axis=2), right * values(1, 1, 5), axis=-1)

    shape = (2, 5, 8)
    model = model_of(build, shape)
    first = ["reshape", "layer_normalization", "gemm", "relu", "gemm", "add"]
    second = ["layer_normalization", "gemm", "relu", "gemm", "add"]
    expected = [*first, *second, "split", "softmax", "mul", "concat", "reshape"]
    check(model, feeds_for(shape), COLLAPSE, expected)


def test_reshapes_around_a_gemm_vanish():
    def build(b, x):
        h = x * 2.0
        for _ in range(2):
            flat = b.reshape(h, [-1, 8])
            h = b.reshape(b.gemm(flat, values(8, 8), values(8)), [2, 5, 8]) + x
        return h

    shape = (2, 5, 8)
    model = model_of(build, shape)
    check(model, feeds_for(shape), COLLAPSE, ["reshape", "mul", "gemm", "add", "gemm", "add", "reshape"])


@pytest.mark.parametrize("opset", [21, 23])
def test_heads_are_split_off_the_matrix_directly(opset):
    """Three projections of one tensor share the reshape before them; the split into heads takes any dims.

    Where the opset has Attention, that takes the projections as they are, and none of the reshapes would vanish.
    """

    def build(b, x):
        heads = [b.transpose(b.reshape(x @ values(8, 8) + values(8), [2, 5, 2, 4]), perm=(0, 2, 1, 3)) for _ in "qkv"]
        return heads[0] @ b.transpose(heads[1], perm=(0, 1, 3, 2)) @ heads[2]

    shape = (2, 5, 8)
    way = ["gemm"] if opset < 23 else ["matmul", "add"]
    expected = [*["reshape"] * (opset < 23), *[*way, "reshape", "transpose"] * 3, "transpose", "matmul", "matmul"]
    check(model_of(build, shape, opset=opset), feeds_for(shape), COLLAPSE, expected)


@pytest.mark.parametrize(
    "build",
    [
        # Softmax over an axis that is not the last mixes rows.
        lambda b, x: b.softmax(x @ values(8, 8) + values(8), axis=1),
        # A stack of weights is no single matrix.
        lambda b, x: x @ values(2, 8, 8) + values(8),
        # An addend with its own rows.
        lambda b, x: x @ values(8, 8) + values(5, 8),
    ],
)
@pytest.mark.refusal
def test_what_mixes_rows_is_left_alone(build):
    shape = (2, 5, 8)
    model = model_of(build, shape)
    check(model, feeds_for(shape), COLLAPSE, names(model))


def test_an_output_that_is_also_used_inside_keeps_its_dims():
    def build(b, x):
        h = b.relu(x @ values(8, 8) + values(8))
        z = b.relu(h @ values(8, 8) + values(8)) @ values(8, 8) + values(8)
        return b.relu(z @ values(8, 8) + values(8)), h

    shape = (2, 5, 8)
    expected = ["reshape", "gemm", "relu", "reshape", "gemm", "relu", "gemm", "gemm", "relu", "reshape"]
    check(model_of(build, shape), feeds_for(shape), COLLAPSE, expected)


CANCEL = "cancel-transposes,merge-transposes,dce"
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def test_a_transpose_and_its_inverse_cancel_around_elementwise_operations():
    def build(b, x):
        t = b.transpose(x, perm=TO_NHWC)
        return b.transpose(b.relu(t * values(3) + 1.0), perm=TO_NCHW)

    check(model_of(build, (2, 3, 4, 5)), feeds_for((2, 3, 4, 5)), CANCEL, ["mul", "add", "relu"])


def test_operations_along_an_axis_are_renumbered():
    def build(b, x, z):
        t = b.concat(b.transpose(x, perm=TO_NHWC), b.transpose(z, perm=TO_NHWC), axis=-1)
        first, second = b.split(b.softmax(t, axis=3), [2, 4], axis=3, outputs=2)
        mean = b.reduce_mean(second, [1, 2], keepdims=1)
        return b.transpose(first, perm=TO_NCHW), b.transpose(mean, perm=TO_NCHW)

    shapes = ((2, 3, 4, 5), (2, 3, 4, 5))
    check(model_of(build, *shapes), feeds_for(*shapes), CANCEL, ["concat", "softmax", "split", "reduce_mean"])


def test_both_operands_transposed_alike():
    def build(b, x, z):
        return b.transpose(x, perm=TO_NHWC) + b.transpose(z, perm=TO_NHWC)

    shapes = ((2, 3, 4, 5), (2, 3, 4, 5))
    check(model_of(build, *shapes), feeds_for(*shapes), CANCEL, ["add", "transpose"])


@pytest.mark.parametrize(
    "build",
    [
        # Nothing to gain: one transpose either way.
        lambda b, x: b.relu(b.transpose(x, perm=TO_NHWC)),
        # A reduction that drops axes has other axes behind it.
        lambda b, x: b.reduce_sum(b.transpose(x, perm=TO_NHWC), [3], keepdims=0),
        # Flatten depends on the order of axes.
        lambda b, x: b.flatten(b.transpose(x, perm=TO_NHWC)),
    ],
)
@pytest.mark.refusal
def test_transposes_that_stay(build):
    model = model_of(build, (2, 3, 4, 5))
    check(model, feeds_for((2, 3, 4, 5)), CANCEL, names(model))


def test_a_transposed_tensor_that_is_an_output_too_stays():
    def build(b, x):
        t = b.transpose(x, perm=TO_NHWC)
        return b.transpose(b.relu(t), perm=TO_NCHW), t

    shape = (2, 3, 4, 5)
    model = model_of(build, shape)
    check(model, feeds_for(shape), CANCEL, ["transpose", "relu"])


def test_transposes_in_a_row_merge():
    shape = (2, 3, 4)
    model = model_of(lambda b, x: b.transpose(b.transpose(x, perm=(1, 0, 2)), perm=(0, 2, 1)), shape)
    check(model, feeds_for(shape), "merge-transposes,dce", ["transpose"])
    assert [op.attr("perm") for op in model.walk() if op.name == "transpose"] == [(1, 2, 0)]


def test_zero_terms_behind_a_sum_go_unless_they_widen():
    shape = (2, 3)
    model = model_of(lambda b, x: b.relu(x @ values(3, 3) + np.zeros(3, np.float32)) - 0.0, shape)
    check(model, feeds_for(shape), "drop-zero-terms,dce", ["matmul", "relu", "sub"])
    model = model_of(lambda b, x: b.relu(x @ values(3, 3) + np.zeros((4, 1, 1), np.float32)), shape)
    check(model, feeds_for(shape), "drop-zero-terms,dce", ["matmul", "add", "relu"])


def test_a_zero_term_that_changes_the_sign_of_a_zero_stays():
    model = model_of(lambda b, x: b.reciprocal(x + np.float32(0)), (2,))
    PassManager.parse("drop-zero-terms,dce").run(model)
    result = tilewright.compile(model, target="reference").run({"x0": np.array([-0.0, 0.0], np.float32)})["y0"]
    np.testing.assert_array_equal(result, [np.inf, np.inf])


def test_the_scale_of_attention_goes_into_the_weights():
    def build(b, x):
        q = b.transpose(b.reshape(x @ values(8, 8) + values(8), [2, 5, 2, 4]), perm=(0, 2, 1, 3)) * 0.5
        k = b.transpose(b.reshape(x @ values(8, 8), [2, 5, 2, 4]), perm=(0, 2, 3, 1)) / np.float32(3)
        return q @ k

    shape = (2, 5, 8)
    expected = ["matmul", "add", "reshape", "transpose", "matmul", "reshape", "transpose", "matmul"]
    check(model_of(build, shape), feeds_for(shape), "fold-scale-shift,dce", expected)


def test_a_scale_stays_where_the_unscaled_tensor_is_read_too():
    def build(b, x):
        heads = b.reshape(x @ values(8, 8), [2, 5, 2, 4])
        return heads * 0.5, heads

    shape = (2, 5, 8)
    check(model_of(build, shape), feeds_for(shape), "fold-scale-shift,dce", ["matmul", "reshape", "mul"])
