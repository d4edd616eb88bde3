"""Known elements: integer tensors that hold shapes, followed through the operators that exporters compute them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shape_graph import ShapeGraph, text

from tilewright.graph.core import Value
from tilewright.graph.data import ArrayData, UnresolvedData, as_data
from tilewright.graph.dims import symbol
from tilewright.graph.dtypes import bool_, f32, f64, i32, i64
from tilewright.graph.infer import InferenceContext, infer_types
from tilewright.graph.quotient import Quotient
from tilewright.graph.types import TensorType, Type

n, m, h, k = symbol("n"), symbol("m"), symbol("h"), symbol("k", minimum=1)
INT64, FLOAT, INT32 = 7, 1, 6


class Graph(ShapeGraph):
    def dims(self, *dims: Any) -> Value:
        """An i64 vector that holds these dims: the shape of an argument."""
        return self.shape(f32[dims])

    def dim(self, dim: Any) -> Value:
        return self.squeeze(self.dims(dim), self.ints(0))


# What is built, and its elements as nested lists of text (None: not known).
ELEMENTS: dict[str, tuple[Callable[[Graph], Value], Any]] = {
    "shape": (lambda g: g.dims(n, 4), ["n", "4"]),
    "size": (lambda g: g.size(f32[n, 4]), "4*n"),
    "gather": (lambda g: g.gather(g.dims(n, 4, m), g.ints(2, 0)), ["m", "n"]),
    "gather a scalar": (lambda g: g.gather(g.dims(n, 4), g.scalar(-2)), "n"),
    "gather out of range": (lambda g: g.gather(g.dims(n, 4), g.scalar(2)), "?0"),
    "slice": (lambda g: g.slice(g.dims(n, 4, m), g.ints(1), g.ints(2**63 - 1)), ["4", "m"]),
    "slice backwards": (
        lambda g: g.slice(g.dims(n, 4, m), g.ints(-1), g.ints(-(2**63)), g.ints(0), g.ints(-1)), ["m", "4", "n"]),
    "concat": (lambda g: g.concat(g.dims(n), g.ints(-1, 3), axis=0), ["n", "-1", "3"]),
    "split": (lambda g: g.split(g.dims(n, 4, m, h), outputs=2)[1], ["m", "h"]),
    "unsqueeze and squeeze": (lambda g: g.squeeze(g.unsqueeze(g.dims(n), g.ints(0)), g.ints(1)), ["n"]),
    "reshape": (lambda g: g.reshape(g.dims(n, 4, m, h), g.ints(2, -1)), [["n", "4"], ["m", "h"]]),
    "transpose": (lambda g: g.transpose(g.reshape(g.dims(n, m), g.ints(1, 2))), [["n"], ["m"]]),
    "cast": (lambda g: g.cast(g.cast(g.dims(n), to=INT32), to=INT64), ["n"]),
    "add": (lambda g: g.add(g.dim(n), g.scalar(2)), "n + 2"),
    "sub": (lambda g: g.sub(g.dims(n, 8), g.ints(1)), ["n - 1", "7"]),
    "mul": (lambda g: g.mul(g.dims(n), g.dims(m)), ["m*n"]),
    "div": (lambda g: g.div(g.dims(n, 9), g.ints(2)), ["floordiv(n, 2)", "4"]),
    "div truncates": (lambda g: g.div(g.ints(-9, 9), g.ints(2, -2)), ["-4", "-4"]),
    "div of what may be negative": (lambda g: g.div(g.sub(g.dims(n), g.ints(1)), g.ints(2)), ["?0"]),
    "mod": (lambda g: g.mod(g.dims(n, 7), g.ints(4)), ["mod(n, 4)", "3"]),
    "mod of negatives": (lambda g: g.mod(g.ints(-7), g.ints(4)), ["1"]),
    "fmod of negatives": (lambda g: g.mod(g.ints(-7), g.ints(4), fmod=1), ["-3"]),
    "min and max": (lambda g: g.min(g.max(g.dims(n), g.ints(0)), g.ints(2**31)), ["min(n, 2147483648)"]),
    "neg and abs": (lambda g: g.abs(g.neg(g.dims(n))), ["n"]),
    "where": (
        lambda g: g.where(g.equal(g.ints(-1, 5), g.ints(-1)), g.dims(n, m), g.ints(-1, 5)), ["n", "5"]),
    "equal": (lambda g: g.equal(g.dims(n, 3), g.ints(-1, 3)), ["False", "True"]),
    "equal that is open": (lambda g: g.equal(g.dims(n, 3), g.ints(1, 3)), None),
    "not less": (lambda g: g.not_(g.less(g.dims(n), g.ints(0))), ["True"]),
    "range": (lambda g: g.range(g.scalar(1), g.scalar(7), g.scalar(2)), ["1", "3", "5"]),
    "range from a dim": (lambda g: g.range(g.dim(n), g.add(g.dim(n), g.scalar(2)), g.scalar(1)), ["n", "n + 1"]),
    "constant of shape": (lambda g: g.constant_of_shape(g.ints(2), value=as_data([5])), ["5", "5"]),
    "expand": (lambda g: g.expand(g.dims(n), g.ints(2)), ["n", "n"]),
    "tile": (lambda g: g.tile(g.dims(n, 4), g.ints(2)), ["n", "4", "n", "4"]),
    "reduce prod": (lambda g: g.reduce_prod(g.dims(n, 4, m), keepdims=0), "4*m*n"),
    "reduce sum along an axis": (
        lambda g: g.reduce_sum(g.reshape(g.dims(n, 4, m, 2), g.ints(2, 2)), g.ints(1)), [["n + 4"], ["m + 2"]]),
    "reduce max": (lambda g: g.reduce_max(g.dims(n, n + 1)), ["n + 1"]),
    "identity": (lambda g: g.identity(g.dims(n)), ["n"]),
    "overflow is not known": (lambda g: g.cast(g.ints(2**40), to=INT32), ["?0"]),
    "beside something unknown": (lambda g: g.concat(g.argument(i64[1]), g.dims(n), axis=0), ["?0", "n"]),
    # sizes in floating point
    "half": (
        lambda g: g.cast(g.floor(g.mul(g.cast(g.dims(h), to=FLOAT), g.scalar(0.5))), to=INT64), ["floordiv(h, 2)"]),
    "twice": (lambda g: g.cast(g.mul(g.cast(g.dims(h), to=FLOAT), g.scalar(2.0)), to=INT64), ["2*h"]),
    "half rounded up": (
        lambda g: g.cast(g.ceil(g.div(g.cast(g.dims(h), to=FLOAT), g.scalar(2.0))), to=INT64), ["floordiv(h + 1, 2)"]),
    "a third is not exact": (
        lambda g: g.cast(g.floor(g.mul(g.cast(g.dims(h), to=FLOAT), g.scalar(1 / 3))), to=INT64), ["?0"]),
    "divided by three is not exact": (
        lambda g: g.cast(g.floor(g.div(g.cast(g.dims(h), to=FLOAT), g.scalar(3.0))), to=INT64), ["?0"]),
    "a product of dims is not exact": (
        lambda g: g.cast(g.mul(g.cast(g.dims(h), to=FLOAT), g.cast(g.dims(n), to=FLOAT)), to=INT64), ["?0"]),
    "sums of floats": (
        lambda g: g.cast(g.sub(g.add(g.cast(g.dims(h), to=FLOAT), g.scalar(1.5)), g.scalar(0.5)), to=INT64), ["h + 1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name: str) -> None:
    build, expected = ELEMENTS[name]
    graph = Graph()
    found = graph.elements(build(graph))
    if expected in ("?0", ["?0"], ["?0", "n"]):
        first = found if isinstance(found, str) else found[0]
        assert first.startswith("?"), "an unknown element has a symbol of its own"
        assert first.endswith("[-inf..]"), "of which no bounds are known"
        assert expected[1:] == (found[1:] if isinstance(found, list) else "0")
    else:
        assert found == expected


# Types at the end of chains as exporters write them.
CHAINS: dict[str, tuple[Callable[[Graph], Value], str]] = {
    "heads of attention": (
        lambda g: g.reshape(f32[n, m, 768], g.concat(g.dims(n, m), g.ints(12, 64), axis=0)), "f32[n, m, 12, 64]"),
    "flattened batch": (
        lambda g: g.reshape(f32[n, k, 64], g.concat(g.reduce_prod(g.dims(n, k)), g.ints(-1), axis=0)),
        "f32[k[1..]*n, 64]"),
    "flattened batch, but [2, 0, 64] to [0, -1] is [2, 0]": (
        lambda g: g.reshape(f32[n, m, 64], g.concat(g.reduce_prod(g.dims(n, m)), g.ints(-1), axis=0)),
        "f32[?[1..], ?]"),
    "unknown element beside known ones": (
        lambda g: g.reshape(f32[k, 64], g.concat(g.argument(i64[1]), g.dims(k), g.ints(8), axis=0)),
        "f32[8, k[1..], 8]"),
    "unknown element, but [0, 64] to [-1, 0, 8] is [0, 64, 8]": (
        lambda g: g.reshape(f32[n, 64], g.concat(g.argument(i64[1]), g.dims(n), g.ints(8), axis=0)),
        "f32[?, ?[1..], 8]"),
    "unknown element, but [5, 0] to [7, 0] is [7, 0]": (
        lambda g: g.reshape(f32[5, n], g.concat(g.argument(i64[1]), g.dims(n), axis=0)), "f32[?, n]"),
    "0 copies 0": (lambda g: g.reshape(f32[2 * n, 4], g.concat(g.dims(n), g.ints(2, 4), axis=0)), "f32[n, 2, 4]"),
    "0 copies 1": (lambda g: g.reshape(f32[1, n], g.concat(g.dims(n), g.ints(-1), axis=0)), "f32[?[1..], ?]"),
    "0 copies another dim": (lambda g: g.reshape(f32[2, 3], g.concat(g.dims(n), g.ints(3), axis=0)), "f32[?[1..], 3]"),
    "0 is the dim": (
        lambda g: g.reshape(f32[1, n], g.concat(g.dims(n), g.ints(1), axis=0), allowzero=1), "f32[n, 1]"),
    "0 has nothing to copy": (
        lambda g: g.reshape(f32[4 * n, 2], g.concat(g.ints(4, 2), g.dims(n), axis=0)), "f32[4, 2, n]"),
    "0 copies what does not fit": (
        lambda g: g.reshape(f32[n, 4], g.concat(g.ints(1), g.dims(n), g.ints(4), axis=0)), "f32[1, n, 4]"),
    "two unknown elements": (
        lambda g: g.reshape(f32[n, 64], g.concat(g.argument(i64[2]), g.ints(8), axis=0)), "f32[?, ?, 8]"),
    "expand as torch writes it": (
        lambda g: g.expand(f32[1, 1, m], g.where(
            g.equal(g.ints(-1, 4, -1), g.ints(-1)), g.ints(1, 1, 1),
            g.concat(g.ints(1), g.ints(4), g.dims(m), axis=0))),
        "f32[1, 4, m]"),
    "positions": (lambda g: g.unsqueeze(g.range(g.scalar(0), g.dim(n), g.scalar(1)), g.ints(0)), "i64[1, n]"),
    "positions after a cache": (
        lambda g: g.range(g.dim(m), g.add(g.dim(m), g.dim(n)), g.scalar(1)), "i64[n]"),
    "causal mask": (
        lambda g: g.slice(f32[1, 1, 64, 64], g.unsqueeze(g.scalar(0), g.ints(0)), g.dims(8), g.ints(2)),
        "f32[1, 1, 8, 64]"),
    "crop to another tensor": (
        lambda g: g.slice(f32[n, h + 4], g.ints(2), g.add(g.dims(h), g.ints(2)), g.ints(1)), "f32[n, h]"),
    "upsampling by shape and factor": (
        lambda g: g.resize(f32[n, 3, h, h], None, None, g.concat(
            g.dims(n, 3), g.cast(g.floor(g.mul(g.cast(g.dims(h, h), to=FLOAT), g.scalar(2.0))), to=INT64), axis=0)),
        "f32[n, 3, 2*h, 2*h]"),
    "upsampling by scales": (
        lambda g: g.resize(f32[n, 3, h, h], None, g.builder.const(np.array([1, 1, 2, 0.5], np.float32))),
        "f32[n, 3, 2*h, floordiv(h, 2)]"),
    "padding to even": (
        lambda g: g.pad(f32[n, h], g.concat(g.ints(0, 0, 0), g.mod(g.dims(h), g.ints(2)), axis=0)),
        "f32[n, h + mod(h, 2)]"),
    "split by a computed size": (
        lambda g: g.split(f32[n, 2 * m], g.concat(g.dims(m), g.dims(m), axis=0), axis=1, outputs=2)[1], "f32[n, m]"),
    "zeros like": (lambda g: g.constant_of_shape(g.shape(f32[n, 4])), "f32[n, 4]"),
    "tile by a dim": (lambda g: g.tile(f32[1, 4], g.concat(g.dims(n), g.ints(1), axis=0)), "f32[n, 4]"),
    "top k of a dim": (lambda g: g.topk(f32[n, 9], g.min(g.dims(5), g.ints(7)), outputs=2)[0], "f32[n, 5]"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_types_at_the_end_of_chains(name: str) -> None:
    import re

    build, expected = CHAINS[name]
    assert re.sub(r"\?\d+", "?", text(build(Graph()))) == expected


def test_a_long_chain_needs_no_recursion() -> None:
    graph = Graph()
    value = graph.dims(n)
    for _ in range(3000):
        value = graph.create("identity", value).result
    assert InferenceContext(graph.symbols).symbolic(value).tolist() == [n]


def test_data_is_not_followed() -> None:
    """Only short tensors are shapes; and what is computed from a network's activations is not waited for."""
    graph = Graph()
    context = InferenceContext(graph.symbols)
    table = graph.builder.const(ArrayData(np.arange(5000)))
    assert context.symbolic(table) is None
    best = graph.argmax(f32[n, 10], axis=-1, keepdims=0)
    assert context.symbolic(best) is None


