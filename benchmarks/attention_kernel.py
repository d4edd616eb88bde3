"""The attention kernel beside ONNX Runtime: its MultiHeadAttention, and its MatMul, Softmax and MatMul.

    python benchmarks/attention_kernel.py [--seconds 2]

All run on one thread, in turn; the best of each counts. q, k and v lie as [batch, length, heads * size], which is what
products give; the peer's MatMuls get them split, the keys transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment, peak
from measure import table
from memory_kernels import aligned, direct, filled

from tilewright.backends.cpu.kernels.attention import (
    Attention,
    attention_arguments,
    attention_scratch,
    attention_units,
    build_attention,
)
from tilewright.backends.cpu.machine import machine
from tilewright.graph.dtypes import f32

Run = Callable[[], object]

# heads, queries, keys, size, causal, static
CASES = {
    "BERT, 128": (12, 128, 128, 64, False, True),
    "BERT, 128, any length": (12, 128, 128, 64, False, False),
    "ViT, 197": (12, 197, 197, 64, False, True),
    "GPT-2, 128": (12, 128, 128, 64, True, True),
    "GPT-2, 512": (12, 512, 512, 64, True, True),
    "decoding, 1 of 512": (12, 1, 512, 64, False, True),
}


def ours(heads: int, queries: int, keys: int, size: int, causal: bool, static: bool) -> Run:
    q, k, v, y = filled(queries, heads, size), filled(keys, heads, size), filled(keys, heads, size), None
    y = aligned(queries, heads, size)
    strides = (0, size, heads * size, 1)
    sizes = (queries, keys, heads) if static else (None, None, heads)
    kernel = Attention(f32, size, size, *sizes, strides, strides, strides, strides, scale=size**-0.5, causal=causal)
    units = attention_units(kernel, machine(), 1, heads, queries)
    given: dict[str, Any] = {"q": q, "k": k, "v": v, "y": y, "scratch": aligned(attention_scratch(kernel, machine()))}
    given |= {"queries": queries, "keys": keys, "begin": 0, "end": units, "thread": 0}
    return direct(build_attention("attention", kernel, machine()), [given[n] for n in attention_arguments(kernel)])


def peer(heads: int, queries: int, keys: int, size: int, causal: bool, fused: bool) -> Run:
    import onnx
    import onnxruntime
    from onnx import helper

    width = heads * size
    if fused:
        node = helper.make_node(
            "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads,
            unidirectional=int(causal),
        )  # fmt: skip
        nodes, shapes = [node], {"q": (1, queries, width), "k": (1, keys, width), "v": (1, keys, width)}
        result: tuple[int, ...] = (1, queries, width)
    else:
        nodes = [
            helper.make_node("MatMul", ["q", "k"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["y"]),
        ]
        shapes = {"q": (1, heads, queries, size), "k": (1, heads, size, keys), "v": (1, heads, keys, size)}
        result = (1, heads, queries, size)
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, result)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    feeds = {name: filled(*shape) for name, shape in shapes.items()}
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    target = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(result, np.float32))
    binding.bind_ortvalue_output("y", target)
    return lambda keep=(feeds, target): session.run_with_iobinding(binding)


def row(name: str, seconds: float) -> list[str]:
    heads, queries, keys, size, causal, _ = CASES[name]
    registers, operations = peak()
    runs = {
        "peak": registers, "ours": ours(*CASES[name]), "fused": peer(heads, queries, keys, size, causal, True),
        "parts": peer(heads, queries, keys, size, causal, False),
    }  # fmt: skip
    best = best_of(runs, seconds)
    seen = queries * keys - (queries * (queries - 1) // 2 if causal else 0)
    share = 4.0 * heads * seen * size / best["ours"] / (operations / best["peak"])
    times = [f"{best[key] * 1e6:.0f}" for key in ("ours", "fused", "parts")]
    return [name, *times, *(f"{best[key] / best['ours']:.2f}" for key in ("fused", "parts")), f"{share:.0%}"]


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="For each row.")
def main(seconds: float) -> None:
    """Measure attention of 12 heads of 64."""
    in_plain_environment()
    columns = ["case", "tilewright", "MultiHeadAttention", "MatMul, Softmax, MatMul", "ratio", "ratio", "of peak"]
    table("attention, float32, microseconds, one thread", columns, [row(name, seconds) for name in CASES])


if __name__ == "__main__":
    main()
