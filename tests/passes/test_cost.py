"""The cost model gives the figures of the textbooks exactly, and the ledger adds up."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Builder, PassManager, f16, f32
from tilewright.passes.context import PassContext
from tilewright.passes.cost import UNKNOWN_SIZE, Cost, fusion_groups, model_cost
from tilewright.passes.ledger import Ledger, ledger_of
from tilewright.passes.trace import Trace, read_trace

M, N = 6, 40


def built(build: Any) -> Any:
    b = Builder()
    build(b)
    return b.build()


def traced(model: Any, pipeline: str, folder: Path) -> Ledger:
    PassManager.parse(pipeline).run(model, PassContext(trace=Trace(folder)))
    return ledger_of(read_trace(folder))


def in_elements(cost: Cost, bytes_each: int = 4) -> tuple[int, int]:
    """What is read and what is written, in elements."""
    return cost.read // bytes_each, cost.written // bytes_each


@pytest.mark.parametrize(("dtype", "size"), [(f32, 4), (f16, 2)])
def test_sum_and_product_of_four_vectors(dtype: Any, size: int) -> None:
    def build(b: Any) -> None:
        a, c, d, e = (b.input(name, dtype[N]) for name in "acde")
        b.output(d + (a + c) * e, "y")

    cost = model_cost(built(build))
    assert cost.alone == Cost(kernels=3, flops=3 * N, elements=9 * N, read=6 * N * size, written=3 * N * size)
    assert cost.fused == Cost(kernels=1, flops=3 * N, elements=5 * N, read=4 * N * size, written=N * size)
    assert Fraction(cost.alone.flops, cost.alone.elements) == Fraction(1, 3)
    assert Fraction(cost.fused.flops, cost.fused.elements) == Fraction(3, 5)
    assert cost.fused.intensity == 0.6


def row_softmax(b: Any) -> None:
    x = b.input("x", f32[M, N])
    exponential = b.exp(x - b.reduce_max(x, np.array([1]), keepdims=1))
    b.output(exponential / b.reduce_sum(exponential, np.array([1]), keepdims=1), "y")


def test_row_softmax(tmp_path: Path) -> None:
    found = traced(built(row_softmax), "recompose-softmax,dce", tmp_path)
    assert in_elements(found.before.alone) == (5 * M * N + 2 * M, 3 * M * N + 2 * M)
    assert in_elements(found.after.alone) == (M * N, M * N)
    assert in_elements(found.after.fused) == (M * N, M * N)
    [row] = found.rows
    assert (row.name, row.operations) == ("recompose-softmax", -4)
    assert in_elements(row.cost.alone) == (-4 * M * N - 2 * M, -2 * M * N - 2 * M)
    assert found.operations == (5, 1)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (5, 1), (1, 7)])
def test_patches_multiply_what_is_read_of_the_input(rows: int, columns: int, tmp_path: Path) -> None:
    pads = (rows // 2, columns // 2) * 2
    image, weights = 2 * 3 * 8 * 9, 4 * 3 * rows * columns

    def build(b: Any) -> None:
        b.output(b.conv(b.input("x", f32[2, 3, 8, 9]), np.ones((4, 3, rows, columns), np.float32), pads=pads), "y")

    model = built(build)
    assert in_elements(model_cost(model).alone) == (image + weights, 2 * 4 * 8 * 9)
    found = traced(model, "conv-to-gemm{mode=im2col},fold,dce", tmp_path)
    assert found.rows[0].name == "conv-to-gemm"
    product = next(op for op in model.walk() if op.name == "matmul")
    patches = product.operands[0].type.elements
    assert patches == rows * columns * image
    assert found.after.alone.flops == found.before.alone.flops
    # What the product reads beside its weights: the image, as often as there are taps.
    alone = built(
        lambda b: b.output(b.matmul(b.input("p", product.operands[0].type), b.input("w", f32[weights // 4, 4])))
    )
    assert in_elements(model_cost(alone).alone)[0] - weights == rows * columns * image


def test_shapes_and_views_move_nothing() -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32[M, N])
        b.output(b.reshape(x, [N, M]), "y")
        b.output(b.squeeze(b.unsqueeze(x, [0]), [0]), "z")

    cost = model_cost(built(build))
    assert cost.alone == cost.fused == Cost()


def test_only_the_part_that_is_taken_is_read() -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32[M, N])
        b.output(b.slice(x, [0], [2], [1]), "y")
        b.output(b.gather(x, np.arange(100) % N, axis=1), "z")

    cost = model_cost(built(build)).alone
    # The Slice reads what it keeps; the Gather all of x, once, and its 100 indices of 8 bytes.
    assert cost.read == 4 * (2 * M + M * N) + 100 * 8
    assert cost.written == 4 * (2 * M + 100 * M)
    assert cost.flops == 0


def test_a_constant_of_one_element_is_part_of_the_kernel_and_weights_are_not() -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32[M, N])
        b.output(x * 2.0 + np.ones(N, np.float32), "y")

    assert in_elements(model_cost(built(build)).fused) == (M * N + N, M * N)


def test_an_operand_that_is_used_twice_is_read_once() -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32[N])
        b.output(x * x, "y")

    assert in_elements(model_cost(built(build)).alone) == (N, N)


def test_a_product_takes_what_follows_it_along() -> None:
    def build(b: Any) -> None:
        x, residual = b.input("x", f32[M, N]), b.input("r", f32[M, 8])
        b.output(b.relu(x @ np.ones((N, 8), np.float32) + np.ones(8, np.float32)) + residual, "y")

    cost = model_cost(built(build))
    assert cost.fused.kernels == 1
    assert in_elements(cost.fused) == (M * N + N * 8 + 8 + M * 8, M * 8)
    assert in_elements(cost.alone) == (M * N + N * 8 + 4 * M * 8 + 8, 4 * M * 8)


def test_a_value_that_is_needed_elsewhere_is_written() -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32[N])
        inner = b.exp(x)
        b.output(inner, "inner")
        b.output(b.tanh(inner), "y")

    assert in_elements(model_cost(built(build)).fused) == (2 * N, 2 * N)


def chain(b: Any) -> None:
    x, y = b.input("x", f32[M, N]), b.input("y", f32[N])
    once = b.sigmoid(x) * x + y
    twice = b.exp(once)
    product = b.relu(b.gemm(twice, np.ones((N, 8), np.float32), np.ones(8, np.float32)))
    b.output(b.tanh(b.softmax(product)) * 2.0, "z")


def test_groups_end_where_shapes_change_and_at_reductions() -> None:
    groups = fusion_groups(built(chain).main.block)
    assert [[op.name for op in group] for group in groups] == [
        ["sigmoid", "mul", "add", "exp"],
        ["gemm", "relu"],
        ["softmax"],
        ["tanh", "mul"],
    ]


def test_sizes_that_are_not_known() -> None:
    def build(b: Any) -> None:
        b.output(b.exp(b.input("x", f32["n", 8])), "y")

    model = built(build)
    assert model_cost(model).alone.flops == UNKNOWN_SIZE * 8
    assert model_cost(model, {"n": 100}).alone.flops == 800


def test_bodies_count_once() -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32[N])
        b.output(b.if_(b.reduce_max(x, [0], keepdims=0) > 0.0, lambda: b.exp(x), lambda: b.exp(b.neg(x))), "y")

    assert model_cost(built(build)).fused.flops == N + 1 + N + 2 * N


def test_rows_add_up(tmp_path: Path) -> None:
    def build(b: Any) -> None:
        x = b.input("x", f32["n", N])
        y = x @ np.ones((N, 8), np.float32) + np.ones(8, np.float32)
        b.output(b.relu(b.identity(y)) + b.relu(y), "y")

    found = traced(built(build), "O2", tmp_path)
    for view in ("alone", "fused"):
        before, after = getattr(found.before, view), getattr(found.after, view)
        total = sum((getattr(row.cost, view) for row in found.rows), Cost())
        assert before + total == after
    assert found.operations[0] + sum(row.operations for row in found.rows) == found.operations[1]
    assert found.after.alone.moved < found.before.alone.moved
    assert {row["pass"] for row in found.to_dict()["passes"]} >= {"remove-identity", "cse"}


def test_a_lower_level_has_no_cost(tmp_path: Path) -> None:
    model = built(lambda b: b.output(b.conv(b.input("x", f32[1, 2, 4, 4]), np.ones((2, 2, 3, 3), np.float32)), "y"))
    found = traced(model, "conv-to-gemm{mode=direct}", tmp_path)
    assert found.after == found.before


def test_what_a_file_claims_is_inferred_before_it_counts(tmp_path: Path) -> None:
    """A declared size that only has a name of its own would count as any unknown one."""

    def build(b: Any) -> None:
        x = b.input("x", f32["n", 3, "h", "w"])
        b.output(b.relu(b.conv(x, np.ones((4, 3, 2, 2), np.float32), strides=(2, 2))), "y")

    model = built(build)
    conv = next(op for op in model.walk() if op.name == "conv")
    fresh = [model.symbols.fresh() for _ in range(3)]
    conv.result.type = conv.result.type.with_shape([fresh[0], 4, *fresh[1:]])
    found = traced(model, "infer-shapes,remove-identity", tmp_path)
    assert found.before == found.after
    assert found.before.alone.flops == UNKNOWN_SIZE * 4 * (UNKNOWN_SIZE // 2) ** 2 * (2 * 3 * 4 + 1)
