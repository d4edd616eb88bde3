"""The cpu target takes bad input, empty tensors and hard times: an error or the right values, and never more."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu import bounds, compile_queue
from tilewright.backends.cpu.emit_llvm import emit_module
from tilewright.backends.cpu.jit import Code, object_code_of_text
from tilewright.backends.cpu.kernels.elementwise import Map, MapOperand, build_map
from tilewright.backends.cpu.machine import machine
from tilewright.graph.diagnostics import ExecutionError, UsageError
from tilewright.graph.dtypes import f32, f64, i32, i64
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(operator: str, inputs: dict[str, Any], outputs: int = 1, **attributes: Any) -> Any:
    """One operator on inputs of these types, or constants."""
    b = Builder("model")
    values = [b.input(name, type) if not isinstance(type, np.ndarray) else type for name, type in inputs.items()]
    made = getattr(b, operator)(*values, **attributes, **({"outputs": outputs} if outputs > 1 else {}))
    for index, value in enumerate(made if outputs > 1 else [made]):
        b.output(value, f"y{index}")
    return b.build()


def same_as_reference(network: Any, feeds: dict[str, np.ndarray], threads: int = 2) -> None:
    wanted = tilewright.compile(network, target="reference").run(feeds)
    got = tilewright.compile(network, target="cpu", threads=threads).run(feeds)
    for name, expected in wanted.items():
        assert (got[name].shape, got[name].dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)


# ---- inputs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Any:
    b = Builder("pair")
    x, z = b.input("x", f32["n", 4]), b.input("z", f32["n", 4])
    b.output(b.relu(x + z), "y")
    return tilewright.compile(b.build(), target="cpu", threads=2)


@pytest.mark.parametrize(
    "feeds",
    [
        {}, {"w": floats(1), "z": floats(2, 4)}, {"q": floats(2, 4)}, {"z": floats(4)}, {"z": floats(2, 5)},
        {"z": floats(3, 4)}, {"z": floats(2, 4).astype(np.float64)}, {"z": None}, {"z": "text"},
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_an_error(pair: Any, feeds: dict[str, Any]) -> None:
    with pytest.raises((ExecutionError, UsageError)):
        pair.run({"x": floats(2, 4), **feeds})


def test_arrays_of_any_form(pair: Any) -> None:
    x = floats(6, 4)
    raw = np.zeros(x.nbytes + 1, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(6, 4)
    misaligned[...] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    for form in (np.asfortranarray(x), misaligned, fixed, np.repeat(x, 2, 0)[::2], x[::-1][::-1], x.astype(">f4")):
        np.testing.assert_array_equal(pair.run({"x": form, "z": x})["y"], np.maximum(x + x, 0))


# ---- sizes and indices that a run brings -----------------------------------------------------------------------------

CUBE = f32["a", "b"]


@pytest.mark.parametrize(
    ("operator", "numbers"),
    [
        ("reshape", (-1, -1)), ("reshape", (-2, 3)), ("reshape", (1 << 40, 1 << 40)), ("reshape", (4, 4)),
        ("expand", (1 << 40, 1 << 40)), ("expand", (3, 3)), ("tile", (-1, 1)), ("tile", (1 << 40, 1 << 40)),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_cannot_be_are_an_error(operator: str, numbers: tuple[int, ...]) -> None:
    executable = tilewright.compile(model(operator, {"x": CUBE, "n": i64[len(numbers)]}), target="cpu")
    with pytest.raises(ExecutionError):
        executable.run({"x": floats(2, 3), "n": ints(*numbers)})


@pytest.mark.parametrize("index", [3, -4, 1 << 62, -(1 << 63)])
def test_indices_out_of_range_are_an_error(index: int) -> None:
    place = np.array([[index]], np.int64)
    gather = tilewright.compile(model("gather", {"x": CUBE, "i": i64["n"]}, axis=1), target="cpu")
    each = tilewright.compile(model("gather_elements", {"x": CUBE, "i": i64["n", "m"]}, axis=1), target="cpu")
    nd = tilewright.compile(model("gather_nd", {"x": CUBE, "i": i64["n", 2]}), target="cpu")
    with pytest.raises(ExecutionError, match="out of range"):
        gather.run({"x": floats(2, 3), "i": place[0]})
    with pytest.raises(ExecutionError, match="out of range"):
        each.run({"x": floats(2, 3), "i": place})
    with pytest.raises(ExecutionError, match="out of range"):
        nd.run({"x": floats(2, 3), "i": np.array([[0, index]], np.int64)})
    types = {"x": CUBE, "i": i64["n", "m"], "u": f32["p", "q"]}
    scatter = tilewright.compile(model("scatter_elements", types, axis=1), target="cpu")
    with pytest.raises(ExecutionError, match="out of range"):
        scatter.run({"x": floats(2, 3), "i": place, "u": floats(1, 1)})


@pytest.mark.parametrize(
    ("data", "indices", "updates"), [((2, 3), (3, 1), (3, 1)), ((0, 3), (2, 1), (2, 1)), ((2, 3), (2, 1), (1, 1))]
)
def test_scatters_reach_no_further_than_their_data(
    data: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...]
) -> None:
    types = {"x": CUBE, "i": i64["n", "m"], "u": f32["p", "q"]}
    scatter = tilewright.compile(model("scatter_elements", types, axis=1), target="cpu")
    with pytest.raises(ExecutionError, match="do not fit"):
        scatter.run({"x": floats(*data), "i": np.zeros(indices, np.int64), "u": floats(*updates)})


@pytest.mark.parametrize("lengths", [(3, 1), (0, 3), (-1, -7)])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_lengths_of_sequences(lengths: tuple[int, ...], direction: str) -> None:
    types = {
        "x": f32["t", "n", 3], "w": floats(1, 15, 3), "r": floats(1, 15, 5), "b": floats(1, 30), "l": i32["m"],
        "h": f32["d", "e", 5],
    }  # fmt: skip
    network = model("gru", types, 2, hidden_size=5, direction=direction)
    feeds = {"x": floats(3, 2, 3), "l": np.array(lengths, np.int32), "h": floats(1, 2, 5)}
    same_as_reference(network, feeds)
    executable = tilewright.compile(network, target="cpu")
    feeds["l"] = np.array([1 << 30, 9], np.int32)  # as many steps as there are
    assert all(np.isfinite(result).all() for result in executable.run(feeds).values())
    with pytest.raises(ExecutionError, match="operand"):
        executable.run({**feeds, "h": floats(1, 1, 5)})


@pytest.mark.parametrize("operator", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("known", ["r", "rb", "w", "wr", "b", "wrb"])
def test_recurrent_weights_of_open_sizes(operator: str, known: str) -> None:
    """Which of the weights, the recurrent ones and the bias are constants does not matter."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[operator]
    weights = {"w": floats(1, gates * 5, 3), "r": floats(1, gates * 5, 5), "b": floats(1, gates * 10)}
    types = {
        name: array if name in known else f32[tuple(f"{name}{axis}" for axis in range(array.ndim))]
        for name, array in weights.items()
    }
    network = model(operator, {"x": f32["t", "n", 3], **types}, 2, hidden_size=5)
    same_as_reference(network, {"x": floats(4, 2, 3), **{name: weights[name] for name in "wrb" if name not in known}})


