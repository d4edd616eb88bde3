"""LayerNormalization and RMSNormalization in the forms that exporters write, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import becomes, model_of, names, recomposed, stays, values

from tilewright import Builder, bf16, f16, f32, f64, i64

PASS = "cse,recompose-layer-norm"
EPSILON = 1e-5


def mean(b, x, axes=(-1,)):
    return b.reduce_mean(x, list(axes))


def variance(b, x, axes=(-1,)):
    centered = x - mean(b, x, axes)
    return mean(b, centered * centered, axes)


def standard(b, x, axes=(-1,)):
    return (x - mean(b, x, axes)) / b.sqrt(variance(b, x, axes) + EPSILON)


def root_mean_square(b, x):
    return b.sqrt(mean(b, x**2.0) + EPSILON)


def cast(b, x, dtype):
    return b.cast(x, to=dtype.onnx_code)


STANDARD_FORMS = {
    "quotient": lambda b, x: standard(b, x),
    "square by pow": lambda b, x: (lambda c: c / b.sqrt(mean(b, c**2.0) + EPSILON))(x - mean(b, x)),
    "reciprocal": lambda b, x: (x - mean(b, x)) * b.reciprocal(b.sqrt(variance(b, x) + EPSILON)),
    "1 / root": lambda b, x: (x - mean(b, x)) * (1.0 / b.sqrt(variance(b, x) + EPSILON)),
    "pow 0.5": lambda b, x: (x - mean(b, x)) / (variance(b, x) + EPSILON) ** 0.5,
    "pow -0.5": lambda b, x: (x - mean(b, x)) * (variance(b, x) + EPSILON) ** -0.5,
    "epsilon first": lambda b, x: (x - mean(b, x)) / b.sqrt(EPSILON + variance(b, x)),
    "sums times 1 / n": lambda b, x: (lambda c: c / b.sqrt(b.reduce_sum(c * c, [-1]) * 0.125 + EPSILON))(
        x - b.reduce_sum(x, [2]) * 0.125
    ),
    "sums over n": lambda b, x: (lambda c: c / b.sqrt(b.reduce_sum(c * c, [-1]) / 8.0 + EPSILON))(
        x - b.reduce_sum(x, [-1]) / 8.0
    ),
}


@pytest.mark.parametrize("form", STANDARD_FORMS)
@pytest.mark.parametrize("affine", ["none", "scale", "bias", "both"])
def test_layer_normalization(form, affine):
    def build(b, x):
        y = STANDARD_FORMS[form](b, x)
        y = y * values(8) if affine in ("scale", "both") else y
        return y + values(8) if affine in ("bias", "both") else y

    becomes(model_of(build, (2, 5, 8)), PASS, ["layer_normalization"], opsets=(13, 17))


@pytest.mark.parametrize("axis", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("kind", ["layer_normalization", "rms_normalization"])
def test_scale_behind_an_operator_with_a_scale_of_ones(kind, axis):
    """`axis` is counted from either side."""
    size = (2, 5, 8)[axis:]

    def build(b, x):
        y = getattr(b, kind)(x, np.ones(size, np.float32), axis=axis) * values(*size)
        return y + values(*size) if kind == "layer_normalization" else y

    becomes(model_of(build, (2, 5, 8)), PASS, [kind], opsets=(17, 23) if kind == "layer_normalization" else (23,))


@pytest.mark.parametrize("axes", [(-1,), (2, 1), (-2, -1), (0, 1, 2)])
def test_axes_that_are_the_last_ones(axes):
    size = (2, 5, 8)[3 - len(axes) :]
    build = lambda b, x: standard(b, x, axes) * values(*size) + values(*size)  # noqa: E731
    becomes(model_of(build, (2, 5, 8)), PASS, ["layer_normalization"], opsets=(13, 17))


def test_open_dims():
    becomes(model_of(lambda b, x: standard(b, x) * values(8), ("n", "m", 8)), PASS, ["layer_normalization"])
    becomes(model_of(lambda b, x: standard(b, x), ("n", "m")), PASS, ["layer_normalization"])


def test_the_form_of_tensorflow():
    def build(b, x):
        gain = b.reciprocal(b.sqrt(variance(b, x) + EPSILON)) * values(8)
        return x * gain + (values(8) - mean(b, x) * gain)

    becomes(model_of(build, (2, 5, 8)), PASS, ["layer_normalization"], opsets=(13, 17))


def test_the_scale_within():
    """As Keras writes it: the centered tensor times (1 / root * scale)."""
    build = lambda b, x: (  # noqa: E731
        (x - mean(b, x)) * (b.reciprocal(b.sqrt(variance(b, x) + EPSILON)) * values(8)) + values(8)
    )
    becomes(model_of(build, (2, 5, 8)), PASS, ["layer_normalization"], opsets=(13, 17))


def test_scale_and_bias_with_dims_of_1_in_front():
    build = lambda b, x: standard(b, x) * values(1, 1, 8) + values(1, 8)  # noqa: E731
    after = becomes(model_of(build, (2, 5, 8)), PASS, ["layer_normalization"], opsets=(13, 17))
    (op,) = [op for op in after.walk() if op.name == "layer_normalization"]
    assert [str(operand.type) for operand in op.operands[1:]] == ["f32[8]", "f32[8]"]


def test_epsilon_is_kept():
    after = recomposed(model_of(lambda b, x: (x - mean(b, x)) / b.sqrt(variance(b, x) + 0.25), (2, 8)), PASS)
    assert [op.attr("epsilon") for op in after.walk() if op.name == "layer_normalization"] == [0.25]


# ---- root mean square ------------------------------------------------------------------------------------------------

RMS_FORMS = {
    "quotient": lambda b, x: x / root_mean_square(b, x),
    "reciprocal": lambda b, x: x * b.reciprocal(root_mean_square(b, x)),
    "1 / root": lambda b, x: x * (1.0 / root_mean_square(b, x)),
    "square by mul": lambda b, x: x / b.sqrt(mean(b, x * x) + EPSILON),
    "pow -0.5": lambda b, x: x * (mean(b, x * x) + EPSILON) ** -0.5,
    "a sum over n": lambda b, x: x / b.sqrt(b.reduce_sum(x * x, [-1]) / 8.0 + EPSILON),
    "reciprocal first": lambda b, x: b.reciprocal(root_mean_square(b, x)) * x,
}


@pytest.mark.parametrize("form", RMS_FORMS)
@pytest.mark.parametrize("scaled", [False, True])
def test_rms_normalization(form, scaled):
    build = lambda b, x: values(8) * RMS_FORMS[form](b, x) if scaled else RMS_FORMS[form](b, x)  # noqa: E731
    becomes(model_of(build, (2, 5, 8)), PASS, ["rms_normalization"], opsets=(13, 17, 23))


def test_rms_normalization_with_the_scale_within():
    build = lambda b, x: x * (b.reciprocal(root_mean_square(b, x)) * values(8))  # noqa: E731
    becomes(model_of(build, (2, 5, 8)), PASS, ["rms_normalization"], opsets=(13, 23))


def llama(b, x, scale=True):
    """x.float(), normalized, cast back, times the weight."""
    wide = cast(b, x, f32)
    normal = cast(b, wide * b.reciprocal(root_mean_square(b, wide)), f16)
    return values(8, dtype=np.float16) * normal if scale else normal


@pytest.mark.parametrize("scale", [False, True])
def test_half_precision_that_is_normalized_in_f32(scale):
    model = model_of(lambda b, x: llama(b, x, scale), (2, 5, 8), dtype=f16)
    becomes(model, PASS, ["rms_normalization"], opsets=(13, 17, 23))


def test_layer_normalization_of_half_precision_in_f32():
    build = lambda b, x: cast(b, standard(b, cast(b, x, f32)), f16) * values(8, dtype=np.float16)  # noqa: E731
    becomes(model_of(build, (2, 5, 8), dtype=f16), PASS, ["layer_normalization"], opsets=(13, 17))


def test_a_cast_operand_that_has_other_users_stays_for_them():
    def build(b, x):
        wide = cast(b, x, f32)
        return cast(b, wide / root_mean_square(b, wide), f16), b.exp(wide)

    after = recomposed(model_of(build, (2, 8), dtype=f16), PASS)
    assert sorted(names(after)) == ["cast", "exp", "rms_normalization"]


def test_a_scale_in_f32_leaves_the_casts_outside():
    """The operator would round before scaling."""
    build = lambda b, x: (lambda w: cast(b, w / root_mean_square(b, w) * values(8), f16))(cast(b, x, f32))  # noqa: E731
    becomes(model_of(build, (2, 8), dtype=f16), PASS, ["cast", "rms_normalization", "cast"], opsets=(17, 23))


# ---- what is neither -------------------------------------------------------------------------------------------------

WRONG = {
    "epsilon outside of the root": lambda b, x: (x - mean(b, x)) / (b.sqrt(variance(b, x)) + EPSILON),
    "the axis before the last": lambda b, x: standard(b, x, (1,)),
    "first and last axis": lambda b, x: standard(b, x, (0, 2)),
    "mean and variance over different axes": lambda b, x: (lambda c: c / b.sqrt(mean(b, c * c, (-2,)) + EPSILON))(
        x - mean(b, x)
    ),
    "variance around another mean": lambda b, x: (x - mean(b, x)) / b.sqrt(mean(b, x * x) + EPSILON),
    "a sum over another number": lambda b, x: x / b.sqrt(b.reduce_sum(x * x, [-1]) / 7.0 + EPSILON),
    "a sum": lambda b, x: x / b.sqrt(b.reduce_sum(x * x, [-1]) + EPSILON),
    "the cube": lambda b, x: x / b.sqrt(mean(b, x**3.0) + EPSILON),
    "the fourth root": lambda b, x: x / (mean(b, x * x) + EPSILON) ** 0.25,
    "epsilon by element": lambda b, x: x / b.sqrt(mean(b, x * x) + values(5, 1, low=0.1)),
    "epsilon widens": lambda b, x: x / b.sqrt(mean(b, x * x) + np.full((3, 1, 1, 1), 0.1, np.float32)),
    "the root over x": lambda b, x: root_mean_square(b, x) / x,
    "the mean of magnitudes": lambda b, x: x / b.sqrt(mean(b, b.abs(x)) + EPSILON),
    "the variance is an output": lambda b, x: (lambda v: (x / b.sqrt(v + EPSILON), v))(mean(b, x * x)),
    "the root is used twice": lambda b, x: (lambda r: (x / r, b.exp(r)))(root_mean_square(b, x)),
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_is_no_normalization(form):
    model = model_of(WRONG[form], (2, 5, 8))
    assert names(recomposed(model, PASS)) == names(recomposed(model, "cse"))


def test_a_centered_tensor_that_is_an_output_leaves_a_root_mean_square():
    build = lambda b, x: (lambda c: (c / b.sqrt(mean(b, c * c) + EPSILON), c))(x - mean(b, x))  # noqa: E731
    becomes(model_of(build, (2, 8)), PASS, ["reduce_mean", "sub", "rms_normalization"])


@pytest.mark.parametrize("dtype", [f16, f64, bf16])
def test_only_f32_is_computed_in_f32(dtype):
    def build(b, x):
        epsilon = np.asarray(EPSILON, dtype.numpy)
        return x / b.sqrt(mean(b, x * x) + epsilon)

    model = model_of(build, (2, 8), dtype=dtype)
    assert names(recomposed(model, PASS)) == names(model)


@pytest.mark.parametrize(
    "scale", [(3, 1, 1, 8), (5, 8), (2, 5, 8), (5, 1), (1,), (1, 1)], ids=lambda shape: "x".join(map(str, shape))
)
@pytest.mark.refusal
def test_a_scale_that_has_not_the_normalized_dims_stays_outside(scale):
    model = model_of(lambda b, x: standard(b, x) * values(*scale), (2, 5, 8))
    stays(model, PASS, ["layer_normalization", "mul"])


def test_a_computed_scale_with_dims_of_1_stays_outside():
    model = model_of(lambda b, x, s: standard(b, x) * s, (2, 5, 8), (1, 1, 8))
    stays(model, PASS, ["layer_normalization", "mul"])


def test_a_computed_scale_and_one_of_unknown_size():
    model = model_of(lambda b, x, s: standard(b, x) * s, (2, 5, 8), (8,))
    becomes(model, PASS, ["layer_normalization"], opsets=(17,))
    model = model_of(lambda b, x, s: standard(b, x) * s, (2, 5, 8), ("k",))
    assert names(recomposed(model, PASS)) == ["layer_normalization", "mul"]


def test_a_normalization_that_is_used_twice_keeps_its_scale_outside():
    build = lambda b, x: (lambda y: (y * values(8), b.exp(y)))(standard(b, x))  # noqa: E731
    stays(model_of(build, (2, 8)), PASS, ["layer_normalization", "mul", "exp"])


def test_a_second_scale_stays_outside():
    build = lambda b, x: standard(b, x) * values(8) * values(8)  # noqa: E731
    stays(model_of(build, (2, 8)), PASS, ["layer_normalization", "mul"])


def test_a_difference_of_a_bias_is_no_bias():
    build = lambda b, x: values(8) - standard(b, x)  # noqa: E731
    stays(model_of(build, (2, 8)), PASS, ["layer_normalization", "sub"])


def test_an_unknown_rank():
    b = Builder(opset=17)
    x = b.input("x0", f32[...])
    b.output(x / b.sqrt(b.reduce_mean(x * x, [-1]) + EPSILON), "y0")
    model = b.build()
    assert names(recomposed(model, PASS)) == names(model)


def test_integers():
    b = Builder()
    x = b.input("x0", i64[2, 8])
    b.output(x - b.reduce_mean(x, [-1]), "y0")
    model = b.build()
    assert names(recomposed(model, PASS)) == names(model)