@pytest.mark.parametrize(
    ("type", "known"),
    [(i64[3], True), (i64[()], True), (i32[1, 3], False), (i64[n], False), (f32[3], False), (bool_[3], False)],
)
def test_unknown_elements(type: Type, known: bool) -> None:
    """Each element of a short integer vector has a symbol; of anything else nothing is known."""
    graph = Graph()
    found = InferenceContext(graph.symbols).symbolic(graph.argument(type))
    assert (found is not None) == known
    assert found is None or len(set(found.flat)) == found.size


def test_constants() -> None:
    graph = Graph()
    context = InferenceContext(graph.symbols)
    computed = graph.cast(graph.mul(graph.dims(3, 5), graph.ints(2)), to=FLOAT)
    numbers = context.constant(computed)
    assert numbers is not None
    assert numbers.dtype == np.float32
    assert numbers.tolist() == [6, 10]
    assert context.constant(graph.dims(n)) is None
    missing = graph.builder.const(UnresolvedData(f64, (3,), "0" * 64))
    assert context.constant(missing) is None


@pytest.mark.parametrize("value", [0.0, 2.0, 0.5, -1.25, 255 / 256])
def test_exact_constants(value: float) -> None:
    found = Quotient.exactly(value)
    assert found is not None
    assert float(found) == value


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e9, float("inf"), float("nan"), 2.0**-9])
def test_inexact_constants(value: float) -> None:
    assert Quotient.exactly(value) is None


