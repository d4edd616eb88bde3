"""What the tests of gradients share: models around one operator, held against differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright import Builder, Module
from tilewright.graph import dtypes
from tilewright.graph.dims import symbol
from tilewright.passes.training.check import GradientReport, check_gradients


def normal(*shape: int, seed: int = 0, low: float | None = None) -> np.ndarray:
    """Normal numbers in float64; with `low`, numbers from there to `low + 1`, for operators with a border."""
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape) if low is None else rng.random(shape) + low


def model(function: Callable[..., Any], feeds: Mapping[str, np.ndarray], *, open_dims: bool = False) -> Module:
    """`function(builder, **inputs)` as a model with inputs like `feeds`; `open_dims`: of no known size."""
    b = Builder("case")
    inputs = {}
    for name, array in feeds.items():
        shape = [symbol(f"{name}_{axis}") if open_dims else size for axis, size in enumerate(array.shape)]
        inputs[name] = b.input(name, dtypes.from_numpy(array.dtype)[()].with_shape(shape))
    found = function(b, **inputs)
    for index, tensor in enumerate(found if isinstance(found, tuple | list) else (found,)):
        b.output(tensor, f"y{index}")
    return b.build()


def compare(function: Callable[..., Any], feeds: Mapping[str, np.ndarray], **options: Any) -> GradientReport:
    """Check the gradient of `function` with respect to all float inputs, with sizes known and not."""
    wrt = options.pop("wrt", [name for name, array in feeds.items() if array.dtype.kind == "f"])
    report = GradientReport(1e-6)
    for open_dims in options.pop("open_dims", (False, True)):
        found = check_gradients(model(function, feeds, open_dims=open_dims), feeds, wrt=wrt, **options)
        assert found.passed, f"open dims: {open_dims}\n{found}"
        assert not any(each.kink for each in found.checks), f"the point is at a kink\n{found}"
        report.checks += found.checks
    # A rule that gives zeros would pass where the function does not change.
    assert all(np.isfinite(each.analytic) for each in report.checks)
    assert {each.name for each in report.checks if each.analytic} == set(wrt)
    return report
