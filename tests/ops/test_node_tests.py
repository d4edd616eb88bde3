"""ONNX's own node tests: every one is loaded, printed, parsed again and run by the reference backend; once as it is,
and once after optimizing.

One test per operator; a failure names the cases. The outputs must agree in value (the tolerance is the case's own),
shape and dtype, and nothing computed on the way may contradict the types that the module declares for it.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from node_cases import as_array, node_cases

import tilewright
from tilewright.backends.executable import ModelWarning
from tilewright.backends.target import compile_module
from tilewright.graph.printer import print_module

# Random by definition; `test_bernoulli_distribution` looks at them.
RANDOM = {f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")}

# Cases that are known to fail, and why.
ALLOWED: dict[str, str] = {}

# Operators that ONNX has no node test for.
UNTESTED = {
    "CastMap", "CategoryMapper", "ConcatFromSequence", "DictVectorizer", "FeatureVectorizer", "GlobalLpPool",
    "Gradient", "Imputer", "LinearClassifier", "LinearRegressor", "MaxRoiPool", "Multinomial", "Normalizer",
    "OneHotEncoder", "Optional", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "SVMClassifier", "SVMRegressor", "Scaler", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceLength", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap",
}  # fmt: skip
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()} - UNTESTED)


@cache
def cases_by_operator() -> dict[str, list[Any]]:
    """The cases of each operator; "..._expanded" is the function body of the operator that the plain case tests."""
    found = defaultdict(list)
    for name, case in node_cases().items():
        plain = node_cases()[name.split("_expanded")[0]]
        found[plain.model.graph.node[0].op_type].append(case)
    return dict(found)


@pytest.fixture(autouse=True)
def no_onnx_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may pass by handing the model to onnx.reference as a whole."""
    from onnx.reference import ReferenceEvaluator

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("onnx.reference.ReferenceEvaluator was used")

    monkeypatch.setattr(ReferenceEvaluator, "__init__", refuse)
    monkeypatch.setattr(ReferenceEvaluator, "run", refuse)


def run(case: Any, inputs: Sequence[Any], optimized: bool = False) -> list[Any]:
    module = tilewright.load(case.model)
    if optimized:
        tilewright.optimize(module, level=2)
    executable = compile_module(tilewright.parse(print_module(module), weights=module))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        results = executable(*map(as_array, inputs))
    return list(results) if len(executable.outputs) > 1 else [results]


def check(case: Any, optimized: bool) -> None:
    for inputs, outputs in case.data_sets:
        results = run(case, inputs, optimized)
        assert len(results) == len(outputs)
        for result, expected in zip(results, outputs, strict=True):
            compare(case, result, expected)


# Cases whose expected results hold the rounding errors of numpy's algorithm in place of zeros, where others have less.
NOISY = {"test_dft_inverse", "test_dft_inverse_opset19"}


def compare(case: Any, result: Any, expected: Any) -> None:
    if expected is None:
        assert result is None
        return
    if isinstance(expected, list | tuple):
        assert isinstance(result, list)
        assert len(result) == len(expected)
        for item, wanted in zip(result, expected, strict=True):
            compare(case, item, wanted)
        return
    wanted = as_array(expected)
    assert isinstance(result, np.ndarray)
    assert result.shape == wanted.shape
    if wanted.dtype.kind in "OUS":
        assert result.dtype == object
        assert result.tolist() == wanted.astype(object).tolist()
        return
    assert result.dtype == wanted.dtype
    if wanted.dtype.kind in "biu" or "int" in wanted.dtype.name:
        np.testing.assert_array_equal(result, wanted)
    else:
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        atol = max(case.atol, 1e-6 * np.abs(wanted).max()) if case.name in NOISY else case.atol
        np.testing.assert_allclose(result.astype(wide), wanted.astype(wide), rtol=case.rtol, atol=atol)


@pytest.mark.parametrize("optimized", [False, True], ids=["as-is", "optimized"])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_node(op_type: str, optimized: bool) -> None:
    failures = {}
    for case in cases_by_operator()[op_type]:
        if case.name in RANDOM:
            continue
        try:
            check(case, optimized)
        except Exception as error:
            failures[case.name] = " ".join(str(error).split())[:400] or type(error).__name__
    unexpected = {name: reason for name, reason in failures.items() if name not in ALLOWED}
    assert not unexpected, "\n".join(f"{name}: {reason}" for name, reason in unexpected.items())
    passing = {case.name for case in cases_by_operator()[op_type]} & set(ALLOWED) - set(failures)
    assert not passing, f"listed as failing, but pass: {passing}"


def test_every_case_is_run() -> None:
    assert set(cases_by_operator()) == set(OPERATORS)
    assert len(ALLOWED) + len(RANDOM) <= 14
    assert len(node_cases()) >= 1884


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_bernoulli_distribution(name: str) -> None:
    """The draws have the mean that the probabilities say; a seed gives the same draws again.

    ONNX's function body compares the other way round, so that an expanded case draws the opposite.
    """
    case = node_cases()[name]
    (probabilities,) = case.data_sets[0][0]
    (expected,) = case.data_sets[0][1]
    draws = np.stack([run(case, [probabilities])[0] for _ in range(60)])
    assert draws.shape[1:] == expected.shape
    assert draws.dtype == expected.dtype
    assert set(np.unique(draws)) <= {0, 1}
    if "seed" in name:
        assert (draws == draws[0]).all()
        return
    mean = 1 - probabilities.mean() if "expanded" in name else probabilities.mean()
    assert abs(draws.mean() - mean) < 0.1
    assert not (draws == draws[0]).all()
