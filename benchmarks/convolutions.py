"""How near convolution kernels come to the machine's FMA peak, and to ONNX Runtime's.

    python benchmarks/convolutions.py [--seconds 2] [--only 3x3]

Every row is one layer, float32, one image, one thread, with bias and Relu fused. ONNX Runtime runs a model of that
layer alone, so its figure includes bringing the input into its blocked layout and back; ours reads and writes channels
last, which a whole network keeps. All contestants run in turn and the best of each counts. Read the ratios: on a busy
machine the peak itself comes out low.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np
from kernels import in_plain_environment, peak
from measure import table

from tilewright.backends.cpu.jit import compile_modules
from tilewright.backends.cpu.kernels.conv import (
    Conv,
    build_conv,
    choose_conv_tiling,
    conv_arguments,
    conv_blocks,
    conv_tilings,
    conv_units,
    packed_filters,
)
from tilewright.backends.cpu.kernels.depthwise import (
    Blocks,
    Depthwise,
    build_depthwise,
    choose_depthwise_tiling,
    depthwise_arguments,
    depthwise_blocks,
    depthwise_units,
    packed_taps,
)
from tilewright.backends.cpu.kernels.image import BY_CHANNEL, ImageEpilogue, ImageOperand, Layout, Window
from tilewright.backends.cpu.kernels.pack import on_cache_lines
from tilewright.backends.cpu.kernels.pool import Pool, build_pool, pool_arguments, pool_blocks, pool_units
from tilewright.backends.cpu.kernels.winograd import (
    build_winograd,
    transformed_filters,
    winograd_arguments,
    winograd_scratch,
    winograd_tilings,
    winograd_units,
)
from tilewright.backends.cpu.machine import machine
from tilewright.graph.dtypes import f32
from tilewright.graph.module import Module


@dataclass(frozen=True)
class Layer:
    """Input extent, channels in and out, filter extent, stride, groups, dilation; padded so that stride 1 keeps the
    extent."""

    size: int
    channels: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    planar: bool = False

    @property
    def pad(self) -> int:
        return (self.kernel - 1) * self.dilation // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.pad - (self.kernel - 1) * self.dilation - 1) // self.stride + 1

    @property
    def operations(self) -> float:
        return 2.0 * self.out**2 * self.outputs * self.channels // self.groups * self.kernel**2

    def __str__(self) -> str:
        text = f"{self.kernel}x{self.kernel} {self.channels}->{self.outputs} @{self.size}"
        text += f" /{self.stride}" if self.stride > 1 else ""
        text += f" groups {self.groups}" if self.groups > 1 else ""
        text += f" dilation {self.dilation}" if self.dilation > 1 else ""
        return text + (" planar input" if self.planar else "")


LAYERS = [
    Layer(224, 3, 64, 7, 2), Layer(224, 3, 64, 7, 2, planar=True), Layer(224, 3, 32, 3, 2),
    Layer(56, 64, 64, 3), Layer(28, 128, 128, 3), Layer(14, 256, 256, 3), Layer(7, 512, 512, 3),
    Layer(56, 128, 128, 3, 2), Layer(28, 256, 256, 3, 2), Layer(14, 512, 512, 3, 2),
    Layer(56, 256, 512, 1, 2), Layer(28, 512, 1024, 1, 2), Layer(14, 1024, 2048, 1, 2),
    Layer(28, 128, 128, 3, dilation=2), Layer(14, 512, 512, 3, groups=32), Layer(20, 128, 128, 3),
    Layer(13, 256, 512, 3), Layer(112, 64, 128, 3), Layer(56, 128, 128, 3, groups=32),
    Layer(28, 256, 256, 3, groups=32), Layer(56, 64, 64, 3, groups=32), Layer(160, 16, 16, 3), Layer(80, 32, 32, 3),
    Layer(16, 320, 320, 3), Layer(64, 32, 3, 3), Layer(56, 8, 8, 3),
]  # fmt: skip
DEPTHWISE = [
    Layer(size, channels, channels, kernel, stride, groups=channels)
    for size, channels, kernel, stride in [
        (112, 32, 3, 1), (112, 96, 3, 2), (56, 144, 3, 1), (56, 144, 3, 2), (28, 192, 3, 1), (28, 192, 3, 2),
        (14, 384, 3, 1), (14, 576, 3, 1), (14, 576, 3, 2), (7, 960, 3, 1), (56, 144, 5, 2), (28, 240, 5, 1),
        (14, 480, 5, 1), (14, 672, 5, 2), (7, 1152, 5, 1), (56, 96, 7, 1), (14, 384, 7, 1),
    ]
]  # fmt: skip
POOLS = [
    ("max", Layer(112, 64, 64, 3, 2)), ("max", Layer(56, 128, 128, 3, 1)), ("max", Layer(20, 256, 256, 5, 1)),
    ("max", Layer(20, 256, 256, 13, 1)), ("average", Layer(28, 256, 256, 3, 1)), ("average", Layer(56, 128, 128, 1, 2)),
]  # fmt: skip
TILES = [(2, 7), (4, 4), (3, 6), (2, 4)]


def bias_relu(b: Any, total: Any, given: Any) -> Any:
    return b.max(b.add(total, given[0]), 0)


EPILOGUE = ImageEpilogue((ImageOperand("bias", f32, BY_CHANNEL),), bias_relu)


def compiled(module: Module, names: list[str], known: dict[str, Any]) -> Callable[[], object]:
    """A call of the kernel with these arguments, which it keeps alive."""
    code = compile_modules([module], machine())
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(names))(code.address(module.main.key.name))
    given = [known[name] for name in names]
    words = [each.ctypes.data if isinstance(each, np.ndarray) else each for each in given]

    def run(keep: object = (code, given)) -> None:
        function(*words)

    return run


def best_of(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The shortest time of each, in seconds of this thread. They run in turn, each twice, so that it finds its operands
    in the caches that they fit into, as it would in a network."""
    best = dict.fromkeys(runs, float("inf"))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name, run in runs.items():
            run()
            started = time.thread_time()
            run()
            best[name] = min(best[name], time.thread_time() - started)
    return best