@pytest.mark.parametrize("dtype", [i32, i64], ids=str)
@pytest.mark.parametrize("operator", ["div", "mod"])
def test_divisions_that_trap_elsewhere(dtype: Any, operator: str) -> None:
    least = np.iinfo(dtype.numpy).min
    x, z = np.array([least, 7, least, 5], dtype.numpy), np.array([-1, 0, 0, 2], dtype.numpy)
    executable = tilewright.compile(model(operator, {"x": dtype["n"], "z": dtype["n"]}), target="cpu")
    assert executable.run({"x": x, "z": z})["y0"][3] == (2 if operator == "div" else 1)


# ---- nothing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"), [((0, 4), (4, 3)), ((2, 0), (0, 3)), ((2, 4), (4, 0)), ((0, 0), (0, 0)), ((1, 0), (0, 1))]
)
def test_products_of_nothing(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    network = model("matmul", {"x": f32["m", "k"], "z": f32["k", "n"]})
    same_as_reference(network, {"x": floats(*left), "z": floats(*right)})


@pytest.mark.parametrize("operator", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_operators_of_nothing(operator: str, layout: int) -> None:
    """No steps, or nothing in a batch."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[operator]
    weights = {"w": floats(1, gates * 5, 3), "r": floats(1, gates * 5, 5), "b": floats(1, gates * 10)}
    network = model(operator, {"x": f32["t", "n", 3], **weights}, 2, hidden_size=5, layout=layout)
    for shape in ((4, 0, 3), (0, 2, 3), (0, 0, 3)):
        same_as_reference(network, {"x": floats(*shape)})


@pytest.mark.parametrize("operator", ["reduce_sum", "reduce_max", "reduce_min", "reduce_mean", "reduce_prod"])
def test_reductions_of_nothing(operator: str) -> None:
    network = model(operator, {"x": f32["a", "b"], "axes": ints(1)}, keepdims=0)
    with np.errstate(all="ignore"):
        for shape in ((2, 0), (0, 3), (0, 0)):
            same_as_reference(network, {"x": floats(*shape)})


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_places_in_nothing(axis: int, keepdims: int) -> None:
    """There are none where another axis has no elements; else it is an error to ask for one."""
    network = model("argmax", {"x": CUBE}, axis=axis, keepdims=keepdims)
    for shape in ((0, 0), (0, 3), (2, 0)):
        if shape[axis] == 0 and shape[1 - axis]:
            with pytest.raises(ExecutionError, match="no elements"):
                tilewright.compile(network, target="cpu").run({"x": floats(*shape)})
        else:
            same_as_reference(network, {"x": floats(*shape)})


@pytest.mark.parametrize("operator", ["argmax", "argmin"])
def test_places_in_rows_of_any_length(operator: str) -> None:
    """Short rows are taken side by side, long ones one by one."""
    executable = tilewright.compile(model(operator, {"x": f32["n", "c"]}, axis=1), target="cpu")
    for shape in ((40, 3), (40, 64), (40, 65), (3, 5), (1, 300), (200, 2)):
        x = floats(*shape)
        x[::3, -1] = x[::3, 0]
        (found,) = executable.run({"x": x}).values()
        assert np.array_equal(found, getattr(np, operator)(x, axis=1, keepdims=True)), shape


@pytest.mark.parametrize("operator", ["relu", "softmax", "transpose"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_maps_and_rows_of_nothing(operator: str, shape: tuple[int, ...]) -> None:
    same_as_reference(model(operator, {"x": CUBE}), {"x": floats(*shape)})


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (1, 2, 0, 5), (1, 2, 1, 1), (2, 2, 1, 4), (1, 2, 5, 1)])
@pytest.mark.parametrize("group", [1, 2])
def test_convolutions_of_little_or_nothing(shape: tuple[int, ...], group: int) -> None:
    types = {"x": f32["n", 2, "h", "w"], "w": floats(2, 2 // group, 3, 3)}
    same_as_reference(model("conv", types, pads=[1, 1, 1, 1], group=group), {"x": floats(*shape)})
    if group == 1 and shape[2:] == (1, 1):
        same_as_reference(model("conv_transpose", types, strides=[2, 2]), {"x": floats(*shape)})


def test_pads_do_not_repeat_nothing() -> None:
    executable = tilewright.compile(model("pad", {"x": CUBE, "p": i64[4]}, mode="edge"), target="cpu")
    with pytest.raises(ExecutionError, match="nothing"):
        executable.run({"x": floats(2, 0), "p": ints(0, 1, 0, 1)})


# ---- the mode that checks bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begin", "length"), [(0, 40), (0, 30), (8, 40)])
def test_an_access_outside_is_found_and_touches_nothing(begin: int, length: int) -> None:
    kernel = Map(1, (MapOperand(f32, 1),), (MapOperand(f32, 1),), lambda b, x: [b.add(x[0], 1)])
    text = emit_module(build_map("count", kernel, machine()), machine(), checked=True)
    code = Code([object_code_of_text(text, machine())], machine())
    x = np.zeros(64, np.float32)
    inside = slice(begin, begin + length)
    first, last = 4 * begin, 4 * (begin + length)
    table = np.array([0, first, first, last, 0, first, first, last, 40], np.int64)
    bases = np.array([x.ctypes.data], np.int64)
    step = np.array([code.address("count_entry"), table.ctypes.data, 1, 1], np.int64)
    from tilewright.backends.cpu.runtime import runtime

    bounds.forget()
    runtime().run(step.ctypes.data, 1, bases.ctypes.data, 0)
    assert not x[: inside.start].any()
    assert not x[inside.stop :].any()
    if length < 40:
        with pytest.raises(ExecutionError, match=r"count: store .* is out of bounds"):
            bounds.complain()
    else:
        bounds.complain()
        assert (x[inside] == 1).all()


def test_executables_can_check_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(bounds.BOUNDS_VARIABLE, "1")
    b = Builder("model")
    x = b.input("x", f32["n", 33])
    b.output(b.softmax(b.gelu(x @ floats(33, 17))), "y")
    network = b.build()
    same_as_reference(network, {"x": floats(5, 33)})
    with pytest.raises(UsageError, match="cannot be saved"):
        tilewright.compile(network, target="cpu").save(tmp_path / "model.twx")


# ---- threads and processes -------------------------------------------------------------------------------------------


def test_two_threads_run_one_executable_with_other_shapes() -> None:
    b = Builder("model")
    x = b.input("x", f32["n", 8])
    weights = floats(8, 5)
    b.output(b.tanh(x @ weights), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    inputs = [floats(rows, 8) for rows in (1, 3, 20, 60)]
    wanted = [executable.run({"x": x})["y"] for x in inputs]
    wrong: list[int] = []

    def work(start: int) -> None:
        for turn in range(1000):
            which = (start + turn) % len(inputs)
            if not np.array_equal(executable.run({"x": inputs[which]})["y"], wanted[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_executables_are_not_copied(pair: Any) -> None:
    for action in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(UsageError, match="cannot be copied or pickled"):
            action(pair)


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np, tilewright
from tilewright.graph.dtypes import f32
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
b = tilewright.Builder("m")
b.output(b.exp(b.input("x", f32["n", 300]) @ np.zeros((300, 300), np.float32)), "y")
executable = tilewright.compile(b.build(), target="cpu", threads=THREADS)
feeds = {"x": np.ones((300, 300), np.float32)}
def run():
    assert (executable.run(feeds)["y"] == 1).all()
def again():
    while True:
        run()
run()
"""


def process(
    action: str, threads: int = 2, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("THREADS", str(threads)) + action],
        timeout=120, capture_output=True, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("threading.Thread(target=again, daemon=True).start(); time.sleep(0.1); os._exit(3)", 3),
        ("threading.Thread(target=again, daemon=True).start(); time.sleep(0.1); sys.exit(4)", 4),
        ("time.sleep(0.1)", 0),
        ("threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
         "try: again()\nexcept KeyboardInterrupt: run()", 0),
        ("pid = os.fork()\nif pid == 0:\n    run(); run(); sys.exit(0)\n"
         "run(); assert os.waitpid(pid, 0)[1] == 0; run()", 0),
        ("executable = tilewright.compile(b.build(), threads=1)\n"
         "def other():\n    executable.run({'x': np.ones((7, 300), np.float32)})\n"
         "def held(wait=threading.Event().wait):\n    with executable._lock, executable._shared.library._lock:\n"
         "        wait()\n"
         "threading.Thread(target=held, daemon=True).start(); time.sleep(0.1); pid = os.fork()\n"
         "if pid == 0:\n    signal.alarm(60); other(); os._exit(0)\n"
         "assert os.waitpid(pid, 0)[1] == 0", 0),
    ],
    ids=["_exit", "exit", "parked", "interrupt", "fork", "fork_while_planning"],
)  # fmt: skip
def test_processes_end_well(action: str, code: int) -> None:
    done = process(action)
    assert done.returncode == code, done.stderr


