"""Derivatives of convolutions, pools and resampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradient_checks import compare, model, normal

import tilewright

CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), (4, 3, 3), {}),
    ((2, 3, 6, 7), (4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((2, 4, 7, 6), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 3, 5, 5), (6, 1, 2, 2), {"group": 3, "strides": [2, 2]}),
    ((1, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 6, 5), (3, 2, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    ((1, 2, 6, 5), (3, 2, 2, 3), {"auto_pad": "VALID"}),
    ((1, 2, 4, 4, 3), (2, 2, 2, 2, 2), {"strides": [1, 2, 1]}),
    ((1, 2, 8, 8), (2, 2, 2, 2), {"strides": [3, 3], "dilations": [2, 3]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS, ids=lambda item: str(item))
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    feeds = {"x": normal(*x), "w": normal(*w), "b": normal(w[0])}
    compare(lambda builder, **inputs: builder.conv(*inputs.values(), **attributes), feeds, open_dims=(False,))
    weight = feeds.pop("w")
    # The data may have any size; the kernel must be known.
    compare(lambda builder, x, b: builder.conv(x, weight, b, **attributes), feeds, open_dims=(True,))


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 4), (3, 2, 3), {}),
    ((1, 3, 4, 3), (3, 2, 3, 2), {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ((1, 4, 3, 3), (4, 2, 3, 3), {"group": 2, "dilations": [2, 1], "strides": [2, 2], "output_padding": [1, 1]}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [2, 2], "output_shape": [7, 8]}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 4), (2, 2, 2, 2), {"strides": [2, 2], "output_shape": [8, 9], "auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED, ids=lambda item: str(item))
def test_transposed_convolutions(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    feeds = {"x": normal(*x), "w": normal(*w), "b": normal(w[1] * attributes.get("group", 1))}
    compare(lambda builder, **inputs: builder.conv_transpose(*inputs.values(), **attributes), feeds, open_dims=(False,))


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS, ids=lambda item: str(item))
def test_the_weight_gradient_and_its_body_agree(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    """The kernel's numbers are those of the standard operators that a file gets."""
    feeds = {"x": normal(*x), "w": normal(*w)}
    module = model(lambda b, x, w: b.reduce_sum(b.tanh(b.conv(x, w, **attributes)), keepdims=0), feeds)
    graph = tilewright.gradient(module, "y0", ["x", "w"])
    assert any(op.name == "tilewright.ConvWeightGrad" for op in graph.walk())
    written = tilewright.load(tilewright.to_bytes(graph))
    assert not any(op.domain == "tilewright" for op in written.walk())
    expected = tilewright.compile(graph, target="reference").run(feeds)
    found = tilewright.compile(written, target="reference").run(feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


def test_the_adjoint_of_a_convolution_is_one_with_the_flipped_kernel() -> None:
    x, w, grad = normal(1, 1, 6, 6), normal(1, 1, 3, 3), normal(1, 1, 4, 4)

    module = tilewright.vjp(model(lambda b, x, w: b.conv(x, w), {"x": x, "w": w}), ["y0"], ["x", "w"])
    found = tilewright.compile(module, target="reference").run({"x": x, "w": w, "y0_cotangent": grad})
    padded = np.pad(grad, [(0, 0), (0, 0), (2, 2), (2, 2)])
    windows = np.lib.stride_tricks.sliding_window_view(padded[0, 0], (3, 3))
    np.testing.assert_allclose(found["x_grad"][0, 0], np.einsum("ijkl,kl->ij", windows, w[0, 0, ::-1, ::-1]))
    columns = np.lib.stride_tricks.sliding_window_view(x[0, 0], (3, 3)).reshape(16, 9)
    np.testing.assert_allclose(found["w_grad"].reshape(9), columns.T @ grad.reshape(16))


POOLS: list[dict[str, Any]] = [
    {"kernel_shape": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [0, 0, 1, 2], "dilations": [2, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 3], "dilations": [2, 1]},
    {"kernel_shape": [3, 3], "strides": [1, 2], "auto_pad": "SAME_LOWER"},
]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "max_pool": [{}, {"storage_order": 1}],
    "average_pool": [{}, {"count_include_pad": 1}],
    "lp_pool": [{"p": 1}, {"p": 2}, {"p": 3}],
}