def test_quotients_agree_with_float32() -> None:
    """Whatever Quotient says about a scaled dim is what f32 arithmetic gives, for dims up to its limit."""
    rng = np.random.default_rng(0)
    dims = [*range(200), *rng.integers(0, 1 << 16, 300).tolist()]
    for factor in (0.5, 0.75, 2.0, 1.25, 0.00390625 * 201, 3.0):
        exact = Quotient.exactly(factor)
        assert exact is not None
        for dim in dims:
            product = Quotient(dim).times(exact)
            assert product is not None
            assert product.floor() == int(np.floor(np.float32(dim) * np.float32(factor)))
            assert product.ceil() == int(np.ceil(np.float32(dim) * np.float32(factor)))


def test_elements_of_contradicting_operands_are_unknown() -> None:
    """A declared type may be wrong; that shows where types are inferred, not where elements are asked for."""
    graph = Graph()
    matrix, vector = graph.reshape(graph.ints(1, 2, 3, 4), graph.ints(2, 2)), graph.ints(5)
    op = graph.builder.create("concat", [matrix, vector], {"axis": 0}, result_types=[i64[3]])
    found = InferenceContext(graph.symbols).symbolic(op.result)
    assert found is not None
    assert all(str(item).startswith("?") for item in found)


def test_dims_do_not_grow_out_of_hand() -> None:
    """A dim that becomes too long is named, the same wherever it is; dtype and rank are kept."""
    graph = Graph()
    context = InferenceContext(graph.symbols)
    value = graph.argument(f32[n, 3, h])
    dims = []
    for _ in range(60):
        operands = [value, graph.argument(f32[3, 3, 3])]
        twice = [graph.create("conv", *operands, strides=(2,)), graph.create("conv", *operands, strides=(2,))]
        types = [infer_types(op, context)[0] for op in twice]
        assert types[0] is types[1]
        assert isinstance(types[0], TensorType)
        assert types[0].shape is not None
        value = twice[0].result
        # Two states that are multiplied at each step, so that no simplification keeps the dim short.
        value.type = f32[n, 3, types[0].shape[2] * m + h]
        dims.append(types[0].shape[2])
    assert any(str(dim).startswith("?") for dim in dims)
    assert max(len(str(dim)) for dim in dims) < 3000
