"""Runs one node of ONNX Runtime's own operators there and here, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.graph import types
from tilewright.graph.dims import evaluate, symbols_of
from tilewright.graph.dtypes import from_numpy
from tilewright.graph.infer import InferenceContext, infer_types, refine
from tilewright.graph.module import Module
from tilewright.graph.rewriter import Rewriter

onnxruntime = pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft"
OPSETS = (("", 21), (DOMAIN, 1))


def node_model(
    op_type: str,
    operands: Sequence[np.ndarray | None],
    attributes: dict[str, Any],
    outputs: Sequence[Any],
    *,
    constants: Sequence[int] = (),
    symbolic: bool = False,
    domain: str = DOMAIN,
) -> onnx.ModelProto:
    """A model of one node. `outputs` are the dtypes of its outputs, None for one that is left out.

    Operands in `constants` are initializers, others inputs; if `symbolic`, every dim of an input has its own name.
    """
    names = ["" if item is None else f"i{index}" for index, item in enumerate(operands)]
    produced = ["" if item is None else f"o{index}" for index, item in enumerate(outputs)]
    node = helper.make_node(op_type, names, produced, domain=domain, **attributes)
    inputs, initializers = [], []
    for index, item in enumerate(operands):
        if item is None:
            continue
        if index in constants:
            initializers.append(numpy_helper.from_array(item, names[index]))
            continue
        shape = [f"i{index}_{axis}" for axis in range(item.ndim)] if symbolic else item.shape
        inputs.append(helper.make_tensor_value_info(names[index], _code(item.dtype), shape))
    results = [
        helper.make_tensor_value_info(name, _code(np.dtype(dtype)), None)
        for name, dtype in zip(produced, outputs, strict=True)
        if name
    ]
    graph = helper.make_graph([node], "one", inputs, results, initializers)
    opsets = [helper.make_opsetid(*item) for item in OPSETS]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _code(dtype: np.dtype[Any]) -> int:
    return int(TensorProto.BFLOAT16) if dtype.name == "bfloat16" else int(helper.np_dtype_to_tensor_dtype(dtype))


def run_onnxruntime(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of ONNX Runtime, its optimizations disabled."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = {item.name for item in session.get_inputs()}
    return session.run(None, {name: value for name, value in feeds.items() if name in wanted})


def check(
    op_type: str,
    operands: Sequence[np.ndarray | None],
    attributes: dict[str, Any] | None = None,
    outputs: Sequence[Any] = (np.float32,),
    *,
    constants: Sequence[int] = (),
    tolerance: float = 2e-5,
    quanta: int = 0,
    domain: str = DOMAIN,
    valid: Any = None,
    expected: Sequence[np.ndarray] | None = None,
    expands: bool = True,
    data_dependent: bool = False,
) -> None:
    """Compare a node with ONNX Runtime, or with `expected`: values, dtypes, and the types that we infer.

    Integers may differ by `quanta`; `valid` is an index into the outputs outside of which they may be anything. If
    `expands`, the standard operators that it decomposes into are run by ONNX Runtime, too. Result shapes may stay open
    if they are `data_dependent`.
    """
    options: dict[str, Any] = {"constants": constants, "domain": domain}
    model = node_model(op_type, operands, attributes or {}, outputs, **options)
    encoded = model.SerializeToString()
    feeds = {f"i{index}": item for index, item in enumerate(operands) if item is not None and index not in constants}
    wanted = run_onnxruntime(encoded, feeds) if expected is None else list(expected)
    module = tilewright.load(encoded)
    found = list(tilewright.compile(module, target="reference").run(feeds).values())
    _compare(found, wanted, tolerance, quanta, valid)
    for type, array in zip(_inferred(module), wanted, strict=True):
        wanted_type = types.tensor(from_numpy(array.dtype), array.shape)
        assert type == wanted_type or (data_dependent and refine(type, wanted_type) == wanted_type)

    general = tilewright.load(node_model(op_type, operands, attributes or {}, outputs, symbolic=True, **options)
                              .SerializeToString())  # fmt: skip
    _fits(general, operands, wanted)
    if expands:
        expanded = expand(general)
        assert all(op.domain == "" for op in expanded.walk())
        _compare(run_onnxruntime(tilewright.to_bytes(expanded), feeds), wanted, tolerance, quanta, valid)


def expand(module: Module) -> Module:
    """The module with operators of other domains replaced by what they decompose into, where that is known."""
    for op in list(module.walk()):
        if op.domain:
            rewriter = Rewriter(module.symbols)
            values = op.definition.decompose(op, rewriter.before(op))
            if values is not None:
                rewriter.replace(op, list(values))
    return module


def _fits(module: Module, operands: Sequence[np.ndarray | None], wanted: Sequence[np.ndarray]) -> None:
    """That the types inferred for symbolic inputs are those of the results, for these sizes."""
    sizes: dict[Any, int] = {}
    arrays = {f"i{index}": item for index, item in enumerate(operands)}
    for argument in module.main.block.arguments:
        array = arrays[argument.name]
        assert array is not None
        assert isinstance(argument.type, types.TensorType)
        sizes.update(zip(argument.type.shape or (), array.shape, strict=True))
    for type, array in zip(_inferred(module), wanted, strict=True):
        assert isinstance(type, types.TensorType), type
        assert type.dtype is from_numpy(array.dtype)
        if type.shape is None:
            continue
        assert len(type.shape) == array.ndim
        for dim, size in zip(type.shape, array.shape, strict=True):
            if set(symbols_of(dim)) <= set(sizes):
                assert evaluate(dim, sizes) == size, (type, array.shape)


def _inferred(module: Module) -> list[types.Type]:
    """The types inferred for the results that the module returns, whatever the file declares."""
    returned = module.main.block.returned
    (op,) = {value.producer for value in returned}
    assert op is not None
    inferred = infer_types(op, InferenceContext(module.symbols))
    return [inferred[value.index] for value in returned]


def _compare(
    found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float, quanta: int, valid: Any
) -> None:
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if valid is not None:
            mine, theirs = mine[valid], theirs[valid]
        if mine.dtype.kind in "iu":
            assert np.abs(mine.astype(np.int64) - theirs.astype(np.int64)).max(initial=0) <= quanta
        else:
            np.testing.assert_allclose(
                mine.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance
            )
