"""Real networks at the default level: what comes out is smaller, valid, equal, and cannot be optimized further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from model_equality import first_difference

import tilewright
from tilewright.graph.printer import print_module
from tilewright.importers.onnx.node_counts import count_operators

pytest.importorskip("onnxruntime")

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
EXPORTS = Path(__file__).parent / "exports"

# The fewest nodes that onnxsim 0.8.1, onnxslim 0.1.98 or onnxscript 0.7.2 leave, at the model's own opset; nodes of
# subgraphs and function bodies count, Constant does not. `benchmarks/node_counts.py --peers` measures them again.
PEERS = {
    "ppocr-det": 297,
    "ppocr-rec": 383,
    "ppocr-cls": 179,
    "silero-vad": 116,
    "silero-vad-op15": 60,
    "yolov8n": 323,
    "bert_sdpa_mask.dyn.op18": 47,
    "preact_bn_conv1x1_relu_pool.op18": 4,
    "yolo_conv_bn_silu.op20": 7,
    "mha_block_mask": 19,
    "layernorm_decomp": 1,
    "loop_const_trip": 3,
    "bn_conv_nopad": 2,
    "pad_conv": 1,
    "transpose_pair": 3,
    "cse": 2,
}
WHEELS = ("ppocr-det", "ppocr-rec", "ppocr-cls", "silero-vad", "silero-vad-op15", "yolov8n")
LIGHT_NAMES = sorted(path.stem for path in LIGHT.glob("*.onnx"))
MODELS = [
    *(pytest.param(name, marks=pytest.mark.models) for name in WHEELS),
    *sorted(set(PEERS) - set(WHEELS)),
    *LIGHT_NAMES,
]


@pytest.fixture
def path_of(network: Callable[[str], Path]) -> Callable[[str], Path]:
    def find(name: str) -> Path:
        if name in WHEELS:
            return network(name)
        return (LIGHT if name in LIGHT_NAMES else EXPORTS) / f"{name}.onnx"

    return find


def count_of(model: onnx.ModelProto) -> int:
    return count_operators(model).total()


def optimized(path: Path, out: Path) -> onnx.ModelProto:
    tilewright.save(tilewright.optimize(path).module, out)
    return onnx.load(out)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def again_operators(path: Path, out: Path) -> Counter[str]:
    return operators(optimized(path, out))


def test_every_model_is_there() -> None:
    assert len(LIGHT_NAMES) == 9
    assert {path.stem for path in EXPORTS.glob("*.onnx")} == set(PEERS) - set(WHEELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_small_valid_and_final(name: str, path_of: Callable[[str], Path], tmp_path: Path) -> None:
    path, out, again = path_of(name), tmp_path / "out.onnx", tmp_path / "again.onnx"
    model = optimized(path, out)
    onnx.checker.check_model(model, full_check=True)
    assert out.stat().st_size <= path.stat().st_size
    assert count_of(model) <= PEERS.get(name, count_of(onnx.load(path)))
    assert not operators(model) - again_operators(out, again), "a second run finds more to do"
    assert again.stat().st_size <= out.stat().st_size


@pytest.mark.parametrize("name", MODELS)
def test_the_result_agrees_in_onnxruntime(name: str, path_of: Callable[[str], Path], tmp_path: Path) -> None:
    path, out = path_of(name), tmp_path / "out.onnx"
    optimized(path, out)
    report = tilewright.parity(path, out)
    assert report.passed, str(report)
    assert "onnxruntime" in str(report).lower().replace(" ", ""), "run by something else"


# The fewest nodes that onnxscript 0.7.2 (`optimize_for_ort`) or ONNX Runtime 1.32 (its optimizer of transformers)
# leave, see `benchmarks/node_counts.py --target onnxruntime`.
RUNTIME_PEERS = {
    "bert_sdpa_mask.dyn.op18": 16,
    "preact_bn_conv1x1_relu_pool.op18": 4,
    "yolo_conv_bn_silu.op20": 7,
    "mha_block_mask": 10,
}


@pytest.mark.parametrize("name", MODELS)
def test_for_onnxruntime(name: str, path_of: Callable[[str], Path], tmp_path: Path) -> None:
    path, out = path_of(name), tmp_path / "out.onnx"
    report = tilewright.optimize(path, target="onnxruntime")
    tilewright.save(report.module, out, target="onnxruntime")
    assert count_of(onnx.load(out)) <= RUNTIME_PEERS.get(name, count_of(optimized(path, tmp_path / "standard.onnx")))
    parity = tilewright.parity(path, out)
    assert parity.passed, str(parity)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_lost_without_passes(name: str, path_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Loaded and saved, also by way of text, a model says what it said."""
    path = path_of(name)
    original, module = onnx.load(path), tilewright.load(path)
    assert first_difference(original, tilewright.to_proto(module)) is None
    text = tilewright.parse(print_module(module), weights=module)
    assert first_difference(original, tilewright.to_proto(text)) is None
