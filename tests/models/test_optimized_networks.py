"""Real networks from released packages, and ONNX's light networks: optimized, proven equal, and held to the node counts
of released optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx.backend.test
import pytest
from model_equality import first_difference

import tilewright
from tilewright.graph.printer import print_module

pytestmark = pytest.mark.models

# The fewest nodes that onnxsim 0.8.1, onnxslim 0.1.98 and onnxscript 0.7.2's optimizer leave; nodes in subgraphs
# count, Constant does not.
SMALLEST_PEER = {
    "ppocr-det": 297,
    "ppocr-rec": 383,
    "ppocr-cls": 179,
    "silero-vad": 116,
    "silero-vad-op15": 60,
    "yolov8n": 323,
}
LIGHT = sorted((Path(onnx.backend.test.__file__).parent / "data" / "light").glob("*.onnx"))


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes but constants, those of nested graphs included."""
    for node in graph.node:
        if node.op_type != "Constant":
            yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def optimized(path: Path, out: Path) -> onnx.ModelProto:
    """Optimize the file at `path` into `out`; the written model, checked by ONNX in full."""
    module = tilewright.load(path)
    tilewright.optimize(module)
    tilewright.save(module, out)
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.mark.parametrize("name", SMALLEST_PEER)
def test_a_real_network_gets_smaller_and_computes_the_same(
    name: str, network: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    path, out = network(name), tmp_path / "out.onnx"
    proto = optimized(path, out)
    functions = sum(len(function.node) for function in proto.functions)
    assert sum(1 for _ in nodes(proto.graph)) + functions <= SMALLEST_PEER[name]
    assert out.stat().st_size <= path.stat().st_size
    report = tilewright.parity(path, out)
    assert report.passed, str(report)
    original = onnx.load(path)
    assert [i.name for i in proto.graph.input] == [i.name for i in original.graph.input]
    assert [o.name for o in proto.graph.output] == [o.name for o in original.graph.output]


@pytest.mark.parametrize("name", SMALLEST_PEER)
def test_a_real_network_is_written_as_it_was_read(name: str, network: Callable[[str], Path], tmp_path: Path) -> None:
    path = network(name)
    original = onnx.load(path)
    module = tilewright.load(path)
    tilewright.save(module, tmp_path / "same.onnx")
    assert first_difference(original, onnx.load(tmp_path / "same.onnx")) is None
    text = print_module(module)
    parsed = tilewright.parse(text, weights=module)
    assert print_module(parsed) == text
    tilewright.save(parsed, tmp_path / "parsed.onnx")
    assert first_difference(original, onnx.load(tmp_path / "parsed.onnx")) is None


@pytest.mark.parametrize("name", ["ppocr-cls", "silero-vad-op15"])
def test_optimizing_twice_changes_nothing_more(name: str, network: Callable[[str], Path]) -> None:
    module = tilewright.load(network(name))
    tilewright.optimize(module)
    count = sum(1 for _ in module.walk())
    tilewright.optimize(module)
    assert sum(1 for _ in module.walk()) == count


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_a_light_network_never_becomes_a_large_file(path: Path, tmp_path: Path) -> None:
    """These files are shapes of a classic network: 20 KB that compute hundreds of megabytes of weights."""
    out = tmp_path / "out.onnx"
    proto = optimized(path, out)
    assert out.stat().st_size <= path.stat().st_size
    assert sum(1 for _ in nodes(proto.graph)) <= sum(1 for _ in nodes(onnx.load(path).graph))
