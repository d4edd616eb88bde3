"""Gradients in f32 against those of PyTorch's autograd, which record_torch_gradients.py wrote down.

Agreement means max|a - b| <= 1e-4 max|b| for each result and each gradient.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_cases import Case, all_cases, recorded

import tilewright
from tilewright import Builder, Module, f32
from tilewright.graph.gradients import rules
from tilewright.graph.opdef import lookup

TOLERANCE = 1e-4
CASES = all_cases()
# What PyTorch is not asked about: bits seen as another type, refusals, a name that is read as ScatterElements.
ELSEWHERE = {"BitCast", "DynamicQuantizeLinear", "Hardmax", "Scatter"}


@cache
def answers() -> dict[str, np.ndarray]:
    return recorded(Path(__file__).with_name("torch_gradients.npz"))


def built(case: Case, feeds: dict[str, np.ndarray]) -> Module:
    if isinstance(case.ours, str):
        return tilewright.parse(case.ours)
    b = Builder("case")
    found = case.ours(b, **{name: b.input(name, f32[array.shape]) for name, array in feeds.items()})
    for index, result in enumerate(found if isinstance(found, list | tuple) else [found]):
        b.output(result, f"y{index}")
    return b.build()


def computed(case: Case, target: str) -> list[np.ndarray]:
    """Results, then gradients of all operands."""
    feeds = case.feeds()
    module = built(case, feeds)
    outputs = list(module.main.output_names)
    graph = tilewright.vjp(module, outputs, list(feeds))
    shapes: list[Any] = [output.type.static_shape for output in module.main.block.outputs]
    if any(shape is None for shape in shapes):
        results = tilewright.compile(module, target="reference").run(feeds)
        shapes = [results[name].shape for name in outputs]
    given = {f"{name}_cotangent": weight for name, weight in zip(outputs, case.weights(shapes), strict=True)}
    return list(tilewright.compile(graph, target=target).run({**feeds, **given}).values())


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_autograd_agrees(name: str, target: str) -> None:
    found = computed(CASES[name], target)
    expected = answers()[name]
    assert sum(array.size for array in found) == expected.size
    start = 0
    for index, array in enumerate(found):
        part = expected[start : start + array.size].reshape(array.shape)
        start += array.size
        assert np.array_equal(np.isfinite(array), np.isfinite(part)), f"number {index}"
        distance, size = np.abs(array - part)[np.isfinite(part)], np.abs(part)[np.isfinite(part)]
        assert distance.max(initial=0) <= TOLERANCE * size.max(initial=0) + 1e-30, f"number {index}\n{array}\n{part}"


def test_every_operator_is_asked_about() -> None:
    rules.find_rule(lookup("", "Add"))  # loads all of them
    derived = {name for domain, name in (*rules._rules, *rules._parts) if not domain}
    asked = {op.definition.op_type for case in CASES.values() for op in built(case, case.feeds()).walk()}
    assert not derived - asked - ELSEWHERE


def test_what_is_written_down_is_what_is_asked() -> None:
    assert answers().keys() == CASES.keys()
