"""What a run brings that no model file shows: axes, sizes, indices and numbers that make no sense.

The cpu target gives an error, or the value that ONNX, or else this project, defines.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu import known_sizes as known_sizes_module
from tilewright.backends.cpu import program as program_module
from tilewright.backends.cpu.machine import memory_bytes
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.dtypes import DType, bool_, f32, from_numpy, i8, i16, i32, i64, u8, u16, u32, u64
from tilewright.graph.model_builder import Builder

MOST, LEAST = (1 << 63) - 1, -(1 << 63)
WEIRD = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9, 300, -300, 0.0, -0.0], np.float32)
random = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(operator: str, feeds: dict[str, np.ndarray], attributes: dict[str, Any], outputs: int = 1) -> Any:
    """One operator on inputs whose sizes are open."""
    b = Builder("model")
    values = []
    for name, array in feeds.items():
        dims = [f"{name}{axis}" for axis in range(array.ndim)]
        values.append(b.input(name, from_numpy(array.dtype)[tuple(dims) if dims else ()]))
    made = getattr(b, operator)(*values, **attributes, **({"outputs": outputs} if outputs > 1 else {}))
    for index, value in enumerate(made if outputs > 1 else [made]):
        b.output(value, f"y{index}")
    return b.build()


def name_of(value: object) -> str:
    return value if isinstance(value, str) else ""


UNARY = (
    "exp", "log", "sqrt", "sigmoid", "tanh", "erf", "softplus", "acosh", "asin", "atanh", "sinh", "floor", "round",
    "sign", "reciprocal", "isnan", "isinf", "relu", "neg", "abs", "ceil", "asinh", "acos", "atan", "cosh",
)  # fmt: skip
X = floats(3, 4)
IMAGE = floats(1, 1, 3, 3)
NOTHING = np.zeros(0, np.float32)

REFUSED: list[tuple[str, dict[str, np.ndarray], dict[str, Any]]] = [
    *(("slice", {"x": X, "s": ints(0), "e": ints(2), "a": ints(axis)}, {}) for axis in (2, LEAST)),
    ("slice", {"x": X, "s": ints(0), "e": ints(2), "a": ints(0), "t": ints(0)}, {}),
    *((kind, {"x": X, "a": np.array(axis)}, {}) for kind, axis in (("cumsum", 2), ("cumsum", LEAST), ("cumprod", -3))),
    *(("topk", {"x": X, "k": ints(count)}, {"outputs": 2}) for count in (5, -1, MOST)),
    *(("unsqueeze", {"x": X, "a": ints(axis)}, {}) for axis in (3, MOST)),
    *(("squeeze", {"x": floats(1, 4), "a": ints(axis)}, {}) for axis in (1, MOST)),
    *(("reduce_sum", {"x": X, "a": ints(axis)}, {}) for axis in (2, MOST)),
    *(("pad", {"x": X, "p": ints(*pads)}, {"mode": mode})
      for pads, mode in (((-5, 0, 0, 0), "constant"), ((LEAST, 0, LEAST, 0), "edge"), ((MOST, 0, 0, 0), "reflect"))),
    *(("split", {"x": X, "s": ints(*parts)}, {"outputs": 2}) for parts in ((2, 2), (-1, 4), (MOST, 4 - MOST))),
    *(("constant_of_shape", {"s": ints(*shape)}, {}) for shape in ((-1,), (1 << 40, 1 << 40), (0, -1))),
    *(("resize", {"x": IMAGE, "r": NOTHING, "s": np.array(scales, np.float32)}, {"mode": "linear"})
      for scales in ((1, 1, -1, 1), (1, 1, np.nan, 1), (1, 1, 1e30, 1))),
    *(("resize", {"x": IMAGE, "r": NOTHING, "e": NOTHING, "s": ints(1, 1, size, 1)}, {}) for size in (-1, MOST)),
    *(("range", {"a": np.array(0), "b": np.array(end), "c": np.array(step)}, {})
      for end, step in ((5, 0), (MOST, 1), (LEAST, -1))),
    *(("reverse_sequence", {"x": X, "l": ints(0, 0, 0, length)}, {}) for length in (4, MOST, -1, LEAST)),
    *(("center_crop_pad", {"x": X, "s": ints(*sizes)}, {}) for sizes in ((-1, 2), (2, LEAST), (MOST, 1))),
    ("dequantize_linear", {"x": np.zeros((3, 4), np.uint8), "s": floats(4)}, {"axis": 7}),
    *(("stft", {"x": floats(1, 8, 1), "f": np.array(step), "w": floats(4)}, {}) for step in (0, LEAST)),
    ("dft", {"x": floats(1, 4, 0)}, {}), ("dft", {"x": floats(1, 4, 1), "n": np.array(-3)}, {}),
    *(("gather_nd", {"x": X, "i": np.zeros((2, depth), np.int64)}, {}) for depth in (0, 3)),
    ("matmul", {"x": X, "z": floats(5, 2)}, {}), ("add", {"x": X, "z": floats(3, 5)}, {}),
    ("conv", {"x": floats(1, 4, 5, 5), "w": floats(2, 3, 3, 3)}, {}),
    ("concat", {"x": X, "z": floats(4, 5)}, {"axis": 0}),
    ("depth_to_space", {"x": floats(1, 3, 2, 2)}, {"blocksize": 2}),
    ("attention", {"q": floats(1, 2, 3, 4), "k": floats(1, 2, 5, 4), "v": floats(1, 2, 6, 4)}, {}),
    *(("attention", {"q": floats(1, 2, 3, 4), "k": floats(1, 2, 5, 4), "v": floats(1, 2, 5, 4), "m": mask}, {})
      for mask in (floats(3, 9), np.ones((1, 1, 3, 6), bool))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "feeds", "attributes"), REFUSED, ids=lambda value: value if type(value) is str else ""
)
def test_what_makes_no_sense_is_an_error(
    operator: str, feeds: dict[str, np.ndarray], attributes: dict[str, Any]
) -> None:
    options = dict(attributes)
    network = model(operator, feeds, options, options.pop("outputs", 1))
    with pytest.raises(ExecutionError) as caught:
        tilewright.compile(network, target="cpu", threads=2).run(feeds)
    assert "the model was given" in str(caught.value)


DEFINED: list[tuple[str, dict[str, np.ndarray], dict[str, Any]]] = [
    *(("slice", {"x": X, "s": ints(s), "e": ints(e), "a": ints(0), "t": ints(t)}, {})
      for s, e, t in ((LEAST, MOST, 1), (MOST, LEAST, -1), (LEAST, LEAST, LEAST), (MOST, MOST, MOST), (-1, LEAST, -2))),
    *(("trilu", {"x": X, "k": np.array(k)}, {"upper": upper}) for k, upper in ((1, 0), (100, 1), (-100, 0))),
    *(("one_hot", {"i": ints(0, 1, -1, 2, MOST, LEAST), "d": np.array(d), "v": np.array([0, 1], np.float32)}, {})
      for d in (0, 3)),
    *(("compress", {"x": X, "c": np.array(c, bool)}, {"axis": 0}) for c in ([False] * 3, [])),
    *(("grid_sample", {"x": IMAGE, "g": np.full((1, 2, 2, 2), g, np.float32)}, {"mode": "linear", "padding_mode": mode})
      for g, mode in ((5.0, "zeros"), (-5.0, "border"), (5.0, "reflection"))),
    *(("layer_normalization", {"x": x, "s": np.ones(x.shape[-1], np.float32)}, {})
      for x in (WEIRD[None], floats(0, 3))),
    ("clip", {"x": WEIRD, "lo": np.array(2, np.float32), "hi": np.array(-1, np.float32)}, {}),
    ("attention", {"q": floats(1, 2, 0, 4), "k": floats(1, 2, 5, 4), "v": floats(1, 2, 5, 4)}, {}),
    *(("attention", {"q": floats(1, 2, 3, 4), "k": floats(1, 2, 5, 4), "v": floats(1, 2, 5, 4), "m": mask}, {})
      for mask in (floats(3, 4), np.ones((2, 1, 2), bool), floats(1))),
    *(("center_crop_pad", {"x": floats(5, 4), "s": ints(*sizes)}, {}) for sizes in ((2, 9), (8, 3), (0, 1))),
    *(("hardmax", {"x": floats(*shape)}, {}) for shape in ((3, 0), (0, 3), (2, 3))),
    *(("lrn", {"x": floats(*shape)}, {"size": 3}) for shape in ((0, 3, 5, 5), (1, 3, 0, 2), (1, 4, 2, 3))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "feeds", "attributes"), DEFINED, ids=lambda value: value if type(value) is str else ""
)
def test_what_is_defined_has_the_value_of_the_reference(
    operator: str, feeds: dict[str, np.ndarray], attributes: dict[str, Any]
) -> None:
    network = model(operator, feeds, attributes)
    with np.errstate(all="ignore"):
        wanted = tilewright.compile(network, target="reference").run(feeds)["y0"]
        got = tilewright.compile(network, target="cpu", threads=2).run(feeds)["y0"]
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-4, atol=1e-5)


SIDE = 1 << 11
ENORMOUS: list[tuple[str, dict[str, np.ndarray], dict[str, Any]]] = [
    ("constant_of_shape", {"s": ints(SIDE, SIDE)}, {}), ("expand", {"x": floats(1, 1), "s": ints(SIDE, SIDE)}, {}),
    ("range", {"a": np.array(0), "b": np.array(SIDE * SIDE), "c": np.array(1)}, {}),
    ("tile", {"x": X, "r": ints(SIDE, SIDE)}, {}), ("pad", {"x": X, "p": ints(SIDE, SIDE, 0, 0)}, {}),
    ("one_hot", {"i": np.zeros(SIDE, np.int64), "d": np.array(SIDE), "v": np.array([0, 1], np.float32)}, {}),
    ("resize", {"x": IMAGE, "r": NOTHING, "s": np.array([1, 1, SIDE, SIDE], np.float32)}, {"mode": "linear"}),
    ("resize", {"x": IMAGE, "r": NOTHING, "e": NOTHING, "s": ints(1, 1, SIDE, SIDE)}, {}),
    ("center_crop_pad", {"x": X, "s": ints(SIDE, SIDE)}, {}), ("add", {"x": floats(SIDE, 1), "z": floats(SIDE)}, {}),
    ("matmul", {"x": floats(SIDE, 1), "z": floats(1, SIDE)}, {}), ("hann_window", {"s": np.array(SIDE * SIDE)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "feeds", "attributes"), ENORMOUS, ids=lambda value: value if type(value) is str else ""
)
def test_what_takes_more_memory_than_there_is_is_refused_before(
    operator: str,
    feeds: dict[str, np.ndarray],
    attributes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """On a machine of 8 MB."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))  # listing what is in a large one takes memory
    for module in (program_module, known_sizes_module):
        monkeypatch.setattr(module, "memory_bytes", lambda: 8 << 20)
        monkeypatch.setattr(module, "_MUCH", 1 << 10)
    executable = tilewright.compile(model(operator, feeds, attributes), target="cpu", threads=2)
    tracemalloc.start()
    try:
        with pytest.raises(ExecutionError, match="GB of memory, and there are") as caught:
            executable.run(feeds)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.diagnostics[0].code == "run/memory"