def onnxruntime_run(
    nodes: list[Any], x: np.ndarray, weights: dict[str, np.ndarray]
) -> tuple[Callable[[], object], Any]:
    """A run of the nodes, from x to y, on bound buffers, and its result."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding), session.run(None, {"x": x})[0]


def layer_nodes(layer: Layer, source: str, result: str) -> list[Any]:
    """The layer and its Relu."""
    from onnx import helper

    facts = {
        "strides": [layer.stride] * 2, "pads": [layer.pad] * 4, "group": layer.groups,
        "dilations": [layer.dilation] * 2,
    }  # fmt: skip
    conv = helper.make_node("Conv", [source, "w", "b"], [f"{result}_sum"], **facts)
    return [conv, helper.make_node("Relu", [f"{result}_sum"], [result])]


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy that begins at a cache line, as everything in an executable's arena does."""
    copy = on_cache_lines(array.size, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def haloed(layer: Layer, x: np.ndarray) -> np.ndarray:
    padded = np.pad(x[0], [(0, 0), (layer.pad,) * 2, (layer.pad,) * 2])
    return aligned(padded if layer.planar else padded.transpose(1, 2, 0))


def conv_runs(
    layer: Layer, x: np.ndarray, w: np.ndarray, bias: np.ndarray, every: bool
) -> tuple[dict[str, Callable[[], object]], np.ndarray]:
    """Runs of our kernel with the tiling that is chosen, or with each, and the buffer of the result."""
    source, out = haloed(layer, x), layer.out
    side = layer.size + 2 * layer.pad
    steps = (side**2, 0, side, 1) if layer.planar else (1, 0, side * layer.channels, layer.channels)
    conv = Conv(
        Window.of((layer.kernel,) * 2, (layer.stride,) * 2, (layer.dilation,) * 2), layer.channels // layer.groups,
        layer.outputs // layer.groups, f32, layer.groups, 1, out, out,
        Layout(None, steps[1], steps[2], steps[3], steps[0]), Layout(None, 0, out * layer.outputs, layer.outputs),
        EPILOGUE,
    )  # fmt: skip
    y = aligned(np.zeros((out, out, layer.outputs), np.float32))
    runs = {}
    best = choose_conv_tiling(conv, machine())
    for tiling in conv_tilings(conv, machine()) if every else [best]:
        blocks = conv_blocks(conv, tiling, machine(), out, out)
        known = {
            "x": source, "w": packed_filters(w, conv, tiling), "y": y, "bias": bias, "images": 1, "blocks": blocks,
            "x_image": 0, "y_image": 0, "begin": 0, "end": conv_units(conv, tiling, 1, 1, blocks), "thread": 0,
        }  # fmt: skip
        tag = f"{tiling.rows}x{tiling.pixels}x{tiling.columns}" + (f"/{tiling.parts}" if tiling.parts > 1 else "")
        name = f"{tag}{'*' if every and tiling == best else ''}"
        runs[name] = compiled(build_conv("conv", conv, tiling), conv_arguments(conv), known)
    for tiling in winograd_tilings(conv, machine()) if every else []:
        known = {
            "x": source, "w": transformed_filters(w, conv, tiling), "y": y, "bias": bias, "images": 1, "x_image": 0,
            "y_image": 0, "scratch": on_cache_lines(winograd_scratch(conv, tiling), y.dtype), "panel_groups": 1,
            "begin": 0, "end": winograd_units(conv, tiling, 1, out, out, 1), "thread": 0,
        }  # fmt: skip
        module = build_winograd("winograd", conv, tiling)
        runs[f"F{tiling.size}:{tiling.block}"] = compiled(module, winograd_arguments(conv), known)
    return runs, y


def check(layer: Layer, runs: dict[str, Callable[[], object]], y: np.ndarray, expected: np.ndarray) -> None:
    """Each run writes into `y` [row, pixel, channel] what is expected."""
    for name, run in runs.items():
        y[...] = 0
        run()
        error = np.abs(y.transpose(2, 0, 1) - expected[0]).max() / np.abs(expected).max()
        if error > 2e-5:
            raise click.ClickException(f"{layer}, {name}: differs by {error:.1e}")


def layer_row(layer: Layer, seconds: float, every: bool) -> list[str]:
    random = np.random.default_rng(0)
    x = random.normal(size=(1, layer.channels, layer.size, layer.size)).astype(np.float32)
    w = random.normal(size=(layer.outputs, layer.channels // layer.groups, layer.kernel, layer.kernel)) * 0.05
    w, bias = w.astype(np.float32), random.normal(size=layer.outputs).astype(np.float32)
    theirs, expected = onnxruntime_run(layer_nodes(layer, "x", "y"), x, {"w": w, "b": bias})
    ours, y = conv_runs(layer, x, w, bias, every)
    check(layer, ours, y, expected)
    registers, operations = peak()
    best = best_of({"peak": registers, "onnxruntime": theirs, **ours}, seconds)
    top, rival = operations / best["peak"], layer.operations / best["onnxruntime"]
    rates = {name: layer.operations / best[name] for name in ours}
    winner = max(rates, key=lambda name: rates[name])
    tried = " ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.items())
    return [
        str(layer), f"{top / 1e9:.0f}", f"{rates[winner] / 1e9:.0f} ({100 * rates[winner] / top:.0f}%)",
        f"{rival / 1e9:.0f}", f"{rates[winner] / rival:.2f}", tried,
    ]  # fmt: skip


def depthwise_runs(
    layer: Layer, x: np.ndarray, w: np.ndarray, bias: np.ndarray, every: bool
) -> tuple[dict[str, Callable[[], object]], np.ndarray]:
    """Runs of our kernel with the tiling and blocks that are chosen, or with many, and the buffer of the result."""
    source, out, channels = haloed(layer, x), layer.out, layer.channels
    side = layer.size + 2 * layer.pad
    kernel = Depthwise(
        Window.of((layer.kernel,) * 2, (layer.stride,) * 2, (layer.dilation,) * 2), channels, f32, 1, out, out,
        Layout(None, 0, side * channels, channels), Layout(None, 0, out * channels, channels), EPILOGUE,
    )  # fmt: skip
    y = aligned(np.zeros((out, out, channels), np.float32))
    runs = {}
    tilings = [choose_depthwise_tiling(kernel, machine())]
    if every:
        tilings += [replace(tilings[0], rows=rows, pixels=min(pixels, out)) for rows, pixels in TILES]
    for tiling in tilings:
        chosen = depthwise_blocks(kernel, tiling, machine(), out, out)
        most = -(-channels // tiling.lanes)
        for blocks in {chosen, Blocks(1, 1), Blocks(1, max(1, most // 4))} if every else [chosen]:
            known = {
                "x": source, "w": packed_taps(w, kernel, tiling), "y": y, "bias": bias, "images": 1,
                "row_blocks": blocks.rows, "channel_blocks": blocks.channels, "x_image": 0, "y_image": 0, "begin": 0,
                "end": depthwise_units(1, 1, blocks), "thread": 0,
            }  # fmt: skip
            name = f"{tiling.rows}x{tiling.pixels}/{blocks.channels}"
            runs[name] = compiled(build_depthwise("dw", kernel, tiling), depthwise_arguments(kernel), known)
    return runs, y


def depthwise_row(layer: Layer, seconds: float, every: bool) -> list[str]:
    """Of ONNX Runtime a run of two layers minus one of the first, so that bringing the input into its layout counts
    for nothing."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1, layer.channels, layer.size, layer.size)).astype(np.float32)
    w = random.normal(size=(layer.outputs, 1, layer.kernel, layer.kernel)).astype(np.float32)
    bias = random.normal(size=layer.outputs).astype(np.float32)
    weights = {"w": w, "b": bias}
    before = layer_nodes(replace(layer, stride=1), "x", "y")
    one, _ = onnxruntime_run(before, x, weights)
    two, _ = onnxruntime_run(
        [*layer_nodes(replace(layer, stride=1), "x", "z"), *layer_nodes(layer, "z", "y")], x, weights
    )
    alone, expected = onnxruntime_run(layer_nodes(layer, "x", "y"), x, weights)
    ours, y = depthwise_runs(layer, x, w, bias, every)
    check(layer, ours, y, expected)
    best = best_of({"one": one, "two": two, "alone": alone, **ours}, seconds)
    winner = min(ours, key=lambda name: best[name])
    theirs = best["two"] - best["one"]
    tried = " ".join(f"{name} {best[name] * 1e6:.0f}" for name in ours)
    return [
        str(layer), f"{best[winner] * 1e6:.0f}", f"{theirs * 1e6:.0f}", f"{best['alone'] * 1e6:.0f}",
        f"{theirs / best[winner]:.2f}", f"{layer.operations / best[winner] / 1e9:.0f}", tried,
    ]  # fmt: skip


def pool_row(name: str, layer: Layer, kind: str, seconds: float) -> list[str]:
    """A pool of an image; ONNX Runtime's reads and writes channels first, so both do it in their own layout."""
    from onnx import helper

    x = np.random.default_rng(0).normal(size=(1, layer.channels, layer.size, layer.size)).astype(np.float32)
    facts = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": [layer.pad] * 4}
    node = helper.make_node("MaxPool" if kind == "max" else "AveragePool", ["x"], ["y"], **facts)
    theirs, expected = onnxruntime_run([node], x, {})
    out, channels = layer.out, layer.channels
    layouts = Layout(None, 0, layer.size * channels, channels), Layout(None, 0, out * channels, channels)
    window = Window.of((layer.kernel,) * 2, (layer.stride,) * 2)
    pool = Pool(kind, window, channels, f32, False, 1, out, out, *layouts)
    y = aligned(np.zeros((out, out, channels), np.float32))
    blocks = pool_blocks(pool, machine(), out, channels)
    known = {"x": aligned(x[0].transpose(1, 2, 0)), "y": y, "images": 1, "x_image": 0, "y_image": 0}
    known |= {"row_blocks": blocks.rows, "channel_blocks": blocks.channels}
    for dim, size, pad in (("plane", 1, 0), ("row", layer.size, layer.pad), ("pixel", layer.size, layer.pad)):
        known |= {f"{dim}_size": size, f"{dim}_before": pad, f"{dim}_after": pad}
    known |= {"begin": 0, "end": pool_units(1, 1, blocks), "thread": 0}
    ours = {"tilewright": compiled(build_pool("pool", pool, machine()), pool_arguments(pool), known)}
    check(layer, ours, y, expected)
    best = best_of({"onnxruntime": theirs, **ours}, seconds)
    bandwidth = (x.nbytes + y.nbytes) / best["tilewright"] / 1e9
    ratio = best["onnxruntime"] / best["tilewright"]
    return [
        name,
        *(f"{best[key] * 1e6:.0f}" for key in ("tilewright", "onnxruntime")),
        f"{ratio:.2f}",
        f"{bandwidth:.0f}",
    ]


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="For each row.")
@click.option("--only", default="", help="Layers whose text contains this.")
@click.option("--every", is_flag=True, help="Try every tiling, not only the one that is chosen (*).")
def main(seconds: float, only: str, every: bool) -> None:
    """Measure layers on one thread."""
    in_plain_environment()
    rows = [layer_row(layer, seconds, every) for layer in LAYERS if only in str(layer)]
    columns = ["layer", "peak GFLOP/s", "tilewright", "onnxruntime", "ratio", "rows x pixels x channels of a tile"]
    table("Convolutions, float32, one thread", columns, rows)
    rows = [depthwise_row(layer, seconds, every) for layer in DEPTHWISE if only in str(layer)]
    columns = ["layer", "tilewright us", "onnxruntime us", "with layout", "ratio", "GFLOP/s", "tiles/blocks"]
    table("Depthwise convolutions, float32, one thread", columns, rows)
    named = [(f"{kind} pool {layer}", layer, kind) for kind, layer in POOLS]
    rows = [pool_row(name, layer, kind, seconds) for name, layer, kind in named if only in name]
    table("Pools, float32, one thread", ["pool", "tilewright us", "onnxruntime us", "ratio", "GB/s"], rows)


if __name__ == "__main__":
    main()
