"""Models written at other opsets than they came in: runtimes load them and agree."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.numpy_helper
import pytest
from node_cases import node_cases
from runtimes import agree, array_of, run

import tilewright
from tilewright import Builder, f32, i64
from tilewright.graph.diagnostics import ExportError
from tilewright.graph.ops.legacy.base import OldForm
from tilewright.importers.onnx import to_proto

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def opset_of(model: onnx.ModelProto) -> int:
    return next((item.version for item in model.opset_import if item.domain == ""), 1)


# ---- operators that an older opset has only as several ---------------------------------------------------------------


def has_body(op_type: str) -> bool:
    schema = onnx.defs.get_schema(op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)


@cache
def composite_cases() -> dict[str, list[Any]]:
    """Node tests of one node that has a function body in the standard, by operator."""
    found: dict[str, list[Any]] = {}
    for name, case in node_cases().items():
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].domain == "" and has_body(nodes[0].op_type) and "bernoulli" not in name:
            found.setdefault(nodes[0].op_type, []).append(case)
    return found


COMPOSITE = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and has_body(s.name)})


def with_constants(model: onnx.ModelProto, feeds: dict[str, Any]) -> onnx.ModelProto:
    """The model with its small inputs, but the first, as initializers: an older form may want to know them."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for item in list(result.graph.input)[1:]:
        array = feeds.get(item.name)
        if isinstance(array, np.ndarray) and array.size <= 16 and array.dtype.kind in "iufb":
            result.graph.initializer.append(onnx.numpy_helper.from_array(array, item.name))
            result.graph.input.remove(item)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("op_type", COMPOSITE)
def test_composite_operators_at_older_opsets(op_type: str) -> None:
    cases = composite_cases().get(op_type, [])
    for case in cases[:: 1 + len(cases) // 10]:
        inputs, outputs = case.data_sets[0]
        names = [item.name for item in case.model.graph.input]
        given = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=False))
        feeds = {name: array_of(value) for name, value in given.items()}
        expected = [array_of(item) for item in (outputs.values() if isinstance(outputs, dict) else outputs)]
        if any(isinstance(item, np.ndarray) and item.dtype.name == "bfloat16" for item in expected):
            continue  # too coarse to compare
        module = tilewright.load(with_constants(case.model, feeds))
        for opset in (20, 17, 13, 9, 7):
            if opset >= opset_of(case.model):
                continue
            try:
                written = to_proto(module, opset=opset)
            except ExportError:
                continue  # refused by name; which ones is not the matter here
            onnx.checker.check_model(written, full_check=True)
            assert agree(run(written, feeds), expected), f"{case.name} at opset {opset}"


# ---- old networks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_inception_v1", "light_zfnet512"])
def test_old_networks_at_newer_opsets(name: str) -> None:
    """Of IR version 3 and opset 9, with weights among the inputs, Dropout masks and flattening Softmax."""
    path = LIGHT / f"{name}.onnx"
    model = onnx.load(path)
    weights = {item.name for item in model.graph.initializer}
    generator = np.random.default_rng(3)
    feeds = {
        item.name: generator.standard_normal([dim.dim_value for dim in item.type.tensor_type.shape.dim], np.float32)
        for item in model.graph.input
        if item.name not in weights
    }
    expected = run(model, feeds)
    module = tilewright.load(path)
    kept = {op.op_type for op in module.walk() if isinstance(op.definition, OldForm)}
    assert kept <= {"Dropout"}
    for opset in (9, 11, 13, 18, 21):
        written = to_proto(module, opset=opset)
        assert opset_of(written) == opset
        onnx.checker.check_model(written, full_check=True)
        assert agree(run(written, feeds), expected), f"opset {opset}"


def test_what_has_no_older_form_is_refused_by_name() -> None:
    module = tilewright.load(LIGHT / "light_squeezenet.onnx")
    with pytest.raises(ExportError, match="ConstantOfShape does not exist at opset 8"):
        to_proto(module, opset=8)


@pytest.mark.parametrize(("target", "fits"), [(["n", 2, 3], True), (["n", 6], True), ([2, "n", 3], False)])
def test_zero_that_is_the_copied_dim_needs_no_allowzero(target: list[int | str], fits: bool) -> None:
    """`n` may be 0: a zero in the shape then copies dim 0, which is n again, but not any other dim."""
    b = tilewright.Builder()
    x = b.input("x", tilewright.graph.dtypes.f32["n", 6])
    n = b.shape(x, start=0, end=1)
    parts = [n if item == "n" else b.const([item]) for item in target]
    b.output(b.reshape(x, b.concat(*parts, axis=0), allowzero=1), "y")
    module = b.build()
    if fits:
        assert "allowzero" not in str(to_proto(module, opset=13))
    else:
        with pytest.raises(ExportError, match="a zero in the shape"):
            to_proto(module, opset=13)


def test_pads_of_some_axes_that_are_computed() -> None:
    b = Builder(opset=18)
    x, pads = b.input("x", f32[2, "n", 4]), b.input("pads", i64[4])
    b.output(b.pad(x, pads, None, np.array([-1, 1])), "y")
    module = b.build()
    proto = to_proto(module, opset=17)
    assert [node.op_type for node in proto.graph.node] == ["Concat", "Gather", "Pad"]
    feeds = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "pads": np.array([1, 0, 2, 3])}
    assert tilewright.parity(module, proto, feeds=feeds).passed