@pytest.mark.parametrize("attributes", POOLS, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_pools(name: str, attributes: dict[str, Any]) -> None:
    # All elements differ, so that no window has two greatest ones.
    x = np.random.default_rng(1).permutation(2 * 2 * 6 * 7).reshape(2, 2, 6, 7) / 20 + 0.1
    for variant in VARIANTS[name]:
        outputs = 2 if name == "max_pool" else 1

        def pool(b: Any, x: Any, variant: dict[str, Any] = variant, outputs: int = outputs) -> Any:
            found = b.create(name, x, outputs=outputs, **attributes, **variant)
            return found[0] if outputs == 2 else found

        compare(pool, {"x": x}, directions=1)


def test_overlapping_windows_add_up() -> None:

    x = np.array([[[1.0, 5.0, 2.0, 3.0]]])
    module = model(lambda b, x: b.reduce_sum(b.max_pool(x, kernel_shape=[3], outputs=2)[0], keepdims=0), {"x": x})
    graph = tilewright.gradient(module, "y0", ["x"])
    found = tilewright.compile(graph, target="reference").run({"x": x})
    assert found["x_grad"].tolist() == [[[0.0, 2.0, 0.0, 0.0]]]


@pytest.mark.parametrize("name", ["max_pool", "average_pool", "lp_pool"])
def test_a_window_larger_than_the_operand(name: str) -> None:
    """It is cut to the operand."""
    outputs = 2 if name == "max_pool" else 1

    def pool(b: Any, x: Any) -> Any:
        found = getattr(b, name)(x, kernel_shape=[3], strides=[2], **({"outputs": 2} if outputs == 2 else {}))
        return found[0] if outputs == 2 else found

    compare(pool, {"x": normal(1, 2, 2)}, directions=1, open_dims=(False,))


@pytest.mark.parametrize("name", ["global_average_pool", "global_max_pool", "global_lp_pool"])
def test_global_pools(name: str) -> None:
    compare(lambda b, x: b.create(name, x), {"x": normal(2, 3, 4, 5)})


def test_unpooling() -> None:
    x = normal(1, 2, 2, 3)
    places = np.array([[[[0, 3, 5], [14, 16, 23]], [[24, 27, 29], [38, 40, 47]]]])
    compare(lambda b, x: b.max_unpool(x, places, kernel_shape=[2, 2], strides=[2, 2]), {"x": x}, open_dims=(False,))


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1], "pads": [1, 0, 0, 1]}, {"dilations": [1, 2]}], ids=str)
def test_columns_to_image(attributes: dict[str, Any]) -> None:
    image, block = np.array([4, 5]), np.array([2, 2])
    padded = [4 + (1 if "pads" in attributes else 0), 5 + (1 if "pads" in attributes else 0)]
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    places = [(padded[k] - dilations[k] - 1) // strides[k] + 1 for k in range(2)]
    x = normal(2, 3 * 4, places[0] * places[1])
    compare(lambda b, x: b.col2_im(x, image, block, **attributes), {"x": x}, open_dims=(False,))


RESIZES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "linear"},
    {"mode": "cubic", "exclude_outside": 1},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "cubic", "coordinate_transformation_mode": "asymmetric", "cubic_coeff_a": -0.5},
    {"mode": "linear", "antialias": 1},
    {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "pytorch_half_pixel"},
]


@pytest.mark.parametrize("attributes", RESIZES, ids=str)
def test_resize(attributes: dict[str, Any]) -> None:
    x = normal(2, 1, 4, 5)
    # Places are computed in f32, weights too.
    options: dict[str, Any] = {"open_dims": (False,), "tolerance": 1e-5}
    compare(lambda b, x: b.resize(x, None, np.array([1, 1, 1.7, 0.6], np.float32), **attributes), {"x": x}, **options)
    if attributes.get("antialias"):
        return
    compare(lambda b, x: b.resize(x, None, None, np.array([2, 1, 3, 9]), **attributes), {"x": x}, **options)
    compare(lambda b, x: b.resize(x, None, np.array([2.0], np.float32), axes=[2], **attributes), {"x": x}, **options)


