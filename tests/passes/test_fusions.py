"""What is said of fusions: those made, and near misses with the check that failed first."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, f32
from tilewright.passes.driver import compile_rule
from tilewright.passes.fusions import least_operations
from tilewright.passes.recompose_gelu import GeluByErf
from tilewright.passes.recompose_layer_norm import NormalizeBias


def gelu(root: float = 1.4142135, half: float = 0.5, leak: bool = False) -> Module:
    """A Gelu written out, or what nearly is one."""
    b = Builder(opset=18)
    x = b.input("x", f32["n", 8])
    gate = b.add(b.erf(b.div(x, np.float32(root))), np.float32(1.0))
    b.output(b.mul(b.mul(x, gate), np.float32(half)), "y")
    if leak:
        b.output(gate, "gate")
    return b.build()


def test_a_fusion_is_listed_with_its_place() -> None:
    module = gelu()
    root = next(op for op in reversed(list(module.walk())) if op.name == "mul").location
    report = tilewright.optimize(module)
    assert [(f.pass_name, f.rule, f.location) for f in report.fusions] == [
        ("recompose-gelu", "recompose-gelu-erf", root)
    ]
    assert report.near_misses() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"half": 0.25}, "the factor is not 0.5"),
        ({"root": 1.5}, "the argument of erf is not that of a Gelu"),
        ({"leak": True}, "add is a result of the block"),
    ],
)
def test_a_near_miss_is_listed_with_the_check_that_failed(change: dict[str, float], reason: str) -> None:
    report = tilewright.optimize(gelu(**change))
    assert report.fusions == []
    (missed,) = [m for m in report.near_misses() if m.rule == "recompose-gelu-erf"]
    assert reason in missed.reason or "another user" in missed.reason


def test_what_was_just_made_is_no_near_miss() -> None:
    b = Builder(opset=18)
    x = b.input("x", f32["n", 4, 8])
    gate = b.add(b.erf(b.div(x, np.float32(2**0.5))), np.float32(1.0))
    total = b.add(b.mul(b.mul(x, gate), np.float32(0.5)), np.ones(8, np.float32))
    weight = np.ones(8, np.float32)
    b.output(b.layer_normalization(b.add(total, x), weight, weight), "y")
    report = tilewright.optimize(b.build(), target="onnxruntime")
    made = {fusion.rule for fusion in report.fusions}
    assert "skip-layer-normalization" in made
    assert not [missed for missed in report.near_misses() if getattr(missed.location, "rule", "") in made]


def test_another_form_is_no_near_miss() -> None:
    b = Builder(opset=18)
    x = b.input("x", f32["n", 8])
    b.output(b.mul(b.mul(x, b.tanh(x)), np.float32(0.5)), "y")
    assert tilewright.optimize(b.build()).near_misses() == []


def test_passes_that_do_not_fuse_are_not_listed() -> None:
    b = Builder(opset=18)
    b.output(b.identity(b.input("x", f32["n"])), "y")
    report = tilewright.optimize(b.build())
    assert report.pipeline.rules["remove-identity"] == 0 or report.changed
    assert report.fusions == []


def test_the_smallest_form_of_a_pattern_counts() -> None:
    assert least_operations(compile_rule(GeluByErf)) == 4  # two products, the sum, erf
    assert least_operations(compile_rule(NormalizeBias)) == 2
