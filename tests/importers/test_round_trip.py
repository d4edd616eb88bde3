"""What is loaded and saved without a pass in between says the same as before, through IR text as well."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_equality import first_difference
from node_cases import node_cases
from onnx import ModelProto, TensorProto, numpy_helper
from sample_models import SAMPLES

import tilewright
from tilewright.graph.diagnostics import DiagnosticLog
from tilewright.graph.printer import print_module

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def written(source: object, through_text: bool) -> ModelProto:
    module = tilewright.load(source, log=DiagnosticLog())
    if through_text:
        module = tilewright.parse(print_module(module), weights=module)
    return ModelProto.FromString(tilewright.to_bytes(module))


@pytest.mark.parametrize("through_text", [False, True], ids=["saved", "printed"])
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_survive(name: str, through_text: bool) -> None:
    proto = SAMPLES[name]()
    before = proto.SerializeToString(deterministic=True)
    assert first_difference(proto, written(proto, through_text)) is None
    assert proto.SerializeToString(deterministic=True) == before, "loading changed the message it was given"


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_survive_as_files(name: str, tmp_path: Path) -> None:
    """From a mapped file to a streamed one, and the same over the file itself."""
    proto = SAMPLES[name]()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    for target in (tmp_path / "again.onnx", path):
        tilewright.save(tilewright.load(path, log=DiagnosticLog()), target)
        assert first_difference(proto, onnx.load(target)) is None
    assert sorted(os.listdir(tmp_path)) == ["again.onnx", "model.onnx"]


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_networks_survive(path: Path) -> None:
    assert first_difference(onnx.load(path), written(path, through_text=False)) is None
    assert first_difference(onnx.load(path), written(path, through_text=True)) is None


@pytest.mark.parametrize("threshold", [0, 4096], ids=["everything", "large"])
def test_external_data_survives(threshold: int, tmp_path: Path) -> None:
    proto = SAMPLES["large_weights"]()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=threshold,
              convert_attribute=True)  # fmt: skip
    assert first_difference(SAMPLES["large_weights"](), written(path, through_text=False)) is None
    tilewright.save(tilewright.load(path), tmp_path / "out.onnx", external=True)
    (tmp_path / "model.data").unlink()
    bare = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert any(tensor.data_location == TensorProto.EXTERNAL for tensor in bare.graph.initializer)
    assert first_difference(SAMPLES["large_weights"](), onnx.load(tmp_path / "out.onnx")) is None


def test_weights_are_mapped_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(SAMPLES["large_weights"](), path)
    module = tilewright.load(path)
    constants = [op.attributes["value"] for op in module.walk() if op.name == "const"]
    assert {type(data).__name__ for data in constants if data.nbytes > 1024} == {"MappedData"}
    first = np.arange(2048, dtype=np.float32)
    assert any(np.array_equal(data.numpy(), first) for data in constants)


def test_equality_sees_differences() -> None:
    """The comparison that the other tests rely on is not blind."""
    left, changes = SAMPLES["every_fact"](), 0
    for field in ("doc_string", "domain", "model_version", "ir_version"):
        right = SAMPLES["every_fact"]()
        right.ClearField(field)
        assert first_difference(left, right) is not None
    for change in (
        lambda m: m.graph.node[0].ClearField("name"),
        lambda m: m.graph.node.pop(),
        lambda m: m.graph.node[0].metadata_props.pop(),
        lambda m: m.graph.value_info.pop(),
        lambda m: m.graph.input[0].type.ClearField("denotation"),
        lambda m: m.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w")),
        lambda m: m.graph.node[1].attribute.pop(),
        lambda m: m.opset_import.add(domain="x", version=1),
        lambda m: m.MergeFromString(bytes([0xF2, 0x3F, 1, 65])),
    ):
        right = SAMPLES["every_fact"]()
        change(right)
        assert first_difference(left, right) is not None
        changes += 1
    assert changes == 9
    assert first_difference(left, SAMPLES["every_fact"]()) is None


@pytest.mark.slow
@pytest.mark.parametrize("through_text", [False, True], ids=["saved", "printed"])
def test_every_node_test_survives(through_text: bool) -> None:
    """All models of onnx.backend.test.case.node; a list of failures, so that one does not hide the others."""
    failures = []
    for name, case in node_cases().items():
        again = written(case.model, through_text)
        difference = first_difference(case.model, again)
        # ONNX's checker fails to infer types in the function body of MeanVarianceNormalization.
        if difference is None and not through_text and name != "test_mvn":
            onnx.checker.check_model(again, full_check=True)
        if difference is not None:
            failures.append(f"{name}: {difference}")
    assert not failures
    assert len(node_cases()) >= 1884
