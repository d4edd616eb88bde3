"""Operators of classical machine learning, and pools of powers, on the target cpu: no host step for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import from_numpy
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(17)


def check(name: str, *operands: np.ndarray, **attributes: Any) -> None:
    """The cpu gives what the reference gives, with dims that are known and not."""
    for is_open in (False, True):
        b = Builder("classical")
        given = []
        for i, x in enumerate(operands):
            dims = tuple(f"d{i}_{axis}" for axis in range(x.ndim)) if is_open else x.shape
            given.append(b.input(f"x{i}", from_numpy(x.dtype)[dims]))
        b.output(b.create(name, *given, **attributes), "y")
        model, feeds = b.build(), {f"x{i}": x for i, x in enumerate(operands)}
        executable = tilewright.compile(model, target="cpu", threads=2)
        found, wanted = executable.run(feeds)["y"], tilewright.compile(model, target="reference").run(feeds)["y"]
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert executable.report()["host_steps"] == []


FLOATS = random.normal(size=(5, 4)).astype(np.float32)
INTEGERS = random.integers(-5, 6, (5, 4))
MISSING = np.where(random.random((5, 4)) < 0.4, np.nan, FLOATS).astype(np.float32)


@pytest.mark.parametrize("x", [FLOATS, INTEGERS, FLOATS.astype(np.float64)], ids=["f32", "i64", "f64"])
def test_scaled_and_normalized(x: np.ndarray) -> None:
    check("ai.onnx.ml.Scaler", x, offset=[0.5, 1.0, -2.0, 0.0], scale=[1.0, 2.0, 3.0, 4.0])
    check("ai.onnx.ml.Scaler", x, offset=[0.5], scale=[3.0])
    for norm in ("MAX", "L1", "L2"):
        check("ai.onnx.ml.Normalizer", np.concatenate([x, np.zeros_like(x)]), norm=norm)
        check("ai.onnx.ml.Normalizer", x[0], norm=norm)


def test_regression_and_missing_numbers() -> None:
    weights = random.normal(size=8).tolist()
    check("ai.onnx.ml.LinearRegressor", FLOATS, coefficients=weights, intercepts=[1.0, -1.0], targets=2)
    check("ai.onnx.ml.Imputer", MISSING, imputed_value_floats=[7.0, 8.0, 9.0, 1.0], replaced_value_float=float("nan"))
    check("ai.onnx.ml.Imputer", INTEGERS, imputed_value_int64s=[70], replaced_value_int64=0)


def test_features_side_by_side() -> None:
    check("ai.onnx.ml.FeatureVectorizer", FLOATS, FLOATS[:, :3], inputdimensions=[3, 6])
    check("ai.onnx.ml.FeatureVectorizer", INTEGERS, inputdimensions=[4])


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("shortest", "longest", "skips"), [(1, 1, 0), (2, 2, 3), (1, 3, 1), (3, 3, 0)])
def test_n_grams(mode: str, dtype: Any, shortest: int, longest: int, skips: int) -> None:
    """Pools of one, two and three integers; columns in any order, one of them without an n-gram; short rows."""
    pool = [2, 3, 5, 4, 5, 6, 2, 3, 3, 4, 4, 2, 2, 3, 4]
    weights = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    options = {
        "mode": mode, "min_gram_length": shortest, "max_gram_length": longest, "max_skip_count": skips,
        "ngram_counts": [0, 4, 12], "ngram_indexes": [9, 1, 2, 0, 4, 5, 7, 6, 3], "pool_int64s": pool,
    }  # fmt: skip
    rows = random.integers(2, 7, (3, 14)).astype(dtype)
    if mode != "TF":  # the reference needs weights
        options["weights"] = weights
    check("tfidf_vectorizer", rows, **options)
    check("tfidf_vectorizer", rows[0], **options)
    check("tfidf_vectorizer", rows[:, :2], **options)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("window", [
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [2, 3], "strides": [3, 2], "dilations": [2, 1]},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
])  # fmt: skip
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_pools_of_powers(p: int, window: dict[str, Any], ceil_mode: int) -> None:
    x = random.normal(size=(2, 3, 8, 9)).astype(np.float32)
    check("lp_pool", x, p=p, ceil_mode=ceil_mode, **window)
