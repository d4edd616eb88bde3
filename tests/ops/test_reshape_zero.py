"""Reshape to a target whose elements are 0 at run time: 0 copies a dim, so that what was a dim need not be one.

ONNX Runtime (optimizations off) and onnx.reference say what happens. Where they run, the inferred type must hold, our
interpreter must agree, and so must the optimized model; where they fail, anything goes.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.graph.dims import bounds, evaluate, symbols_of
from tilewright.graph.types import TensorType

onnxruntime = pytest.importorskip("onnxruntime")

SIZES = (0, 1, 2)

# The dims of x, and the target: numbers, and products of named dims, which are read off x (or off y : [k]).
CASES = [
    ("1 n", "n -1"),
    ("1 n", "n 1"),
    ("2 n", "n 2"),
    ("2 3", "k 3"),
    ("2 3", "2 3 k"),
    ("n 3", "n -1"),
    ("n 3", "-1 n"),
    ("n 3", "3 n"),
    ("n 3", "3 -1"),
    ("n 3", "0 3"),
    ("n 3", "1 n 3"),
    ("n 3", "n 1 3"),
    ("n 3", "n 3 1 1"),
    ("n 3", "1 3 n"),
    ("n m", "m n"),
    ("n m", "n*m"),
    ("n m", "n*m 1"),
    ("n m", "1 n*m"),
    ("n m", "n 0 1"),
    ("n m", "0 -1 m"),
    ("n m 2", "n*m -1"),
    ("n m 2", "n*m 2"),
    ("n m 2", "n m -1"),
    ("n m 2", "n m 2 1"),
    ("n m 2", "n -1 2"),
    ("n m 2", "0 m -1"),
    ("n 2 m 3", "-1 m 3"),
    ("n 2 m 3", "n 2*m -1"),
    ("n 2 m 3", "2*n m 3"),
    ("m n 2", "1 m*n 2"),
    ("n m k", "n k m"),
    ("n m k", "n m*k"),
    ("n m k", "n*m k"),
    ("n m k", "k -1"),
]

# Two reshapes in turn: the second fails where the first made another shape than it seems to.
CHAINS = [
    ("n m 4", ("-1 4", "n m 4")),
    ("n m 4", ("-1 4", "n m 2 2")),
    ("n m 4", ("n*m 4", "n m -1")),
    ("n 2 m 4", ("-1 m 4", "n 2 4 m")),
    ("n 2 m 4", ("-1 m 4", "n 2 m 4")),
    ("n m 4", ("m n 4", "n m 4")),
    ("1 n", ("n -1", "1 n")),
]


def model_of(dims: str, targets: tuple[str, ...], allowzero: int = 0) -> onnx.ModelProto:
    """x reshaped to each target in turn; a further output is twice the shape of the last result."""
    x_dims = [int(item) if item.isdecimal() else item for item in dims.split()]
    nodes, constants = [helper.make_node("Shape", ["x"], ["dims_x"]), helper.make_node("Shape", ["y"], ["dims_y"])], []

    def number(name: str, value: int) -> str:
        if all(each.name != name for each in constants):
            constants.append(helper.make_tensor(name, TensorProto.INT64, [1], [value]))
        return name

    def part(item: str, name: str) -> str:
        if item.lstrip("-").isdecimal():
            return number(f"number_{item}", int(item))
        source, index = ("x", x_dims.index(item)) if item in x_dims else ("y", 0)
        nodes.append(helper.make_node("Gather", [f"dims_{source}", number(f"number_{index}", index)], [name]))
        return name

    value = "x"
    for step, target in enumerate(targets):
        parts = []
        for index, item in enumerate(target.split()):
            first, *others = item.split("*")
            made = part(first, f"part_{step}_{index}")
            for other in others:
                right = part(other, f"{made}_other")
                nodes.append(helper.make_node("Mul", [made, right], [f"{made}_product"]))
                made = f"{made}_product"
            parts.append(made)
        nodes.append(helper.make_node("Concat", parts, [f"target_{step}"], axis=0))
        last = f"z_{step}"
        nodes.append(helper.make_node("Reshape", [value, f"target_{step}"], [last], allowzero=allowzero))
        value = last
    nodes.append(helper.make_node("Relu", [value], ["z"]))
    nodes += [helper.make_node("Shape", [value], ["dims_z"]), helper.make_node("Add", ["dims_z", "dims_z"], ["twice"])]
    graph = helper.make_graph(
        nodes,
        "reshape",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, x_dims),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k" if "k" not in x_dims else "j"]),
        ],
        [
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [None] * len(targets[-1].split())),
            helper.make_tensor_value_info("twice", TensorProto.INT64, [len(targets[-1].split())]),
        ],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def feeds_of(dims: str) -> list[tuple[dict[str, int], dict[str, np.ndarray]]]:
    """All sizes of the named dims, with inputs of these sizes."""
    names = sorted({item for item in dims.split() if not item.isdecimal()} | {"k"})
    found = []
    for sizes in itertools.product(SIZES, repeat=len(names)):
        bound = dict(zip(names, sizes, strict=True))
        shape = [int(item) if item.isdecimal() else bound[item] for item in dims.split()]
        x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        found.append((bound, {"x": x, "y": np.zeros(bound["k"], np.float32)}))
    return found


def run(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    try:
        return list(session.run(None, feeds))
    except (errors.Fail, errors.RuntimeException, errors.InvalidArgument):
        return None


def assert_type_holds(type: object, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    assert isinstance(type, TensorType)
    assert type.shape is not None
    assert len(type.shape) == len(shape)
    for dim, actual in zip(type.shape, shape, strict=True):
        least = bounds(dim)[0]
        assert least is None or actual >= least, f"{type} at {sizes} is {shape}"
        if all(symbol.label in sizes for symbol in symbols_of(dim)):
            assert evaluate(dim, {s: sizes[s.label] for s in symbols_of(dim)}) == actual, f"{type} at {sizes}: {shape}"


SINGLE = [(dims, (target,)) for dims, target in CASES]


@pytest.mark.parametrize(
    ("dims", "targets", "allowzero"),
    [*((*case, 0) for case in (*SINGLE, *CHAINS)), *((*case, 1) for case in (*SINGLE[::4], *CHAINS[::2]))],
)
def test_what_runs_is_what_is_inferred(dims: str, targets: tuple[str, ...], allowzero: int, tmp_path: Path) -> None:
    model = model_of(dims, targets, allowzero)
    loaded, refined, optimized = (tilewright.load(model.SerializeToString()) for _ in range(3))
    tilewright.optimize(refined, passes="infer-shapes")
    tilewright.optimize(optimized)
    tilewright.save(optimized, tmp_path / "after.onnx")
    original, reference = session_of(model), ReferenceEvaluator(model)
    after, interpreter = session_of(onnx.load(tmp_path / "after.onnx")), tilewright.compile(loaded, target="reference")
    ran = 0
    for sizes, feeds in feeds_of(dims):
        expected = run(original, feeds)
        # onnx.reference knows no -1 beside a 0 with allowzero, as the standard says.
        if expected is None or (allowzero and "-1" in " ".join(targets) and 0 in expected[0].shape):
            continue
        ran += 1
        for module in (loaded, refined):
            relu = next(op for op in module.main.block if op.name == "relu")
            assert_type_holds(relu.result.type, sizes, expected[0].shape)
        for found in (reference.run(None, feeds), list(interpreter.run(feeds).values()), run(after, feeds)):
            assert found is not None, f"does not run at {sizes}"
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"at {sizes}")
                assert ours.shape == theirs.shape, f"at {sizes}"
    assert ran or allowzero, "a case that never runs shows nothing"
