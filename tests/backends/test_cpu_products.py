"""Matrix products of the cpu target as models have them: every layout, weights and inputs, few rows, few columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import f16, f32

random = np.random.default_rng(1)


def turned(array: np.ndarray) -> np.ndarray:
    return np.swapaxes(array, -1, -2)


def kernels_of(
    left: Sequence[int], right: Sequence[int], turns: tuple[bool, bool], is_weight: bool, is_dynamic: bool, bias: bool
) -> list[str]:
    """Run a product of tensors of these shapes, each perhaps transposed in the model; the kernels that it took."""
    x, y = (random.integers(-4, 5, shape).astype(np.float32) for shape in (left, right))
    b = tilewright.Builder("product")
    perm = [*range(len(left) - 2), len(left) - 1, len(left) - 2]
    a = b.input("x", f32[tuple(f"d{axis}" if is_dynamic else size for axis, size in enumerate(left))])
    factor = (turned(y) if turns[1] else y) if is_weight else b.input("y", f32[tuple(right)])
    a = b.transpose(a, perm=perm) if turns[0] else a
    if turns[1] and not is_weight:
        factor = b.transpose(factor, perm=perm)
    expected = (turned(x) if turns[0] else x) @ (turned(y) if turns[1] else y)
    result = a @ factor
    if bias:
        shift = np.arange(expected.shape[-1], dtype=np.float32)
        result, expected = b.relu(result + shift), np.maximum(expected + shift, 0)
    b.output(result, "z")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    assert np.array_equal(executable.run({"x": x} if is_weight else {"x": x, "y": y})["z"], expected)
    report = executable.report()
    assert not report["host_steps"]
    return list(report["kernels"])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 33), (40, 1, 33), (3, 70, 20), (20, 30, 40)])
@pytest.mark.parametrize("is_weight", [True, False])
def test_layouts(m: int, n: int, k: int, is_weight: bool) -> None:
    for a_turned, b_turned, rest in itertools.product((False, True), (False, True), range(2)):
        left, right = ((k, m) if a_turned else (m, k)), ((n, k) if b_turned else (k, n))
        kernels_of(left, right, (a_turned, b_turned), is_weight, bool(rest), bool(rest))


def test_stacks() -> None:
    assert kernels_of((2, 3, 5, 40), (2, 3, 40, 7), (False, False), False, False, True)
    assert kernels_of((2, 3, 1, 40), (2, 3, 50, 40), (False, True), False, False, True) == ["dot_1"]
    assert kernels_of((4, 60, 40), (4, 40, 1), (False, False), False, False, True) == ["dot_1"]


@pytest.mark.parametrize("rows", [3, 20])
def test_a_stack_whose_rows_do_not_follow_each_other_times_one_matrix(rows: int) -> None:
    b = tilewright.Builder("stack")
    x, w = random.integers(-4, 5, (5, 2 * rows, 40)).astype(np.float32), random.integers(-4, 5, (40, 70))
    b.output(b.input("x", f32[x.shape])[:, :rows] @ w.astype(np.float32), "z")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    assert np.array_equal(executable.run({"x": x})["z"], x[:, :rows] @ w)
    assert list(executable.report()["kernels"]) == [f"gemm_{rows}x70x40"]


def test_rows_of_their_own_give_threads_the_same_bits() -> None:
    b = tilewright.Builder("rows")
    x, w = random.standard_normal((200, 300)).astype(np.float32), random.standard_normal((300, 600)).astype(np.float32)
    b.output(b.relu(b.input("x", f32[x.shape]) @ w), "z")
    model = b.build()
    one, two = (tilewright.compile(model, target="cpu", threads=n).run({"x": x})["z"] for n in (1, 2))
    assert np.array_equal(one, two)
    np.testing.assert_allclose(one, np.maximum(x.astype(np.float64) @ w, 0), rtol=0, atol=1e-3)


def test_what_is_added_with_gaps_leaves_a_stack_one_matrix() -> None:
    b = tilewright.Builder("gaps")
    x, w = random.integers(-4, 5, (5, 14, 40)).astype(np.float32), random.integers(-4, 5, (40, 70))
    y = random.integers(-4, 5, (5, 20, 70)).astype(np.float32)
    b.output(b.relu(b.input("x", f32[x.shape]) @ w.astype(np.float32) + b.input("y", f32[y.shape])[:, 3:17]), "z")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    assert np.array_equal(executable.run({"x": x, "y": y})["z"], np.maximum(x @ w + y[:, 3:17], 0))
    assert "gemm_70x70x40" in executable.report()["kernels"]


def test_narrow_floats_of_any_depth_share_no_partial_sums() -> None:
    b = tilewright.Builder("narrow")
    b.output(b.input("x", f16["m", "k"]) @ b.input("y", f16["k", "n"]), "z")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    for m, n, k in ((20, 30, 40), (20, 30, 3000)):
        x, y = (random.integers(-1, 2, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        expected = (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float16)
        assert np.array_equal(executable.run({"x": x, "y": y})["z"], expected)


@pytest.mark.parametrize(("m", "n", "k"), [(40, 30, 6000), (8, 64, 8192)])
@pytest.mark.parametrize("is_weight", [True, False])
def test_a_long_k_is_split(m: int, n: int, k: int, is_weight: bool) -> None:
    """By sizes alone, so bits do not depend on the number of threads."""
    for turns in ((False, False), (True, False), (False, True)):
        left, right = ((k, m) if turns[0] else (m, k)), ((n, k) if turns[1] else (k, n))
        kernels = kernels_of(left, right, turns, is_weight, False, True)
        assert [name for name in kernels if name.startswith("add_")], kernels
    x, y = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((k, n)).astype(np.float32)
    b = tilewright.Builder("split")
    b.output(b.input("x", f32[m, k]) @ b.input("y", f32[k, n]), "z")
    model = b.build()
    one, *others = (
        tilewright.compile(model, target="cpu", threads=threads).run({"x": x, "y": y})["z"] for threads in (1, 2, 5)
    )  # fmt: skip
    np.testing.assert_allclose(one, x.astype(np.float64) @ y, rtol=1e-3, atol=1e-3)
    assert all(np.array_equal(one, other) for other in others)
