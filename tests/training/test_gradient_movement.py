"""Derivatives of operators that move elements: shapes, slices, gathers, scatters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradient_checks import compare, normal

X = normal(2, 3, 4)


def test_shapes() -> None:
    compare(
        lambda b, x: [
            b.reshape(x, np.array([4, -1])), b.flatten(x, axis=2), b.unsqueeze(x, np.array([0, 2])),
            b.squeeze(b.unsqueeze(x, np.array([1]))), b.transpose(x, perm=[2, 0, 1]), b.transpose(x),
            b.expand(x, np.array([5, 1, 3, 4])), b.tile(x, np.array([2, 1, 3])),
        ],
        {"x": X},
        open_dims=(False,),
    )  # fmt: skip
    compare(lambda b, x: [b.transpose(x), b.tile(x, np.array([2, 1, 3])), b.reshape(x, np.array([-1]))], {"x": X})
    compare(lambda b, x, shape: b.expand(x, shape), {"x": normal(3, 1), "shape": np.array([2, 3, 4])})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    compare(lambda b, x: b.depth_to_space(x, blocksize=2, mode=mode), {"x": normal(1, 8, 2, 3)}, open_dims=(False,))
    compare(lambda b, x: b.space_to_depth(x, blocksize=2), {"x": normal(1, 2, 4, 6)}, open_dims=(False,))


def test_parts() -> None:
    compare(lambda b, x, y: b.concat(x, y, x, axis=1), {"x": X, "y": normal(2, 1, 4)})
    compare(lambda b, x: list(b.split(x, np.array([1, 3]), axis=-1, outputs=2)), {"x": X})
    # A part that nothing depends on has no adjoint of its own.
    compare(lambda b, x: b.split(x, np.array([1, 3]), axis=-1, outputs=2)[1], {"x": X})
    compare(lambda b, x: [b.trilu(x), b.trilu(x, np.array(1), upper=0)], {"x": X})
    compare(
        lambda b, x: b.center_crop_pad(x, np.array([3, 2]), axes=[1, 2]), {"x": normal(2, 5, 4)}, open_dims=(False,)
    )
    compare(lambda b, x: b.reverse_sequence(x, np.array([2, 1, 2])), {"x": X}, open_dims=(False,))


SLICES = [
    ([0], [2], [1], [1]), ([1, -1], [3, -(2**40)], [1, 2], [1, -2]), ([3], [-100], [2], [-1]), ([0], [100], [2], [3]),
    ([1], [1], [1], [1]), ([-2], [2**40], [-1], [1]), ([0, 0], [2, 4], [0, 2], [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("columns", SLICES, ids=str)
def test_slices(columns: Any) -> None:
    starts, ends, axes, steps = (np.array(column, np.int64) for column in columns)
    # The operand itself is a result, too, so that an empty slice has an adjoint.
    compare(lambda b, x: [b.slice(x, starts, ends, axes, steps), b.neg(x)], {"x": X}, directions=1)
    feeds = {"x": X, "starts": starts, "ends": ends, "steps": steps}
    compare(
        lambda b, x, starts, ends, steps: [b.slice(x, starts, ends, axes, steps), b.neg(x)], feeds, open_dims=(False,)
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads(mode: str) -> None:
    pads = np.array([0, 1, 2, 1, 0, 1])
    compare(lambda b, x: b.pad(x, pads, mode=mode), {"x": X})
    compare(lambda b, x: b.pad(x, np.array([1, 2]), None, np.array([-1]), mode=mode), {"x": X})
    feeds = {"x": X, "pads": pads}
    compare(lambda b, x, pads: b.pad(x, pads, mode=mode), feeds)


def test_the_fill_of_a_pad() -> None:
    feeds = {"x": X, "fill": np.array(0.3)}
    compare(lambda b, x, fill: b.pad(x, np.array([0, 1, -1, 2, 0, 1]), fill), feeds, open_dims=(False,))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [np.array(1), np.array([0, -1, 0]), np.array([[1, 0], [0, -2]])], ids=str)
def test_gather(axis: int, indices: np.ndarray) -> None:
    compare(lambda b, x: b.gather(x, indices, axis=axis), {"x": X})


def test_other_gathers() -> None:
    places = np.array([[[0, -1, 1], [2, 2, 0]]])
    compare(lambda b, x: b.gather_elements(x, places, axis=2), {"x": X})
    compare(lambda b, x: b.gather_nd(x, np.array([[0, 1], [1, -1], [0, 1]])), {"x": X})
    compare(lambda b, x: b.gather_nd(x, np.array([[[1], [0]], [[2], [2]]]), batch_dims=1), {"x": X}, open_dims=(False,))
    compare(
        lambda b, x: b.gather_nd(x, np.array([[[1], [0], [3]], [[2], [2], [0]]]), batch_dims=2), {"x": X},
        open_dims=(False,),
    )  # fmt: skip
    compare(lambda b, x: b.compress(x, np.array([True, False, True]), axis=1), {"x": X})
    compare(lambda b, x: b.compress(x, np.array([True, False, True, True])), {"x": X})
    compare(lambda b, x: b.topk(x, np.array([2]), axis=1)[0], {"x": X})
    compare(lambda b, values: b.one_hot(np.array([1, 0, 2]), np.array(3), values), {"values": normal(2)})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters(reduction: str) -> None:
    unique = reduction == "none"
    places = np.array([[0, 2], [1, 0]]) if unique else np.array([[0, 2], [0, 2]])
    feeds = {"x": normal(3, 2) / 10, "u": np.array([[0.7, -0.4], [-0.9, 1.2]])}
    compare(lambda b, x, u: b.scatter_elements(x, places, u, axis=0, reduction=reduction), feeds, open_dims=(False,))
    rows = np.array([[0], [2]]) if unique else np.array([[1], [1]])
    compare(lambda b, x, u: b.scatter_nd(x, rows, u, reduction=reduction), feeds, open_dims=(False,))


def test_products_of_updates_with_zeros() -> None:
    places = np.array([[0], [0], [2]])
    for u in ([2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 1.5, 0.0]):
        feeds = {"x": np.array([1.0, 2.0, 0.0]), "u": np.array(u)}
        compare(
            lambda b, x, u: [b.scatter_nd(x, places, u, reduction="mul"), b.neg(x), b.neg(u)], feeds,
            open_dims=(False,),
        )  # fmt: skip


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_caches(mode: str) -> None:
    feeds = {"past": normal(2, 1, 5, 2), "update": normal(2, 1, 2, 2, seed=1)}
    starts = np.array([1, 4 if mode == "circular" else 3])
    compare(
        lambda b, past, update: b.tensor_scatter(past, update, starts, mode=mode, axis=2), feeds, open_dims=(False,)
    )
    compare(lambda b, past, update: b.tensor_scatter(past, update, axis=2), feeds, open_dims=(False,))


def test_triangles() -> None:
    x = normal(2, 3, 4)
    for k in (-1, 0, 2):
        for upper in (0, 1):
            compare(lambda b, x, k=k, upper=upper: b.trilu(x, np.array(k), upper=upper), {"x": x}, open_dims=(False,))