def test_more_threads_than_cores() -> None:
    assert process("for _ in range(20): run()", threads=4 * (os.cpu_count() or 1)).returncode == 0


@pytest.fixture
def interrupted_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The second kernel that is compiled is interrupted. What was compiled, all in this process."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    real, calls = compile_queue.object_code_of_text, []

    def interrupted(text: str, machine: Any) -> bytes:
        calls.append(text)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(text, machine)

    monkeypatch.setattr(compile_queue, "object_code_of_text", interrupted)
    return calls


def test_an_interrupt_while_kernels_are_compiled_ahead(interrupted_once: list[str]) -> None:
    b = Builder("model")
    x = b.input("x", f32["n", 7])
    b.output(b.softmax(b.tanh(x @ floats(7, 5))), "y")
    with pytest.raises(KeyboardInterrupt):
        tilewright.compile(b.build(), target="cpu")
    assert len(interrupted_once) == 2
    executable = tilewright.compile(b.build(), target="cpu")
    np.testing.assert_allclose(executable.run({"x": floats(3, 7)})["y"].sum(1), np.ones(3), rtol=1e-5)


def test_an_interrupt_while_kernels_are_compiled_for_a_run(interrupted_once: list[str]) -> None:
    b = Builder("model")
    x = b.input("x", f32[1, 1, "h", "w"])  # images of open size are planned when they come
    b.output(b.softmax(b.tanh(b.conv(x, floats(1, 1, 3, 3)))), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    assert interrupted_once == []
    with pytest.raises(KeyboardInterrupt):
        executable.run({"x": floats(1, 1, 5, 9)})
    np.testing.assert_allclose(executable.run({"x": floats(1, 1, 5, 9)})["y"].sum(3), np.ones((1, 1, 3)), rtol=1e-5)


def test_memory_stays_flat() -> None:
    action = """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
small = {"x": np.ones((2, 300), np.float32)}
for _ in range(500): executable.run(small)
before = resident()
for _ in range(10_000): executable.run(small)
assert resident() - before < 2 << 20, (before, resident())
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    done = process(action)
    assert done.returncode == 0, done.stderr


def test_killed_while_it_compiles_and_started_again(tmp_path: Path) -> None:
    environment = {"TILEWRIGHT_CACHE": str(tmp_path / "cache")}
    arguments = [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("THREADS", "2")]
    for wait in (0.5, 1.0, 1.5):
        victim = subprocess.Popen(arguments, env={**os.environ, **environment}, start_new_session=True)
        time.sleep(wait)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    assert process("run()", environment=environment).returncode == 0


def test_two_processes_compile_the_same_model(tmp_path: Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "cache")}
    arguments = [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("THREADS", "2")]
    both = [subprocess.Popen(arguments, env=environment) for _ in range(2)]
    assert [each.wait(120) for each in both] == [0, 0]


@pytest.mark.parametrize("bits", ["128", "256", "512"])
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_products_of_any_size_on_any_vectors(bits: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles whose rows are no multiple of a vector."""
    monkeypatch.setenv("TILEWRIGHT_VECTOR_BITS", bits)
    executable = tilewright.compile(model("matmul", {"x": dtype["m", "k"], "z": dtype["k", "n"]}), target="cpu")
    for m, n, k in ((5, 5, 8), (20, 30, 40), (7, 33, 9)):
        x, z = floats(m, k).astype(dtype.numpy), floats(k, n).astype(dtype.numpy)
        np.testing.assert_allclose(executable.run({"x": x, "z": z})["y0"], x @ z, rtol=1e-4, atol=1e-4)
