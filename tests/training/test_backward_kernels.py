"""Gradients on the cpu target: the same as the reference interpreter's, by kernels alone, for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradient_checks import model, normal

import tilewright

Feeds = dict[str, np.ndarray]


def check(
    function: Callable[..., Any], feeds: Feeds, kernel: str, open_dims: bool = False, dtype: Any = np.float32
) -> None:
    """The gradient of sum(tanh(function)) with respect to all float inputs; `kernel` names one that must be used."""
    wrt = [name for name, array in feeds.items() if array.dtype.kind == "f"]
    given = {name: array.astype(dtype) if name in wrt else array for name, array in feeds.items()}
    whole = model(lambda b, **x: b.reduce_sum(b.tanh(function(b, **x)), keepdims=0), given, open_dims=open_dims)
    graph = tilewright.gradient(whole, "y0", wrt)
    expected = tilewright.compile(graph, target="reference").run(given)
    executables = [tilewright.compile(graph, target="cpu", threads=threads) for threads in (1, 3)]
    one, several = (executable.run(given) for executable in executables)
    report = executables[0].report()
    assert not report["host_steps"]
    assert any(name.startswith(kernel) for name in report["kernels"]), report["kernels"]
    for name, value in expected.items():
        tolerance = (2e-5 if dtype is np.float32 else 1e-11) * np.abs(value).max()
        np.testing.assert_allclose(one[name], value, rtol=0, atol=tolerance, err_msg=name)
        assert np.array_equal(one[name], several[name]), name


CONVOLUTIONS = [
    ((2, 5, 6, 7), (9, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((3, 4, 7, 6), (35, 4, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 3, 9, 8), (4, 3, 3, 2), {"dilations": [2, 3], "pads": [2, 0, 1, 3]}),
    ((2, 17, 5, 5), (6, 17, 1, 1), {"strides": [2, 1]}),
    ((2, 6, 5, 5), (9, 2, 3, 3), {"pads": [1, 1, 1, 1], "group": 3}),
    ((2, 4, 23), (5, 4, 4), {"strides": [2], "pads": [1, 2]}),
    ((2, 2, 4, 5, 4), (3, 2, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 1], "strides": [1, 2, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS, ids=lambda item: str(item))
def test_convolutions(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    feeds = {"x": normal(*x), "w": normal(*w)}
    check(lambda b, x, w: b.conv(x, w, **attributes), feeds, "conv_weight")


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS[1:3], ids=lambda item: str(item))
def test_convolutions_of_open_dims(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    attributes = {**attributes, "kernel_shape": list(w[2:])}
    feeds = {"x": normal(*x), "w": normal(*w)}
    check(lambda b, x, w: b.conv(x, w, **attributes), feeds, "conv_weight", open_dims=True, dtype=np.float64)


def test_a_long_sum_is_cut_into_parts() -> None:
    feeds = {"x": normal(4, 3, 32, 32), "w": normal(8, 3, 3, 3)}
    check(lambda b, x, w: b.conv(x, w, pads=[1, 1, 1, 1]), feeds, "add_8_parts")


def test_filters_that_change_are_transformed_in_each_run() -> None:
    """Forward and for the data; in float64 to the same digits as the definition."""
    feeds = {"x": normal(5, 64, 9, 10), "w": normal(64, 64, 3, 3)}
    for dtype in (np.float32, np.float64):
        check(lambda b, x, w: b.conv(x, w, pads=[1, 1, 1, 1]), feeds, "winograd_filters_64_64", dtype=dtype)


ATTENTIONS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, dict[str, Any]]] = [
    ((2, 4, 37, 8), (2, 2, 45, 8), None, {"is_causal": 1}),
    ((1, 2, 40, 20), (1, 2, 300, 20), None, {"softcap": 2.0}),
    ((2, 2, 9, 8), (2, 2, 14, 8), (9, 14), {"scale": 0.3}),
    ((2, 7, 12), (2, 5, 6), None, {"q_num_heads": 4, "kv_num_heads": 2}),
]


@pytest.mark.parametrize(("q", "k", "mask", "attributes"), ATTENTIONS, ids=lambda item: str(item))
def test_attention(q: Any, k: Any, mask: Any, attributes: dict[str, Any]) -> None:
    feeds = {"q": normal(*q), "k": normal(*k), "v": normal(*k, seed=1)}
    if mask is not None:
        feeds["mask"] = normal(*mask) > -0.5
    check(lambda b, q, k, v, mask=None: b.attention(q, k, v, mask, **attributes), feeds, "attention_grad")


POOLS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 3], "strides": [1, 2], "dilations": [2, 1], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "storage_order": 1},
]


@pytest.mark.parametrize("attributes", POOLS, ids=str)
def test_max_pools(attributes: dict[str, Any]) -> None:
    check(lambda b, x: b.max_pool(x, outputs=1, **attributes), {"x": normal(2, 5, 7, 9)}, "max_pool_grad")


def test_max_pools_of_open_dims() -> None:
    check(lambda b, x: b.max_pool(x, outputs=1, **POOLS[0]), {"x": normal(2, 5, 7, 9)}, "max_pool_grad", True)


def test_depthwise_convolutions() -> None:
    feeds = {"x": normal(2, 21, 9, 8), "w": normal(21, 1, 3, 3)}
    build: Any = lambda b, x, w: b.conv(x, w, pads=[1, 1, 1, 1], strides=[2, 1], group=21)  # noqa: E731
    check(build, feeds, "depthwise_weight")


@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("attributes", [
    {"pads": [1, 1, 1, 1]}, {"strides": [2, 3], "output_padding": [1, 0], "pads": [0, 1, 2, 1]},
    {"dilations": [2, 1], "strides": [1, 2]},
], ids=str)  # fmt: skip
def test_transposed_convolutions_of_each_channel(attributes: Any, is_constant: bool, channels: int) -> None:
    """What the adjoints of depthwise convolutions' images are; with a bias and what follows it."""
    feeds = {"x": normal(2, channels, 7, 6), "bias": normal(channels)}
    filters = normal(channels, 1, 3, 2).astype(np.float32)
    if not is_constant:
        feeds["w"] = filters
    given = {name: array.astype(np.float32) for name, array in feeds.items()}
    whole = model(
        lambda b, x, bias, w=None: b.relu(
            b.conv_transpose(x, b.const(filters) if w is None else w, bias, group=channels, **attributes)
        ),
        given,
    )
    executable = tilewright.compile(whole, target="cpu")
    expected = tilewright.compile(whole, target="reference").run(given)["y0"]
    np.testing.assert_allclose(executable.run(given)["y0"], expected, atol=1e-5)
    convolutions = [name for name in executable.report()["kernels"] if name.startswith(("conv_", "depthwise"))]
    assert convolutions
    assert all(name.startswith("depthwise") for name in convolutions)
