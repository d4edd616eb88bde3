"""Fused operators in ONNX Runtime, of the standard and its own, beside their parts: what it runs, and how fast.

    python benchmarks/fused_operators.py [--repeat 40] [--threads 1]

Repeats the measurements behind `importers/onnx/runtime_support.py`. Each operator is written as it is at an opset that
has it, and as its parts at an opset that does not; both run with ONNX Runtime's own optimizations, in turn, on the same
inputs. A ratio above 1 means that the operator is faster than its parts. `says` is what the table has the writer do.

The second table has operators of com.microsoft that `fuse-for-onnxruntime` uses. Optimizations are off there, which
would make some of them out of their parts. With one thread the time of the processor is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
from measure import table

BATCH, HEADS, LENGTH, SIZE = 2, 8, 128, 64
WIDTH = 768


def rows(operator: Callable[..., Any], *further: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    """An operator on [batch, length, width] and further inputs."""

    def build(b: Any, dtype: Any) -> Any:
        inputs = [b.input(f"i{n}", dtype[shape]) for n, shape in enumerate([(BATCH, LENGTH, WIDTH), *further])]
        return operator(b, *inputs)

    return build


def rotary(batch: int) -> Callable[[Any, Any], Any]:
    def build(b: Any, dtype: Any) -> Any:
        x = b.input("x", dtype[BATCH, HEADS, LENGTH, SIZE])
        cos, sin = (b.input(name, dtype[batch, LENGTH, SIZE // 2]) for name in ("cos", "sin"))
        return b.rotary_embedding(x, cos, sin)

    return build


def groups(b: Any, dtype: Any) -> Any:
    x, scale, bias = b.input("x", dtype[BATCH, 64, 32, 32]), b.input("s", dtype[64]), b.input("b", dtype[64])
    return b.group_normalization(x, scale, bias, num_groups=8)


# Name -> how to build it, an opset that has the operator, one that does not.
CASES: dict[str, tuple[Callable[[Any, Any], Any], int, int]] = {
    "Gelu": (rows(lambda b, x: b.gelu(x)), 20, 17),
    "Gelu, tanh": (rows(lambda b, x: b.gelu(x, approximate="tanh")), 20, 17),
    "Swish": (rows(lambda b, x: b.swish(x)), 24, 17),
    "Swish, alpha 1.702": (rows(lambda b, x: b.swish(x, alpha=1.702)), 24, 17),
    "SwiGLU": (rows(lambda b, x, z: b.swiglu(x, z), (BATCH, LENGTH, WIDTH)), 28, 17),
    "HardSwish": (rows(lambda b, x: b.hard_swish(x)), 14, 13),
    "Mish": (rows(lambda b, x: b.mish(x)), 18, 17),
    "LayerNormalization": (rows(lambda b, x, s, c: b.layer_normalization(x, s, c), (WIDTH,), (WIDTH,)), 17, 16),
    "RMSNormalization": (rows(lambda b, x, s: b.rms_normalization(x, s), (WIDTH,)), 23, 17),
    "GroupNormalization": (groups, 21, 17),
    "RotaryEmbedding": (rotary(BATCH), 23, 17),
    "RotaryEmbedding, caches broadcast": (rotary(1), 23, 17),
}


def own(name: str, **attributes: Any) -> Callable[..., Any]:
    """An operator of com.microsoft."""
    return lambda b, *operands: b.create(f"com.microsoft.{name}", *operands, **attributes)


FULL, ROW = (BATCH, LENGTH, WIDTH), (WIDTH,)
# Name -> how to build it; its parts are those of the standard at opset 23.
OWN_CASES: dict[str, Callable[[Any, Any], Any]] = {
    "SkipLayerNormalization": rows(own("SkipLayerNormalization"), FULL, ROW, ROW),
    "SkipSimplifiedLayerNormalization": rows(own("SkipSimplifiedLayerNormalization"), FULL, ROW),
    "BiasGelu": rows(own("BiasGelu"), ROW),
    "FastGelu": rows(own("FastGelu"), ROW),
    "QuickGelu": rows(own("QuickGelu")),
    "MultiHeadAttention": rows(own("MultiHeadAttention", num_heads=HEADS), FULL, FULL),
}


def session_of(proto: Any, threads: int, optimized: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def medians(
    protos: list[Any], feeds: dict[str, Any], threads: int, repeat: int, optimized: bool = True
) -> list[float | None]:
    """Median microseconds of each model, run in turn; None for one that does not run."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    sessions: list[Any] = []
    for proto in protos:
        try:
            session = session_of(proto, threads, optimized)
            session.run(None, feeds)
        except Exception:
            session = None
        sessions.append(session)
    samples: list[list[float]] = [[] for _ in protos]
    for _ in range(repeat):
        for session, times in zip(sessions, samples, strict=True):
            if session is not None:
                started = clock()
                session.run(None, feeds)
                times.append((clock() - started) * 1e6)
    return [statistics.median(times) if times else None for times in samples]


def measure(name: str, dtype: Any, threads: int, repeat: int) -> list[str]:
    import tilewright
    from tilewright.importers.onnx import to_proto
    from tilewright.importers.onnx.runtime_support import why_in_parts

    build, opset, before = CASES[name]
    b = tilewright.Builder(opset=opset)
    b.output(build(b, dtype), "y")
    module = b.build()
    (op,) = [op for op in module.walk() if op.name not in ("const", "return")]
    random = np.random.default_rng(0)
    feeds = {i.name: random.normal(size=i.type.shape).astype(i.type.dtype.numpy) for i in module.main.inputs}
    fused = to_proto(module, opset=opset, keep_fused=True)
    parts = to_proto(module, opset=before)
    whole, apart = medians([fused, parts], feeds, threads, repeat)
    ratio = f"{apart / whole:.2f}" if whole and apart else "-"
    shown = ["does not run" if time is None else f"{time:.0f}" for time in (whole, apart)]
    return [name, str(dtype), str(opset), *shown, ratio, "parts" if why_in_parts(op, opset) else "operator"]


def measure_own(name: str, threads: int, repeat: int) -> list[str]:
    import tilewright
    from tilewright.importers.onnx import to_proto

    b = tilewright.Builder(opset=23)
    b.output(OWN_CASES[name](b, tilewright.f32), "y")
    module = b.build()
    random = np.random.default_rng(0)
    feeds = {i.name: random.normal(size=i.type.shape).astype(i.type.dtype.numpy) for i in module.main.inputs}
    protos = [to_proto(module, target="onnxruntime"), to_proto(module)]
    whole, apart = medians(protos, feeds, threads, repeat, optimized=False)
    ratio = f"{apart / whole:.2f}" if whole and apart else "-"
    return [name, *("does not run" if time is None else f"{time:.0f}" for time in (whole, apart)), ratio]


@click.command()
@click.option("--repeat", type=click.IntRange(1), default=40, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(repeat: int, threads: int) -> None:
    """Compare fused operators with their parts in ONNX Runtime."""
    import tilewright

    lines = [measure(name, dtype, threads, repeat) for name in CASES for dtype in (tilewright.f32, tilewright.f16)]
    table("microseconds", ["operator", "type", "opset", "operator", "parts", "ratio", "says"], lines)
    own_lines = [measure_own(name, threads, repeat) for name in OWN_CASES]
    table("microseconds, f32, operators of com.microsoft", ["operator", "operator", "parts", "ratio"], own_lines)


if __name__ == "__main__":
    main()
