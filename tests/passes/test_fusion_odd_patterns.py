"""Patterns close to those that are fused, in odd sizes: 0 and 1, masks of every rank and with rows that hide all keys.

Whatever a pass makes of them, what is written gives what the original gives in ONNX Runtime, its optimizations off.
Three forms are written: at the model's own opset, with Attention at opset 23, and for the target onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, bool_, f32
from tilewright.importers.onnx import to_proto

B, H, S, T, D = 2, 4, 5, 7, 8
INF, LOWEST = float("-inf"), float(np.finfo(np.float32).min)
Build = Callable[[Any], None]
CASES: dict[str, tuple[Build, tuple[str, ...]]] = {}
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.uniform(-1, 1, (8, 8)).astype(np.float32)
ROW = WEIGHT[0]


def case(*open_dims: str) -> Callable[[Build], Build]:
    """Register a model; `open_dims` are the names of its dims, which are 0, 1 and 3 in turn."""

    def register(build: Build) -> Build:
        CASES[build.__name__] = build, open_dims
        return build

    return register


def operands(b: Any, q: tuple[Any, ...] = (B, H, S, D), k: tuple[Any, ...] = (B, H, T, D)) -> tuple[Any, Any, Any]:
    return b.input("q", f32[q]), b.input("k", f32[k]), b.input("v", f32[k])


def attention(b: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = (q @ b.transpose(k, perm=[0, 1, 3, 2])) * 0.25
    return b.softmax(scores if mask is None else scores + mask) @ v


def masked(shape: tuple[Any, ...], q: tuple[Any, ...] = (B, H, S, D), k: tuple[Any, ...] = (B, H, T, D)) -> Build:
    return lambda b: b.output(attention(b, *operands(b, q, k), b.input("mask", f32[shape])), "y")


OPEN = (("n", H, "s", D), ("n", H, "t", D))
for name, shape in {
    "keys": (T,), "queries": (S, 1), "one_number": (), "heads": (H, 1, T), "one": (1, 1, 1, 1), "padding": (B, 1, 1, T),
    "all": (B, H, S, T), "both": (S, T),
}.items():  # fmt: skip
    CASES[f"mask_of_{name}"] = masked(shape), ()
CASES["mask_of_batch_and_keys_in_a_square"] = masked((5, 5), (5, H, 5, D), (5, H, 5, D)), ()
CASES["mask_of_queries_and_keys_that_are_open"] = masked(("n", 1, "s", "t"), *OPEN), ("n", "s", "t")
CASES["padding_that_is_open"] = masked(("n", 1, 1, "t"), *OPEN), ("n", "s", "t")
CASES["keys_of_another_length"] = masked(("n", 1, 1, "m"), *OPEN), ("n", "s", "t", "m")
CASES["queries_of_another_length"] = masked(("n", 1, "m", "t"), *OPEN), ("n", "s", "t", "m")
for fill, inverted in product((INF, LOWEST, -1e4, 0.0, float("nan"), float("inf")), (False, True)):

    def chosen(b: Any, fill: float = fill, inverted: bool = inverted) -> None:
        q, k, v = operands(b)
        scores = q @ b.transpose(k, perm=[0, 1, 3, 2])
        pair = (np.float32(fill), scores) if inverted else (scores, np.float32(fill))
        b.output(b.softmax(b.where(b.input("keep", bool_[B, 1, S, T]), *pair)) @ v, "y")

    CASES[f"{fill}_in_place_of_{'seen' if inverted else 'hidden'}_scores"] = chosen, ()
for offset, strict, fill in product((-1, 0, 1), (False, True), (INF, LOWEST)):

    def causal(b: Any, offset: int = offset, strict: bool = strict, fill: float = fill) -> None:
        q, k, v = operands(b, *OPEN)
        counts = [b.squeeze(b.shape(each, start=2, end=3)) for each in (q, k)]
        rows, columns = (b.unsqueeze(b.range(0, count, 1), [axis]) for count, axis in zip(counts, (1, 0), strict=True))
        seen = (b.less if strict else b.less_or_equal)(columns, rows + np.int64(offset))
        b.output(attention(b, q, k, v, b.where(seen, np.float32(0), np.float32(fill))), "y")

    CASES[f"causal_{offset}_{'below' if strict else 'to'}_{fill}"] = causal, ("n", "s", "t")


@case("h", "t")
def heads_of_any_number(b: Any) -> None:
    """One for each head of queries, and one for all; a guard against NaN, of which Attention has none."""
    q, k, v = operands(b, (B, "h", S, D), (B, "h", "t", D))
    guarded = b.softmax((q @ b.transpose(k, perm=[0, 1, 3, 2])) * 0.25 + b.input("mask", f32[B, 1, 1, "t"]))
    y = b.where(b.isnan(guarded), np.float32(0), guarded) @ v
    k, v = (b.reduce_mean(each, [1]) for each in (k, v))
    b.output(attention(b, y, k, v), "y")


@case("h")
def groups_of_any_number(b: Any) -> None:
    """How often keys are repeated is known, and how many there are is not."""
    k = b.input("k", f32[B, "h", T, D])
    repeated = b.reshape(b.expand(b.unsqueeze(k, [2]), [1, 1, 2, 1, 1]), [B, -1, T, D])
    weights = b.softmax((b.relu(repeated) @ b.transpose(repeated, perm=[0, 1, 3, 2])) * 0.25)
    b.output(b.where(b.isnan(weights), np.float32(0), weights) @ repeated, "y")


@case("n", "s", "t")
def heads_split_off(b: Any) -> None:
    x, z = b.input("q", f32["n", "s", H * D]), b.input("k", f32["n", "t", H * D])
    q, k = (b.transpose(b.reshape(y, [0, 0, H, D]), perm=[0, 2, 1, 3]) for y in (x, z))
    b.output(b.reshape(b.transpose(attention(b, q, k, k), perm=[0, 2, 1, 3]), [0, 0, H * D]), "y")


@case("n", "m", "s", "t")
def keys_of_another_batch(b: Any) -> None:
    x, z = b.input("q", f32["n", "s", H * D]), b.input("k", f32["m", "t", H * D])
    q, k = (b.transpose(b.reshape(y, [0, 0, H, D]), perm=[0, 2, 1, 3]) for y in (x, z))
    y = b.transpose(attention(b, q, k, k, b.input("mask", f32["m", 1, 1, "t"])), perm=[0, 2, 1, 3])
    b.output(b.reshape(y, b.concat(b.shape(x, start=0, end=2), [H * D], axis=0), allowzero=1), "y")


@case("n", "s", "p")
def values_before_their_past(b: Any) -> None:
    q, k, v = operands(b, ("n", H, "s", D), ("n", H, "s", D))
    k = b.concat(b.input("past_k", f32["n", H, "p", D]), k, axis=2)
    v = b.concat(v, b.input("past_v", f32["n", H, "p", D]), axis=2)
    b.output(attention(b, q, k, v), "y")
    b.output(k, "present_k")
    b.output(v, "present_v")


@case()
def heads_joined_in_another_order(b: Any) -> None:
    q, k, v = operands(b)
    b.output(b.reshape(b.transpose(attention(b, q, k, v), perm=[0, 2, 3, 1]), [B, S, H * D]), "y")


@case("n", "s")
def batch_and_heads_alike(b: Any) -> None:
    """[n, s, d] with a mask of [n, 1, s]: no batch of heads, whatever n is."""
    q, k, v = (b.input(each, f32["n", "s", D]) for each in ("q", "k", "v"))
    scores = (q @ b.transpose(k, perm=[0, 2, 1])) * 0.25 + b.input("mask", f32["n", 1, "s"])
    b.output(b.softmax(scores) @ v, "y")


@case("n", "m", "k", "j")
def a_scale_of_another_length(b: Any) -> None:
    x = b.input("x", f32["n", "m", "k"])
    centered = x - b.reduce_mean(x, [-1])
    root = b.sqrt(b.reduce_mean(centered * centered, [-1]) + np.float32(1e-5))
    b.output(centered / root * b.input("scale", f32["j"]), "y")


@case("n", "m")
def a_sum_that_may_be_broadcast(b: Any) -> None:
    total = b.input("x", f32["n", "m", 8]) + b.input("z", f32["n", "j", 8])
    b.output(b.layer_normalization(total, ROW, ROW), "y")


CASES["a_sum_that_may_be_broadcast"] = a_sum_that_may_be_broadcast, ("n", "m", "j")


@case("n", "k", "j")
def a_bias_of_another_length(b: Any) -> None:
    x = b.input("x", f32["n", "k"]) + b.input("z", f32["j"])
    b.output(x * 0.5 * (b.erf(x / np.float32(np.sqrt(2))) + 1.0), "y")


@case("n", "s", "m", "k")
def angles_of_another_batch_and_length(b: Any) -> None:
    x, angles = b.input("x", f32["n", H, "s", 8]), b.input("a", f32["m", "k", 4])
    both = b.unsqueeze(b.concat(angles, angles, axis=-1), [1])
    turned = b.concat(b.neg(b.slice(x, [4], [8], [-1])), b.slice(x, [0], [4], [-1]), axis=-1)
    b.output(x * b.cos(both) + turned * b.sin(both), "y")


@case("n", "m")
def products_with_a_bias(b: Any) -> None:
    x = b.input("x", f32["n", "m", 8])
    b.output(b.relu(x @ WEIGHT + ROW) @ WEIGHT + ROW, "y")


@case("n", "h")
def a_convolution_with_an_addend(b: Any) -> None:
    y = b.conv(b.input("x", f32["n", 2, "h", 3]), WEIGHT[:4, :2].reshape(4, 2, 1, 1))
    b.output(b.relu(y + b.input("z", f32["j", 4, "h", 3])), "y")


CASES["a_convolution_with_an_addend"] = a_convolution_with_an_addend, ("n", "h", "j")


# No normalization of ONNX Runtime runs over an axis of 0.
SIZES = {"k": (1, 3)}


def feeds_of(model: Any, sizes: dict[str, int]) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of these sizes; masks that hide nothing, some keys, and all keys of a row or of all."""
    random = np.random.default_rng(1)
    feeds: dict[str, np.ndarray] = {}
    for argument in model.main.inputs:
        shape = [dim if isinstance(dim, int) else sizes[dim.label] for dim in argument.type.shape]
        feeds[argument.name] = random.uniform(-1, 1, shape).astype(argument.type.dtype.numpy)
    yield feeds
    for mask, values in (("mask", (0.0, INF, LOWEST, LOWEST / 2, -1e4)), ("keep", (True, False))):
        if mask in feeds:
            for value in values:
                whole = np.full_like(feeds[mask], value)
                some = whole.copy()
                some.reshape(-1)[::2] = values[0]
                mixed = whole.copy()
                mixed.reshape(-1)[::2] = values[1]
                yield from ({**feeds, mask: each} for each in (whole, some, mixed))


