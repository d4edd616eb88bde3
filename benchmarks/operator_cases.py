"""The cases of operators.py: operators by name, on operands of two sizes or of a shape of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
# Operands by what they are: small and large.
SHAPES: dict[str, tuple[Shape, Shape]] = {
    "matrix": ((256, 400), (2048, 4096)),
    "rows": ((128, 1000), (8192, 1000)),
    "sequence": ((1, 128, 768), (16, 768, 768)),
    "image": ((1, 32, 56, 56), (16, 64, 96, 96)),
    "small image": ((1, 32, 28, 28), (8, 64, 56, 56)),
    "volume": ((1, 8, 16, 28, 28), (2, 32, 32, 64, 64)),
    "heads": ((1, 12, 128, 64), (8, 12, 1024, 96)),
    "vector": ((100_000,), (10_000_000,)),
    "steps": ((16, 4, 256), (128, 16, 512)),
}
ONNX_CODES = {"f32": 1, "u8": 2, "i8": 3, "i32": 6, "i64": 7, "bool": 9, "f16": 10, "f64": 11}


@dataclass(frozen=True)
class Case:
    """An operator on operands of one shape: how it is built, and their dtypes.

    `kind` is a key of SHAPES, or the one shape that there is. `low` is the least that floats are. Bytes per second of a
    case that is `rated` mean something: memory bounds it, and all of its operands is read.
    """

    kind: str | Shape
    build: Callable[..., Any]
    dtypes: tuple[str, ...] = ("f32",)
    low: float | None = None
    rated: bool = True

    def shape(self, is_large: bool) -> Shape:
        return SHAPES[self.kind][is_large] if isinstance(self.kind, str) else self.kind


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def choice(limit: int, *shape: int) -> np.ndarray:
    """Indices, the same ones in every model."""
    return np.random.default_rng(1).integers(0, limit, shape)


def channels(x: Any) -> np.ndarray:
    """A number for each channel."""
    return np.abs(numbers(x.type.shape[1])) + np.float32(0.5)


def named(
    operator: str,
    kind: str | Shape,
    count: int = 1,
    dtype: str = "f32",
    low: float | None = None,
    rated: bool = True,
    **given: Any,
) -> Case:
    """An operator of `count` operands, with attributes."""
    return Case(kind, lambda b, *x: getattr(b, operator)(*x, **given), (dtype,) * count, low, rated)


def recurrent(operator: str, gates: int, directions: int = 1, **given: Any) -> Case:
    def build(b: Any, x: Any) -> Any:
        hidden, width = 256 // directions, x.type.shape[2]
        weights = [numbers(directions, gates * hidden, size) * np.float32(0.05) for size in (width, hidden)]
        bias = numbers(directions, 2 * gates * hidden)
        return getattr(b, operator)(x, *weights, bias, hidden_size=hidden, outputs=2, **given)[0]

    return Case("steps", build, rated=False)


def reduced(operator: str, kind: str, *axes: int, dtype: str = "f32", low: float | None = None) -> Case:
    return Case(kind, lambda b, x: getattr(b, operator)(x, list(axes), keepdims=0), (dtype,), low)


def elementwise() -> dict[str, Case]:
    plain = (
        "relu sigmoid tanh exp erf gelu abs neg floor ceil round sign softplus softsign elu selu leaky_relu celu mish "
        "hard_sigmoid hard_swish sin cos tan atan sinh cosh asinh isnan isinf thresholded_relu shrink"
    )
    found = {name: named(name, "matrix") for name in plain.split()}
    found |= {name: named(name, "matrix", low=0.01) for name in ("sqrt", "log", "reciprocal")}
    found |= {
        name: named(name, "matrix", 2, low=0.01) for name in ("add", "sub", "mul", "div", "pow", "max", "min", "mean")
    }
    found |= {f"{name}, f32": named(name, "matrix", 2) for name in ("equal", "greater", "less_or_equal")}
    found |= {name: named(name, "matrix", 2, "bool") for name in ("and_", "or_", "xor")}
    found |= {
        f"{name}, {dtype}": named(name, "matrix", 2, dtype) for name in ("add", "mul", "div", "mod")
        for dtype in ("i32", "i64")
    }  # fmt: skip
    pairs = (
        "f32-f16 f16-f32 f32-i64 i64-f32 f32-i32 i32-f32 f32-bool bool-f32 i64-i32 i32-i64 u8-f32 f32-f64 f64-f32 "
        "bool-i64 i64-bool"
    )
    for pair in pairs.split():
        given, to = pair.split("-")
        found[f"cast {given} to {to}"] = named("cast", "matrix", dtype=given, to=ONNX_CODES[to])
    return found | {
        "not": named("not_", "matrix", dtype="bool"),
        "add, row": Case("matrix", lambda b, x: b.add(x, numbers(x.type.shape[1]))),
        "add, column": Case("matrix", lambda b, x: b.add(x, numbers(x.type.shape[0], 1))),
        "mul, channels": Case("image", lambda b, x: b.mul(x, channels(x)[:, None, None])),
        "prelu": Case("image", lambda b, x: b.prelu(x, channels(x)[:, None, None])),
        "pow, 2": Case("matrix", lambda b, x: b.pow(x, np.float32(2))),
        "clip": Case("matrix", lambda b, x: b.clip(x, np.float32(0), np.float32(6))),
        "remainders": Case("matrix", lambda b, x: b.mod(x, np.float32(0.7), fmod=1)),
        "where": Case("matrix", lambda b, c, x, y: b.where(c, x, y), ("bool", "f32", "f32")),
        "quantize": Case("matrix", lambda b, x: b.quantize_linear(x, np.float32(0.02), np.uint8(128))),
        "dequantize": Case("matrix", lambda b, x: b.dequantize_linear(x, np.float32(0.02), np.uint8(128)), ("u8",)),
        "quantize, dynamic": named("dynamic_quantize_linear", "matrix", outputs=3),
    }


def rows() -> dict[str, Case]:
    found = {"reduce sum, sequence [0, 2]": reduced("reduce_sum", "sequence", 0, 2)}
    for name in ("sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum_exp"):
        for kind, axes in (("matrix", (1,)), ("matrix", (0,)), ("image", (2, 3)), ("sequence", (1,)), ("vector", (0,))):
            found[f"reduce {name}, {kind} {list(axes)}"] = reduced(f"reduce_{name}", kind, *axes)
    for name in ("argmax", "softmax", "log_softmax", "hardmax"):
        for kind, axis in (("matrix", 1), ("matrix", 0), ("image", 1)):
            given = {"keepdims": 0} if name == "argmax" else {}
            found[f"{name}, {kind} {axis}"] = named(name, kind, axis=axis, **given)
    for count in (1, 5, 50):
        found[f"first {count}"] = Case("matrix", lambda b, x, count=count: b.topk(x, whole(count), outputs=2)[0])
    both = lambda b, x, axes: (b.reduce_min(x, axes, keepdims=0), b.reduce_max(x, axes, keepdims=0))  # noqa: E731
    return found | {
        "least and greatest, rows": Case("matrix", lambda b, x: both(b, x, [1])),
        "least and greatest, all": Case("vector", lambda b, x: both(b, x, [0])),
        "first 10, columns": Case("matrix", lambda b, x: b.topk(x, whole(10), axis=0, outputs=2)[0]),
        "first 100 of all": Case("vector", lambda b, x: b.topk(x, whole(100), outputs=2)[0]),
        "running sum, rows": Case("matrix", lambda b, x: b.cumsum(x, np.int64(1))),
        "running sum, columns": Case("matrix", lambda b, x: b.cumsum(x, np.int64(0))),
        "norm of layers": Case("sequence", lambda b, x: b.layer_normalization(x, numbers(768), numbers(768))),
        "norm of instances": Case("image", lambda b, x: b.instance_normalization(x, channels(x), channels(x))),
        "norm of batches": Case("image", lambda b, x: b.batch_normalization(x, *[channels(x)] * 4)),
        "norm of groups": Case("image", lambda b, x: b.group_normalization(x, channels(x), channels(x), num_groups=8)),
        "norm, L2": named("lp_normalization", "matrix", axis=1, p=2),
        "local response": named("lrn", "image", size=5),
    }


def moves() -> dict[str, Case]:
    found = {
        f"transpose {perm}": named("transpose", kind, perm=perm)
        for kind, perms in (
            ("matrix", ([1, 0],)), ("sequence", ([0, 2, 1],)), ("image", ([0, 2, 3, 1],)),
            ("heads", ([0, 2, 1, 3], [0, 1, 3, 2], [3, 2, 1, 0], [1, 0, 2, 3])),
        )
        for perm in perms
    }  # fmt: skip
    for mode in ("nearest", "linear", "cubic"):
        for factor, kind in ((2, "small image"), (0.5, "image")):
            scales = np.array([1, 1, factor, factor], np.float32)
            found[f"resize {mode}, {factor}"] = Case(
                kind, lambda b, x, mode=mode, scales=scales: b.resize(x, None, scales, mode=mode)
            )
    for mode in ("constant", "edge", "reflect"):
        found[f"pad {mode}"] = Case("image", lambda b, x, mode=mode: b.pad(x, whole(0, 0, 1, 1, 0, 0, 1, 1), mode=mode))
    return found | {
        "concat, rows": named("concat", "matrix", 2, axis=0), "concat, columns": named("concat", "matrix", 2, axis=1),
        "split, columns": named("split", "matrix", axis=1, num_outputs=2, outputs=2),
        "slice, columns": Case("matrix", lambda b, x: b.slice(x, whole(10), whole(-10), whole(1))),
        "slice, every second": Case("matrix", lambda b, x: b.slice(x, whole(0), whole(9999), whole(1), whole(2))),
        "slice, last first": Case("matrix", lambda b, x: b.slice(x, whole(-1), whole(-9999), whole(1), whole(-1))),
        "tile": Case("matrix", lambda b, x: b.tile(x, whole(2, 2))),
        "gather rows": Case("matrix", lambda b, x: b.gather(x, choice(x.type.shape[0], x.type.shape[0]))),
        "gather columns": Case("matrix", lambda b, x: b.gather(x, choice(x.type.shape[1], x.type.shape[1]), axis=1)),
        "gather elements": Case(
            "matrix", lambda b, x: b.gather_elements(x, choice(x.type.shape[1], *x.type.shape), axis=1)),
        "scatter rows": Case("matrix", lambda b, x: b.scatter_nd(
            x, np.arange(x.type.shape[0] // 2)[::-1, None].copy(), numbers(x.type.shape[0] // 2, x.type.shape[1]))),
        "depth to space": named("depth_to_space", "image", blocksize=2),
        "space to depth": named("space_to_depth", "image", blocksize=2),
        "lower triangle": Case("matrix", lambda b, x: b.trilu(x, np.int64(0), upper=0)),
    }  # fmt: skip


def windows() -> dict[str, Case]:
    found = {}
    for name in ("max_pool", "average_pool"):
        for size, step, border in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
            given = {"kernel_shape": [size] * 2, "strides": [step] * 2, "pads": [border] * 4}
            found[f"{name} {size} step {step}"] = named(name, "image", **given)
        found[f"{name}, volume"] = named(name, "volume", kernel_shape=[2, 2, 2], strides=[2, 2, 2])
        found[f"{name}, sequence"] = named(name, "sequence", kernel_shape=[3], strides=[2])
    for size, step, border in ((2, 2, 0), (4, 2, 1), (3, 1, 1)):
        given = {"strides": [step] * 2, "pads": [border] * 4}
        found[f"transposed convolution {size} step {step}"] = Case(
            "small image",
            lambda b, x, size=size, given=given: b.conv_transpose(x, numbers(x.type.shape[1], 32, size, size), **given),
            rated=False,
        )
    return found | {
        "global average": named("global_average_pool", "image"), "global greatest": named("global_max_pool", "image"),
        "convolution": Case(
            "small image", lambda b, x: b.conv(x, numbers(32, x.type.shape[1], 3, 3), pads=[1] * 4), rated=False),
        "lstm": recurrent("lstm", 4), "lstm, both ways": recurrent("lstm", 4, 2, direction="bidirectional"),
        "gru": recurrent("gru", 3), "gru, reset after": recurrent("gru", 3, linear_before_reset=1),
        "rnn": recurrent("rnn", 1),
    }  # fmt: skip


# ---- operands of a shape of their own --------------------------------------------------------------------------------


def order(*shape: int) -> np.ndarray:
    """Each index of the last axis once."""
    return np.argsort(np.random.default_rng(2).random(shape), -1)


def corners(count: int, size: float) -> np.ndarray:
    """Boxes [count, 4] in a square of `size`."""
    random = np.random.default_rng(4)
    first = random.random((count, 2)) * size
    return np.concatenate([first, first + random.random((count, 2)) * size / 4], 1).astype(np.float32)


def places(*shape: int) -> np.ndarray:
    """A place from -1 to 1 for each element of an image."""
    return np.random.default_rng(5).uniform(-1, 1, (1, *shape, len(shape))).astype(np.float32)


def suppressed(b: Any, scores: Any) -> Any:
    """Of 8400 boxes the best 100 of each class, if they are good ones: as detectors end."""
    overlap, least = np.array([0.5], np.float32), np.array([2.5], np.float32)
    return b.non_max_suppression(corners(8400, 640)[None], scores, whole(100), overlap, least)


def aligned(b: Any, x: Any) -> Any:
    """512 regions of an image's features, as in a detector of two stages."""
    given = {"output_height": 7, "output_width": 7, "sampling_ratio": 2, "spatial_scale": 1 / 16}
    return b.roi_align(x, corners(512, 800), whole(*[0] * 512), **given)


