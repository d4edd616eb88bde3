"""Folding stays within its limits: models never grow, nothing large is evaluated, what fails is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright
from tilewright import Builder, PassManager, f32, i64
from tilewright.graph.evaluation import evaluate_op
from tilewright.passes import fold
from tilewright.passes.context import PassContext
from tilewright.passes.sizes import written_bytes

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def folded(model, pipeline="fold", **options):
    context = PassContext(**options)
    PassManager.parse(pipeline, reproducers=False).run(model, context)
    return context


def names(model):
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


@pytest.mark.parametrize("network", sorted(path.stem for path in LIGHT.glob("light_*.onnx")))
def test_files_of_shapes_stay_small(network, tmp_path):
    """These networks make their weights with ConstantOfShape: 20 KB that would be up to 500 MB."""
    path = LIGHT / f"{network}.onnx"
    model = tilewright.load(path)
    tilewright.optimize(model)
    unchanged = tmp_path / "unchanged.onnx"
    optimized = tmp_path / "optimized.onnx"
    tilewright.save(tilewright.load(path), unchanged)
    tilewright.save(model, optimized)
    assert optimized.stat().st_size <= unchanged.stat().st_size


@pytest.mark.parametrize(("count", "kept"), [(256, []), (1 << 20, ["expand"])])
def test_a_result_may_grow_only_a_little(count, kept):
    b = Builder()
    x = b.input("x", f32[count])
    b.output(b.add(x, b.expand(np.ones(1, np.float32), [count])), "y")
    model = b.build()
    folded(model, original_bytes=1 << 30)
    assert names(model) == [*kept, "add"]


def test_a_result_grows_only_within_the_original_size():
    b = Builder()
    x = b.input("x", f32[2048])
    b.output(b.add(x, b.expand(np.ones(1, np.float32), [2048])), "y")
    model = b.build()
    folded(model, original_bytes=written_bytes(model))
    assert names(model) == ["expand", "add"]


def test_a_cone_is_weighed_as_a_whole():
    """Each part is larger than the constant it is cut from, which others still use; the whole replaces it."""
    weights = np.arange(40000, dtype=np.float32).reshape(200, 200)
    b = Builder()
    x = b.input("x", f32[200, 200])
    w = b.const(weights)
    parts = [b.slice(w, [start], [end], [0]) for start, end in ((100, 200), (0, 100))]
    b.output(b.matmul(x, b.concat(*parts, axis=0)), "y")
    model = b.build()
    folded(model)
    assert names(model) == ["matmul"]
    (constant,) = (op.attributes["value"].numpy() for op in model.walk() if op.name == "const")
    np.testing.assert_array_equal(constant, np.concatenate([weights[100:], weights[:100]]))


def test_arithmetic_is_estimated_before_it_is_done(monkeypatch):
    monkeypatch.setattr(fold, "evaluate_op", lambda op, operands: pytest.fail("something was evaluated"))
    b = Builder()
    x = b.input("x", f32[1])
    b.output(b.add(x, b.reduce_max(b.matmul(np.ones((8, 300), np.float32), np.ones((300, 8), np.float32)))), "y")
    model = b.build()
    folded(model, "fold{max-operations=1000}")
    assert names(model) == ["matmul", "reduce_max", "add"]


def test_what_is_in_between_must_not_be_huge(monkeypatch):
    """A small result by way of 2^40 elements."""
    monkeypatch.setattr(fold, "evaluate_op", lambda op, operands: pytest.fail("something was evaluated"))
    b = Builder()
    x = b.input("x", f32[1])
    b.output(b.add(x, b.reduce_max(b.constant_of_shape([1 << 20, 1 << 20]))), "y")
    model = b.build()
    folded(model)
    assert names(model) == ["constant_of_shape", "reduce_max", "add"]


def test_a_failure_is_reported_and_stays_in_the_model():
    b = Builder()
    b.output(b.gather(np.arange(3.0, dtype=np.float32), [7]), "y")
    model = b.build()
    context = folded(model)
    assert names(model) == ["gather"]
    assert [d.code for d in context.log.diagnostics] == ["fold/failed"]
    with pytest.raises(tilewright.TilewrightError, match="gather"):
        tilewright.compile(model, target="reference").run({})


def test_unloaded_weights_are_not_read():
    b = Builder()
    b.output(b.neg(np.zeros(4096, np.float32)), "y")
    text = str(b.build())
    model = tilewright.parse(text)
    folded(model)
    assert names(model) == ["neg"]


def test_several_results_of_one_operation():
    b = Builder()
    x = b.input("x", i64[2])
    _, indices = b.topk(np.array([1, 9, 4], np.float32), [2])
    b.output(b.add(x, indices), "y")
    model = b.build()
    folded(model)
    assert names(model) == ["add"]
    found = tilewright.compile(model, target="reference").run({"x": np.zeros(2, np.int64)})["y"]
    np.testing.assert_array_equal(found, [1, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.bool_, object])
def test_dtypes_survive(dtype):
    values = np.array(["a", "b", "c"], object) if dtype is object else np.array([0, 1, 3]).astype(dtype)
    b = Builder()
    b.output(b.concat(values, values[:1], axis=0), "y")
    model = b.build()
    folded(model)
    assert names(model) == []
    found = tilewright.compile(model, target="reference").run({})["y"]
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, np.concatenate([values, values[:1]]))


def test_the_size_estimate_is_near_the_file(tmp_path):
    model = tilewright.load(LIGHT / "light_resnet50.onnx")
    tilewright.save(model, tmp_path / "model.onnx")
    size = (tmp_path / "model.onnx").stat().st_size
    assert 0.7 * size < written_bytes(model) < 1.4 * size


def test_evaluation_is_what_the_reference_does():
    """Folding uses the same function that runs a single operation."""
    assert fold.evaluate_op is evaluate_op
