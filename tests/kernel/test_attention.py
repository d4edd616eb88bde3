"""Attention: interpreted and compiled; layouts, masks of each form, causal, shared heads, queries without keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from loop_running import run_both, run_compiled

from tilewright.backends.cpu.kernels.attention import (
    Attention,
    attention_arguments,
    attention_buffers,
    attention_scratch,
    attention_units,
    build_attention,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, from_numpy
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(21)


def expected_of(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: np.ndarray | None, causal: bool, offset: int,
    softcap: float, masked_score: float,
) -> np.ndarray:  # fmt: skip
    """[batch, heads, queries, value size], NaN for queries without keys."""
    repeats = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = np.repeat(k, repeats, 1), np.repeat(v, repeats, 1)
    scores = q @ k.transpose(0, 1, 3, 2) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, masked_score) if mask.dtype == bool else scores + mask
    if causal:
        queries, keys = np.indices(scores.shape[-2:])
        scores = np.where(keys <= queries + offset, scores, -math.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def flat(array: np.ndarray) -> np.ndarray:
    while array.base is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return array.reshape(-1)


def planned(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, width: int, static: bool = True, mask: np.ndarray | None = None,
    y: np.ndarray | None = None, **options: Any,
) -> tuple[Any, list[Any], np.ndarray, list[str]]:  # fmt: skip
    batch, heads, queries, size = q.shape
    keys, value_size = k.shape[2], v.shape[3]
    dtype = from_numpy(q.dtype)
    if y is None:
        y = np.full((batch, heads, queries, value_size), 77, q.dtype)
    known: dict[str, Any] = {"queries": queries, "keys": keys, "heads": heads, "offset": options.get("offset", 0)}
    tensors = {"q": q, "k": k, "v": v, "y": y}
    strides = {name: strides_of(array) for name, array in tensors.items()}
    if mask is not None:
        aligned = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        tensors["mask"] = aligned.view(np.uint8) if mask.dtype == bool else aligned
        strides["mask"] = tuple(
            0 if have == 1 else step for have, step in zip(aligned.shape, strides_of(aligned), strict=True)
        )
        options |= {"mask": from_numpy(mask.dtype), "mask_strides": strides["mask"]}
    for name, array in tensors.items():
        known[name] = flat(array).view(array.dtype)
        dims = zip(("batch", "head", "row", "element"), strides[name], strict=True)
        known |= {f"{name}_{dim}": step for dim, step in dims}
    sizes: tuple[int | None, ...] = (queries, keys, heads)
    if not static:
        sizes = (None,) * 3
        strides = {n: tuple(s if s in (0, 1) else None for s in steps) for n, steps in strides.items()}
        if mask is not None:
            options["mask_strides"] = strides["mask"]
        if options.get("causal"):
            options["offset"] = None
    kernel = Attention(
        dtype, size, value_size, *sizes, strides["q"], strides["k"], strides["v"], strides["y"],
        repeats=heads // k.shape[1], **options,
    )  # fmt: skip
    machine = machine_of_width(width)
    wide = attention_buffers(kernel)["scratch"].numpy
    known["scratch"] = np.zeros(attention_scratch(kernel, machine), wide)
    known |= {"begin": 0, "end": attention_units(kernel, machine, batch, heads, queries), "thread": 0}
    names = attention_arguments(kernel)
    return build_attention("attention", kernel, machine), [known[name] for name in names], y, names


def check(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, width: int, static: bool = True, both: bool = True, **options: Any
) -> None:
    module, given, y, _ = planned(q, k, v, width, static, **options)
    arguments = {name: options.get(name, 0) for name in ("causal", "offset", "softcap")}
    expected = expected_of(
        q, k, v, options.get("scale", 1.0), options.get("mask"), masked_score=options.get("masked_score", -math.inf),
        **arguments,
    )  # fmt: skip
    if options.get("masking", "plain") != "plain":
        expected = np.nan_to_num(expected, nan=0.0)
    tolerance = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[q.dtype.name]
    sides = run_both(module, given, width) if both else [given]
    if not both:
        run_compiled(module, given, width)
    for side in sides:
        found = np.lib.stride_tricks.as_strided(side[0], y.shape, y.strides)
        assert np.allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def heads_of(batch: int, heads: int, length: int, size: int, dtype: Any = np.float32) -> np.ndarray:
    return random.normal(size=(batch, heads, length, size)).astype(dtype)


@pytest.mark.parametrize(("width", "static"), [(128, True), (256, False), (512, True)])
@pytest.mark.parametrize(("queries", "keys", "size"), [(5, 7, 8), (19, 33, 5), (37, 18, 20), (1, 9, 8), (3, 40, 19)])
def test_sizes(queries: int, keys: int, size: int, static: bool, width: int) -> None:
    q, k, v = heads_of(1, 2, queries, size), heads_of(1, 2, keys, size), heads_of(1, 2, keys, size + 3)
    check(q, k, v, width, static, both=queries * keys < 400, scale=size**-0.5)


@pytest.mark.parametrize("queries", [1, 40])
def test_many_blocks_of_keys(queries: int) -> None:
    q, k, v = heads_of(2, 1, queries, 16), heads_of(2, 1, 300, 16), heads_of(2, 1, 300, 16)
    for static in (True, False):
        check(4 * q, k, v, 512, static, both=False)


@pytest.mark.parametrize("queries", [2, 21])
@pytest.mark.parametrize("static", [True, False])
def test_layouts(queries: int, static: bool) -> None:
    """[batch, length, heads, size] in memory, keys with the size outside, and a result of that kind."""
    q = np.ascontiguousarray(heads_of(2, 3, queries, 8).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    k = np.ascontiguousarray(heads_of(2, 3, 17, 8).transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    v = np.ascontiguousarray(heads_of(2, 3, 17, 8).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    y = np.zeros((2, queries, 3, 8), np.float32).transpose(0, 2, 1, 3)
    check(q, k, v, 256, static, y=y)


def masks(queries: int, keys: int) -> list[np.ndarray]:
    numbers = random.normal(size=(2, 3, queries, keys)).astype(np.float32)
    padding = np.where(random.random((2, 1, 1, keys)) < 0.3, -math.inf, 0).astype(np.float32)
    bools = random.random((queries, keys)) < 0.7
    bools[:, 0] = True
    return [numbers, numbers[:1, :1], numbers[:, :, :1], padding, bools, bools[:1], numbers[0, 0, :, :1]]


@pytest.mark.parametrize(("queries", "static"), [(2, True), (21, False)])
@pytest.mark.parametrize("form", range(7))
def test_masks(form: int, static: bool, queries: int) -> None:
    mask = np.ascontiguousarray(masks(queries, 18)[form])
    q, k, v = heads_of(2, 3, queries, 8), heads_of(2, 3, 18, 8), heads_of(2, 3, 18, 8)
    check(q, k, v, 256, static, mask=mask, masking="zero")


@pytest.mark.parametrize(("width", "offset"), [(128, 0), (256, 3), (512, -2), (512, 0)])
@pytest.mark.parametrize("queries", [2, 37])
def test_causal(queries: int, offset: int, width: int) -> None:
    q, k, v = heads_of(1, 1, queries, 8), heads_of(1, 1, 37, 8), heads_of(1, 1, 37, 8)
    check(q, k, v, width, offset != 3, both=queries < 10, causal=True, offset=offset)


@pytest.mark.parametrize("queries", [1, 18])
def test_shared_heads_softcap_and_double_precision(queries: int) -> None:
    q, k, v = heads_of(1, 4, queries, 8), heads_of(1, 2, 20, 8), heads_of(1, 2, 20, 8)
    check(q, k, v, 256, scale=0.3, softcap=2.0)
    check(*(x.astype(np.float64) for x in (q, k, v)), 256, both=False, scale=0.3, softcap=2.0)


@pytest.mark.parametrize("queries", [1, 18])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_computed_in_f32(dtype: DType, queries: int) -> None:
    q, k, v = (heads_of(1, 2, n, 9).astype(dtype.numpy) for n in (queries, 20, 20))
    mask = random.normal(size=(queries, 20)).astype(dtype.numpy)
    check(q, k, v, 256, scale=0.3, mask=mask)
    check(q, k, v, 512, static=False, both=False, mask=random.random((queries, 20)) < 0.8, masking="zero")


@pytest.mark.parametrize("masking", ["plain", "zero", "nan-to-zero"])
@pytest.mark.parametrize(("kind", "queries"), [("float", 19), ("bool", 2), ("score", 19), ("causal", 2)])
def test_queries_without_keys(kind: str, queries: int, masking: str) -> None:
    q, k, v = heads_of(1, 1, queries, 8), heads_of(1, 1, 150, 8), heads_of(1, 1, 150, 8)
    allowed = random.random((queries, 150)) < 0.5
    allowed[1] = False
    options: dict[str, Any] = {"mask": allowed}
    if kind == "float":
        options["mask"] = np.where(allowed, 0, -math.inf).astype(np.float32)
    if kind == "score":
        options["masked_score"] = float(np.finfo(np.float32).min)
    if kind == "causal":
        options = {"causal": True, "offset": -1}
    check(q, k, v, 256, both=False, masking=masking, **options)


@pytest.mark.parametrize("queries", [2, 19])
@pytest.mark.parametrize("masking", ["plain", "zero", "nan-to-zero"])
def test_scores_that_are_nan(masking: str, queries: int) -> None:
    q, k, v = heads_of(1, 1, queries, 8), heads_of(1, 1, 20, 8), heads_of(1, 1, 20, 8)
    q[0, 0, 1, 3] = math.nan
    module, given, y, _ = planned(q, k, v, 256, masking=masking)
    run_compiled(module, given, 256)
    row = y[0, 0, 1]
    assert np.all(row == 0) if masking == "nan-to-zero" else np.all(np.isnan(row))
    assert np.isfinite(np.delete(y, 1, axis=2)).all()


@pytest.mark.parametrize("queries", [0, 2, 19])
@pytest.mark.parametrize("keys", [0, 4])
def test_nothing_to_do(queries: int, keys: int) -> None:
    q, k, v = heads_of(1, 2, queries, 8), heads_of(1, 2, keys, 8), heads_of(1, 2, keys, 8)
    module, given, y, _ = planned(q, k, v, 256, static=False, masking="zero")
    run_compiled(module, given, 256)
    assert keys or np.all(y == 0)


@pytest.mark.parametrize("queries", [2, 20])
def test_work_can_be_shared_out_anywhere(queries: int) -> None:
    q, k, v = heads_of(1, 3, queries, 8), heads_of(1, 3, 20, 8), heads_of(1, 3, 20, 8)
    module, given, _, names = planned(q, k, v, 128)
    run_loops(module, given)
    whole, units = given[0].copy(), given[-2]
    given[0][:] = 0
    scratch = names.index("scratch")
    given[scratch] = np.zeros(3 * given[scratch].size, np.float32)
    for part in range(3):
        run_loops(module, [*given[:-3], part * units // 3, (part + 1) * units // 3, part])
    assert np.array_equal(given[0], whole)