def written(build: Build) -> Iterator[tuple[str, Any]]:
    def optimized(passes: str, opset: int) -> Any:
        b = Builder(opset=opset)
        build(b)
        return tilewright.optimize(b.build(), passes=passes).module

    yield "own", to_proto(optimized("O2", 18))
    yield "attention", to_proto(optimized("O2", 23), keep_fused=True)
    yield "onnxruntime", to_proto(optimized("O2-onnxruntime", 18), target="onnxruntime")


def runner(proto: Any) -> Callable[[dict[str, np.ndarray]], list[np.ndarray] | None]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        try:
            return list(session.run(None, feeds))
        except Exception:
            return None

    return run


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_gives_what_the_original_gives(name: str) -> None:
    build, open_dims = CASES[name]
    b = Builder(opset=18)
    build(b)
    model = b.build()
    original = runner(to_proto(model))
    forms = [(form, runner(proto), {n.op_type for n in proto.graph.node}) for form, proto in written(build)]
    ran = 0
    for sizes in product(*(SIZES.get(dim, (0, 1, 3)) for dim in open_dims)):
        for feeds in feeds_of(model, dict(zip(open_dims, sizes, strict=True))):
            wanted = original(feeds)
            if wanted is None:
                continue
            ran += 1
            for form, run, operators in forms:
                if 0 in sizes and "Attention" in operators:
                    continue  # ONNX Runtime's kernel of the standard's operator wants something to attend
                got = run(feeds)
                assert got is not None, (form, sizes)
                for found, expected in zip(got, wanted, strict=True):
                    assert found.shape == expected.shape, (form, sizes)
                    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{form} {sizes}")
    assert ran