def test_resize_by_scales_that_are_put_together() -> None:
    """As exporters write them: the numbers follow from constants, but are none."""
    module = tilewright.parse(
        """
        module onnx opsets={"": 21}
        func @main(%x: f64[1, 2, 5, 6]) -> (%y: f64[1, 2, 8, 3]) {
          %ones = const [1.0, 1.0] : f32[2]
          %half = const [0.85, 0.3] : f32[2]
          %rest = add %half, %half : f32[2]
          %scales = concat %ones, %rest {axis=0} : f32[4]
          %y = resize %x, none, %scales {mode="linear"} : f64[1, 2, 8, 3]
          return %y
        }
        """
    )
    report = tilewright.train.check_gradients(module, {"x": normal(1, 2, 5, 6)}, tolerance=1e-5)
    assert report.passed, report
    assert all(each.analytic for each in report.checks)


def test_resize_of_a_crop() -> None:
    roi = np.array([0.2, 0.1, 0.9, 1.2], np.float32)
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "axes": [2, 3]}
    compare(
        lambda b, x: b.resize(x, roi, None, np.array([3, 4]), extrapolation_value=2.0, **attributes),
        {"x": normal(1, 2, 5, 6)},
        open_dims=(False,),
        tolerance=1e-5,
    )


def test_a_crop_that_only_the_run_knows_is_refused() -> None:
    def build(b: Any, x: Any, roi: Any) -> Any:
        mode = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
        return b.resize(x, roi, None, np.array([1, 1, 3, 4]), **mode)

    feeds = {"x": normal(1, 1, 5, 6), "roi": np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.7], np.float32)}
    with pytest.raises(tilewright.TilewrightError, match="the region that it crops is not known"):
        tilewright.vjp(model(build, feeds), ["y0"], ["x"])


def test_batches_of_unknown_size_are_resized() -> None:
    from tilewright import Builder, f64

    b = Builder("resize")
    x = b.input("x", f64["n", 2, 4, 4])
    b.output(b.resize(x, None, np.array([1, 1, 2, 2], np.float32), mode="linear"), "y")
    assert tilewright.train.check_gradients(b.build(), {"x": normal(3, 2, 4, 4)}, tolerance=1e-5).passed


def test_repeated_elements_of_unknown_size() -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    compare(lambda b, x: b.resize(x, None, scales), {"x": normal(1, 2, 3, 4)})
    with pytest.raises(tilewright.TilewrightError, match="sizes that it resizes are not known"):
        compare(lambda b, x: b.resize(x, None, scales, mode="linear"), {"x": normal(1, 2, 3, 4)}, open_dims=(True,))


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    feeds = {"x": normal(2, 2, 4, 5), "grid": 0.9 * normal(2, 3, 2, 2)}
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    wrt = ["x"] if mode == "nearest" else ["x", "grid"]
    compare(lambda b, x, grid: b.grid_sample(x, grid, **attributes), feeds, wrt=wrt)


def test_grid_sample_in_one_and_three_dims() -> None:
    compare(lambda b, x, grid: b.grid_sample(x, grid), {"x": normal(1, 2, 5), "grid": 0.5 * normal(1, 3, 1)})
    feeds = {"x": normal(1, 1, 3, 3, 3), "grid": 0.5 * normal(1, 2, 2, 2, 3)}
    compare(lambda b, x, grid: b.grid_sample(x, grid), feeds, open_dims=(False,))


REGIONS = np.array([[0.3, 0.7, 5.2, 4.1], [1.2, 0.4, 3.3, 5.8], [-2.0, 1.0, 9.0, 3.5]])


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_region_averages(ratio: int, transformation: str) -> None:
    attributes = {
        "output_height": 2, "output_width": 3, "sampling_ratio": ratio, "spatial_scale": 0.9,
        "coordinate_transformation_mode": transformation,
    }  # fmt: skip
    batch = np.array([0, 1, 1])
    compare(lambda b, x: b.roi_align(x, REGIONS, batch, **attributes), {"x": normal(2, 2, 6, 7)})


def test_region_maxima() -> None:
    regions = np.concatenate([np.array([[0], [1], [1]]), REGIONS], axis=1)
    compare(lambda b, x: b.max_roi_pool(x, regions, pooled_shape=[2, 2]), {"x": normal(2, 2, 6, 7)})
