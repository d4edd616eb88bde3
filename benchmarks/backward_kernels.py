"""How near kernels of the backward pass come to the machine, in % of the FMA peak or of copying, and beside PyTorch.

    python benchmarks/backward_kernels.py [--peer PYTHON] [--only "filters"] [--rounds 5]

One thread, float32, batches of 32 images or 8 sequences, in seconds of the processor. Of ours the calls of the kernels
count that do the work, which find images channels last, as the steps of a network do; norms and average pools are timed
both ways, norms with images channels first. PYTHON is the interpreter of another environment that has torch, which gets
channels-last images throughout. Sides take turns, and the best of each counts. Below "of peak" are products as the
definition has them; fewer may be done (Winograd), so that more than 100% is possible.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from kernels import in_plain_environment, peak
from measure import table

import tilewright
from tilewright import Builder, f32, train
from tilewright.graph.dtypes import from_numpy

random = np.random.default_rng(0)
Feeds = dict[str, np.ndarray]


@dataclass
class Case:
    """What runs: `build(b, **inputs)`; the names of the kernels that count begin with `kernels` (none: all count).
    Operations, or elements that are read or written at least; what the peer is asked for."""

    name: str
    build: Callable[..., Any]
    feeds: Feeds
    kernels: tuple[str, ...]
    operations: float = 0.0
    elements: float = 0.0
    peer: tuple[Any, ...] = ()

    def executable(self) -> Any:
        b = Builder("case")
        inputs = {name: b.input(name, from_numpy(array.dtype)[array.shape]) for name, array in self.feeds.items()}
        found = self.build(b, **inputs)
        for index, value in enumerate(found if isinstance(found, tuple | list) else [found]):
            b.output(value, f"y{index}")
        return tilewright.compile(b.build(), target="cpu", threads=1)


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


# ---- cases -----------------------------------------------------------------------------------------------------------

# Extent, channels in and out, kernel, stride: the layers of a ResNet-18 for small images.
LAYERS = [
    (32, 3, 64, 3, 1), (32, 64, 64, 3, 1), (32, 64, 128, 3, 2), (16, 128, 128, 3, 1), (16, 128, 256, 3, 2),
    (8, 256, 256, 3, 1), (8, 256, 512, 3, 2), (4, 512, 512, 3, 1), (32, 64, 128, 1, 2), (8, 256, 512, 1, 2),
]  # fmt: skip
DEPTHWISE = [(32, 64, 3, 1), (16, 256, 3, 1)]


def convolution(kind: str, size: int, channels: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> Case:
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    x, grad = normal(32, channels, size, size), normal(32, outputs, out, out)
    operations = 2.0 * grad.size * channels // groups * kernel**2
    window: dict[str, Any] = {
        "kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": groups
    }  # fmt: skip
    what = (
        f"{kernel}x{kernel}" + (f" of {groups} groups" if groups > 1 else "") + (f" / {stride}" if stride > 1 else "")
    )
    name = f"{kind}: {channels} to {outputs} channels, {size}x{size}, {what}"
    peer = ("convolution", kind, size, channels, outputs, kernel, stride, groups)
    if kind == "filters":
        build = lambda b, x, grad: b.create("tilewright.ConvWeightGrad", x, grad, **window)  # noqa: E731
        return Case(
            name, build, {"x": x, "grad": grad}, ("conv_weight", "depthwise_weight", "add_"), operations, 0, peer
        )
    left = size + 2 * pad - (stride * (out - 1) + kernel)
    w = normal(outputs, channels // groups, kernel, kernel)
    padding = {"output_padding": [left] * 2} if left else {}
    build = lambda b, grad, w: b.conv_transpose(grad, w, **window, **padding)  # noqa: E731
    return Case(name, build, {"grad": grad, "w": w}, ("conv_", "winograd", "depthwise"), operations, 0, peer)


def attention(batch: int, heads: int, length: int, size: int, causal: bool) -> Case:
    q, k, v, grad = (normal(batch, heads, length, size) for _ in range(4))
    operations = 10.0 * q.size * length * (0.5 if causal else 1)
    name = f"attention: {heads} heads of {size}, {length} tokens" + (", causal" if causal else "")
    build = lambda b, q, k, v, grad: b.create(  # noqa: E731
        "tilewright.AttentionGrad", q, k, v, grad, outputs=3, is_causal=int(causal)
    )
    feeds = {"q": q, "k": k, "v": v, "grad": grad}
    return Case(
        name, build, feeds, ("attention_grad",), operations, 0, ("attention", batch, heads, length, size, causal)
    )


def max_pool(size: int, channels: int, kernel: int, stride: int) -> list[Case]:
    pad = (kernel - 1) // 2
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    x = normal(32, channels, size, size)
    out = (size + 2 * pad - kernel) // stride + 1
    grad, written = normal(32, channels, out, out), 32 * channels * out * out
    name = f"{channels} channels, {size}x{size}, {kernel}x{kernel} / {stride}"

    def backward(b: Any, x: Any, grad: Any) -> Any:
        _, places = b.max_pool(x, outputs=2, **window)
        return b.create("tilewright.MaxPoolGrad", grad, places, np.array(grad_shape), **window)

    grad_shape = x.shape
    peer = ("max_pool", size, channels, kernel, stride, pad)
    # Places are twice as wide.
    forward = Case(f"max pool with places: {name}", lambda b, x: b.max_pool(x, outputs=2, **window), {"x": x},
                   ("max_pool_places",), 0, x.size + 3 * written, (*peer, "forward"))  # fmt: skip
    return [forward, Case(f"max pool's adjoint: {name}", backward, {"x": x, "grad": grad}, ("max_pool_grad",), 0,
                          x.size + 3 * written, (*peer, "backward"))]  # fmt: skip


def embedding(rows: int, width: int, count: int) -> Case:
    places = random.integers(0, rows, count)
    build = lambda b, grad, places: b.create(  # noqa: E731
        "tilewright.EmbeddingGrad", grad, places, np.array([rows, width])
    )
    feeds = {"grad": normal(count, width), "places": places}
    elements = rows * width + 3.0 * count * width
    return Case(
        f"rows added: {count} of {width} to {rows}", build, feeds, (), 0, elements, ("embedding", rows, width, count)
    )


def average_pool(size: int, channels: int, kernel: int, stride: int) -> Case:
    x = normal(32, channels, size, size)
    out = (size - kernel) // stride + 1
    grad = normal(32, channels, out, out)
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    name = f"average pool, both ways: {channels} channels, {size}x{size}, {kernel}x{kernel} / {stride}"
    case = Case(name, lambda b, x: b.average_pool(x, **window), {"x": x, "y_cotangent": grad},
                ("average_pool", "map_", "border", "zero", "depthwise"), 0,
                2 * (x.size + grad.size), ("average_pool", size, channels, kernel, stride))  # fmt: skip
    case.executable = lambda: with_adjoints(case, ["x"])  # type: ignore[method-assign]
    return case


def with_adjoints(case: Case, wrt: list[str]) -> Any:
    """What a case computes, and the adjoints with respect to `wrt` for a given one of its result."""
    b = Builder("case")
    given = {name: array for name, array in case.feeds.items() if not name.endswith("_cotangent")}
    inputs = {name: b.input(name, from_numpy(array.dtype)[array.shape]) for name, array in given.items()}
    b.output(case.build(b, **inputs), "y")
    return tilewright.compile(tilewright.vjp(b.build(), ["y"], wrt), target="cpu", threads=1)


def norm(kind: str, shape: tuple[int, ...], elements: int) -> Case:
    """Forward and backward; `elements` times those of x are read and written at least."""
    channels = shape[-1] if len(shape) == 2 else shape[1]
    feeds = {"x": normal(*shape), "scale": normal(channels), "bias": normal(channels), "y_cotangent": normal(*shape)}
    if kind in ("softmax", "rms norm"):
        del feeds["bias"]

    def build(b: Any, x: Any, scale: Any, bias: Any = None) -> Any:
        match kind:
            case "batch norm":
                running = [b.const(np.full(channels, value, np.float32)) for value in (0.0, 1.0)]
                return b.batch_normalization(x, scale, bias, *running, training_mode=1, outputs=3)[0]
            case "group norm":
                return b.group_normalization(x, scale, bias, num_groups=8)
            case "layer norm":
                return b.layer_normalization(x, scale, bias, outputs=1)
            case "rms norm":
                return b.rms_normalization(x, scale)
        return b.softmax(b.mul(x, scale))

    case = Case(f"{kind}, both ways: {'x'.join(map(str, shape))}", build, feeds, (), 0, elements * np.prod(shape),
                ("norm", kind, shape))  # fmt: skip
    wrt = [name for name in feeds if name != "y_cotangent"]
    case.executable = lambda: with_adjoints(case, wrt)  # type: ignore[method-assign]
    return case


def update(kind: str, count: int) -> Case:
    """An optimizer's update of `count` numbers, where they lie, as a training step does it."""
    optimizer = {"sgd": train.SGD(0.1), "momentum": train.Momentum(0.1, beta=0.9), "adam": train.Adam(1e-3)}[kind]
    tensors = {"sgd": 3, "momentum": 5, "adam": 7}[kind]
    case = Case(f"update: {kind}, {count} numbers", lambda b: None, {"x": normal(count)}, ("map_",), 0, tensors * count,
                ("update", kind, count))  # fmt: skip

    def executable() -> Any:
        b = Builder("case")
        x, w = b.input("x", f32[count]), b.const(np.ones(count, np.float32), name="w")
        b.output(b.reduce_sum(b.mul(w, x), keepdims=0), "y")
        step = train.step(b.build(), loss=lambda b, outputs: outputs["y"], optimizer=optimizer)
        trainer = train.Trainer(step, threads=1)
        case.feeds.update(trainer.state)
        return trainer.executable

    case.executable = executable  # type: ignore[method-assign]
    return case


