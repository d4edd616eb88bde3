"""Attention of the standard on the target cpu: all its results, with masks for all keys and for fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, bool_, f32

B, H, S, T, D, P = 2, 4, 3, 5, 8, 2
random = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("kept", [T, T - 2, None])
@pytest.mark.parametrize("dtype", [f32, bool_])
@pytest.mark.parametrize("past", [False, True])
def test_results_beside_the_output(mode: int | None, kept: int | None, dtype: Any, past: bool) -> None:
    """`mode`: which scores are asked for, None for none. `kept`: how many keys the mask, of an open dim, is for."""
    b = Builder(opset=23)
    feeds = {"q": numbers(B, H, S, D), "k": numbers(B, 2, T, D), "v": numbers(B, 2, T, 6)}
    q, k, v = b.input("q", f32[B, H, S, D]), b.input("k", f32[B, 2, "t", D]), b.input("v", f32[B, 2, "t", 6])
    operands: list[Any] = [q, k, v]
    if kept is not None:
        mask = numbers(S, kept + (P if past else 0))
        feeds["m"] = mask if dtype is f32 else mask > -0.5
        operands.append(b.input("m", dtype[S, "m"]))
    if past:
        feeds |= {"pk": numbers(B, 2, P, D), "pv": numbers(B, 2, P, 6)}
        operands += [None] * (4 - len(operands))
        operands += [b.input("pk", f32[B, 2, "p", D]), b.input("pv", f32[B, 2, "p", 6])]
    names = ["y", "keys", "values", "scores"][: 3 if mode is None else 4]
    results = b.attention(*operands, outputs=len(names), **({} if mode is None else {"qk_matmul_output_mode": mode}))
    for name, value in zip(names, results, strict=True):
        if name in ("y", "scores") or past:
            b.output(value, name)
    model = b.build()
    found = tilewright.compile(model, target="cpu", threads=1).run(feeds)
    for name, wanted in tilewright.compile(model, target="reference").run(feeds).items():
        assert found[name].shape == wanted.shape, name
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)
