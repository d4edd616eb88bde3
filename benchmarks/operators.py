"""Many operators alone, small (about 1e5 elements) and large (about 1e7), beside ONNX Runtime; the slowest come first.

    python benchmarks/operators.py [--threads 1] [--sizes small,large] [--seconds 0.25] [--below 1.1] [NAME ...]

Both run the same model in turn, and the best of each counts: seconds of this thread with one thread, else wall seconds.
Large tensors are written into arrays that are there; small ones as `run` gives them, with what a call costs. A ratio
above 1 means that Tilewright is faster. `single_operators.py` has fewer operators, with bytes per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment
from measure import table

import tilewright
from tilewright.graph.dtypes import BY_NAME

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
    """An operator on operands of one shape: how it is built, and their dtypes. `low` is the least that floats are."""

    kind: str
    build: Callable[..., Any]
    dtypes: tuple[str, ...] = ("f32",)
    low: float | None = None


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def choice(limit: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, limit, shape)


def channels(x: Any) -> np.ndarray:
    """A number for each channel."""
    return np.abs(numbers(x.type.shape[1])) + np.float32(0.5)


def named(operator: str, kind: str, count: int = 1, dtype: str = "f32", low: float | None = None, **given: Any) -> Case:
    """An operator of `count` operands, with attributes."""
    return Case(kind, lambda b, *x: getattr(b, operator)(*x, **given), (dtype,) * count, low)


def recurrent(operator: str, gates: int, directions: int = 1, **given: Any) -> Case:
    def build(b: Any, x: Any) -> Any:
        hidden, width = 256 // directions, x.type.shape[2]
        weights = [numbers(directions, gates * hidden, size) * np.float32(0.05) for size in (width, hidden)]
        bias = numbers(directions, 2 * gates * hidden)
        return getattr(b, operator)(x, *weights, bias, hidden_size=hidden, outputs=2, **given)[0]

    return Case("steps", build)


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
        "where": Case("matrix", lambda b, c, x, y: b.where(c, x, y), ("bool", "f32", "f32")),
        "quantize": Case("matrix", lambda b, x: b.quantize_linear(x, np.float32(0.02), np.uint8(128))),
        "dequantize": Case("matrix", lambda b, x: b.dequantize_linear(x, np.float32(0.02), np.uint8(128)), ("u8",)),
        "quantize, dynamic": named("dynamic_quantize_linear", "matrix", outputs=3),
    }


def rows() -> dict[str, Case]:
    found = {}
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
        )
    return found | {
        "global average": named("global_average_pool", "image"), "global greatest": named("global_max_pool", "image"),
        "convolution": Case("small image", lambda b, x: b.conv(x, numbers(32, x.type.shape[1], 3, 3), pads=[1] * 4)),
        "lstm": recurrent("lstm", 4), "lstm, both ways": recurrent("lstm", 4, 2, direction="bidirectional"),
        "gru": recurrent("gru", 3), "gru, reset after": recurrent("gru", 3, linear_before_reset=1),
        "rnn": recurrent("rnn", 1),
    }  # fmt: skip


CASES = elementwise() | rows() | moves() | windows()


def operand(name: str, shape: Shape, seed: int, low: float | None) -> np.ndarray:
    random, dtype = np.random.default_rng(seed), BY_NAME[name]
    if dtype.is_float:
        made = random.standard_normal(shape, np.float32)
        return (made if low is None else np.abs(made) + low).astype(dtype.numpy)
    limit = 2 if name == "bool" else 100 if dtype.bits == 8 else 1000
    return random.integers(name != "bool", limit, shape).astype(dtype.numpy)


def model_of(case: Case, shape: Shape) -> Any:
    b = tilewright.Builder("bench", opset=21)
    made = case.build(b, *(b.input(f"x{i}", BY_NAME[dtype][shape]) for i, dtype in enumerate(case.dtypes)))
    for i, value in enumerate(made if isinstance(made, Sequence) else [made]):
        b.output(value, f"y{i}")
    return b.build()


def times(case: Case, is_large: bool, threads: int, seconds: float) -> dict[str, float]:
    import onnxruntime

    shape = SHAPES[case.kind][is_large]
    feeds = {f"x{i}": operand(dtype, shape, i, case.low) for i, dtype in enumerate(case.dtypes)}
    executable = tilewright.compile(model_of(case, shape), target="cpu", threads=threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    proto = tilewright.to_proto(model_of(case, shape)).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: executable.run(feeds), "onnxruntime": lambda: session.run(None, feeds)
    }  # fmt: skip
    if is_large:
        outputs, binding = dict(executable.run(feeds)), session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        targets = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in outputs.values()]
        for name, target in zip(outputs, targets, strict=True):
            binding.bind_ortvalue_output(name, target)
        runs = {
            "ours": lambda: executable.run_into(feeds, outputs),
            "onnxruntime": lambda keep=targets: session.run_with_iobinding(binding),
        }  # fmt: skip
    return best_of(runs, seconds, time.thread_time if threads == 1 else time.perf_counter)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--threads", default=1, show_default=True)
@click.option("--sizes", default="small,large", show_default=True)
@click.option("--seconds", default=0.25, show_default=True, help="For each row.")
@click.option("--below", default=float("inf"), help="Show only ratios below this.")
def main(names: tuple[str, ...], threads: int, sizes: str, seconds: float, below: float) -> None:
    """Measure operators whose names begin with one of NAMES (default: all)."""
    in_plain_environment()
    found = []
    for name, case in CASES.items():
        for size in sizes.split(",") if not names or name.startswith(names) else ():
            best = times(case, size == "large", threads, seconds)
            found.append((best["onnxruntime"] / best["ours"], name, size, best))
    shown = [
        [name, size, *(f"{best[side] * 1e6:,.1f}" for side in ("ours", "onnxruntime")), f"{ratio:.2f}"]
        for ratio, name, size, best in sorted(found, key=lambda row: row[0]) if ratio < below
    ]  # fmt: skip
    ratios = np.array([ratio for ratio, *_ in found])
    table(f"microseconds, {threads} threads", ["operator", "size", "tilewright", "onnxruntime", "ratio"], shown)
    slower, mean = int((ratios < 1).sum()), np.exp(np.log(ratios).mean())
    print(f"{len(ratios)} rows, geometric mean {mean:.2f}; {slower} below 1, {int((ratios < 0.9).sum())} below 0.9")


if __name__ == "__main__":
    main()
