"""Results that lie where an operand did: where that is safe, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Tensor

random = np.random.default_rng(3)
ROWS, COLUMNS = 60, 64
BYTES = 4 * ROWS * COLUMNS
W, V = (random.normal(size=(COLUMNS, COLUMNS)).astype(np.float32) / 8 for _ in range(2))
X = random.normal(size=(ROWS, COLUMNS)).astype(np.float32)


def arena_of(build: Callable[[Any, Tensor], Tensor | list[Tensor]], rows: int | str = ROWS, threads: int = 1) -> int:
    """Compare a model of one input with the reference interpreter; the bytes of the arena."""
    b = tilewright.Builder("replaced")
    made = build(b, b.input("x", f32[rows, COLUMNS]))
    for index, value in enumerate(made if isinstance(made, list) else [made]):
        # A product behind it, as an output is not in the arena.
        b.output(value @ V, f"y{index}")
    model = b.build()
    expected = tilewright.compile(model, target="reference").run({"x": X})
    executable = tilewright.compile(model, target="cpu", threads=threads)
    for _ in range(2):
        found = executable.run({"x": X})
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
    size: int = executable.report()["arena_bytes"]
    return size


def rows_of(b: Any, x: Tensor) -> Tensor:
    """Something of the size of x with memory of its own."""
    return b.softmax(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows", [ROWS, "n"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_takes_the_place_of_what_is_added_to_it(rows: int | str, threads: int) -> None:
    assert arena_of(lambda b, x: b.relu(x @ W + rows_of(b, x)), rows, threads) == BYTES


def test_a_chain_of_them_stays_in_one_place() -> None:
    def chain(b: Any, x: Tensor) -> Tensor:
        total = rows_of(b, x)
        for weight in (W, V, W):
            total = b.relu(b.relu(total @ V) @ weight + total)
        return total

    assert arena_of(chain) == 2 * BYTES


def test_a_map_takes_the_place_of_an_operand() -> None:
    def scaled(b: Any, x: Tensor) -> Tensor:
        rows = b.relu(x @ W)
        return b.mul(rows, b.reduce_mean(rows, np.array([0]), keepdims=1))  # type: ignore[no-any-return]

    assert BYTES < arena_of(scaled) < 2 * BYTES


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: _after(rows_of(b, x), lambda r: b.relu(r @ W + r)),  # the factor is read to the end
        lambda b, x: _after(rows_of(b, x), lambda r: [b.relu(x @ W + r), r]),  # needed later
        lambda b, x: b.gelu(x @ W + rows_of(b, x)),  # sums are stored before the epilogue reads
        lambda b, x: _after(rows_of(b, x), lambda r: b.relu(x @ W + r[::-1])),  # read in another order
        lambda b, x: _after(rows_of(b, x), lambda r: b.mul(r, r[:1])),  # every row reads the first
    ],
)  # fmt: skip
def test_where_it_would_be_read_later_it_stays(build: Callable[[Any, Tensor], Tensor | list[Tensor]]) -> None:
    assert arena_of(build) > BYTES


def _after(value: Tensor, build: Callable[[Tensor], Any]) -> Any:
    return build(value)


def test_a_product_with_a_long_sum_keeps_what_is_added() -> None:
    """Sums of parts of k are stored where the result lies before anything is added."""
    long = random.normal(size=(4096, COLUMNS)).astype(np.float32) / 64

    def build(b: Any, x: Tensor) -> Tensor:
        wide = b.tile(x, np.array([1, 4096 // COLUMNS]))
        return b.relu(wide @ long + rows_of(b, x))  # type: ignore[no-any-return]

    assert arena_of(build) > BYTES + 4 * ROWS * 4096
