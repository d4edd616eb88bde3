"""ONNX's node tests on the target cpu: what they give, and which of their operations still run on the host.

One test per operator. What may fail, which operators may be host steps and in how many cases, is listed here, so the
counts that the lists promise hold if every test passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from node_cases import as_array, node_cases
from test_node_tests import OPERATORS, RANDOM, cases_by_operator, compare

import tilewright
from tilewright.backends.target import compile_module

# Cases that fail, and why.
FAILING: dict[str, str] = {}

# How many cases of an operator may have host steps: strings, sequences and optionals, decoding, trees; what draws
# random numbers.
HOST: dict[str, int] = {
    "Dropout": 4, "Equal": 2, "If": 2, "ImageDecoder": 9, "LabelEncoder": 4, "Loop": 2, "OptionalGetElement": 4,
    "RegexFullMatch": 3, "SequenceInsert": 2, "SequenceMap": 6, "SplitToSequence": 3, "StringConcat": 5,
    "StringNormalizer": 6, "StringSplit": 6, "TreeEnsemble": 2,
}  # fmt: skip

# What a test expects of narrow floats was computed in them; kernels compute in f32 and round once. So agreement is that
# of parity: four units in the last place of the greatest number.
NARROW = {"float16": 0.004, "bfloat16": 0.03}


def close(case: Any, result: Any, expected: Any) -> None:
    """As the reference backend is compared, but for what was rounded on the way in narrow floats."""
    wanted = as_array(expected) if expected is not None and not isinstance(expected, list | tuple) else None
    if not isinstance(wanted, np.ndarray) or not isinstance(result, np.ndarray) or wanted.dtype.name not in NARROW:
        compare(case, result, expected)
        return
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
    found, expected = result.astype(np.float64), wanted.astype(np.float64)
    greatest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=NARROW[wanted.dtype.name] * greatest)


def host_steps(case: Any, threads: int) -> set[str]:
    """The operators that ran on the host, if the case gives what it should."""
    executable = compile_module(tilewright.load(case.model), target="cpu", threads=threads)
    for inputs, outputs in case.data_sets:
        results = executable(*map(as_array, inputs))
        for result, expected in zip(results if len(executable.outputs) > 1 else [results], outputs, strict=True):
            close(case, result, expected)
    return {step["operator"] for step in executable.report()["host_steps"]}


@pytest.mark.parametrize("op_type", OPERATORS)
def test_operator(op_type: str) -> None:
    failures, on_host = {}, {}
    for case in cases_by_operator()[op_type]:
        if case.name in RANDOM:
            continue
        try:
            steps = host_steps(case, threads=1)
        except Exception as error:
            failures[case.name] = " ".join(str(error).split())[:400] or type(error).__name__
            continue
        if steps:
            on_host[case.name] = sorted(steps)
    assert set(failures) <= set(FAILING), failures
    assert len(on_host) <= HOST.get(op_type, 0), on_host


def test_counts() -> None:
    assert len(node_cases()) - len(RANDOM) - len(FAILING) >= 1870
    assert len(node_cases()) - len(RANDOM) - len(FAILING) - sum(HOST.values()) >= 1500
