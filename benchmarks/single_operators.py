"""Operators alone on large tensors, beside ONNX Runtime: reductions, order, running sums, moves by index, parts; what
reads images at computed places, and what finds as much as there is.

    python benchmarks/single_operators.py [--seconds 1] [NAME ...]

Both write into arrays that are there, on one thread; they take turns, and the best of each counts, in seconds of this
thread. GB/s are of operands and results. What calling an executable takes is in the figures of small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment
from measure import table
from memory_kernels import onnxruntime_of

import tilewright
from tilewright.graph.dtypes import f32

Build = Callable[[Any, Any], Any]
Shape = tuple[int, ...]


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def choice(limit: int, *shape: int) -> np.ndarray:
    """Indices, the same ones in every model."""
    return np.random.default_rng(1).integers(0, limit, shape)


def order(*shape: int) -> np.ndarray:
    """Each index of the last axis once."""
    return np.argsort(np.random.default_rng(2).random(shape), -1)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def doubled(mode: str) -> Build:
    return lambda b, x: b.resize(x, None, np.array([1, 1, 2, 2], np.float32), mode=mode)


def bordered(mode: str) -> Build:
    return lambda b, x: b.pad(x, whole(0, 0, 1, 1, 0, 0, 1, 1), mode=mode)


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


ROWS, IMAGES = (4096, 1024), (32, 64, 56, 56)
CASES: dict[str, tuple[Shape, Build]] = {
    "sum, first axis": ((16384, 1024), lambda b, x: b.reduce_sum(x, [0], keepdims=0)),
    "sum, middle axis": ((64, 512, 512), lambda b, x: b.reduce_sum(x, [1], keepdims=0)),
    "sum, outer axes": ((64, 512, 512), lambda b, x: b.reduce_sum(x, [0, 2], keepdims=0)),
    "sum, all": ((1 << 24,), lambda b, x: b.reduce_sum(x, [0], keepdims=0)),
    "max, last axis": ((16384, 1024), lambda b, x: b.reduce_max(x, [1], keepdims=0)),
    "mean of planes": ((32, 512, 32, 32), lambda b, x: b.reduce_mean(x, [2, 3], keepdims=0)),
    "argmax, last axis": (ROWS, lambda b, x: b.argmax(x, axis=1, keepdims=0)),
    "argmax, first axis": (ROWS, lambda b, x: b.argmax(x, axis=0, keepdims=0)),
    "first 50 of 8400": ((1, 8400), lambda b, x: b.topk(x, [50], outputs=2)[0]),
    "first 100 of 50257": ((1, 50257), lambda b, x: b.topk(x, [100], outputs=2)[0]),
    "first 10, first axis": ((1000, 256), lambda b, x: b.topk(x, [10], axis=0, outputs=2)[0]),
    "sort": ((256, 1024), lambda b, x: b.topk(x, [1024], outputs=2)[0]),
    "running sum, last axis": (ROWS, lambda b, x: b.cumsum(x, np.int64(1))),
    "running sum, first axis": (ROWS, lambda b, x: b.cumsum(x, np.int64(0))),
    "gather rows": ((30522, 768), lambda b, x: b.gather(x, choice(30522, 4096))),
    "gather columns": (ROWS, lambda b, x: b.gather(x, choice(1024, 512), axis=1)),
    "gather elements": (ROWS, lambda b, x: b.gather_elements(x, choice(1024, *ROWS), axis=1)),
    "scatter rows": (ROWS, lambda b, x: b.scatter_nd(x, order(4096)[:1024, None], numbers(1024, 1024))),
    "scatter elements": (
        ROWS, lambda b, x: b.scatter_elements(x, order(*ROWS), numbers(*ROWS), axis=1)
    ),
    "resize, nearest": ((1, 64, 112, 112), doubled("nearest")),
    "resize, linear": ((1, 64, 112, 112), doubled("linear")),
    "resize, cubic": ((1, 64, 112, 112), doubled("cubic")),
    "pad, constant": (IMAGES, bordered("constant")),
    "pad, reflect": (IMAGES, bordered("reflect")),
    "columns to image": (
        (8, 64 * 9, 56 * 56), lambda b, x: b.col2_im(x, whole(56, 56), whole(3, 3), pads=[1, 1, 1, 1])
    ),
    "columns, stride 2": (
        (8, 64 * 9, 28 * 28), lambda b, x: b.col2_im(x, whole(56, 56), whole(3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    ),
    "columns, 4 by 4": (
        (8, 64 * 16, 14 * 14), lambda b, x: b.col2_im(x, whole(56, 56), whole(4, 4), strides=[4, 4])
    ),
    "columns, 8 by 8": (
        (8, 64 * 64, 7 * 7), lambda b, x: b.col2_im(x, whole(56, 56), whole(8, 8), strides=[8, 8])
    ),
    "columns, 16 by 16": (
        (8, 64 * 256, 14 * 14), lambda b, x: b.col2_im(x, whole(224, 224), whole(16, 16), strides=[16, 16])
    ),
    "columns, side by side": (
        (8, 64 * 4, 28 * 28), lambda b, x: b.col2_im(x, whole(56, 56), whole(2, 2), strides=[2, 2])
    ),
    "columns, hop 64 of 256": ((8, 256, 1000), lambda b, x: b.col2_im(x, whole(64192), whole(256), strides=[64])),
    "concat rows": (ROWS, lambda b, x: b.concat(x, numbers(*ROWS), axis=0)),
    "concat columns": (ROWS, lambda b, x: b.concat(x, numbers(*ROWS), axis=1)),
    "slice columns": ((8192, 1024), lambda b, x: b.slice(x, whole(100), whole(900), whole(1))),
    "slice, every second": ((8192, 1024), lambda b, x: b.slice(x, whole(0), whole(1024), whole(1), whole(2))),
    "slice, last first": (ROWS, lambda b, x: b.slice(x, whole(1023), whole(-9999), whole(1), whole(-1))),
    "sequences, reversed": (
        (128, 64, 128), lambda b, x: b.reverse_sequence(x, choice(128, 64), time_axis=0, batch_axis=1)
    ),
    "remainders": (ROWS, lambda b, x: b.mod(x, np.float32(0.7), fmod=1)),
    "depth to space": ((1, 256, 112, 112), lambda b, x: b.depth_to_space(x, blocksize=2)),
    "space to depth": ((1, 64, 224, 224), lambda b, x: b.space_to_depth(x, blocksize=2)),
    "regions, aligned": (
        (1, 256, 50, 68),
        lambda b, x: b.roi_align(x, corners(512, 800), whole(*[0] * 512), output_height=7, output_width=7,
                                 sampling_ratio=2, spatial_scale=1 / 16),
    ),
    "samples on a grid": ((1, 64, 112, 112), lambda b, x: b.grid_sample(x, places(112, 112))),
    "deformed convolution": (
        (1, 64, 56, 56),
        lambda b, x: b.deform_conv(x, numbers(64, 64, 3, 3), numbers(1, 18, 56, 56), pads=[1, 1, 1, 1]),
    ),
    "places, not zero": ((1 << 20,), lambda b, x: b.nonzero(b.relu(x))),
    "boxes, suppressed": ((1, 80, 8400), suppressed),
    "different elements": ((1 << 18,), lambda b, x: b.unique(x, outputs=1)),
    "determinants of 3": ((1 << 16, 3, 3), lambda b, x: b.det(x)),
    "determinants of 4": ((1 << 16, 4, 4), lambda b, x: b.det(x)),
    "determinants of 16": ((1 << 10, 16, 16), lambda b, x: b.det(x)),
    "determinants of 64": ((1 << 6, 64, 64), lambda b, x: b.det(x)),
    "transform, 1024": ((64, 1024, 1), lambda b, x: b.dft(x, whole(1024)[0], whole(1)[0])),
}  # fmt: skip


def row(name: str, seconds: float) -> list[str]:
    shape, build = CASES[name]
    b = tilewright.Builder("bench", opset=20)
    b.output(build(b, b.input("x", f32[shape])), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    feeds = {"x": numbers(*shape)}
    outputs = dict(executable.run(feeds))
    peer = onnxruntime_of(lambda b: build(b, b.input("x", f32[shape])), feeds)
    best = best_of({"ours": lambda: executable.run_into(feeds, outputs), "onnxruntime": peer}, seconds)
    moved = feeds["x"].nbytes + outputs["y"].nbytes
    cells = [f"{best['ours'] * 1e6:.1f}", *(f"{moved / taken / 1e9:.1f}" for taken in best.values())]
    return [name, "x".join(map(str, shape)), *cells, f"{best['onnxruntime'] / best['ours']:.2f}"]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seconds", default=1.0, show_default=True, help="For each row.")
def main(names: tuple[str, ...], seconds: float) -> None:
    """Measure operators whose names begin with one of NAMES (default: all)."""
    in_plain_environment()
    chosen = [name for name in CASES if not names or name.startswith(names)]
    columns = ["operator", "operand", "microseconds", "tilewright GB/s", "onnxruntime GB/s", "ratio"]
    table("float32, one thread", columns, [row(name, seconds) for name in chosen])


if __name__ == "__main__":
    main()
