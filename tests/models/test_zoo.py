"""The networks of examples/zoo: published sizes, and the same results here and in ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.feeds import FeedPlan
from zoo.blocks import parameter_count
from zoo.build import NETWORKS, build, network

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "zoo" / "build.py"

# As the authors or the libraries that everybody loads them from count them.
PUBLISHED = {
    "resnet50": 25_557_032,
    "mobilenetv2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "vit_b16": 86_567_656,
    "convnext_t": 28_589_128,
    "bert_base": 109_482_240,
    "gpt2": 124_439_808,
}

# The same blocks, few and narrow.
TEXT = {"size": "length", "vocabulary": 100, "places": 40, "layers": 2, "width": 32, "heads": 4}
REDUCED: dict[str, dict[str, Any]] = {
    "resnet50": {"size": 32, "classes": 10, "depths": (1, 2), "width": 8},
    "mobilenetv2": {"size": 32, "classes": 10, "stages": ((1, 8, 1, 1), (6, 12, 2, 2)), "head": 32},
    "efficientnet_b0": {"size": 32, "classes": 10, "stages": ((1, 3, 8, 1, 1), (6, 5, 12, 2, 2)), "head": 32},
    "vit_b16": {"size": 32, "classes": 10, "layers": 2, "width": 32, "heads": 4},
    "convnext_t": {"size": 32, "classes": 10, "depths": (1, 2), "widths": (8, 16)},
    "bert_base": TEXT,
    "gpt2": TEXT,
}


def feeds_of(module: tilewright.Module, seed: int = 0, **dims: int) -> dict[str, np.ndarray]:
    plan = FeedPlan(module, dims)
    return plan.feeds(next(iter(plan.scenarios())), seed)


def in_onnxruntime(module: tilewright.Module, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(tilewright.to_bytes(module), providers=["CPUExecutionProvider"])
    return dict(zip(module.main.output_names, session.run(None, feeds), strict=True))


def assert_agreement(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert np.isfinite(array).all()
        assert array.std() > 1e-3, f"{name} says the same of everything"
        assert found[name].shape == array.shape
        assert np.abs(found[name] - array).max() <= 1e-4 * np.abs(array).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_published_number_of_parameters(name: str) -> None:
    layer = network(name)
    assert parameter_count(layer) == layer.parameters_published == PUBLISHED[name]
    assert all(parameter.value is None for _, parameter in layer.named()), "counting draws no weight"


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_onnxruntime(name: str) -> None:
    module = build(name, batch="batch", **REDUCED[name])
    dims = {"batch": 2, "length": 9} if name in ("bert_base", "gpt2") else {"batch": 2}
    feeds = feeds_of(module, **dims)
    found = tilewright.compile(module, target="reference").run(feeds)
    assert_agreement(found, in_onnxruntime(module, feeds))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv2", "efficientnet_b0"])
def test_whole_networks_run_in_kernels_only(name: str) -> None:
    module = build(name, size=64)
    feeds = feeds_of(module)
    executable = tilewright.compile(module, target="cpu", threads=2)
    assert_agreement(executable.run(feeds), in_onnxruntime(module, feeds))
    assert executable.report()["host_steps"] == []


def test_what_comes_in_matters() -> None:
    """Weights that let a signal die on its way would make every comparison pass."""
    module = build("mobilenetv2", size=32)
    first, second = (in_onnxruntime(module, feeds_of(module, seed))["logits"] for seed in (0, 1))
    assert np.abs(first - second).max() > 0.01 * np.abs(first).max()


def test_text_after_a_word_does_not_matter_to_gpt2() -> None:
    module = build("gpt2", **REDUCED["gpt2"] | {"size": 8})
    run = tilewright.compile(module, target="reference").run
    words = np.arange(8)[None]
    changed = np.where(np.arange(8) < 5, words, 50)
    first, second = run({"input_ids": words})["logits"], run({"input_ids": changed})["logits"]
    assert np.array_equal(first[:, :5], second[:, :5])
    assert not np.allclose(first[:, 5:], second[:, 5:])


def test_seeds() -> None:
    same, again, other = (build("mobilenetv2", seed=seed, **REDUCED["mobilenetv2"]) for seed in (1, 1, 2))
    assert tilewright.to_bytes(same) == tilewright.to_bytes(again) != tilewright.to_bytes(other)


def test_command(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(NETWORKS)
    path = tmp_path / "m.onnx"
    subprocess.run([*command, "mobilenetv2", "-o", str(path), "--batch", "n", "--size", "32"], check=True)
    assert str(tilewright.load(path).main.inputs[0].type) == "f32[n, 3, 32, 32]"
