"""Adjoints of attention: interpreted and compiled; masks of each form, causal, shared heads, several blocks of keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels import attention_grad as kernels
from tilewright.backends.cpu.kernels.attention import Attention
from tilewright.backends.cpu.kernels.attention_grad import (
    AttentionGrad,
    build_attention_grad,
    grad_arguments,
    grad_scratch,
    grad_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import from_numpy

random = np.random.default_rng(4)
Arrays = dict[str, np.ndarray]


def given(
    heads: int, shared: int, queries: int, keys: int, size: int, value_size: int, dtype: Any = np.float32
) -> Arrays:
    shapes = {"q": (2, heads, queries, size), "k": (2, shared, keys, size), "v": (2, shared, keys, value_size)}
    shapes["y"] = (2, heads, queries, value_size)
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def expected_of(arrays: Arrays, scale: float, softcap: float, causal: bool, masked_score: float) -> Arrays:
    """In float64, by the chain rule through softmax written with its whole Jacobian."""
    repeats = arrays["q"].shape[1] // arrays["k"].shape[1]
    q, k, v, grad = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "y"))
    k, v = np.repeat(k, repeats, 1), np.repeat(v, repeats, 1)
    products = np.einsum("bhis,bhjs->bhij", q, k) * scale
    capped = softcap * np.tanh(products / softcap) if softcap else products
    slope = 1 - np.tanh(products / softcap) ** 2 if softcap else np.ones_like(products)
    mask = arrays.get("mask")
    if mask is not None and mask.dtype == bool:
        slope, capped = np.where(mask, slope, 0), np.where(mask, capped, masked_score)
    elif mask is not None:
        capped = capped + mask
    if causal:
        capped = np.where(np.tri(*capped.shape[2:], dtype=bool), capped, -math.inf)
    weights = np.exp(capped - capped.max(-1, keepdims=True, initial=-1e9))
    weights = weights / np.where(weights.sum(-1, keepdims=True) == 0, 1, weights.sum(-1, keepdims=True))
    jacobian = np.einsum("bhij,jk->bhijk", weights, np.eye(weights.shape[-1]))
    jacobian -= np.einsum("bhij,bhik->bhijk", weights, weights)
    upstream = np.einsum("bhis,bhjs->bhij", grad, v)
    slopes = np.einsum("bhijk,bhij->bhik", jacobian, upstream) * slope * scale
    whole = {
        "dq": np.einsum("bhij,bhjs->bhis", slopes, k), "dk": np.einsum("bhij,bhis->bhjs", slopes, q),
        "dv": np.einsum("bhij,bhis->bhjs", weights, grad),
    }  # fmt: skip
    for name in ("dk", "dv"):
        found = whole[name]
        whole[name] = found.reshape(2, -1, repeats, *found.shape[2:]).sum(2)
    return whole


def steps(array: np.ndarray) -> tuple[int, ...]:
    return tuple(0 if n == 1 else step // array.itemsize for n, step in zip(array.shape, array.strides, strict=True))


def planned(arrays: Arrays, width: int, static: bool, **options: Any) -> tuple[Any, list[Any], list[str], Arrays]:
    dtype = arrays["q"].dtype
    results = {name: np.full(arrays[name[1:]].shape, 77, dtype) for name in ("dq", "dk", "dv")}
    known: dict[str, Any] = {"offset": 0, "thread": 0}
    strides: dict[str, Any] = {}
    for name, array in {**arrays, **results}.items():
        known[name] = (array.view(np.uint8) if array.dtype == bool else array).reshape(-1)
        strides[name] = steps(array)
        known |= {f"{name}_{dim}": n for dim, n in zip(("batch", "head", "row", "element"), steps(array), strict=True)}
    queries, keys, heads = arrays["q"].shape[2], arrays["k"].shape[2], arrays["q"].shape[1]
    known |= {"queries": queries, "keys": keys, "heads": heads}
    extents: tuple[int | None, ...] = (queries, keys, heads)
    if not static:
        extents = (None,) * 3
        strides = {name: (*(n if n == 0 else None for n in step[:3]), step[3]) for name, step in strides.items()}
    if "mask" in arrays:
        options |= {"mask": from_numpy(arrays["mask"].dtype), "mask_strides": strides["mask"]}
    forward = Attention(
        from_numpy(dtype), arrays["q"].shape[3], arrays["v"].shape[3], *extents,
        *(strides[name] for name in ("q", "k", "v", "y")), repeats=heads // arrays["k"].shape[1], **options,
    )  # fmt: skip
    kernel = AttentionGrad(forward, *(strides[name][:3] for name in ("dq", "dk", "dv")))
    machine = machine_of_width(width)
    known["scratch"] = np.full(grad_scratch(kernel, machine), np.nan, dtype)
    known |= {"begin": 0, "end": grad_units(2, arrays["k"].shape[1])}
    names = grad_arguments(kernel)
    return build_attention_grad("grad", kernel, machine), [known[name] for name in names], names, results


def check(arrays: Arrays, width: int = 128, static: bool = True, both: bool = True, **options: Any) -> None:
    module, values, names, results = planned(arrays, width, static, **options)
    chosen = {"scale": 1.0, "softcap": 0.0, "causal": False, "masked_score": -math.inf} | options
    chosen.pop("masking", None)
    expected = expected_of(arrays, **chosen)
    sides: Any = run_both(module, values, width) if both else [values]
    if not both:
        run_compiled(module, values, width)
    tolerance = 1e-5 if arrays["q"].dtype == np.float32 else 1e-12
    for side in sides:
        for name, wanted in expected.items():
            found = side[names.index(name)].reshape(results[name].shape)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_shared_heads_and_sizes_that_are_no_vectors(causal: bool, static: bool) -> None:
    check(given(4, 2, 11, 13, 5, 6), static=static, causal=causal, scale=0.3)


@pytest.mark.parametrize("static", [True, False])
def test_several_blocks_of_keys(monkeypatch: pytest.MonkeyPatch, static: bool) -> None:
    monkeypatch.setattr(kernels, "KEYS", 16)
    check(given(2, 2, 9, 37, 4, 5), static=static)
    check(given(1, 1, 37, 37, 4, 5), static=static, causal=True)


MASKS = {
    "numbers": lambda: random.standard_normal((2, 1, 9, 14)).astype(np.float32),
    "bools": lambda: random.random((1, 1, 9, 14)) < 0.7,
    "keys": lambda: np.array([True] * 9 + [False] * 5).reshape(1, 1, 1, 14),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_masks_and_caps(kind: str, softcap: float) -> None:
    arrays = given(2, 1, 9, 14, 4, 4)
    arrays["mask"] = MASKS[kind]()
    check(arrays, softcap=softcap, masking="zero")


def test_scores_that_a_mask_replaces_have_no_slope() -> None:
    arrays = given(1, 1, 6, 7, 4, 4)
    arrays["mask"] = random.random((1, 1, 6, 7)) < 0.5
    check(arrays, masked_score=-2.0)


def test_queries_without_keys_give_zeros() -> None:
    arrays = given(1, 1, 6, 7, 4, 4)
    arrays["mask"] = np.ones((1, 1, 6, 7), bool)
    arrays["mask"][..., 2, :] = False
    check(arrays, masking="zero")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_widths(width: int, dtype: Any) -> None:
    check(given(2, 1, 45, 50, 33, 40, dtype), width, both=False, causal=True, scale=0.2)
    check(given(1, 1, 3, 150, 16, 7, dtype), width, both=False)
