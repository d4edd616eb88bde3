"""The cpu target: products and elementwise operations run natively, everything else as named host steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu.executable import CpuExecutable
from tilewright.graph.diagnostics import ExecutionError, UsageError
from tilewright.graph.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64
from tilewright.graph.model_builder import Builder
from tilewright.graph.module import Module

random = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier runs left on disk must not change what is counted."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def weights(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (random.normal(size=shape) / np.sqrt(shape[0])).astype(dtype)


def perceptron(rows: Any) -> Module:
    b = Builder("perceptron")
    x = b.input("x", f32[rows, 24])
    hidden = b.gelu(x @ weights(24, 50) + weights(50))
    y = hidden @ weights(50, 33)
    b.output(y * b.sigmoid(y) + 1.5, "y")
    return b.build()


def compare(model: Module, feeds: dict[str, np.ndarray], executable: CpuExecutable | None = None) -> CpuExecutable:
    """Run on the cpu target and by the interpreter."""
    compiled = executable or compile_cpu(model)
    got, wanted = compiled.run(feeds), tilewright.compile(model, target="reference").run(feeds)
    for name, expected in wanted.items():
        assert got[name].shape == expected.shape
        assert got[name].dtype == expected.dtype
        wide = np.float64 if expected.dtype.kind in "fV" else expected.dtype
        scale = max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0)))
        tolerance = 1e-5 if expected.dtype.itemsize > 2 else 2e-2
        np.testing.assert_allclose(got[name].astype(wide), expected.astype(wide), rtol=0, atol=tolerance * scale)
    return compiled


def compile_cpu(model: Module, threads: int | None = 1) -> CpuExecutable:
    executable = tilewright.compile(model, target="cpu", threads=threads)
    assert isinstance(executable, CpuExecutable)
    return executable


def test_a_perceptron_is_one_segment_of_two_kernels() -> None:
    executable = compare(perceptron(7), {"x": weights(7, 24)})
    report = executable.report()
    assert report["host_steps"] == []
    assert report["segments"] == 1
    assert sum(report["kernels"].values()) == 2
    assert report["compiled"] == 2


def test_a_new_number_of_rows_costs_a_plan_and_no_compilation() -> None:
    model = perceptron("n")
    executable = compile_cpu(model)
    # Planned ahead for one row and for two: a single row has code of its own.
    assert (executable.report()["compiled"], executable.report()["arena_bytes"]) == (4, 0)
    assert list(executable._shared.weights)
    for rows in (2, 3, 14, 15, 64, 1):
        compare(model, {"x": weights(rows, 24)}, executable)
    assert executable.report()["compiled"] == 4


def test_sizes_that_cannot_be_planned_ahead_are_left_to_runs() -> None:
    b = Builder("halves")
    x = b.input("x", f32["n", 3, "h", "w"])
    b.output(b.exp(b.reshape(x, np.array([0, 3, 5, -1]))), "y")  # h * w a multiple of 5, which 64 * 64 is not
    executable = compile_cpu(b.build())
    compare(b.build(), {"x": weights(2, 3, 10, 7)}, executable)
    with pytest.raises(ExecutionError, match="reshape"):
        executable.run({"x": weights(2, 3, 4, 4)})


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    b = Builder("wide")
    x = b.input("x", f32[100, 200])
    b.output(b.tanh(x @ weights(200, 300)) + x @ weights(200, 300), "y")
    model = b.build()
    feeds = {"x": np.linspace(-1, 1, 20_000, dtype=np.float32).reshape(100, 200)}
    one = compile_cpu(model, 1).run(feeds)["y"]
    assert np.array_equal(compile_cpu(model, threads).run(feeds)["y"], one)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 7), (7, 4)), ((7,), (7, 4)), ((5, 7), (7,)), ((7,), (7,)), ((2, 3, 5, 7), (7, 4)),
        ((2, 3, 5, 7), (3, 7, 4)),
        ((2, 1, 5, 7), (3, 7, 4)), ((1, 5, 7), (3, 7, 4)), ((2, 5, 7), (1, 7, 4)), ((5, 0), (0, 4)), ((0, 7), (7, 4)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("constant", [True, False])
def test_matmul_of_any_rank(left: tuple[int, ...], right: tuple[int, ...], constant: bool) -> None:
    b = Builder("product")
    x = b.input("x", f32[left])
    factor = random.normal(size=right).astype(np.float32)
    y = b.const(factor) if constant else b.input("y", f32[right])
    b.output(b.matmul(x, y), "z")
    feeds = {"x": random.normal(size=left).astype(np.float32)}
    executable = compare(b.build(), feeds if constant else {**feeds, "y": factor})
    assert executable.report()["host_steps"] == []


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (6,), (5, 1), (1, 6), (5, 6)])
def test_gemm(dtype: DType, trans_a: int, trans_b: int, bias: tuple[int, ...] | None) -> None:
    b = Builder("gemm")
    shapes = (8, 5) if trans_a else (5, 8), (6, 8) if trans_b else (8, 6)
    x, y = (random.normal(size=shape).astype(dtype.numpy) for shape in shapes)
    extra = [] if bias is None else [random.normal(size=bias).astype(dtype.numpy)]
    z = b.gemm(b.input("x", dtype[shapes[0]]), y, *extra, transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0)
    b.output(b.relu(z), "z")
    executable = compare(b.build(), {"x": x})
    assert sum(executable.report()["kernels"].values()) == 1


@pytest.mark.parametrize(
    "other", [(), (1,), (6,), (1, 6), (5, 1), (5, 6), (1, 1), (4, 5, 1), (4, 5, 6), (4, 1, 6), (4, 1, 1)]
)
def test_what_follows_a_product_reads_operands_of_any_form(other: tuple[int, ...]) -> None:
    b = Builder("product")
    x = b.input("x", f32[4, 5, 8])
    e = b.input("e", f32[other])
    b.output(b.sigmoid(x @ weights(8, 6) * e) - e, "z")
    compare(b.build(), {"x": weights(4, 5, 8), "e": random.normal(size=other).astype(np.float32)})


def test_batched_products_keep_their_epilogue() -> None:
    b = Builder("scores")
    q, k = b.input("q", f32["b", 3, "n", 8]), b.input("k", f32["b", 3, 8, "n"])
    mask = b.input("mask", f32[1, 1, 1, "n"])
    b.output(b.tanh((q @ k) * 0.125 + mask), "s")
    model = b.build()
    executable = compile_cpu(model)
    for batch, n in ((1, 5), (2, 20), (3, 1)):
        feeds = {"q": weights(batch, 3, n, 8), "k": weights(batch, 3, 8, n), "mask": weights(1, 1, 1, n)}
        compare(model, feeds, executable)
    assert executable.report()["host_steps"] == []


def test_an_operand_computed_for_a_product_is_not_drawn_into_it() -> None:
    b = Builder("square")
    x = b.input("x", f32[6, 6])
    y = b.relu(x)
    b.output(y @ b.exp(x) + y, "z")
    executable = compare(b.build(), {"x": weights(6, 6)})
    assert sum(executable.report()["kernels"].values()) == 3


def test_what_has_no_kernel_is_a_named_host_step() -> None:
    b = Builder("mixed")
    x = b.input("x", f32["n", 6])
    rows = b.split_to_sequence(b.relu(x @ weights(6, 6)))
    b.output(b.sequence_at(rows, np.array(2)) * 2 + x, "z")
    executable = compare(b.build(), {"x": weights(6, 6)})
    report = executable.report()
    assert [step["operator"] for step in report["host_steps"]] == ["split_to_sequence", "sequence_at"]
    assert "test_cpu_executable.py" in report["host_steps"][0]["location"]
    assert report["segments"] == 2


@pytest.mark.parametrize("dtype", [f16, bf16, i32, i64, f64], ids=str)
def test_element_types(dtype: DType) -> None:
    b = Builder("types")
    x, y = b.input("x", dtype[3, 5]), b.input("y", dtype[5])
    total = x * y + x
    b.output(total, "z")
    b.output(b.less(total, y), "less")
    b.output(b.cast(total, to=f32), "wide")
    x_value, y_value = (random.integers(-9, 9, shape).astype(dtype.numpy) for shape in ((3, 5), (5,)))
    executable = compare(b.build(), {"x": x_value, "y": y_value})
    assert executable.report()["host_steps"] == []


def test_bools() -> None:
    b = Builder("bools")
    x, y = b.input("x", bool_[40]), b.input("y", f32[40])
    b.output(b.where(b.and_(x, b.greater(y, 0.0)), y, -1.0), "z")
    b.output(b.not_(x), "not")
    compare(b.build(), {"x": random.integers(0, 2, 40).astype(bool), "y": weights(40)})


def test_outputs_belong_to_the_caller() -> None:
    b = Builder("copies")
    x = b.input("x", f32[4])
    y = x + 1.0
    b.output(y, "a")
    b.output(y, "b")
    b.output(x, "c")
    executable = compile_cpu(b.build())
    given = np.zeros(4, np.float32)
    first = executable.run({"x": given})
    for array in first.values():
        array += 7
    assert not given.any()
    assert list(executable.run({"x": given})["a"]) == [1] * 4
    assert set(executable.run({"x": given}, ["b"])) == {"b"}


def test_sizes_that_do_not_fit_are_an_error() -> None:
    b = Builder("sizes")
    b.output(b.input("x", f32["n"]) + b.input("y", f32["m"]), "z")
    executable = compile_cpu(b.build())
    assert executable.run({"x": np.ones(3, np.float32), "y": np.ones(1, np.float32)})["z"].shape == (3,)
    with pytest.raises(ExecutionError, match="cannot broadcast"):
        executable.run({"x": np.ones(3, np.float32), "y": np.ones(2, np.float32)})
    with pytest.raises(ExecutionError, match="must be f32"):
        executable.run({"x": np.ones(3), "y": np.ones(3, np.float32)})


def test_arrays_that_are_not_contiguous() -> None:
    model = perceptron(7)
    wide = weights(14, 48)
    compare(model, {"x": wide[::2, ::2]})
    compare(model, {"x": np.asfortranarray(wide[:7, :24])})


def test_many_threads_may_run_one_executable() -> None:
    model = perceptron("n")
    executable = compile_cpu(model, 2)
    reference = tilewright.compile(model, target="reference")
    feeds = [{"x": weights(rows, 24)} for rows in (1, 9, 30, 64)]
    wanted = [reference.run(feed)["y"] for feed in feeds]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(25):
            got = executable.run(feeds[index])["y"]
            if not np.allclose(got, wanted[index], atol=1e-5):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_thread_count_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    assert compile_cpu(perceptron(2), None).threads == 3
    monkeypatch.setenv("TILEWRIGHT_THREADS", "many")
    with pytest.raises(UsageError, match="number of threads"):
        compile_cpu(perceptron(2), None)


@pytest.mark.parametrize("width", ["128", "256", "512"])
def test_narrower_machines(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_VECTOR_BITS", width)
    executable = compare(perceptron(7), {"x": weights(7, 24)})
    assert executable.report()["vector_bits"] <= int(width)


def test_tuning_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "kernels"))
    b = Builder("tuned")
    b.output(b.input("x", f32[256, 256]) @ weights(256, 320), "y")
    module, feeds = b.build(), {"x": weights(256, 256)}
    plain, tuned = tilewright.compile(module, threads=1), tilewright.compile(module, threads=1, tune="fast")
    assert np.allclose(plain.run(feeds)["y"], tuned.run(feeds)["y"], atol=1e-4)
    [choice] = tuned.report()["candidates"]
    assert len(choice["candidates"]) >= 3
    assert choice["winner"] in [candidate["label"] for candidate in choice["candidates"]]
    with pytest.raises(UsageError, match="tune"):
        tilewright.compile(module, tune="wild")
