"""Convolutions, pools, resampling, regions."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Draw, case


def _convolution(t: Any, x: Any, w: Any, c: Any, **options: Any) -> Any:
    return getattr(t.nn.functional, f"conv{x.dim() - 2}d")(x, w, c, **options)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], dict[str, Any]]] = [
    ((2, 3, 5), (4, 3, 3), {}, {}),
    ((2, 3, 6, 7), (4, 3, 3, 2), {"strides": [2, 3], "pads": [2, 1, 2, 1]}, {"stride": (2, 3), "padding": (2, 1)}),
    (
        (2, 4, 7, 6),
        (6, 2, 3, 3),
        {"group": 2, "dilations": [2, 1], "pads": [1, 1, 1, 1]},
        {"groups": 2, "dilation": (2, 1), "padding": 1},
    ),
    ((1, 3, 5, 5), (6, 1, 2, 2), {"group": 3, "strides": [2, 2]}, {"groups": 3, "stride": 2}),
    ((2, 16, 8, 8), (16, 1, 3, 3), {"group": 16, "pads": [1, 1, 1, 1]}, {"groups": 16, "padding": 1}),
    ((2, 16, 9, 9), (24, 16, 3, 3), {"pads": [1, 1, 1, 1]}, {"padding": 1}),
    ((2, 16, 9, 9), (24, 16, 1, 1), {"strides": [2, 2]}, {"stride": 2}),
    ((1, 2, 6, 5), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER"}, {"padding": "same"}),
    ((1, 2, 6, 5), (3, 2, 2, 3), {"auto_pad": "VALID"}, {}),
    ((1, 2, 4, 4, 3), (2, 2, 2, 2, 2), {"strides": [1, 2, 1]}, {"stride": (1, 2, 1)}),
    ((1, 2, 8, 8), (2, 2, 2, 2), {"strides": [3, 3], "dilations": [2, 3]}, {"stride": 3, "dilation": (2, 3)}),
]
for x, w, attributes, options in CONVOLUTIONS:
    case(
        f"conv {x} {w} {attributes}",
        lambda b, x, w, c, a=attributes: b.conv(x, w, c, **a),
        lambda t, x, w, c, o=options: _convolution(t, x, w, c, **o),
        x=x,
        w=w,
        c=(w[0],),
    )
case(
    "conv with unequal borders",
    lambda b, x, w: b.conv(x, w, pads=[1, 0, 2, 3]),
    lambda t, x, w: t.nn.functional.conv2d(t.nn.functional.pad(x, (0, 3, 1, 2)), w),
    x=(1, 2, 5, 4),
    w=(3, 2, 3, 2),
)

TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], dict[str, Any]]] = [
    ((2, 3, 4), (3, 2, 3), {}, {}),
    ((1, 3, 4, 3), (3, 2, 3, 2), {"strides": [2, 3], "pads": [1, 0, 1, 0]}, {"stride": (2, 3), "padding": (1, 0)}),
    (
        (1, 4, 3, 3),
        (4, 2, 3, 3),
        {"group": 2, "dilations": [2, 1], "strides": [2, 2], "output_padding": [1, 1]},
        {"groups": 2, "dilation": (2, 1), "stride": 2, "output_padding": 1},
    ),
    (
        (1, 2, 3, 3),
        (2, 2, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
        {"stride": 2, "padding": 1, "output_padding": (1, 0)},
    ),
    ((1, 2, 2, 3, 2), (2, 1, 2, 2, 2), {"strides": [2, 1, 2]}, {"stride": (2, 1, 2)}),
]
for x, w, attributes, options in TRANSPOSED:
    case(
        f"conv_transpose {x} {w} {attributes}",
        lambda b, x, w, c, a=attributes: b.conv_transpose(x, w, c, **a),
        lambda t, x, w, c, o=options: getattr(t.nn.functional, f"conv_transpose{x.dim() - 2}d")(x, w, c, **o),
        x=x,
        w=w,
        c=(w[1] * attributes.get("group", 1),),
    )

# ---- pools -----------------------------------------------------------------------------------------------------------

# As in PyTorch, and how ONNX says it.
POOLS: list[dict[str, Any]] = [
    {"kernel_size": (2, 2), "stride": (2, 2)},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 1)},
    {"kernel_size": (3, 3), "stride": (2, 2), "ceil_mode": True},
]


def _onnx(options: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel_shape": list(options["kernel_size"]), "strides": list(options["stride"])}
    if "padding" in options:
        found["pads"] = list(options["padding"]) * 2
    if "dilation" in options:
        found["dilations"] = list(options["dilation"])
    if options.get("ceil_mode"):
        found["ceil_mode"] = 1
    return found


DIFFERENT = np.random.RandomState(1).permutation(2 * 2 * 6 * 7).reshape(2, 2, 6, 7) / 20 + 0.1
for options in [*POOLS, {"kernel_size": (2, 3), "stride": (1, 1), "dilation": (2, 1)}]:
    case(
        f"max_pool {options}",
        lambda b, x, o=options: b.max_pool(x, outputs=2, **_onnx(o))[0],
        lambda t, x, o=options: t.nn.functional.max_pool2d(x, **o),
        x=DIFFERENT,
    )
for options in POOLS:
    for padded in (False, True):
        case(
            f"average_pool {options} {padded}",
            lambda b, x, o=options, p=padded: b.average_pool(x, count_include_pad=int(p), **_onnx(o)),
            lambda t, x, o=options, p=padded: t.nn.functional.avg_pool2d(x, count_include_pad=p, **o),
            x=(2, 2, 6, 7),
        )
for p in (1, 2, 3):
    case(
        f"lp_pool {p}",
        lambda b, x, p=p: b.lp_pool(x, p=p, kernel_shape=[2, 3], strides=[2, 1]),
        lambda t, x, p=p: t.nn.functional.lp_pool2d(x, p, (2, 3), (2, 1)),
        x=Draw((1, 2, 6, 5), low=0.2),
    )
case(
    "max_pool of equals",
    lambda b, x: b.max_pool(x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)[0],
    lambda t, x: t.nn.functional.max_pool2d(x, 2),
    x=np.ones((1, 1, 4, 4)),
)
case(
    "max_pool 1d and 3d",
    lambda b, x, y: [
        b.max_pool(x, kernel_shape=[3], outputs=2)[0],
        b.max_pool(y, kernel_shape=[2, 2, 2], outputs=2)[0],
    ],
    lambda t, x, y: [t.nn.functional.max_pool1d(x, 3, 1), t.nn.functional.max_pool3d(y, 2, 1)],
    x=(1, 2, 6),
    y=(1, 2, 3, 4, 3),
)
case(
    "global_average_pool",
    lambda b, x: b.global_average_pool(x),
    lambda t, x: x.mean((2, 3), keepdim=True),
    x=(2, 3, 4, 5),
)
case("global_max_pool", lambda b, x: b.global_max_pool(x), lambda t, x: x.amax((2, 3), keepdim=True), x=DIFFERENT)
case(
    "global_lp_pool",
    lambda b, x: b.global_lp_pool(x, p=3),
    lambda t, x: (x.abs() ** 3).sum((2, 3), keepdim=True) ** (1 / 3),
    x=(2, 3, 4, 5),
)
PLACES = np.array([[[[0, 3, 5], [14, 16, 23]], [[24, 27, 29], [38, 40, 47]]]])
case(
    "max_unpool",
    lambda b, x: b.max_unpool(x, PLACES, kernel_shape=[2, 2], strides=[2, 2]),
    lambda t, x: t.nn.functional.max_unpool2d(x, t.from_numpy(PLACES % 24), 2),
    x=(1, 2, 2, 3),
)
case(
    "col2im",
    lambda b, x: b.col2_im(x, np.array([4, 5]), np.array([2, 2]), strides=[2, 1], pads=[1, 1, 1, 1]),
    lambda t, x: t.nn.functional.fold(x, (4, 5), 2, padding=1, stride=(2, 1)),
    x=(2, 12, 18),
)
case(
    "col2im dilated",
    lambda b, x: b.col2_im(x, np.array([4, 5]), np.array([2, 2]), dilations=[1, 2]),
    lambda t, x: t.nn.functional.fold(x, (4, 5), 2, dilation=(1, 2)),
    x=(2, 12, 9),
)

# ---- resampling ------------------------------------------------------------------------------------------------------

RESIZES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "nearest",
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "nearest"},
    ),
    ("nearest exact", {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}, {"mode": "nearest-exact"}),
    ("linear", {"mode": "linear"}, {"mode": "bilinear"}),
    (
        "linear corners",
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "bilinear", "align_corners": True},
    ),
    ("cubic", {"mode": "cubic"}, {"mode": "bicubic"}),
    (
        "cubic corners",
        {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
        {"mode": "bicubic", "align_corners": True},
    ),
]
for name, attributes, options in RESIZES:
    for size in ((3, 9), (8, 5), (2, 2)):
        case(
            f"resize {name} {size}",
            lambda b, x, a=attributes, s=size: b.resize(x, None, None, np.array([2, 1, *s]), cubic_coeff_a=-0.75, **a),
            lambda t, x, o=options, s=size: t.nn.functional.interpolate(x, s, **o),
            x=(2, 1, 4, 5),
        )
case(
    "resize antialiased",
    lambda b, x: b.resize(x, None, None, np.array([2, 1, 3, 2]), mode="linear", antialias=1, exclude_outside=1),
    lambda t, x: t.nn.functional.interpolate(x, (3, 2), mode="bilinear", antialias=True),
    x=(2, 1, 7, 5),
)
SAMPLED = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
for mode, theirs in SAMPLED.items():
    for padding in ("zeros", "border", "reflection"):
        for corners in (0, 1):
            case(
                f"grid_sample {mode} {padding} {corners}",
                lambda b, x, grid, m=mode, p=padding, c=corners: b.grid_sample(
                    x, grid, mode=m, padding_mode=p, align_corners=c
                ),
                lambda t, x, grid, m=theirs, p=padding, c=corners: t.nn.functional.grid_sample(x, grid, m, p, bool(c)),
                x=(2, 2, 4, 5),
                grid=Draw((2, 3, 2, 2), 0.8),
            )
case(
    "grid_sample of volumes",
    lambda b, x, grid: b.grid_sample(x, grid),
    lambda t, x, grid: t.nn.functional.grid_sample(x, grid, align_corners=False),
    x=(1, 1, 3, 3, 3),
    grid=Draw((1, 2, 2, 2, 3), 0.5),
)

# ---- regions ---------------------------------------------------------------------------------------------------------

REGIONS = np.array([[0.3, 0.7, 5.2, 4.1], [1.2, 0.4, 3.3, 4.8]], np.float32)


def _roi_align(t: Any, x: Any) -> Any:
    """2 x 2 samples in each of 2 x 3 bins, read by grid_sample: its places count from -1 to 1."""
    found = []
    for image, (x1, y1, x2, y2) in zip((0, 1), REGIONS - 0.5, strict=True):
        rows = t.tensor(y1 + (np.arange(4) + 0.5) * (y2 - y1) / 4, dtype=t.float32)
        columns = t.tensor(x1 + (np.arange(6) + 0.5) * (x2 - x1) / 6, dtype=t.float32)
        grid = t.stack(t.meshgrid(columns / 6 * 2 - 1, rows / 5 * 2 - 1, indexing="xy"), -1)
        seen = t.nn.functional.grid_sample(x[image : image + 1], grid[None], align_corners=True, padding_mode="border")
        found.append(t.nn.functional.avg_pool2d(seen, 2))
    return t.cat(found)


case(
    "roi_align",
    lambda b, x: b.roi_align(x, REGIONS, np.array([0, 1]), output_height=2, output_width=3, sampling_ratio=2),
    _roi_align,
    x=(2, 2, 6, 7),
)
case(
    "max_roi_pool",
    lambda b, x: b.max_roi_pool(x, np.array([[1, 1, 0, 4, 3]], np.float32), pooled_shape=[2, 2]),
    lambda t, x: t.nn.functional.max_pool2d(x[1:, :, 0:4, 1:5], 2),
    x=DIFFERENT,
)
