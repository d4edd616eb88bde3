"""docs/adding-an-op.md is executed: its operator is defined in a folder of its own, outside the package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.graph import opdef

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "adding-an-op.md"


@pytest.fixture
def code_blocks(tmp_path, monkeypatch):
    """The document's definition as a module `my_ops` in a separate folder, and the code that uses it."""
    definition, use = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_ops.py").write_text(definition, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield use
    sys.modules.pop("my_ops", None)
    if opdef.find("my.ops", "HardTanh") is not None:
        opdef.unregister("my.ops", "HardTanh")


def test_the_document_runs(code_blocks, capsys):
    import my_ops  # noqa: F401  (written by the fixture)

    names: dict = {"np": np, "tilewright": tilewright}
    exec(compile(code_blocks, str(DOCUMENT), "exec"), names)
    assert "my.ops.HardTanh %x {low=-0.5}" in capsys.readouterr().out


def test_a_file_with_the_operator_is_read_run_folded_and_written(code_blocks, tmp_path):
    import my_ops  # noqa: F401
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("HardTanh", ["x"], ["a"], domain="my.ops", low=-2.0),
            helper.make_node("HardTanh", ["c"], ["d"], domain="my.ops"),
            helper.make_node("Add", ["a", "d"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("c", TensorProto.FLOAT, [3], [-5.0, 0.5, 5.0])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)])
    model = tilewright.load(proto)
    feeds = {"x": np.array([[-3, 0, 3]], np.float32)}
    expected = [[-3.0, 0.5, 2.0]]
    np.testing.assert_array_equal(tilewright.compile(model, target="reference").run(feeds)["y"], expected)

    tilewright.optimize(model)
    assert [op.name for op in model.walk()].count("my.ops.HardTanh") == 1
    np.testing.assert_array_equal(tilewright.compile(model, target="reference").run(feeds)["y"], expected)
    tilewright.save(model, tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    assert [(node.op_type, node.domain) for node in written.graph.node] == [("HardTanh", "my.ops"), ("Add", "")]


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match="defined already"):
        tilewright.op("Relu")(type("Relu", (tilewright.OpDefinition,), {}))
