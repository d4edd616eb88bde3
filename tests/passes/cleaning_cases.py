"""Small models on which optimizers have been known to fail, each with inputs and what ONNX says must come out.

Expected values are plain numpy or written out; none is taken from a runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilewright import Builder, bool_, f32, i32, i64, u8

LAST = np.iinfo(np.int64).max
FIRST = np.iinfo(np.int64).min


class Case(NamedTuple):
    """`build(b)` builds inputs and outputs; each of `runs` is (feeds, expected), several where sizes change."""

    build: Callable[[Any], None]
    runs: list[tuple[dict[str, np.ndarray], dict[str, Any]]]


CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


def model_of(one: Case, opset: int = 21) -> Any:
    b = Builder(opset=opset)
    one.build(b)
    return b.build()


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)


# ---- slices and shapes -----------------------------------------------------------------------------------------------


@case
def slices_of_slices_compose() -> Case:
    """Bounds from the end count in what the first slice leaves; steps multiply; axes differ."""
    x = floats(10, 8)

    def build(b: Any) -> None:
        v = b.input("x", f32[10, 8])
        b.output(b.slice(b.slice(v, [2], [9], [0]), [-3], [-1], [0]), "a")
        b.output(b.slice(b.slice(v, [0], [LAST], [0], [2]), [0], [LAST], [0], [3]), "b")
        b.output(b.slice(b.slice(v, [2], [9], [0]), [-3], [-1], [1]), "c")
        b.output(b.slice(b.slice(v, [-1], [FIRST], [0], [-2]), [-1], [FIRST], [0], [-1]), "d")

    expected = {"a": x[2:9][-3:-1], "b": x[::2][::3], "c": x[2:9][:, -3:-1], "d": x[::-2][::-1]}
    return Case(build, [({"x": x}, expected)])


@case
def parts_of_a_shape() -> Case:
    """`start` and `end` of Shape clamp like a slice, and may select nothing."""
    x = floats(2, 3, 4, 5)

    def build(b: Any) -> None:
        v = b.input("x", f32["a", "b", 4, "d"])
        b.output(b.shape(v, start=-3, end=-1), "a")
        b.output(b.shape(v, end=99), "b")
        b.output(b.shape(v, start=3, end=1), "c")
        b.output(b.slice(b.shape(v), [-1], [-5], [0], [-2]), "d")
        b.output(b.gather(b.shape(v), [-1, 0, -4]), "e")

    expected = {"a": [3, 4], "b": [2, 3, 4, 5], "c": [], "d": [5, 3], "e": [5, 2, 2]}
    return Case(build, [({"x": x}, {name: np.array(value, np.int64) for name, value in expected.items()})])


@case
def computed_reshape_targets_follow_the_input() -> Case:
    """A target computed from Shape must not freeze at the first batch."""

    def build(b: Any) -> None:
        v = b.input("x", f32["n", 6, 4])
        n = b.gather(b.shape(v), [0])
        heads = b.transpose(b.reshape(v, b.concat(n, [2], [-1], [4], axis=0)), perm=(0, 2, 1, 3))
        b.output(b.reshape(heads, b.concat(b.mul(n, [3]), [-1], axis=0)), "y")

    def run(n: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        x = floats(n, 6, 4, seed=n)
        return {"x": x}, {"y": x.reshape(n, 2, 3, 4).transpose(0, 2, 1, 3).reshape(n * 3, 8)}

    return Case(build, [run(2), run(5), run(1)])


@case
def zeros_in_reshape_targets() -> Case:
    """0 copies a dim of the tensor that is reshaped, not of the one before it; with allowzero it is an empty dim."""
    x, z = floats(3, 4, 2, 2), floats(2, 0, 3)

    def build(b: Any) -> None:
        v, w = b.input("x", f32[3, 4, 2, 2]), b.input("z", f32[2, 0, 3])
        b.output(b.reshape(b.reshape(v, [3, 2, 2, 2, 2]), [0, 0, -1]), "a")
        b.output(b.reshape(b.reshape(w, [0, 0, 3]), [3, 0, 7], allowzero=1), "b")

    return Case(build, [({"x": x, "z": z}, {"a": x.reshape(3, 2, 8), "b": z.reshape(3, 0, 7)})])


@case
def squeezes_in_a_row() -> Case:
    """Axes of the second count in what the first leaves, from either end."""
    x, z = floats(1, 3, 1, 1, 2), floats(3, 4)

    def build(b: Any) -> None:
        v, w = b.input("x", f32[1, 3, 1, 1, 2]), b.input("z", f32[3, 4])
        b.output(b.squeeze(b.squeeze(v, [0]), [1]), "a")
        b.output(b.squeeze(b.squeeze(v, [-3]), [-2]), "b")
        b.output(b.unsqueeze(b.unsqueeze(w, [0, 2]), [1]), "c")

    expected = {"a": x.reshape(3, 1, 2), "b": x.reshape(1, 3, 2), "c": z.reshape(1, 1, 3, 1, 4)}
    return Case(build, [({"x": x, "z": z}, expected)])


@case
def transposes_compose_in_order() -> Case:
    x = floats(2, 3, 4)

    def build(b: Any) -> None:
        v = b.input("x", f32[2, 3, 4])
        b.output(b.transpose(b.transpose(v, perm=(1, 0, 2)), perm=(0, 2, 1)), "a")
        b.output(b.transpose(b.transpose(v, perm=(1, 2, 0)), perm=(1, 2, 0)), "b")

    expected = {"a": x.transpose(1, 0, 2).transpose(0, 2, 1), "b": x.transpose(1, 2, 0).transpose(1, 2, 0)}
    return Case(build, [({"x": x}, expected)])


@case
def empty_parts_and_one_part() -> Case:
    """Concat with an empty tensor, Split into one, Pad by nothing, Flatten at every axis."""
    x, e = floats(3, 4), np.zeros((0, 4), np.float32)

    def build(b: Any) -> None:
        v, w = b.input("x", f32[3, 4]), b.input("e", f32["k", 4])
        b.output(b.concat(w, v, axis=0), "a")
        b.output(b.split(v, outputs=1, num_outputs=1), "b")
        b.output(b.pad(v, [0, 0, 0, 0]), "c")
        for axis in (-2, 0, 1, 2):
            b.output(b.flatten(v, axis=axis), f"flat{axis}")

    flat = {f"flat{axis}": x.reshape(rows, -1) for axis, rows in ((-2, 1), (0, 1), (1, 3), (2, 12))}
    return Case(build, [({"x": x, "e": e}, {"a": x, "b": x, "c": x, **flat})])


@case
def rank_zero_is_not_rank_one() -> Case:
    """Folding must keep the difference between a scalar and a vector of one element."""
    x = floats(1)

    def build(b: Any) -> None:
        v = b.input("x", f32[1])
        b.output(b.mul(b.sqrt(np.float32(4)), np.float32(2)), "a")
        b.output(b.add(b.squeeze(v), b.neg(np.float32(1))), "b")
        b.output(b.reshape(b.add(np.float32(1), np.float32(2)), [1]), "c")

    expected = {"a": np.float32(4), "b": x[0] - np.float32(1), "c": np.array([3], np.float32)}
    return Case(build, [({"x": x}, expected)])


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@case
def neutral_operands_that_widen() -> Case:
    """x + 0 and x * 1 are x only if the constant does not make the result larger."""
    x = floats(4)
    zero, one = np.zeros((3, 1), np.float32), np.ones((2, 1, 1), np.float32)

    def build(b: Any) -> None:
        v = b.input("x", f32[4])
        for name, value in (("a", v + zero), ("b", one * v), ("c", v - zero), ("d", v / one)):
            b.output(value, name)

    return Case(build, [({"x": x}, {"a": x + zero, "b": x * one, "c": x - zero, "d": x / one})])


@case
def signs_of_zero_and_nan_stay() -> Case:
    """-0.0 + 0.0 is 0.0; infinities and NaN times 0, and minus themselves, are NaN."""
    x = np.array([-0.0, 0.0, np.inf, np.nan, 2.0], np.float32)

    def build(b: Any) -> None:
        v = b.input("x", f32[5])
        b.output(b.div(np.float32(1), v + np.float32(0)), "a")
        b.output(v * np.float32(0), "b")
        b.output(v - v, "c")
        b.output(b.div(np.float32(1), b.sub(v, np.float32(0))), "d")

    with np.errstate(all="ignore"):
        one = np.float32(1)
        expected = {"a": one / (x + np.float32(0)), "b": x * np.float32(0), "c": x - x, "d": one / x}
    return Case(build, [({"x": x}, expected)])


@case
def clips_and_their_bounds() -> Case:
    """A missing bound is none; where the bounds cross, the upper one wins."""
    x = np.array([-3, -0.5, 0.5, 2, 6], np.float32)

    def build(b: Any) -> None:
        v = b.input("x", f32[5])
        b.output(b.clip(b.clip(v, np.float32(3), np.float32(1)), np.float32(-5), np.float32(2)), "a")
        b.output(b.clip(b.clip(v, None, np.float32(1)), np.float32(0)), "b")
        b.output(b.clip(b.relu(v), np.float32(-5), np.float32(-2)), "c")
        b.output(b.clip(v), "d")

    expected = {"a": np.full(5, 1), "b": np.clip(x, 0, 1), "c": np.full(5, -2), "d": x}
    return Case(build, [({"x": x}, {name: np.asarray(value, np.float32) for name, value in expected.items()})])


@case
def casts_that_are_not_transparent() -> Case:
    """0.2 is true, but its integer part is not; a wider type on the way changes nothing."""
    x = np.array([-1.5, -0.2, 0.0, 0.2, 3.7], np.float32)

    def build(b: Any) -> None:
        v = b.input("x", f32[5])
        b.output(b.cast(b.cast(v, to=i32), to=bool_), "a")
        b.output(b.cast(b.cast(v, to=bool_), to=f32), "b")
        b.output(b.cast(b.cast(b.cast(v, to=i32), to=i64), to=i32), "c")

    whole = x.astype(np.int32)
    return Case(build, [({"x": x}, {"a": whole.astype(bool), "b": (x != 0).astype(np.float32), "c": whole})])


# ---- folding ---------------------------------------------------------------------------------------------------------


@case
def integers_beyond_doubles() -> Case:
    """64-bit integers do not pass through floating point."""
    big = np.array([2**53 + 1, -(2**53) - 1, 2**62 + 3], np.int64)

    def build(b: Any) -> None:
        v = b.input("x", i64[()])
        one = np.array([1, 1, 1], np.int64)
        for name, value in (("a", b.div(big, one)), ("b", b.mul(big, one)), ("c", b.add(big, np.int64(0)))):
            b.output(value + v, name)

    return Case(build, [({"x": np.int64(0)}, {"a": big, "b": big, "c": big})])


@case
def integer_division_and_remainders() -> Case:
    """Div truncates toward zero; Mod has the sign of the divisor, with fmod that of the dividend: folded or not."""
    n, d = np.array([8, -8, 7, -7], np.int64), np.array([-3, 3, -2, 2], np.int64)

    def build(b: Any) -> None:
        u, v = b.input("n", i64[4]), b.input("d", i64[4])
        for prefix, (p, q) in (("run", (u, v)), ("folded", (n, d)), ("mixed", (u, d))):
            b.output(b.div(p, q), f"{prefix} div")
            b.output(b.mod(p, q), f"{prefix} mod")
            b.output(b.mod(p, q, fmod=1), f"{prefix} fmod")

    expected = {"div": np.array([-2, -2, -3, -3]), "mod": np.mod(n, d), "fmod": np.fmod(n, d)}
    return Case(
        build,
        [({"n": n, "d": d}, {f"{p} {k}": v for p in ("run", "folded", "mixed") for k, v in expected.items()})],
    )


@case
def small_integers_wrap() -> Case:
    p, q = np.array([22, 200, 255], np.uint8), np.array([21, 100, 255], np.uint8)

    def build(b: Any) -> None:
        v = b.input("p", u8[3])
        b.output(b.mul(v, q), "run")
        b.output(b.mul(p, q), "folded")

    return Case(build, [({"p": p}, {"run": p * q, "folded": p * q})])


@case
def infinity_times_zero() -> Case:
    zeros = np.zeros((2, 3), np.float32)

    def build(b: Any) -> None:
        v = b.input("x", f32[2, 3])
        for name, source in (("run", v), ("folded", zeros)):
            least = b.reduce_min(b.reciprocal(b.sqrt(source)), [-1], keepdims=0)
            b.output(least * np.float32(0), name)

    nan = np.full(2, np.nan, np.float32)
    return Case(build, [({"x": zeros}, {"run": nan, "folded": nan})])


@case
def pads_put_together_backwards() -> Case:
    """Pads that exporters compute with a reversing slice."""
    x = floats(1, 1, 5, 6)

    def build(b: Any) -> None:
        v = b.input("x", f32[1, 1, 5, 6])
        zeros = b.constant_of_shape([4], value=np.array([0], np.int64))
        pairs = b.reshape(b.concat([1, 2, 2, 1], zeros, axis=0), [-1, 2])
        turned = b.transpose(b.slice(pairs, [-1], [FIRST], [0], [-1]), perm=(1, 0))
        b.output(b.pad(v, b.reshape(turned, [-1]), mode="reflect"), "y")

    return Case(build, [({"x": x}, {"y": np.pad(x, [(0, 0), (0, 0), (2, 1), (1, 2)], mode="reflect")})])


# ---- outputs ---------------------------------------------------------------------------------------------------------


@case
def equal_outputs_keep_their_names() -> Case:
    x = floats(4)

    def build(b: Any) -> None:
        v = b.input("x", f32[4])
        twice = v * np.float32(2)
        for name, value in (("a", v * np.float32(2)), ("b", twice), ("c", b.identity(twice)), ("d", b.identity(v))):
            b.output(value, name)

    return Case(build, [({"x": x}, {"a": x * 2, "b": x * 2, "c": x * 2, "d": x})])


@case
def constants_as_outputs() -> Case:
    x = floats(2, 2)

    def build(b: Any) -> None:
        v = b.input("x", f32[2, 2])
        seven = b.const(np.array([7], np.float32))
        b.output(b.min(seven, v), "a")
        b.output(seven, "b")
        b.output(b.neg(seven), "c")

    seven = np.array([7], np.float32)
    return Case(build, [({"x": x}, {"a": np.minimum(seven, x), "b": seven, "c": -seven})])


# ---- control flow ----------------------------------------------------------------------------------------------------


@case
def branches_use_what_was_removed_around_them() -> Case:
    x = floats(3)

    def build(b: Any) -> None:
        v, c = b.input("x", f32[3]), b.input("c", bool_[()])
        same, two = b.identity(v), b.identity(b.const(np.float32(2)))
        b.output(b.if_(c, lambda: b.add(same, two), lambda: b.sub(same, two)), "y")

    return Case(
        build,
        [({"x": x, "c": np.array(True)}, {"y": x + 2}), ({"x": x, "c": np.array(False)}, {"y": x - 2})],
    )


@case
def decided_branches_with_equal_names_inside() -> Case:
    x = floats(2)

    def build(b: Any) -> None:
        v = b.input("x", f32[2])

        def both(truth: bool, k: float) -> Any:
            return b.if_(np.array(truth), lambda: b.mul(v, np.float32(k)), lambda: b.add(v, np.float32(-k)))

        b.output(b.add(both(True, 2), both(False, 10)), "y")

    return Case(build, [({"x": x}, {"y": x * 2 + (x - 10)})])


@case
def branches_of_different_rank() -> Case:
    """What follows an If must take the shape that came out, not that of one branch."""
    x = floats(1, 3)

    def build(b: Any) -> None:
        v, c = b.input("x", f32["n", 3]), b.input("c", bool_[()])
        chosen = b.if_(c, lambda: b.squeeze(v, [0]), lambda: b.slice(v, [0], [2], [1]))
        b.output(b.shape(chosen), "shape")
        b.output(b.neg(chosen), "y")

    return Case(
        build,
        [
            ({"x": x, "c": np.array(True)}, {"shape": np.array([3]), "y": -x[0]}),
            ({"x": x, "c": np.array(False)}, {"shape": np.array([1, 2]), "y": -x[:, :2]}),
        ],
    )


@case
def loop_that_ends_early() -> Case:
    """As many rows as iterations that ran, not as the trip count allows."""

    def build(b: Any) -> None:
        v, limit = b.input("x", f32[()]), b.input("limit", f32[()])

        def body(i: Any, going: Any, state: Any) -> Any:
            following = b.add(state, np.float32(1))
            return b.less(following, limit), following, b.mul(following, following)

        last, squares = b.loop(np.int64(100), [v], body, np.array(True))
        b.output(last, "last")
        b.output(squares, "squares")

    feeds = {"x": np.float32(0), "limit": np.float32(3)}
    return Case(build, [(feeds, {"last": np.float32(3), "squares": np.array([1, 4, 9], np.float32)})])


@case
def loop_whose_state_grows() -> Case:
    def build(b: Any) -> None:
        v, count = b.input("x", i64["k"]), b.input("count", i64[()])

        def body(i: Any, going: Any, state: Any) -> Any:
            return going, b.concat(state, b.unsqueeze(i, [0]), axis=0)

        for name, trips in (("open", count), ("short", np.int64(3))):
            grown = b.loop(trips, [v], body, np.array(True))
            b.output(grown, name)
            b.output(b.shape(grown), f"{name} shape")

    def run(start: int, count: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        x = np.arange(10, 10 + start)
        expected: dict[str, Any] = {}
        for name, trips in (("open", count), ("short", 3)):
            grown = np.concatenate([x, np.arange(trips)])
            expected |= {name: grown, f"{name} shape": np.array(grown.shape)}
        return {"x": x, "count": np.int64(count)}, expected

    return Case(build, [run(0, 4), run(2, 0), run(1, 1)])


@case
def sizes_that_depend_on_data() -> Case:
    """Selecting nothing gives empty tensors, and sums over them zeros."""

    def build(b: Any) -> None:
        v = b.input("x", f32[3, 2])
        first = b.gather(v, np.int64(0), axis=1)
        rows = b.squeeze(b.nonzero(b.greater(first, np.float32(0))), [0])
        chosen = b.gather(v, rows)
        b.output(b.reduce_sum(chosen, [0], keepdims=0), "sum")
        b.output(b.matmul(chosen, b.transpose(v)), "product")

    def run(x: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        chosen = x[x[:, 0] > 0]
        return {"x": x}, {"sum": chosen.sum(0), "product": chosen @ x.T}

    return Case(build, [run(floats(3, 2)), run(-np.ones((3, 2), np.float32))])
