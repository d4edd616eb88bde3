"""Kernels that are bound by memory: softmax, norms, reductions and moves, in % of copying and beside ONNX Runtime.

    python benchmarks/memory_kernels.py [--seconds 2] [NAME ...]

Kernels are called directly, on one thread, with memory that is there; ONNX Runtime writes to bound outputs. All run in
turn, and the best of each counts. `memcpy` is numpy's copy, `copy` our own kernel's, of as many bytes as the kernel
reads and writes: past the caches if the kernel's result goes there, too. Percents are of the faster one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment
from measure import table

import tilewright
from tilewright.backends.cpu.jit import compile_modules
from tilewright.backends.cpu.kernels import elementwise, indexed, move, recurrent, resample, rows, sort
from tilewright.backends.cpu.kernels import reduce as reductions
from tilewright.backends.cpu.kernels.strided import View
from tilewright.backends.cpu.machine import machine
from tilewright.graph.dtypes import f32, i64
from tilewright.graph.kernel.scalar_emitter import ScalarEmitter
from tilewright.graph.module import Module

Run = Callable[[], object]
random = np.random.default_rng(0)


def direct(module: Module, arguments: Sequence[Any]) -> Run:
    """A call of the compiled kernel with these arguments; arrays by their addresses."""
    code = compile_modules([module], machine())
    given = [item.ctypes.data if isinstance(item, np.ndarray) else int(item) for item in arguments]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(given))(code.address(module.main.key.name))

    def run(keep: object = (code, list(arguments))) -> None:
        function(*given)

    return run


def onnxruntime_of(build: Callable[[Any], Any], feeds: dict[str, np.ndarray], threads: int = 1) -> Run:
    """A run of the model that `build(builder)` gives the result of, on bound memory."""
    import onnxruntime

    b = tilewright.Builder("bench", opset=20)
    b.output(build(b), "y")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    proto = tilewright.to_proto(b.build()).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    first = session.run(None, feeds)[0]
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    target = onnxruntime.OrtValue.ortvalue_from_numpy(first)
    binding.bind_ortvalue_output("y", target)
    return lambda keep=(feeds, target): session.run_with_iobinding(binding)


def aligned(*shape: int) -> np.ndarray:
    """An array that begins at a cache line."""
    count = int(np.prod(shape))
    memory = np.zeros(count * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + count * 4].view(np.float32).reshape(shape)


def filled(*shape: int) -> np.ndarray:
    array = aligned(*shape)
    array[...] = random.standard_normal(shape, np.float32)
    return array


def copying(read: int, written: int) -> Run:
    """Copying half of so many numbers."""
    half = (read + written) // 2
    source, target = filled(half), aligned(half)
    return lambda: np.copyto(target, source)


def copying_by_kernel(read: int, written: int) -> Run:
    """The same by the kernel for copies, past the caches if what is written is large."""
    half = (read + written) // 2
    plan = move.ordered((half,), (1,), (1,))
    kernel = replace(plan.of(f32), streams=4 * written >= machine().streamed_bytes and plan.can_stream(f32, machine()))
    units = move.copy_units(kernel, machine(), plan.extents)
    return direct(move.build_copy("copy", kernel, machine()), [aligned(half), filled(half), 0, 0, 0, units, 0])


# ---- cases: name -> (kernel, peer, elements read, elements written) --------------------------------------------------

Case = tuple[Run, Run, int, int]


def row_case(
    function: rows.RowFunction, count: int, length: int, build: Callable[[Any, Any], Any], scaled: bool
) -> Case:
    x, y = filled(count, length), aligned(count, length)
    scale = (filled(length), filled(length)) if scaled else ()
    kernel = rows.RowKernel(
        function, (None,), (length,), (View(f32, (length,), (1,)),), (View(f32, (length,), (1,)),),
        tuple(View(f32, (0,), (1,)) for _ in scale),
        epilogue=(lambda b, v: [b.fma(v[0], v[1], v[2])]) if scaled else None,
    )  # fmt: skip
    kernel = rows.streamed(kernel, machine(), (count,), (length,))
    scratch = aligned(max(16, rows.row_scratch(kernel, machine(), (length,))))
    given = {"y0": y, "x0": x, "scratch": scratch, "outer0": count, "begin": 0, "end": count, "thread": 0}
    given |= {f"o{index}": array for index, array in enumerate(scale)}
    run = direct(rows.build_rows("rows", kernel, machine()), [given[name] for name in rows.row_arguments(kernel)])
    peer = onnxruntime_of(lambda b: build(b, b.input("x", f32[count, length])), {"x": x})
    return run, peer, x.size, x.size


def column_softmax(count: int, length: int, beside: int) -> Case:
    """Over the middle of three axes."""
    x, y = filled(count, length, beside), aligned(count, length, beside)
    view = View(f32, (length * beside, 1), (beside,))
    kernel = rows.RowKernel(rows.softmax(), (count, beside), (length,), (view,), (view,), along="column")
    kernel = rows.streamed(kernel, machine(), (count, beside), (length,))
    scratch = aligned(max(16, rows.row_scratch(kernel, machine(), (length,))))
    units = rows.row_units(kernel, machine(), (count, beside))
    given = {"y0": y, "x0": x, "scratch": scratch, "begin": 0, "end": units, "thread": 0}
    run = direct(rows.build_rows("rows", kernel, machine()), [given[name] for name in rows.row_arguments(kernel)])
    peer = onnxruntime_of(lambda b: b.softmax(b.input("x", f32[count, length, beside]), axis=1), {"x": x})
    return run, peer, x.size, x.size


def reduction(shape: tuple[int, int], axis: int, how: str = "sum") -> Case:
    x = filled(*shape)
    count, length = (shape[1], shape[0]) if axis == 0 else shape
    strides = (1, shape[1]) if axis == 0 else (shape[1], 1)
    along: Any = "column" if axis == 0 else "row"
    kernel = reductions.Reduce(
        (count,), (length,), (View(f32, (strides[0],), (strides[1],)),), (reductions.Total(how, f32),),
        (View(f32, (1,)),), along=along,
    )  # fmt: skip
    y = aligned(count)
    units = reductions.reduce_units(kernel, machine(), (count,), (length,))
    run = direct(reductions.build_reduce("reduce", kernel, machine()), [y, x, 0, units, 0])
    names = {"sum": "reduce_sum", "max": "reduce_max"}

    def build(b: Any) -> Any:
        value = b.input("x", f32[shape])
        return getattr(b, names[how])(value, [axis], keepdims=0)

    return run, onnxruntime_of(build, {"x": x}), x.size, count


def norm(b: Any, x: Any) -> Any:
    length = x.type.shape[-1]
    return b.layer_normalization(x, random.standard_normal(length, np.float32), np.zeros(length, np.float32))


def transpose(shape: tuple[int, ...], perm: tuple[int, ...]) -> Case:
    x = filled(*shape)
    source = x.transpose(perm)
    y = aligned(*source.shape)
    plan = move.ordered(y.shape, [s // 4 for s in source.strides], [s // 4 for s in y.strides])
    is_large = y.nbytes >= machine().streamed_bytes // 2
    kernel = replace(plan.of(f32), streams=is_large and plan.can_stream(f32, machine()))
    units = move.copy_units(kernel, machine(), plan.extents)
    run = direct(move.build_copy("copy", kernel, machine()), [y, x, 0, 0, 0, units, 0])
    peer = onnxruntime_of(lambda b: b.transpose(b.input("x", f32[shape]), perm=list(perm)), {"x": x})
    return run, peer, x.size, x.size


def recurrence(kind: str, length: int, hidden: int) -> Case:
    """Against the whole operator of ONNX Runtime, with one input, so that its product with the inputs costs nothing."""
    gates, directions = recurrent.GATES[kind], 1
    activations: Any = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh")}[kind]
    kernel = recurrent.Recurrent(kind, hidden, activations=tuple((name, 0.0, 0.0) for name in activations))
    weights = filled(directions, gates * hidden, hidden) / hidden**0.5
    x, w = filled(length, 1, 1), filled(directions, gates * hidden, 1)
    packed = recurrent.packed_recurrence(kernel, weights, machine())
    given: dict[str, Any] = {
        "y": aligned(length, hidden), "h": aligned(hidden), "c": aligned(hidden), "weights": packed,
        "inputs": filled(length, gates * hidden), "h0": aligned(hidden), "c0": aligned(hidden), "length": length,
        "batch": 1, "scratch": aligned(recurrent.recurrent_scratch(kernel, machine())),
        "inputs_time": gates * hidden, "y_time": hidden, "begin": 0, "end": 1, "thread": 0,
    }  # fmt: skip
    module = recurrent.build_recurrent("recurrent", kernel, machine())
    run = direct(module, [given.get(name, 0) for name in recurrent.recurrent_arguments(kernel)])

    def build(b: Any) -> Any:
        return getattr(b, kind)(b.input("x", f32[length, 1, 1]), w, weights, hidden_size=hidden, outputs=2)[0]

    return run, onnxruntime_of(build, {"x": x}), length * weights.size, length * hidden


def gathered(count: int, width: int, chosen: int) -> Case:
    """Rows of an embedding table."""
    whole, part = filled(count, width), aligned(chosen, width)
    indices = random.integers(0, count, chosen)
    space = indexed.Indexed(f32, i64, (chosen, width), (0, 1), (width, 1), (1, 0))
    given = {"whole": whole, "part": part, "indices": indices, "fault": np.zeros(2, np.int64), "step0": width}
    given |= {"limit0": count, "begin": 0, "end": indexed.gather_units(indexed.Gather(space), (chosen, width))}
    module = indexed.build_gather("gather", indexed.Gather(space), machine())
    run = direct(module, [given.get(name, 0) for name in indexed.indexed_arguments(space)])
    feeds = {"x": whole, "i": indices}
    peer = onnxruntime_of(lambda b: b.gather(b.input("x", f32[count, width]), b.input("i", i64[chosen])), feeds)
    return run, peer, part.size, part.size


def resized(channels: int, size: int, mode: str) -> Case:
    """Twice as wide and high, channels first."""
    from tilewright.graph import opdef, types
    from tilewright.graph.core import Operation
    from tilewright.graph.ops.resize_numeric import matrices

    x, y = filled(1, channels, size, size), aligned(1, channels, 2 * size, 2 * size)
    scales = np.array([2, 2], np.float32)
    op = Operation(opdef.lookup("", "Resize"), (), {"mode": mode, "axes": (2, 3)}, [types.UNKNOWN])
    rows, columns = (resample.taps_of(matrix) for _, matrix in matrices(op, x.shape, None, scales, None))
    kernel = resample.Resample(
        f32, (channels,), 2 * size, 2 * size, size, 0, (size * size, size, 1), (4 * size * size, 2 * size, 1),
        rows.count, columns.count, rows.copies and columns.copies,
    )  # fmt: skip
    given: dict[str, Any] = {
        "y": y, "x": x, "row_index": rows.index, "row_weight": rows.weight, "column_index": columns.index,
        "column_weight": columns.weight, "scratch": aligned(size + 16), "begin": 0,
        "end": resample.resample_units((channels,), 2 * size), "thread": 0,
    }  # fmt: skip
    module = resample.build_resample("resample", kernel, machine())
    run = direct(module, [given[name] for name in resample.resample_arguments(kernel)])
    whole = np.array([1, 1, 2, 2], np.float32)
    feeds = {"x": x}
    peer = onnxruntime_of(lambda b: b.resize(b.input("x", f32[x.shape]), None, whole, mode=mode), feeds)
    return run, peer, x.size, y.size


def first_k(length: int, k: int) -> Case:
    x = filled(1, length)
    kernel = sort.Sort(f32, (1,), length, k, (length, 1), (k, 1), (k, 1), True, k <= 64)
    room = np.zeros(sort.sort_scratch(kernel, length), np.int64)
    run = direct(sort.build_sort("sort", kernel, machine()), [aligned(k), np.zeros(k, np.int64), x, room, 0, 1, 0])
    peer = onnxruntime_of(lambda b: b.topk(b.input("x", f32[1, length]), [k], outputs=2)[0], {"x": x})
    return run, peer, length, k


def mapped(shape: tuple[int, ...], build: Callable[[Any, Any], Any], body: Any, operations: int = 14) -> Case:
    """A map of as many operands as `build` takes; `body` is the same in loop operations."""
    names = [name for name in ("x0", "x1") if name in build.__code__.co_varnames]
    count = int(np.prod(shape))
    xs, y = [filled(*shape) for _ in names], aligned(*shape)
    view = elementwise.MapOperand(f32, 1)
    streams = y.nbytes >= machine().streamed_bytes
    kernel = elementwise.Map(1, (view,) * len(xs), (view,), body, operations, streams)
    given = {"y0": y, "extent0": count, "begin": 0, "end": -(-count // elementwise.GRAIN), "thread": 0}
    given |= dict(zip(names, xs, strict=True))
    run = direct(elementwise.build_map("map", kernel, machine()), [given[n] for n in elementwise.map_arguments(kernel)])
    feeds = dict(zip(names, xs, strict=True))
    peer = onnxruntime_of(lambda b: build(b, *(b.input(name, f32[shape]) for name in names)), feeds)
    return run, peer, count * len(xs), count


def scalars(function: Any) -> Any:
    """The body of a map from the meaning of an operator, written over a handler of scalars."""
    return lambda b, x: [function(ScalarEmitter(b), *x)]


LARGE = (1 << 24,)
CASES: dict[str, Callable[[], Case]] = {
    "add 2 x 64 MiB": lambda: mapped(LARGE, lambda b, x0, x1: x0 + x1, scalars(lambda s, x, y: s.add(x, y)), 1),
    "exp 64 MiB": lambda: mapped(LARGE, lambda b, x0: b.exp(x0), scalars(lambda s, x: s.exp(x))),
    "tanh 64 MiB": lambda: mapped(LARGE, lambda b, x0: b.tanh(x0), scalars(lambda s, x: s.tanh(x))),
    "erf 64 MiB": lambda: mapped(LARGE, lambda b, x0: b.erf(x0), scalars(lambda s, x: s.erf(x))),
    "sigmoid 64 MiB": lambda: mapped(LARGE, lambda b, x0: b.sigmoid(x0), scalars(lambda s, x: s.sigmoid(x))),
    "softmax 1536 x 128": lambda: row_case(rows.softmax(), 1536, 128, lambda b, x: b.softmax(x, axis=-1), False),
    "softmax 2364 x 197": lambda: row_case(rows.softmax(), 2364, 197, lambda b, x: b.softmax(x, axis=-1), False),
    "softmax 16384 x 1024": lambda: row_case(rows.softmax(), 16384, 1024, lambda b, x: b.softmax(x, axis=-1), False),
    "softmax 512 x 32000": lambda: row_case(rows.softmax(), 512, 32000, lambda b, x: b.softmax(x, axis=-1), False),
    "softmax 128 x 128000": lambda: row_case(rows.softmax(), 128, 128000, lambda b, x: b.softmax(x, axis=-1), False),
    "softmax 1 x 21 x 262144, axis 1": lambda: column_softmax(1, 21, 262144),
    "softmax 16 x 64 x 16384, axis 1": lambda: column_softmax(16, 64, 16384),
    "softmax 32 x 512 x 1024, axis 1": lambda: column_softmax(32, 512, 1024),
    "layer norm 128 x 768": lambda: row_case(rows.layer_norm(1e-5), 128, 768, norm, True),
    "layer norm 16384 x 768": lambda: row_case(rows.layer_norm(1e-5), 16384, 768, norm, True),
    "layer norm 65536 x 96": lambda: row_case(rows.layer_norm(1e-5), 65536, 96, norm, True),
    "sum 16384 x 1024, axis 1": lambda: reduction((16384, 1024), 1),
    "sum 16384 x 1024, axis 0": lambda: reduction((16384, 1024), 0),
    "max 16384 x 1024, axis 1": lambda: reduction((16384, 1024), 1, "max"),
    "transpose 4096 x 4096": lambda: transpose((4096, 4096), (1, 0)),
    "transpose 1000 x 3000": lambda: transpose((1000, 3000), (1, 0)),
    "transpose 768 x 768": lambda: transpose((768, 768), (1, 0)),
    "transpose 1 x 256 x 56 x 56 to channels last": lambda: transpose((1, 256, 56, 56), (0, 2, 3, 1)),
    "transpose 1 x 56 x 56 x 256 to channels first": lambda: transpose((1, 56, 56, 256), (0, 3, 1, 2)),
    "transpose 1 x 3 x 224 x 224 to channels last": lambda: transpose((1, 3, 224, 224), (0, 2, 3, 1)),
    "transpose 1 x 128 x 12 x 64, heads first": lambda: transpose((1, 128, 12, 64), (0, 2, 1, 3)),
    "lstm of 100 steps, 128 units": lambda: recurrence("lstm", 100, 128),
    "lstm of 100 steps, 512 units": lambda: recurrence("lstm", 100, 512),
    "gru of 100 steps, 256 units": lambda: recurrence("gru", 100, 256),
    "gather 128 of 30522 x 768": lambda: gathered(30522, 768, 128),
    "resize 64 x 56 x 56, nearest": lambda: resized(64, 56, "nearest"),
    "resize 64 x 56 x 56, linear": lambda: resized(64, 56, "linear"),
    "first 50 of 8400": lambda: first_k(8400, 50),
    "first 1000 of 20000": lambda: first_k(20000, 1000),
    "sum 2048 x 49, axis 1": lambda: reduction((2048, 49), 1),
    "sum 49 x 2048, axis 0": lambda: reduction((49, 2048), 0),
}


def row(name: str, seconds: float) -> list[str]:
    kernel, peer, read, written = CASES[name]()
    copies = {"memcpy": copying(read, written), "copy": copying_by_kernel(read, written)}
    best = best_of({**copies, "ours": kernel, "onnxruntime": peer}, seconds)
    rate = {key: 4 * (read + written) / value / 1e9 for key, value in best.items()}
    cells = [f"{best['ours'] * 1e6:.1f}", *(f"{rate[key]:.1f}" for key in ("memcpy", "copy", "ours", "onnxruntime"))]
    fastest = max(rate["memcpy"], rate["copy"])
    return [name, *cells, f"{rate['ours'] / fastest:.0%}", f"{rate['ours'] / rate['onnxruntime']:.2f}"]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seconds", default=2.0, show_default=True, help="For each row.")
def main(names: tuple[str, ...], seconds: float) -> None:
    """Measure kernels whose names begin with one of NAMES (default: all)."""
    in_plain_environment()
    chosen = [name for name in CASES if not names or name.startswith(names)]
    rates = [f"{name} GB/s" for name in ("memcpy", "copy", "tilewright", "onnxruntime")]
    columns = ["kernel", "microseconds", *rates, "of copying", "ratio"]
    table("float32, one thread", columns, [row(name, seconds) for name in chosen])


if __name__ == "__main__":
    main()
