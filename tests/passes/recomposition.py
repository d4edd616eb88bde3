"""What the tests of recomposition share: a model from a function, and the checks on what becomes of it.

A written-out operator must become the expected operations, compute the same, and be written at every opset in no more
nodes than it had, as a file that ONNX Runtime runs to the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime

import tilewright
from tilewright import Builder, PassManager, f32
from tilewright.graph.clone import clone_module
from tilewright.importers.onnx import to_proto

RANDOM = np.random.default_rng(11)
TOLERANCE = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-13}


def values(*shape: int, low: float = -1.0, high: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(dtype)


def model_of(build: Callable[..., Any], *shapes: Sequence[int | str], dtype: Any = f32, opset: int = 17) -> Any:
    """A model with inputs x0, x1, ... of these shapes and the outputs y0, y1, ... that `build(b, *inputs)` returns."""
    b = Builder(opset=opset)
    inputs = [b.input(f"x{index}", dtype[tuple(shape)]) for index, shape in enumerate(shapes)]
    outputs = build(b, *inputs)
    for index, tensor in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        b.output(tensor, f"y{index}")
    return b.build()


def feeds_of(model: Any, low: float = -3.0, high: float = 3.0, **sizes: int) -> dict[str, np.ndarray]:
    """Random values for every input; a dim with a name is 3 or what `sizes` says."""
    feeds = {}
    for item in model.main.inputs:
        shape = [dim if isinstance(dim, int) else sizes.get(dim.label, 3) for dim in item.type.shape]
        feeds[item.name] = RANDOM.uniform(low, high, shape).astype(item.type.dtype.numpy)
    return feeds


def names(model: Any) -> list[str]:
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


def recomposed(model: Any, pipeline: str) -> Any:
    """A copy of `model` after the passes."""
    copy = clone_module(model)
    PassManager.parse(f"infer-shapes,{pipeline},dce", verify_each=True).run(copy)
    return copy


def becomes(model: Any, pipeline: str, expected: Sequence[str], opsets: Sequence[int] = (13, 17, 23)) -> Any:
    """Check that `model` becomes `expected`, keeps its results, and is written in no more nodes; returns the result."""
    after = recomposed(model, pipeline)
    assert names(after) == list(expected)
    feeds = feeds_of(model)
    agree(run(model, feeds), run(after, feeds))
    for opset in opsets:
        old, new = (to_proto(each, opset=opset) for each in (model, after))
        assert len(new.graph.node) <= len(old.graph.node), [node.op_type for node in new.graph.node]
        agree(run_in_onnxruntime(old, feeds), run_in_onnxruntime(new, feeds))
    return after


def stays(model: Any, pipeline: str, expected: Sequence[str] | None = None) -> None:
    """Check that the passes leave `model` alone (or make only `expected` of it), and keep its results."""
    after = recomposed(model, pipeline)
    assert names(after) == (names(model) if expected is None else list(expected))
    feeds = feeds_of(model)
    agree(run(model, feeds), run(after, feeds))


def run(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(tilewright.compile(model, target="reference").run(feeds).values())


def run_in_onnxruntime(proto: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, feeds)
    return results


def agree(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> None:
    """Equal shapes and dtypes, elements equal up to rounding."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = float(np.abs(a.astype(np.float64)).max(initial=1e-30))
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE.get(str(a.dtype), 0.0) * max(scale, 1.0))
