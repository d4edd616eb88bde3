"""Regions of kernels: traced, interpreted in several ways, fused by tracing, told apart by their signature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dtypes import bool_, f16, f32, i32
from tilewright.graph.kernel.bodies import cost, interpret, is_identity, result_dtypes, signature, trace
from tilewright.graph.ops.scalar import NumpyScalars

x, y = np.linspace(-2, 2, 7, dtype=np.float32), np.linspace(1, 3, 7, dtype=np.float32)


def swish(s: Any, a: Any, b: Any) -> Any:
    return s.add(s.div(a, s.add(1, s.exp(s.neg(a)))), b)


def test_traced_and_interpreted() -> None:
    body = trace(swish, [f32, f32])
    [found] = interpret(body, NumpyScalars(), [x, y])
    assert found.dtype == np.float32
    assert np.allclose(found, x / (1 + np.exp(-x)) + y)


def test_tracing_an_interpretation_fuses() -> None:
    inner, outer = trace(swish, [f32, f32]), trace(lambda s, a: s.maximum(s.mul(a, 2), 0), [f32])
    both = trace(lambda s, a, b: interpret(outer, s, interpret(inner, s, [a, b])), [f32, f32])
    [found] = interpret(both, NumpyScalars(), [x, y])
    assert np.allclose(found, np.maximum(2 * (x / (1 + np.exp(-x)) + y), 0))
    assert cost(both) == cost(inner) + cost(outer)


def test_dtypes() -> None:
    body = trace(lambda s, a, b: s.select(s.less(a, 0), s.cast(b, i32), 7), [f16, f32])
    assert result_dtypes(body) == [i32]
    assert result_dtypes(trace(lambda s, a: s.is_nan(a), [f32])) == [bool_]
    [found] = interpret(body, NumpyScalars(), [x.astype(np.float16), y])
    assert found.dtype == np.int32
    assert np.array_equal(found, np.where(x < 0, y.astype(np.int32), 7))
    with pytest.raises(TypeInferenceError, match="one dtype"):
        trace(lambda s, a, b: s.add(a, b), [f32, i32])


def test_a_choice_between_two_numbers_keeps_its_dtype() -> None:
    body = trace(lambda s, a: s.select(s.less(a, 0), s.number(1.5, f32, a), 2.5), [f32])
    copied = trace(lambda s, a: interpret(body, s, [a]), [f32])
    for each in (body, copied):
        [found] = interpret(each, NumpyScalars(), [x])
        assert found.dtype == np.float32
        assert np.array_equal(found, np.where(x < 0, 1.5, 2.5).astype(np.float32))


def test_signatures() -> None:
    assert signature(trace(swish, [f32, f32])) == signature(trace(swish, [f32, f32]))
    different = [
        trace(swish, [f16, f16]), trace(lambda s, a, b: swish(s, b, a), [f32, f32]),
        trace(lambda s, a, b: s.add(a, 1.0), [f32, f32]), trace(lambda s, a, b: s.add(a, 2.0), [f32, f32]),
    ]  # fmt: skip
    assert len({signature(body) for body in [trace(swish, [f32, f32]), *different]}) == 5
    assert is_identity(trace(lambda s, a: a, [f32]))
    assert not is_identity(trace(lambda s, a: s.neg(a), [f32]))
