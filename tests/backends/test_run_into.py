"""Outputs that are written into arrays of the caller's, and how inputs of any form are taken."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.host_value import HostValue
from tilewright.backends.session import InferenceSession
from tilewright.graph import types
from tilewright.graph.diagnostics import ExecutionError, UsageError
from tilewright.graph.dtypes import bf16, f32, i64, string
from tilewright.graph.model_builder import Builder

TARGETS = ("cpu", "reference")
random = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


def network() -> Any:
    b = Builder("two")
    x, w = b.input("x", f32["n", 6]), b.input("w", f32[6, "m"])
    product = x @ w
    b.output(product, "product")
    b.output(b.relu(product), "positive")
    return b.build()


def test_an_error_says_types_as_the_model_does() -> None:
    b = Builder("one")
    b.output(b.relu(b.input("x", f32["n", 6])), "y")
    model = tilewright.load(tilewright.to_bytes(b.build()))  # where each n is a symbol of its own
    executable = tilewright.compile(model)
    with pytest.raises(ExecutionError, match=r"the output 'y' is f32\[n, 6\], its array is f32\[3, 6\]: the result is"):
        executable.run_into({"x": floats(2, 6)}, {"y": floats(3, 6)})


@pytest.fixture(scope="module", params=TARGETS)
def executable(request: pytest.FixtureRequest) -> Any:
    return tilewright.compile(network(), target=request.param, threads=2)


X, W = floats(5, 6), floats(6, 4)
FEEDS = {"x": X, "w": W}


def copies(executable: Any) -> int:
    return int(executable.report()["copies"]["outputs"])


def test_results_are_where_they_were_wanted(executable: Any) -> None:
    product, positive = np.full((5, 4), 9, np.float32), np.full((5, 4), 9, np.float32)
    before = copies(executable)
    found = executable.run_into(FEEDS, {"positive": positive, "product": product})
    assert list(found) == ["positive", "product"]
    assert found["positive"] is positive
    assert found["product"] is product
    np.testing.assert_allclose(product, X @ W, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(positive, np.maximum(product, 0))
    assert copies(executable) - before == (0 if executable.target == "cpu" else 2)


def test_some_outputs_and_fresh_arrays(executable: Any) -> None:
    product = np.empty((5, 4), np.float32)
    assert list(executable.run_into(FEEDS, {"product": product})) == ["product"]
    found = executable.run_into(FEEDS, {"product": product, "positive": None})
    np.testing.assert_array_equal(found["positive"], np.maximum(product, 0))
    assert executable.run_into(FEEDS, {}) == {}


@pytest.mark.parametrize("form", ["transposed", "columns", "backwards", "misaligned"])
def test_arrays_with_gaps_are_copied_into(executable: Any, form: str) -> None:
    raw = np.zeros(5 * 4 * 4 + 1, np.uint8)
    array = {
        "transposed": np.zeros((4, 5), np.float32).T, "columns": np.zeros((5, 9), np.float32)[:, 2:6],
        "backwards": np.zeros((5, 4), np.float32)[::-1], "misaligned": raw[1:].view(np.float32).reshape(5, 4),
    }[form]  # fmt: skip
    before = copies(executable)
    executable.run_into(FEEDS, {"product": array})
    np.testing.assert_allclose(array, X @ W, rtol=1e-5, atol=1e-6)
    assert copies(executable) == before + 1


def test_neighbours_in_one_array(executable: Any) -> None:
    whole = np.full((2, 5, 4), 9, np.float32)
    executable.run_into(FEEDS, {"product": whole[0], "positive": whole[1]})
    np.testing.assert_array_equal(whole[1], np.maximum(whole[0], 0))
    columns = np.full((5, 8), 9, np.float32)
    executable.run_into(FEEDS, {"product": columns[:, ::2], "positive": columns[:, 1::2]})
    np.testing.assert_array_equal(columns[:, ::2], whole[0])
    np.testing.assert_array_equal(columns[:, 1::2], whole[1])


def test_an_output_over_its_input(executable: Any) -> None:
    x, square = X.copy(), floats(6, 6)
    executable.run_into({"x": x, "w": square}, {"product": x})
    np.testing.assert_allclose(x, X @ square, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((5, 4)), "dtype must be f32"), (np.zeros((5, 4), ">f4"), "dtype must be f32"),
        (np.zeros(20, np.float32), "rank must be 2"), (np.zeros((4, 5), np.float32), r"the result is f32\[5, 4\]"),
        (np.zeros((1, 4), np.float32), r"the result is f32\[5, 4\]"),
        (np.zeros((0, 4), np.float32), r"the result is f32\[5, 4\]"),
    ],
)  # fmt: skip
def test_arrays_of_another_type(executable: Any, array: np.ndarray, reason: str) -> None:
    other = np.zeros((5, 4), np.float32)
    with pytest.raises(ExecutionError, match=f"the output 'positive'.*{reason}"):
        executable.run_into(FEEDS, {"product": other, "positive": array})
    assert not array.any()


@pytest.mark.parametrize("given", [[0.0], 3, np.broadcast_to(np.zeros(4, np.float32), (5, 4)), "text"], ids=str)
def test_what_cannot_be_written_into(executable: Any, given: Any) -> None:
    with pytest.raises(UsageError, match="cannot be written into"):
        executable.run_into(FEEDS, {"product": given})


def test_outputs_do_not_share_memory(executable: Any) -> None:
    array = np.zeros((9, 4), np.float32)
    with pytest.raises(UsageError, match="share memory"):
        executable.run_into(FEEDS, {"product": array[:5], "positive": array[4:]})
    with pytest.raises(UsageError, match="no output 'q'"):
        executable.run_into(FEEDS, {"q": array})
    with pytest.raises(UsageError):
        executable.run_into(FEEDS, ["product"])


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_a_constant_and_a_size_as_outputs(target: str) -> None:
    """Results that no kernel makes."""
    b = Builder("plain")
    x = b.input("x", f32["n", 3])
    for name, value in (("same", x), ("shape", b.shape(x)), ("fixed", b.identity(floats(2)))):
        b.output(value, name)
        b.output(value, f"{name} again")
    executable = tilewright.compile(b.build(), target=target)
    x = floats(4, 3)
    wanted = executable.run({"x": x})
    arrays = {name: np.zeros_like(result) for name, result in wanted.items()}
    executable.run_into({"x": x}, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[name])
    made = executable.run_into({"x": x}, {**arrays, "same again": None})["same again"]
    assert not np.shares_memory(made, arrays["same"])
    assert not np.shares_memory(made, x)


@pytest.mark.parametrize("target", TARGETS)
def test_several_segments(target: str) -> None:
    """One ends where a size is counted."""
    b = Builder("mixed")
    x = b.input("x", f32["n", 3])
    places = b.nonzero(b.relu(x))
    b.output(b.exp(x), "early")
    b.output(places, "places")
    b.output(b.cast(places, to=i64) * 2, "doubled")
    executable = tilewright.compile(b.build(), target=target)
    feeds = {"x": np.array([[1, -1, 2], [0, 0, 3]], np.float32)}
    wanted = executable.run(feeds)
    arrays = {name: np.zeros_like(result) for name, result in wanted.items()}
    executable.run_into(feeds, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("target", TARGETS)
def test_text_numbers_of_two_bytes_and_sequences(target: str) -> None:
    b = Builder("kinds")
    s, h, q = b.input("s", string["n"]), b.input("h", bf16["n"]), b.input("q", types.sequence(f32["k"]))
    b.output(b.identity(s), "text")
    b.output(h + h, "half")
    b.output(b.identity(q), "sequence")
    executable = tilewright.compile(b.build(), target=target)
    feeds = {"s": np.array(["a", "bc"], object), "h": np.ones(2, bf16.numpy), "q": [floats(2)]}
    text, half = np.empty(2, object), np.zeros(2, bf16.numpy)
    executable.run_into(feeds, {"text": text, "half": half, "sequence": None})
    assert text.tolist() == ["a", "bc"]
    assert half.tolist() == [2, 2]
    with pytest.raises(UsageError, match="only tensors"):
        executable.run_into(feeds, {"sequence": np.zeros(2, np.float32)})


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_and_a_scalar(target: str) -> None:
    b = Builder("small")
    x = b.input("x", f32["n"])
    b.output(b.reduce_sum(x, keepdims=0), "sum")
    b.output(b.exp(x), "exp")
    executable = tilewright.compile(b.build(), target=target)
    total, nothing = np.full((), 7, np.float32), np.zeros(0, np.float32)
    executable.run_into({"x": np.zeros(0, np.float32)}, {"sum": total, "exp": nothing})
    assert total == 0


# ---- inputs of any form ----------------------------------------------------------------------------------------------


def test_inputs_are_copied_if_need_be_and_counted() -> None:
    executable = tilewright.compile(network(), target="cpu")
    wanted = executable.run(FEEDS)["product"]
    forms = [X, np.asfortranarray(X), np.repeat(X, 2, 1)[:, ::2], X.astype(">f4"), X.tolist()]
    counts = []
    for form in forms:
        before = executable.report()["copies"]["inputs"]
        np.testing.assert_array_equal(executable.run({"x": form, "w": W})["product"], wanted)
        counts.append(executable.report()["copies"]["inputs"] - before)
    assert counts == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("feeds", "reason"),
    [
        ({"x": X.astype(np.float64), "w": W}, "dtype must be f32, is f64"),
        ({"x": X.astype(np.float16), "w": W}, "dtype must be f32, is f16"),
        ({"x": X.astype(np.int32), "w": W}, "dtype must be f32, is i32"),
        ({"x": X[0], "w": W}, "rank must be 2, is 1"), ({"x": X[:, :5], "w": W}, "dim 1 must be 6, is 5"),
        ({"x": X, "w": W, "z": W}, "no input 'z'"), ({"x": X}, "'w'.*is not given"),
        ({"x": X, "w": None}, "may not be left out"), ({"x": np.array("text"), "w": W}, "dtype must be f32"),
        ({"x": [[1, 2], [3]], "w": W}, "'x'"), ({"x": X.astype(np.complex64), "w": W}, "dtype must be f32"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(target: str, feeds: dict[str, Any], reason: str) -> None:
    executable = tilewright.compile(network(), target=target)
    for _ in range(2):  # before and after inputs that fit
        with pytest.raises(ExecutionError, match=reason):
            executable.run(feeds)
        executable.run(FEEDS)


def test_shapes_that_fitted_once_say_nothing_of_others() -> None:
    b = Builder("pair")
    x, z = b.input("x", f32["n", 2]), b.input("z", f32["n", 2])
    b.output(x + z, "y")
    executable = tilewright.compile(b.build(), target="cpu")
    for rows in (3, 4):
        executable.run({"x": floats(rows, 2), "z": floats(rows, 2)})
    with pytest.raises(ExecutionError, match="calls two dims 'n'"):
        executable.run({"x": floats(3, 2), "z": floats(4, 2)})


# ---- the way of onnxruntime ------------------------------------------------------------------------------------------


def test_io_binding() -> None:
    session = InferenceSession(network())
    binding, product = session.io_binding(), np.zeros((5, 4), np.float32)
    binding.bind_cpu_input("x", X)
    binding.bind_input("w", "cpu", 0, np.float32, W.shape, W.ctypes.data)
    binding.bind_output("positive")
    binding.bind_output("product", "cpu", 0, 1, product.shape, product.ctypes.data)
    session.run_with_iobinding(binding)
    positive, copied = binding.copy_outputs_to_cpu()
    np.testing.assert_allclose(product, X @ W, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(positive, np.maximum(product, 0))
    assert copied is not product
    session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    assert binding.copy_outputs_to_cpu() == []
    binding.clear_binding_inputs()
    binding.bind_cpu_output("product", product)
    with pytest.raises(ExecutionError, match="is not given"):
        session.run_with_iobinding(binding)


def test_outputs_of_a_binding() -> None:
    session = InferenceSession(network())
    binding, product = session.io_binding(), np.zeros((5, 4), np.float32)
    assert repr(binding) == "<IOBinding of nothing to nothing>"
    for name, array in (("x", X), ("w", W)):
        binding.bind_cpu_input(name, array)
    binding.bind_cpu_output("product", product)
    binding.bind_output("positive")
    assert repr(binding) == "<IOBinding of x, w to product, positive>"
    assert binding.get_outputs() == []
    session.run_with_iobinding(binding)
    first, second = binding.get_outputs()
    assert first.numpy() is product
    assert (first.shape(), first.data_type(), first.element_type()) == ([5, 4], "tensor(float)", 1)
    assert (first.data_ptr(), first.device_name()) == (product.ctypes.data, "cpu")
    assert first.is_tensor()
    assert first.has_value()
    assert repr(second) == "<HostValue tensor(float) [5, 4]>"
    other = session.io_binding()
    other.bind_cpu_input("x", np.eye(5, 6, dtype=np.float32))
    other.bind_ortvalue_input("w", HostValue(W, first.type))
    other.bind_ortvalue_output("product", first)
    other.run()
    np.testing.assert_allclose(product, W[:5], rtol=1e-6)


def test_values_of_onnxruntime_are_bound_where_they_are() -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = InferenceSession(network())
    binding, value = session.io_binding(), runtime.OrtValue.ortvalue_from_numpy
    target = value(np.zeros((5, 4), np.float32))
    binding.bind_ortvalue_input("x", value(X.copy()))
    binding.bind_ortvalue_input("w", value(W.copy()))
    binding.bind_ortvalue_output("product", target)
    gc.collect()  # the binding keeps what nobody else does
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(target.numpy(), X @ W, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        ("q",), ("product", "cuda"), ("product", "cpu", 0, None, None, 64), ("product", "cpu", 0, 999, (1,), 64),
        ("product", "cpu", 0, 1, (-1,), 64), ("product", "cpu", 0, 1, (2,), 0), ("product", "cpu", 0, object, (2,), 8),
    ],
    ids=str,
)  # fmt: skip
def test_memory_that_cannot_be_bound(arguments: tuple[Any, ...]) -> None:
    binding = InferenceSession(network()).io_binding()
    with pytest.raises(UsageError):
        binding.bind_output(*arguments)
    with pytest.raises(UsageError, match="no output is bound"):
        binding.run()


@pytest.mark.parametrize("target", TARGETS)
def test_results_in_sequences_are_the_callers(target: str) -> None:
    """Neither an input's array nor that of another result."""
    b = Builder("lists")
    items, x = b.input("items", types.sequence(f32[2])), b.input("x", f32[2])
    b.output(b.sequence_at(items, np.array(0)), "first")
    b.output(b.sequence_insert(items, x), "longer")
    twice = -x
    b.output(b.sequence_construct(twice, twice), "pair")
    b.output(twice, "negative")
    feeds = {"items": [floats(2), floats(2)], "x": floats(2)}
    found = tilewright.compile(b.build(), target=target).run(feeds)
    arrays = [*feeds["items"], feeds["x"], found["first"], *found["longer"], *found["pair"], found["negative"]]
    for index, array in enumerate(arrays):
        array[...] = index
    assert [array[0] for array in arrays] == list(range(len(arrays)))


@pytest.mark.parametrize("target", TARGETS)
def test_results_that_follow_from_sizes_are_the_callers(target: str) -> None:
    b = Builder("sizes")
    x = b.input("x", f32["n", 8])
    size = b.shape(x)
    threes = b.constant_of_shape(size, value=np.array([3], np.float32))
    for name, value in (("size", size), ("threes", threes), ("sum", threes + x)):
        b.output(value, name)
    executable = tilewright.compile(b.build(), target=target)
    for rows in (1, 8, 15, 22) * 3:
        found = executable.run({"x": np.ones((rows, 8), np.float32)})
        assert found["size"].tolist() == [rows, 8]
        assert (found["threes"] == 3).all()
        assert (found["sum"] == 4).all()
        for array in found.values():
            array[...] = 0