def test_a_view_that_no_memory_could_hold() -> None:
    x = np.broadcast_to(np.float32(1), (1 << 31, 1 << 20))
    with pytest.raises(ExecutionError, match=r"run/memory.*\n.*given x f32\[2147483648, 1048576\]"):
        tilewright.compile(model("relu", {"x": X}, {})).run({"x": x})


def test_memory_of_this_machine() -> None:
    assert 1 << 27 < memory_bytes() <= 1 << 56


@pytest.mark.parametrize(
    ("operator", "target"),
    [
        *(("expand", target) for target in ([2, 4], [5, 4], [-1, 4], [0, 4], [3, 0])),
        *(("reshape", target) for target in ([13], [0], [-2], [5, 5], [2, -1, 7], [-1, -1], [0, 0, 2], [0, 0, 0])),
    ],
)
@pytest.mark.parametrize("dims", [(3, 4), ("n", 4), ("n", "m")], ids=str)
def test_a_target_that_contradicts_the_operand(operator: str, target: list[int], dims: tuple[int | str, ...]) -> None:
    """Although it would be the only one that the operand allows, if the model were right."""
    b = Builder("target")
    x, sizes = b.input("x", f32[dims]), b.input("sizes", i64[len(target)])
    y = getattr(b, operator)(x, sizes, **({"allowzero": 1} if target == [0] else {}))
    b.output(b.relu(y), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    with pytest.raises(ExecutionError):
        executable.run({"x": X, "sizes": ints(*target)})
    right = [3, 4] if len(target) == 2 else [12] if len(target) == 1 else [3, 2, 2]
    if operator == "reshape" or len(target) == 2:
        np.testing.assert_array_equal(
            executable.run({"x": X, "sizes": ints(*right)})["y"], np.maximum(X, 0).reshape(right)
        )


def test_a_branch_that_cannot_run_is_an_error_where_it_is_taken() -> None:
    b = Builder("branch")
    x, take = b.input("x", f32["n"]), b.input("take", bool_[()])
    table, beyond = b.const(floats(3, 2)), b.const(np.array(9))
    b.output(b.if_(take, lambda: b.reduce_sum(b.gather(table, beyond), keepdims=1), lambda: b.relu(x)), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    np.testing.assert_array_equal(executable.run({"x": X[0], "take": np.array(False)})["y"], np.maximum(X[0], 0))
    with pytest.raises(ExecutionError, match="out of bounds"):
        executable.run({"x": X[0], "take": np.array(True)})


def test_numbers_that_are_none() -> None:
    b = Builder("weird")
    x, z, rows = b.input("x", f32["n"]), b.input("z", f32["n"]), b.input("rows", f32["m", "n"])
    for name in UNARY:
        b.output(getattr(b, name)(x), name)
    for name in ("max", "min", "less", "equal"):
        b.output(getattr(b, name)(x, z), name)
    for name in ("softmax", "reduce_max", "reduce_min", "reduce_sum", "argmax"):
        b.output(getattr(b, name)(rows), name)
    network = b.build()
    rows_of = [WEIRD, np.full(11, np.nan, np.float32), np.full(11, -np.inf, np.float32), floats(11)]
    feeds = {"x": WEIRD, "z": WEIRD[::-1].copy(), "rows": np.stack(rows_of)}
    with np.errstate(all="ignore"):
        wanted = tilewright.compile(network, target="reference").run(feeds)
        got = tilewright.compile(network, target="cpu", threads=2).run(feeds)
    for name, expected in wanted.items():
        assert (got[name].shape, got[name].dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64, u8, u16, u32, u64], ids=str)
def test_integers_at_their_limits(dtype: DType) -> None:
    """Division by zero is no error, and traps nowhere; the rest wraps around."""
    limits = np.iinfo(dtype.numpy)
    x = np.array([limits.min, limits.max, 7, 1] * 9, dtype.numpy)
    for divisor in (0, limits.max if limits.min == 0 else -1, limits.min or 2):
        z = np.full(36, divisor, dtype.numpy)
        for operator, attributes in (("div", {}), ("mod", {}), ("mod", {"fmod": 1})):
            executable = tilewright.compile(model(operator, {"x": x, "z": z}, attributes), target="cpu", threads=2)
            got = executable.run({"x": x, "z": z})["y0"]
            assert (got.shape, got.dtype) == (x.shape, x.dtype)
            if divisor > 1:
                assert got[2] == (7 // divisor if operator == "div" else 7 % divisor)


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64, u8, u16, u32, u64], ids=str)
def test_floats_beyond_integers_are_the_nearest_one(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    executable = tilewright.compile(model("cast", {"x": WEIRD}, {"to": dtype}), target="cpu")
    got = executable.run({"x": WEIRD})["y0"]
    wanted = [0 if np.isnan(v) else int(min(max(float(v), limits.min), limits.max)) for v in WEIRD]
    inside = [limits.min < value < limits.max for value in wanted]
    assert got[inside].tolist() == [value for value, is_inside in zip(wanted, inside, strict=True) if is_inside]
    assert got[1] == limits.max
    assert got[2] == limits.min
