"""ONNX's node tests at the level "kernel": lowered and fused, a model still verifies, prints and parses back, and the
numpy meaning of its kernels gives what the test expects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from node_cases import as_array
from test_node_tests import OPERATORS, RANDOM, cases_by_operator, compare

import tilewright
from tilewright.graph.equality import first_difference
from tilewright.graph.evaluator import Evaluator
from tilewright.graph.printer import print_module
from tilewright.graph.verifier import verify

PIPELINE = "inline-functions,expand-legacy,infer-shapes,lower-to-kernels,fuse-kernels,fuse-rows,dce"

# Halves are computed in f32 between the parts of an operator, more exactly than the cases were made.
WIDER = ("fp16", "bf16", "bfloat16")


def check(case: Any) -> None:
    module = tilewright.load(case.model)
    tilewright.PassManager.parse(PIPELINE).run(module)
    verify(module)
    parsed = tilewright.parse(print_module(module), weights=module)
    assert first_difference(parsed, module) is None
    for inputs, outputs in case.data_sets:
        arguments = [as_array(value) for value in inputs]
        defaults = [module.main.defaults[a].numpy() for a in module.main.inputs[len(arguments) :]]
        results = Evaluator(parsed.functions).run(parsed.main.block, [*arguments, *defaults])
        for result, expected in zip(results, outputs, strict=True):
            if any(word in case.name for word in WIDER) and isinstance(result, np.ndarray):
                np.testing.assert_allclose(
                    result.astype(np.float64), as_array(expected).astype(np.float64), rtol=2e-2, atol=2e-3
                )
            else:
                compare(case, result, expected)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_lowered(op_type: str) -> None:
    failures = {}
    for case in cases_by_operator()[op_type]:
        if case.name in RANDOM:
            continue
        try:
            check(case)
        except Exception as error:
            failures[case.name] = " ".join(str(error).split())[:300] or type(error).__name__
    assert not failures, "\n".join(f"{name}: {reason}" for name, reason in failures.items())