def cases() -> list[Case]:
    found = [
        convolution(kind, *layer) for kind in ("filters", "data") for layer in LAYERS if kind != "data" or layer[1] > 3
    ]
    found += [convolution(kind, size, c, c, k, s, c) for kind in ("filters", "data") for size, c, k, s in DEPTHWISE]
    found += [attention(8, 4, 128, 64, True), attention(8, 4, 128, 64, False), attention(1, 8, 1024, 64, True)]
    found += [*max_pool(56, 64, 3, 2), *max_pool(32, 64, 2, 2), embedding(30000, 256, 1024)]
    found += [average_pool(56, 64, 2, 2), average_pool(56, 64, 3, 2)]
    found += [norm(kind, (4096, 1024), 5) for kind in ("layer norm", "rms norm", "softmax")]
    found += [norm(kind, (32, 64, 32, 32), 5) for kind in ("batch norm", "group norm")]
    return [*found, *(update(kind, 1 << 22) for kind in ("sgd", "momentum", "adam"))]


# ---- measuring -------------------------------------------------------------------------------------------------------


class Peer:
    """PyTorch in a process of its own."""

    def __init__(self, python: str) -> None:
        command = [python, str(Path(__file__).with_name("backward_peer.py"))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seconds(self, asked: tuple[Any, ...]) -> float:
        """The shortest of some runs."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def ours(executable: Any, case: Case, runs: int) -> float:
    """The shortest sum of the calls that count."""
    best = float("inf")
    for _ in range(runs):
        rows = executable.profile(case.feeds, 1, time.thread_time)
        counted = [row.seconds for row in rows if row.kernel.startswith(case.kernels) or not case.kernels]
        assert counted, f"{case.name}: none of {[row.kernel for row in rows]}"
        best = min(best, sum(counted))
    return best


def timed(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return time.thread_time() - started


def measure(case: Case, peer: Peer | None, rounds: int) -> list[str]:
    executable = case.executable()
    registers, operations = peak()
    half = np.zeros(max(1, int(case.elements) // 2), np.float32)
    target = np.zeros_like(half)
    best = {"ours": float("inf"), "bound": float("inf"), "peer": float("inf")}
    for _ in range(rounds):
        best["bound"] = min(best["bound"], timed(registers if case.operations else lambda: np.copyto(target, half)))
        best["ours"] = min(best["ours"], ours(executable, case, 3))
        if peer is not None:
            best["peer"] = min(best["peer"], peer.seconds(case.peer))
    if case.operations:
        share = case.operations / best["ours"] / (operations / best["bound"])
        bound = f"{share:.0%} of peak ({case.operations / best['ours'] / 1e9:.0f} GFLOP/s)"
    else:
        bound = f"{best['bound'] / best['ours']:.0%} of copying ({4 * case.elements / best['ours'] / 1e9:.1f} GB/s)"
    cells = [case.name, f"{1e3 * best['ours']:.2f}", bound]
    return cells if peer is None else [*cells, f"{1e3 * best['peer']:.2f}", f"{best['peer'] / best['ours']:.2f}"]


@click.command()
@click.option("--peer", "python", help="The Python of an environment that has torch.")
@click.option("--only", default="", help="Cases whose names contain this.")
@click.option("--rounds", default=5, show_default=True)
def main(python: str | None, only: str, rounds: int) -> None:
    """Measure the kernels of the backward pass."""
    in_plain_environment()
    peer = Peer(python) if python else None
    rows = [measure(case, peer, rounds) for case in cases() if only in case.name]
    columns = ["adjoint of", "ms", "of the machine", *(["torch ms", "ratio"] if peer else [])]
    table("Kernels of the backward pass, one thread, float32", columns, rows)


if __name__ == "__main__":
    main()
