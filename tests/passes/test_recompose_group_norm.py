"""Instance and group normalization in the forms that exporters write, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import becomes, model_of, names, recomposed, stays, values

from tilewright import f64

PASS = "cse,recompose-layer-norm,recompose-group-norm"
EPSILON = 1e-5
ONES, ZEROS = np.ones(2, np.float32), np.zeros(2, np.float32)


def standard(b, x, axes):
    centered = x - b.reduce_mean(x, list(axes))
    return centered / b.sqrt(b.reduce_mean(centered * centered, list(axes)) + EPSILON)


def affine(y, channels=8, spatial=2):
    return y * values(channels, *[1] * spatial) + values(channels, *[1] * spatial)


def test_instance_normalization_by_means():
    build = lambda b, x: affine(standard(b, x, (2, 3)))  # noqa: E731
    becomes(model_of(build, (2, 8, 4, 5)), PASS, ["instance_normalization"], opsets=(13, 17, 23))


@pytest.mark.parametrize("shape", [(2, 8, 6), (2, 8, 3, 4, 5), ("n", 8, "h", "w")])
def test_instance_normalization_of_other_shapes(shape):
    spatial = len(shape) - 2
    build = lambda b, x: affine(standard(b, x, range(2, len(shape))), spatial=spatial)  # noqa: E731
    becomes(model_of(build, shape), PASS, ["instance_normalization"], opsets=(13, 17))


def test_a_scale_alone():
    build = lambda b, x: standard(b, x, (2, 3)) * values(1, 8, 1, 1)  # noqa: E731
    becomes(model_of(build, (2, 8, 4, 5)), PASS, ["instance_normalization"], opsets=(13, 17))


def test_a_normalization_without_scale_stays_one_of_layers():
    becomes(model_of(lambda b, x: standard(b, x, (2, 3)), (2, 8, 4, 5)), PASS, ["layer_normalization"], opsets=(13, 17))


def grouped(b, x, middle=(0, 2, -1), back=None, normal=None):
    """The way of torch: instance normalization of reshaped groups."""
    groups = b.reshape(x, list(middle))
    if normal is None:
        normal = b.instance_normalization(groups, ONES, ZEROS, epsilon=EPSILON)
    else:
        normal = normal(b, groups)
    return b.reshape(normal, b.shape(x) if back is None else list(back))


@pytest.mark.parametrize("back", [None, (2, 8, 4, 5), (0, 8, 4, 5)])
def test_group_normalization(back):
    build = lambda b, x: affine(grouped(b, x, back=back))  # noqa: E731
    after = recomposed(model_of(build, (2, 8, 4, 5)), PASS)
    (op,) = [op for op in after.walk() if op.name == "group_normalization"]
    assert op.attr("num_groups") == 2
    assert op.attr("epsilon") == pytest.approx(EPSILON)
    if back is not None:
        becomes(model_of(build, (2, 8, 4, 5)), PASS, ["group_normalization"], opsets=(13, 17, 21))


@pytest.mark.parametrize("shape", [(2, 8, 6), ("n", 8, "h", "w"), (2, 8, 3, 4, 5)])
def test_group_normalization_of_other_shapes(shape):
    build = lambda b, x: affine(grouped(b, x), spatial=len(shape) - 2)  # noqa: E731
    becomes(model_of(build, shape), PASS, ["group_normalization"], opsets=(13, 21))


def test_group_normalization_by_means():
    build = lambda b, x: affine(  # noqa: E731
        grouped(b, x, (2, 4, 2, 4, 5), (2, 8, 4, 5), lambda b, y: standard(b, y, (2, 3, 4)))
    )
    after = becomes(model_of(build, (2, 8, 4, 5)), PASS, ["group_normalization"], opsets=(13, 21))
    assert [op.attr("num_groups") for op in after.walk() if op.name == "group_normalization"] == [4]


WRONG = {
    "the batch is in the groups": lambda b, x: affine(
        b.reshape(b.instance_normalization(b.reshape(x, [1, 2, -1]), ONES, ZEROS), [2, 8, 4, 5])
    ),
    "a scale of the groups": lambda b, x: affine(
        b.reshape(b.instance_normalization(b.reshape(x, [0, 2, -1]), ONES * 2, ZEROS), [2, 8, 4, 5])
    ),
    "a bias of the groups": lambda b, x: affine(
        b.reshape(b.instance_normalization(b.reshape(x, [0, 2, -1]), ONES, ONES), [2, 8, 4, 5])
    ),
    "another shape behind": lambda b, x: affine(
        b.reshape(b.instance_normalization(b.reshape(x, [0, 2, -1]), ONES, ZEROS), [2, 8, 5, 4])
    ),
    "a scale by column": lambda b, x: (
        b.reshape(b.instance_normalization(b.reshape(x, [0, 2, -1]), ONES, ZEROS), [2, 8, 4, 5]) * values(5)
        + values(8, 1, 1)
    ),
    "a bias by column": lambda b, x: (
        b.reshape(b.instance_normalization(b.reshape(x, [0, 2, -1]), ONES, ZEROS), [2, 8, 4, 5]) * values(8, 1, 1)
        + values(5)
    ),
    "the groups are an output": lambda b, x: (lambda g: (
        affine(b.reshape(b.instance_normalization(g, ONES, ZEROS), [2, 8, 4, 5])), g
    ))(b.reshape(x, [0, 2, -1])),
    "groups that do not divide the channels": lambda b, x: affine(
        b.reshape(
            b.instance_normalization(b.reshape(x, [0, 5, -1]), np.ones(5, np.float32), np.zeros(5, np.float32)),
            [2, 8, 4, 5],
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_is_no_group_normalization(form):
    stays(model_of(WRONG[form], (2, 8, 4, 5)), PASS)


NO_INSTANCE = {
    "over one spatial dim": (lambda b, x: affine(standard(b, x, (3,))), ["layer_normalization", "mul", "add"]),
    "over channels, too": (lambda b, x: affine(standard(b, x, (1, 2, 3))), ["layer_normalization", "mul", "add"]),
    "a scale by column": (lambda b, x: standard(b, x, (2, 3)) * values(5), ["layer_normalization", "mul"]),
    "a scale by sample": (lambda b, x: standard(b, x, (2, 3)) * values(2, 8, 1, 1), ["layer_normalization", "mul"]),
    "a scale that adds a dim": (
        lambda b, x: standard(b, x, (2, 3)) * values(1, 1, 8, 1, 1),
        ["layer_normalization", "mul"],
    ),
}


@pytest.mark.parametrize("form", NO_INSTANCE)
@pytest.mark.refusal
def test_what_is_no_instance_normalization(form):
    build, expected = NO_INSTANCE[form]
    stays(model_of(build, (2, 8, 4, 5)), PASS, expected)


def test_double_precision():
    build = lambda b, x: b.instance_normalization(x, np.ones(8), np.zeros(8)) * np.ones((8, 1))  # noqa: E731
    model = model_of(build, (2, 8, 4), dtype=f64)
    assert names(recomposed(model, PASS)) == names(model)