def columns(x: Shape, image: Shape, window: Shape, **given: Any) -> Case:
    """Blocks that are added up into an image."""
    return Case(x, lambda b, x: b.col2_im(x, whole(*image), whole(*window), **given))


def ordered() -> dict[str, Case]:
    found = {
        f"first {count} of {size}": Case((1, size), lambda b, x, count=count: b.topk(x, whole(count), outputs=2)[0])
        for count, size in ((50, 8400), (100, 50257))
    }
    for size in (3, 4, 16, 64):
        found[f"determinants of {size}"] = named("det", ((1 << 18) // size**2, size, size), rated=False)
    return found | {
        "sort": Case((256, 1024), lambda b, x: b.topk(x, whole(1024), outputs=2)[0]),
        "places, not zero": Case((1 << 20,), lambda b, x: b.nonzero(b.relu(x))),
        "boxes, suppressed": Case((1, 80, 8400), suppressed, rated=False),
        "different elements": named("unique", (1 << 18,), outputs=1),
    }


def placed() -> dict[str, Case]:
    return {
        "gather rows of a table": Case((30522, 768), lambda b, x: b.gather(x, choice(30522, 4096)), rated=False),
        "scatter elements": Case((4096, 1024), lambda b, x: b.scatter_elements(
            x, order(4096, 1024), numbers(4096, 1024), axis=1)),
        "sequences, reversed": Case(
            (128, 64, 128), lambda b, x: b.reverse_sequence(x, choice(128, 64), time_axis=0, batch_axis=1)),
        "columns to image": columns((8, 64 * 9, 56 * 56), (56, 56), (3, 3), pads=[1] * 4),
        "columns, stride 2": columns((8, 64 * 9, 28 * 28), (56, 56), (3, 3), pads=[1] * 4, strides=[2, 2]),
        "columns, 4 by 4": columns((8, 64 * 16, 14 * 14), (56, 56), (4, 4), strides=[4, 4]),
        "columns, 8 by 8": columns((8, 64 * 64, 7 * 7), (56, 56), (8, 8), strides=[8, 8]),
        "columns, 16 by 16": columns((8, 64 * 256, 14 * 14), (224, 224), (16, 16), strides=[16, 16]),
        "columns, side by side": columns((8, 64 * 4, 28 * 28), (56, 56), (2, 2), strides=[2, 2]),
        "columns, hop 64 of 256": columns((8, 256, 1000), (64192,), (256,), strides=[64]),
        "regions, aligned": Case((1, 256, 50, 68), aligned, rated=False),
        "samples on a grid": Case((1, 64, 112, 112), lambda b, x: b.grid_sample(x, places(112, 112))),
        "deformed convolution": Case((1, 64, 56, 56), lambda b, x: b.deform_conv(
            x, numbers(64, 64, 3, 3), numbers(1, 18, 56, 56), pads=[1] * 4), rated=False),
        "transform, 1024": Case((64, 1024, 1), lambda b, x: b.dft(x, np.int64(1024), np.int64(1)), rated=False),
    }  # fmt: skip


CASES = elementwise() | rows() | moves() | windows() | ordered() | placed()
