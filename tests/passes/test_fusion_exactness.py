"""Fusions of every kind where something about the pattern is unusual: the model computes what it did, in any case.

Each inner value of each pattern is made an output, and read by something else, in turn; inputs are of one dim, of
unknown rank, and in double precision. Whether a fusion is still possible is for the tests of the passes; here nothing
may be lost or changed, and what is written must run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_fuse_attention import run_in_runtime

import tilewright
from tilewright import Builder, f32, f64
from tilewright.graph.core import BlockOutput
from tilewright.graph.rewriter import Rewriter
from tilewright.graph.types import tensor
from tilewright.importers.onnx import to_proto

SIZE = 8
NUMBERS = np.random.default_rng(11)
WEIGHTS = NUMBERS.uniform(-1, 1, (SIZE, SIZE))


def number(x: Any, value: float) -> np.ndarray:
    return np.array(value, x.dtype.numpy)


def weights(x: Any) -> np.ndarray:
    return WEIGHTS.astype(x.dtype.numpy)


def gelu(b: Any, x: Any) -> Any:
    return b.mul(b.mul(x, number(x, 0.5)), b.add(b.erf(b.div(x, number(x, np.sqrt(2)))), number(x, 1)))


def gelu_by_tanh(b: Any, x: Any) -> Any:
    cubic = b.add(x, b.mul(number(x, 0.044715), b.mul(x, b.mul(x, x))))
    inner = b.tanh(b.mul(cubic, number(x, np.sqrt(2 / np.pi))))
    return b.mul(number(x, 0.5), b.mul(x, b.add(inner, number(x, 1))))


def swish(b: Any, x: Any) -> Any:
    return b.mul(x, b.sigmoid(x))


def swiglu(b: Any, x: Any) -> Any:
    gate = b.add(x, number(x, 0.25))
    return b.mul(b.mul(gate, b.sigmoid(gate)), b.neg(x))


def hard_swish(b: Any, x: Any) -> Any:
    return b.div(b.mul(x, b.clip(b.add(x, number(x, 3)), number(x, 0), number(x, 6))), number(x, 6))


def mish(b: Any, x: Any) -> Any:
    return b.mul(x, b.tanh(b.softplus(x)))


def softmax(b: Any, x: Any) -> Any:
    powers = b.exp(b.sub(x, b.reduce_max(x, [-1], keepdims=1)))
    return b.div(powers, b.reduce_sum(powers, [-1], keepdims=1))


def layer_norm(b: Any, x: Any) -> Any:
    centered = b.sub(x, b.reduce_mean(x, [-1], keepdims=1))
    variance = b.reduce_mean(b.mul(centered, centered), [-1], keepdims=1)
    return b.add(b.mul(b.div(centered, b.sqrt(b.add(variance, number(x, 1e-5)))), weights(x)[0]), weights(x)[1])


def rms_norm(b: Any, x: Any) -> Any:
    square = b.reduce_mean(b.pow(x, number(x, 2)), [-1], keepdims=1)
    return b.mul(b.mul(x, b.reciprocal(b.sqrt(b.add(square, number(x, 1e-6))))), weights(x)[0])


def products(b: Any, x: Any) -> Any:
    inner = b.add(b.matmul(x, weights(x)), weights(x)[0])
    return b.mul(b.matmul(b.matmul(inner, weights(x)), weights(x)), number(x, 0.5))


def attention(b: Any, x: Any) -> Any:
    q, k, v = (b.matmul(x, weights(x) * scale) for scale in (np.float32(1), np.float32(0.5), np.float32(2)))
    scores = b.mul(b.matmul(q, b.transpose(k, perm=[0, 2, 1])), number(x, 0.25))
    return b.matmul(b.softmax(scores), v)


def rotary(b: Any, x: Any) -> Any:
    left, right = b.split(x, axis=-1, num_outputs=2, outputs=2)
    turned = b.concat(b.neg(right), left, axis=-1)
    return b.add(b.mul(x, np.cos(weights(x)[0])), b.mul(turned, np.sin(weights(x)[0])))


ANY_RANK: dict[str, Callable[[Any, Any], Any]] = {
    f.__name__: f
    for f in (gelu, gelu_by_tanh, swish, swiglu, hard_swish, mish, softmax, layer_norm, rms_norm, products, rotary)
}
PATTERNS = ANY_RANK | {"attention": attention}


def built(name: str, shape: tuple[Any, ...], dtype: Any = f32) -> Any:
    b = Builder(opset=18)
    b.output(PATTERNS[name](b, b.input("x", dtype[shape])), "y")
    return b.build()


def inner_values(name: str) -> list[int]:
    """Which operations of the pattern, by their place among those that are no constants, have a result inside it."""
    ops = [op for op in built(name, (2, 5, SIZE)).main.block if op.name != "const" and not op.is_terminator]
    return list(range(len(ops) - 1))


def with_more_outputs(name: str, place: int, use: str) -> Any:
    """The pattern with one inner value returned too, or read by something that is returned."""
    model = built(name, (2, 5, SIZE))
    block, rewriter = model.main.block, Rewriter(model.symbols, "test")
    op = [op for op in block if op.name != "const"][place]
    values = [v if use == "returned" else rewriter.before(block.terminator).abs(v) for v in op.results]
    block.outputs += [BlockOutput(f"inner{index}", value.type) for index, value in enumerate(values)]
    rewriter.set_operands(block.terminator, [*block.returned, *values])
    return model


def check(model: Any, feeds: dict[str, np.ndarray], rounding: float, runs_in_runtime: bool = True) -> None:
    expected = tilewright.compile(model, target="reference").run(feeds)
    tilewright.optimize(model)
    results = [tilewright.compile(model, target="reference").run(feeds)]
    if runs_in_runtime:
        results.append(run_in_runtime(to_proto(model), feeds))
    for found in results:
        assert found.keys() == expected.keys()
        for output, wanted in expected.items():
            assert found[output].shape == wanted.shape
            assert found[output].dtype == wanted.dtype
            np.testing.assert_allclose(found[output], wanted, rtol=0, atol=rounding * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("use", ["returned", "read"])
@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in PATTERNS for place in inner_values(name)], ids=lambda x: str(x)
)
def test_an_inner_value_is_needed_elsewhere(name: str, place: int, use: str) -> None:
    model = with_more_outputs(name, place, use)
    check(model, {"x": NUMBERS.uniform(-2, 2, (2, 5, SIZE)).astype(np.float32)}, 1e-5)


@pytest.mark.parametrize("name", ANY_RANK)
def test_one_dim(name: str) -> None:
    check(built(name, (SIZE,)), {"x": NUMBERS.uniform(-2, 2, SIZE).astype(np.float32)}, 1e-5)


@pytest.mark.parametrize("name", PATTERNS)
def test_open_dims(name: str) -> None:
    for shape in ((1, 1, SIZE), (2, 5, SIZE)):
        check(built(name, ("n", "s", SIZE)), {"x": NUMBERS.uniform(-2, 2, shape).astype(np.float32)}, 1e-5)


@pytest.mark.parametrize("name", PATTERNS)
def test_double_precision(name: str) -> None:
    # ONNX Runtime 1.32 has no Erf for doubles.
    check(built(name, (2, 5, SIZE), f64), {"x": NUMBERS.uniform(-2, 2, (2, 5, SIZE))}, 1e-12, name != "gelu")


@pytest.mark.parametrize("name", ANY_RANK)
def test_an_unknown_rank(name: str) -> None:
    model = built(name, (2, 5, SIZE))
    for value in [*model.main.inputs, *(r for op in model.walk() if op.name != "const" for r in op.results)]:
        if value.type.dtype is f32:
            value.type = tensor(f32, None)
    for output in model.main.block.outputs:
        output.type = tensor(f32, None)
    check(model, {"x": NUMBERS.uniform(-2, 2, (2, 5, SIZE)).astype(np.float32)}, 1e-5)
