"""Operators that read images between their elements, on the target cpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.backends.cpu.bounds import BOUNDS_VARIABLE
from tilewright.graph.dtypes import BY_NAME, f32, from_numpy, i64
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(8)
TOLERANCES = {"f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


def compare(build: Callable[..., Any], *operands: np.ndarray, dynamic: bool = False) -> None:
    """The model gives what the reference gives in wider floats, the same bits with any number of threads, and runs no
    host step."""
    models = []
    for wide in (False, True):
        b = Builder("sampled")
        given = []
        for i, x in enumerate(operands):
            dtype = from_numpy(x.dtype)
            dims = tuple(f"d{i}_{axis}" for axis in range(x.ndim)) if dynamic else x.shape
            given.append(b.input(f"x{i}", (BY_NAME["f64"] if wide and dtype.is_float else dtype)[dims]))
        b.output(build(b, *given), "y")
        models.append(b.build())
    feeds = {f"x{i}": x for i, x in enumerate(operands)}
    widened = {name: x.astype(np.float64) if from_numpy(x.dtype).is_float else x for name, x in feeds.items()}
    wanted = tilewright.compile(models[1], target="reference").run(widened)["y"]
    first = b""
    for threads in (1, 2, 3, 7):
        executable = tilewright.compile(models[0], target="cpu", threads=threads)
        found = executable.run(feeds)["y"]
        assert executable.report()["host_steps"] == []
        assert found.dtype == operands[0].dtype
        first = first or found.tobytes()
        assert found.tobytes() == first
        tolerance = TOLERANCES[from_numpy(found.dtype).name] * max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=tolerance)


# ---- RoiAlign --------------------------------------------------------------------------------------------------------


def regions(count: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    corners = random.random((count, 2)) * 12
    return np.concatenate([corners, corners + random.random((count, 2)) * 9], 1), random.integers(0, images, count)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("shape", [(2, 5, 9, 11), (1, 70, 6, 3), (3, 1, 4, 4)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(shape: tuple[int, ...], dtype: str, mode: str) -> None:
    x = random.normal(size=shape).astype(BY_NAME[dtype].numpy)
    boxes, batch = regions(7, shape[0])
    boxes = np.round(boxes * 4) / 4  # numbers that narrow floats hold
    options = {"mode": mode, "output_height": 2, "output_width": 4, "sampling_ratio": 2, "spatial_scale": 0.5}
    compare(lambda b, x, r, i: b.roi_align(x, r, i, **options), x, boxes.astype(x.dtype), batch)


def test_roi_align_of_any_sizes() -> None:
    """Behind a convolution, whose result lies channels last."""
    x, w = random.normal(size=(2, 3, 9, 9)).astype(np.float32), random.normal(size=(20, 3, 3, 3)).astype(np.float32)
    boxes, batch = regions(5, 2)

    def build(b: Builder, x: Any, w: Any, r: Any, i: Any) -> Any:
        return b.roi_align(b.conv(x, w), r, i, output_height=3, output_width=2, sampling_ratio=0)

    compare(build, x, w, boxes.astype(np.float32), batch, dynamic=True)


@pytest.mark.parametrize("images", [1, 0])
@pytest.mark.parametrize("count", [1, 0])
def test_roi_align_of_nothing(images: int, count: int) -> None:
    x = np.zeros((images, 3 if images else 2, 4, 4), np.float32)[:, :, : 4 if images else 0]
    boxes, batch = regions(count if images else 0, 1)
    compare(lambda b, x, r, i: b.roi_align(x, r, i), x, boxes.astype(np.float32), batch)


def aligner(**options: Any) -> tilewright.Executable:
    b = Builder("regions")
    given = b.input("x", f32[1, 8, 16, 16]), b.input("r", f32["n", 4]), b.input("i", i64["n"])
    b.output(b.roi_align(*given, **options), "y")
    return tilewright.compile(b.build(), target="cpu")


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_without_end(mode: str) -> None:
    """Only samples inside of the image are visited: all of them would take years."""
    executable = aligner(output_height=2, output_width=2, sampling_ratio=0, mode=mode)
    ends = np.array([1e4, 1e9, 1e20, 1e30, 3e38, np.inf], np.float32)
    boxes = np.stack([-ends, -ends, ends, ends], 1)
    boxes = np.concatenate([boxes, boxes[:, [2, 3, 0, 1]], np.full((1, 4), np.nan, np.float32)])
    x = np.ones((1, 8, 16, 16), np.float32)
    found = executable.run({"x": x, "r": boxes, "i": np.zeros(len(boxes), np.int64)})["y"]
    seen = found[np.isfinite(found)]
    assert seen.min() >= 0
    assert seen.max() <= 1


def test_a_large_region_is_its_mean() -> None:
    """The clipped range of samples holds all that count."""
    x = np.ones((1, 8, 16, 16), np.float32)
    executable = aligner(output_height=1, output_width=1, sampling_ratio=0)
    box = np.array([[-40, -24, 40, 40]], np.float32)  # 80 x 64 samples; 18 x 18 of them lie from -1 to 16
    found = executable.run({"x": x, "r": box, "i": np.zeros(1, np.int64)})["y"]
    np.testing.assert_allclose(found, 18 * 18 / (80 * 64), rtol=1e-6)


def test_roi_align_refuses() -> None:
    x, executable = np.ones((1, 8, 16, 16), np.float32), aligner()
    for image in (1, -1, 2**40):
        with pytest.raises(tilewright.TilewrightError, match=f"index {image} is out of range"):
            executable.run({"x": x, "r": np.ones((1, 4), np.float32), "i": np.array([image])})


# ---- MaxRoiPool ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("shape", [(2, 5, 9, 11), (1, 150, 6, 3)])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_max_roi_pool(shape: tuple[int, ...], dtype: str, is_dynamic: bool) -> None:
    x = random.normal(size=shape).astype(BY_NAME[dtype].numpy)
    boxes, batch = regions(7, shape[0])
    rows = np.concatenate([batch[:, None], np.round(boxes * 4) / 4], 1)
    rows[0, 1:] = [-20, -20, -10, -10]  # outside
    rows[1, 1:] = [3, 3, 1, 1]
    options = {"pooled_shape": [2, 4], "spatial_scale": 0.5}
    compare(lambda b, x, r: b.max_roi_pool(x, r, **options), x, rows.astype(x.dtype), dynamic=is_dynamic)


def test_max_roi_pool_of_strange_regions() -> None:
    """Of any size, of none, and of images that there are not."""
    b = Builder("regions")
    given = b.input("x", f32[1, 8, 16, 16]), b.input("r", f32["n", 5])
    b.output(b.max_roi_pool(*given, pooled_shape=[2, 2]), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    x = random.random((1, 8, 16, 16)).astype(np.float32)
    far = np.array([[0, -1e30, -1e30, 1e30, 1e30], [0, 0, 0, np.inf, np.nan], [0, 2, 2, 3e9, 3e9]], np.float32)
    assert np.isin(executable.run({"x": x, "r": far})["y"], [0, *x.reshape(-1)]).all()
    assert executable.run({"x": x, "r": far[:0]})["y"].shape == (0, 8, 2, 2)
    for image in (1, -1, 1e9):
        with pytest.raises(tilewright.TilewrightError, match="is out of range"):
            executable.run({"x": x, "r": np.array([[image, 1, 1, 2, 2]], np.float32)})


# ---- GridSample ------------------------------------------------------------------------------------------------------


def grid(images: int, *places: int, dtype: str = "f32") -> np.ndarray:
    """Places inside and outside."""
    return np.round(random.uniform(-1.4, 1.4, (images, *places, len(places))) * 256).astype(BY_NAME[dtype].numpy) / 256


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    x, options = random.normal(size=(2, 3, 7, 9)).astype(np.float32), {"mode": mode, "padding_mode": padding}
    compare(lambda b, x, g: b.grid_sample(x, g, align_corners=corners, **options), x, grid(2, 5, 19))


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(2, 3, 11), (1, 2, 4, 5, 6)])
def test_grid_sample_of_other_dtypes_and_ranks(shape: tuple[int, ...], dtype: str) -> None:
    x = random.normal(size=shape).astype(BY_NAME[dtype].numpy)
    places = grid(shape[0], *[3] * (len(shape) - 3), 17)
    compare(lambda b, x, g: b.grid_sample(x, b.cast_like(g, x)), x, places)


def test_grid_sample_of_any_sizes() -> None:
    """Behind a convolution, whose result lies channels last; and of images of one element, and none."""

    def build(b: Builder, x: Any, w: Any, g: Any) -> Any:
        return b.grid_sample(b.conv(x, w), g, padding_mode="reflection")

    w = random.normal(size=(21, 3, 2, 2)).astype(np.float32)
    for size, places in ((9, (4, 18)), (2, (3, 3)), (5, (0, 3))):
        compare(build, random.normal(size=(2, 3, size, size)).astype(np.float32), w, grid(2, *places), dynamic=True)


def test_what_is_not_there_is_not_read() -> None:
    """A NaN at the border stays there, and places that are no numbers are nowhere."""
    x = np.ones((1, 20, 4, 4), np.float32)
    x[..., 0] = np.nan
    places = np.array([[[[1.2, 0], [np.nan, 0], [3e38, -3e38], [0, 0], [-np.inf, 0]]]], np.float32)
    b = Builder("outside")
    given, g = b.input("x", f32[x.shape]), b.input("g", f32[places.shape])
    b.output(b.grid_sample(given, g), "y")
    b.output(b.grid_sample(b.conv(given, np.eye(20, dtype=np.float32)[..., None, None]), g), "last")
    found = tilewright.compile(b.build(), target="cpu").run({"x": x, "g": places})
    for y in found.values():
        assert np.isfinite(y).all()
        np.testing.assert_allclose(y[0, 0, 0, [1, 2, 4]], 0)
        np.testing.assert_allclose(y[0, 0, 0, 3], 1)


# ---- DeformConv ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "group", "offsets", "is_dynamic"), [
    ("f32", 1, 1, True), ("f32", 2, 1, False), ("f32", 1, 2, True), ("f32", 2, 4, False), ("f32", 2, 4, True),
    ("f64", 1, 2, False), ("f16", 2, 1, True),
])  # fmt: skip
def test_deform_conv(dtype: str, group: int, offsets: int, is_dynamic: bool) -> None:
    options = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": group, "offset_group": offsets}
    number = BY_NAME[dtype].numpy
    x = random.normal(size=(2, 8, 7, 9)).astype(number)
    offset = np.round(random.normal(size=(2, offsets * 12, 4, 8)) * 64).astype(number) / number.type(64)
    mask = random.random((2, offsets * 6, 4, 8)).astype(number)
    w, bias = random.normal(size=(6, 8 // group, 3, 2)).astype(number), random.normal(size=6).astype(number)

    def build(b: Builder, x: Any, offset: Any, mask: Any) -> Any:
        weights = [b.cast_like(b.const(array), x) for array in (w, bias)]
        return b.deform_conv(x, weights[0], offset, weights[1], mask, **options)

    compare(build, x, offset, mask, dynamic=is_dynamic)


@pytest.mark.parametrize("images", [0, 1])
def test_deform_conv_with_filters_that_change(images: int) -> None:
    x, offset = np.ones((images, 2, 5, 5), np.float32), np.zeros((images, 8, 4, 4), np.float32)
    w = random.normal(size=(3, 2, 2, 2)).astype(np.float32)
    compare(lambda b, x, w, offset: b.deform_conv(x, w, offset), x, w, offset)


def test_offsets_that_do_not_fit() -> None:
    b = Builder("offsets")
    x, offset = b.input("x", f32[1, 2, "h", "w"]), b.input("o", f32[1, "k", "oh", "ow"])
    b.output(b.deform_conv(x, np.ones((3, 2, 2, 2), np.float32), offset), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    for shape in ((1, 6, 4, 4), (1, 8, 3, 4), (1, 8, 8, 2), (1, 8, 1, 1)):
        with pytest.raises(tilewright.TilewrightError):
            executable.run({"x": np.ones((1, 2, 5, 5), np.float32), "o": np.ones(shape, np.float32)})


# ---- Resize that crops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("box", [(0.2, 0.1, 0.7, 1.0), (-0.4, 0.3, 1.3, 1.5), (0.9, 1.2, 0.1, -0.3), (2, 2, 3, 3)])
def test_resize_that_crops(mode: str, box: tuple[float, ...]) -> None:
    """Outside of the operand, at either end, is a number; a NaN there stays out."""
    roi = np.array([0, 0, *box[:2], 1, 1, *box[2:]], np.float32)
    x = random.normal(size=(2, 3, 7, 6)).astype(np.float32)
    options = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": -5.0}
    compare(lambda b, x: b.resize(x, roi, None, np.array([2, 3, 9, 4]), **options), x, dynamic=box[0] == 0.2)


def test_integers_that_are_cropped_stay_exact() -> None:
    x = np.arange(16, dtype=np.int32).reshape(1, 1, 4, 4) + 2**30 + 1
    b = Builder("crop")
    roi = np.array([0, 0, -0.5, 0, 1, 1, 1, 1], np.float32)
    given = b.input("x", from_numpy(x.dtype)[x.shape])
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    b.output(b.resize(given, roi, None, np.array([1, 1, 8, 4]), **options), "y")
    found, wanted = (tilewright.compile(b.build(), target=target).run({"x": x})["y"] for target in ("cpu", "reference"))
    np.testing.assert_array_equal(found, wanted)
    assert (found[0, 0, 0] == 7).all()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("columns", [3, 16, 17])
def test_threads_have_room_for_their_rows(mode: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOUNDS_VARIABLE, "1")
    x = random.normal(size=(1, 3, 3, columns)).astype(np.float32)
    b = Builder("image")
    b.output(b.resize(b.input("x", f32[x.shape]), None, None, np.array([1, 3, 1025, 17]), mode=mode), "y")
    threads = [tilewright.compile(b.build(), target="cpu", threads=count).run({"x": x})["y"] for count in (1, 3, 7)]
    wanted = tilewright.compile(b.build(), target="reference").run({"x": x})["y"]
    for found in threads:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found, threads[0])


# ---- Resize that smooths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(4, 5), (7, 5), (11, 2), (20, 1)], ids=str)
def test_resize_with_antialiasing_to_sizes(mode: str, policy: str, sizes: tuple[int, int]) -> None:
    """Also where a size is no whole multiple, such as 3 to 5: 3 times 5/3, in f32, is less than 5."""
    x = random.normal(size=(2, 3, 7, 3)).astype(np.float32)
    options: dict[str, Any] = {"mode": mode, "antialias": 1, "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    compare(lambda b, x: b.resize(x, None, None, np.array(sizes), **options), x)
    b = Builder("smooth")
    b.output(b.resize(b.input("x", f32[x.shape]), None, None, np.array(sizes), **options), "y")
    found = tilewright.compile(b.build(), target="cpu").run({"x": x})["y"]
    wanted = ReferenceEvaluator(tilewright.to_proto(b.build())).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_curves_beyond_the_range_of_integers() -> None:
    """They end there, as those that `onnx.reference` casts do."""
    x = np.array([0, 0, 255, 255, 0, 255], np.uint8).reshape(1, 1, 6)
    b = Builder("curve")
    given = b.input("x", from_numpy(x.dtype)[x.shape])
    b.output(b.resize(given, None, None, np.array([1, 1, 24]), mode="cubic"), "y")
    wanted = ReferenceEvaluator(tilewright.to_proto(b.build())).run(None, {"x": x})[0]
    assert {0, 255} < set(wanted.ravel().tolist())
    for target in ("cpu", "reference"):
        found = tilewright.compile(b.build(), target=target).run({"x": x})["y"]
        assert np.abs(found.astype(int) - wanted).max() <= 1  # cut to integers, or rounded
