"""Numpy meanings where onnx.reference has none, or another than the text of the standard: computed here by hand."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    return list(tilewright.InferenceSession(model, target="reference").run(None, feeds))


def model_of(node: onnx.NodeProto, feeds: dict[str, np.ndarray], results: list[str], opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("axis", [-1, 0])
def test_one_hot_takes_a_scalar_depth_and_negative_indices(axis: int) -> None:
    feeds = {"i": np.array([0, 4, -1, 7]), "d": np.array(5), "v": np.array([2, 3], np.float32)}
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"], axis=axis)
    (found,) = run(model_of(node, feeds, ["y"], 16), **feeds)
    expected = np.full((4, 5), 2, np.float32)
    expected[[0, 1, 2], [0, 4, 4]] = 3  # 7 lies beyond the depth
    np.testing.assert_array_equal(found, expected if axis == -1 else expected.T)


def test_resize_as_tensorflow_did_it_rounding_up() -> None:
    x = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3)
    feeds = {"x": x, "r": np.zeros(0, np.float32), "s": np.array([1, 1, 3, 3], np.float32)}
    node = helper.make_node(
        "Resize", ["x", "r", "s"], ["y"], mode="nearest", nearest_mode="ceil",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    )  # fmt: skip
    (found,) = run(model_of(node, feeds, ["y"], 11), **feeds)
    places = [min(2, math.ceil((index + 0.5) / 3)) for index in range(9)]
    np.testing.assert_array_equal(found, x[:, :, places][..., places])


def test_scores_of_attention_come_before_softcap() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 4), np.float32) for _ in range(3))
    feeds = {"q": q, "k": k, "v": v}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "scores"], softcap=2.0, qk_matmul_output_mode=0)
    _, scores = run(model_of(node, feeds, ["y", "scores"], 23), **feeds)
    np.testing.assert_allclose(scores, q @ k.swapaxes(-1, -2) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ignored", [-1, 1])
def test_a_loss_does_not_count_labels_that_are_ignored(ignored: int) -> None:
    scores = -np.arange(12, dtype=np.float32).reshape(4, 3)
    feeds = {"x": scores, "t": np.array([ignored, 0, 2, ignored])}
    node = helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"], ignore_index=ignored)
    (found,) = run(model_of(node, feeds, ["y"], 13), **feeds)
    np.testing.assert_allclose(found, (3 + 8) / 2)
