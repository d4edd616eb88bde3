"""Types with symbolic dims, operator by operator, and the errors for operands that do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from shape_graph import ShapeGraph, text

from tilewright.graph.core import Value
from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dims import symbol
from tilewright.graph.dtypes import bool_, f16, f32, f64, i8, i32, i64, u8
from tilewright.graph.types import sequence

n, m, h, w = (symbol(name) for name in ("n", "m", "h", "w"))
wide = symbol("wide", 0, 2)

Build = Callable[[ShapeGraph], Value | tuple[Value, ...]]

# What is built, and the types of its results. `?0` is a dim that nothing determines.
CASES: dict[str, tuple[Build, str]] = {
    # broadcasting
    "equal dims": (lambda g: g.add(f32[n, 4], f32[n, 4]), "f32[n, 4]"),
    "one against symbol": (lambda g: g.add(f32[1, n], f32[m, 1]), "f32[m, n]"),
    "number against symbol": (lambda g: g.add(f32[n, 4], f32[3, m]), "f32[3, 4]"),
    "symbols": (lambda g: g.add(f32[n], f32[m]), "f32[?0]"),
    "not one against symbol": (lambda g: g.add(f32[wide], f32[n]), "f32[wide[2..]]"),
    "zero": (lambda g: g.add(f32[0], f32[1]), "f32[0]"),
    "ranks": (lambda g: g.mul(f32[n, 1, 4], f32[m, 1]), "f32[n, m, 4]"),
    "unranked": (lambda g: g.add(f32[...], f32[n]), "f32[*]"),
    "comparison": (lambda g: g.less(f32[n], f32[1]), "bool[n]"),
    "where": (lambda g: g.where(bool_[n, 1], f16[m], f16[()]), "f16[n, m]"),
    "variadic": (lambda g: g.max(f32[n], f32[()], f32[1]), "f32[n]"),
    "pow keeps the base's dtype": (lambda g: g.pow(f16[n], f32[()]), "f16[n]"),
    # shapes
    "shape": (lambda g: g.shape(f32[n, 4, m]), "i64[3]"),
    "shape slice": (lambda g: g.shape(f32[n, 4, m], start=-2, end=5), "i64[2]"),
    "shape of unranked": (lambda g: g.shape(f32[...]), "i64[?0]"),
    "reshape -1": (lambda g: g.reshape(f32[n, 12, 64], g.ints(0, 0, 4, -1)), "f32[n, 12, 4, 16]"),
    "reshape -1 of a product": (lambda g: g.reshape(f32[n, m, 64], g.ints(-1, 64)), "f32[m*n, 64]"),
    "reshape -1 that may not divide": (lambda g: g.reshape(f32[n, 6], g.ints(-1, 4)), "f32[n + floordiv(n, 2), 4]"),
    "reshape zero beside -1": (lambda g: g.reshape(f32[n, m, 6], g.ints(0, -1)), "f32[n, 6*m]"),
    "reshape allowzero": (lambda g: g.reshape(f32[0, n], g.ints(3, 0), allowzero=1), "f32[3, 0]"),
    "reshape to a scalar": (lambda g: g.reshape(f32[1, 1], g.ints()), "f32[]"),
    "reshape unknown vector": (lambda g: g.reshape(f32[n, 4], i64[3]), "f32[?0, ?1, ?2]"),
    "reshape unknown rank": (lambda g: g.reshape(f32[n, 4], i64[n]), "f32[*]"),
    "flatten": (lambda g: g.flatten(f32[n, 4, m], axis=2), "f32[4*n, m]"),
    "flatten at 0": (lambda g: g.flatten(f32[n, 4], axis=0), "f32[1, 4*n]"),
    "squeeze": (lambda g: g.squeeze(f32[n, 1, 4], g.ints(-2)), "f32[n, 4]"),
    "squeeze all ones": (lambda g: g.squeeze(f32[1, 3, 1]), "f32[3]"),
    "squeeze all of open dims": (lambda g: g.squeeze(f32[1, n]), "f32[*]"),
    "squeeze an open dim": (lambda g: g.squeeze(f32[n, 4], g.ints(0)), "f32[4]"),
    "unsqueeze": (lambda g: g.unsqueeze(f32[n, 4], g.ints(-1, 0)), "f32[1, n, 4, 1]"),
    "expand": (lambda g: g.expand(f32[n, 1], g.ints(1, 7)), "f32[n, 7]"),
    "constant of shape": (lambda g: g.constant_of_shape(g.ints(2, 3)), "f32[2, 3]"),
    # movement
    "transpose": (lambda g: g.transpose(f32[n, 4, m], perm=(2, 0, 1)), "f32[m, n, 4]"),
    "transpose reversed": (lambda g: g.transpose(f32[n, 4, m]), "f32[m, 4, n]"),
    "concat": (lambda g: g.concat(f32[n, 4], f32[m, 4], f32[2, 4], axis=0), "f32[m + n + 2, 4]"),
    "concat settles dims": (lambda g: g.concat(f32[n, 1], f32[3, 2], axis=-1), "f32[3, 3]"),
    "concat with unranked": (lambda g: g.concat(f32[n, 4], f32[...], axis=1), "f32[n, ?0]"),
    "split equally": (lambda g: g.split(f32[n, 6 * m], axis=1, outputs=3), "f32[n, 2*m] f32[n, 2*m] f32[n, 2*m]"),
    "split unevenly": (lambda g: g.split(f32[7], outputs=3), "f32[3] f32[3] f32[1]"),
    "split by sizes": (lambda g: g.split(f32[n, 6], g.ints(2, 4), axis=1, outputs=2), "f32[n, 2] f32[n, 4]"),
    "slice": (lambda g: g.slice(f32[n, 9], g.ints(1), g.ints(8), g.ints(1), g.ints(3)), "f32[n, 3]"),
    "slice all": (lambda g: g.slice(f32[n, 9], g.ints(0), g.ints(2**63 - 1)), "f32[n, 9]"),
    "slice from": (lambda g: g.slice(f32[n], g.ints(0), g.ints(-1)), "f32[max(n - 1, 0)]"),
    "slice backwards": (
        lambda g: g.slice(f32[n], g.ints(-1), g.ints(-(2**63)), g.ints(0), g.ints(-1)), "f32[n]"),
    "slice at unknown places": (lambda g: g.slice(f32[n, 4], i64[1], i64[1]), "f32[?0, 4]"),
    "slice along unknown axes": (lambda g: g.slice(f32[n, 4], i64[1], i64[1], i64[1]), "f32[?0, ?1]"),
    "pad": (lambda g: g.pad(f32[n, h], g.ints(0, 1, 0, 2)), "f32[n, h + 3]"),
    "pad axes": (lambda g: g.pad(f32[n, h], g.ints(-1, 0), None, g.ints(1)), "f32[n, h - 1]"),
    "tile": (lambda g: g.tile(f32[n, 2], g.ints(2, 3)), "f32[2*n, 6]"),
    "depth to space": (lambda g: g.depth_to_space(f32[n, 12, h, w], blocksize=2), "f32[n, 3, 2*h, 2*w]"),
    "space to depth": (lambda g: g.space_to_depth(f32[n, 3, 2 * h, 4], blocksize=2), "f32[n, 12, h, 2]"),
    "gather": (lambda g: g.gather(f32[100, 64], i64[n, m]), "f32[n, m, 64]"),
    "gather a scalar": (lambda g: g.gather(f32[n, 64], g.scalar(0), axis=1), "f32[n]"),
    "gather elements": (lambda g: g.gather_elements(f32[n, 9], i64[n, 2], axis=1), "f32[n, 2]"),
    "gather nd": (lambda g: g.gather_nd(f32[n, m, 4, 5], i64[n, 7, 1], batch_dims=1), "f32[n, 7, 4, 5]"),
    "scatter nd": (lambda g: g.scatter_nd(f32[n, 4], i64[m, 1], f32[m, 4]), "f32[n, 4]"),
    "one hot": (lambda g: g.one_hot(i64[n], g.scalar(5), f32[2]), "f32[n, 5]"),
    "topk": (lambda g: g.topk(f32[n, 9], g.ints(3), outputs=2), "f32[n, 3] i64[n, 3]"),
    "non zero": (lambda g: g.nonzero(f32[n, 4]), "i64[2, ?0]"),
    "arange as non zero": (
        lambda g: g.nonzero(g.constant_of_shape(g.shape(f32[n]), value=g.one)), "i64[1, n]"),
    "unique": (
        lambda g: g.unique(f32[n, 4], axis=0, outputs=4), "f32[?0, 4] i64[?0] i64[n] i64[?0]"),
    # products
    "matmul": (lambda g: g.matmul(f32[n, m, 8], f32[8, 4]), "f32[n, m, 4]"),
    "matmul batches": (lambda g: g.matmul(f32[n, 1, m, 8], f32[12, 8, w]), "f32[n, 12, m, w]"),
    "matmul vectors": (lambda g: g.matmul(f32[8], f32[8]), "f32[]"),
    "matmul matrix and vector": (lambda g: g.matmul(f32[n, 2, 8], f32[8]), "f32[n, 2]"),
    "matmul open k": (lambda g: g.matmul(f32[n, m], f32[8, 4]), "f32[n, 4]"),
    "matmul integer": (lambda g: g.matmul_integer(u8[n, 8], i8[8, 4]), "i32[n, 4]"),
    "gemm": (lambda g: g.gemm(f32[8, n], f32[4, 8], f32[4], transA=1, transB=1), "f32[n, 4]"),
    "einsum": (lambda g: g.einsum(f32[n, h, 8], f32[n, w, 8], equation="bid,bjd->bij"), "f32[n, h, w]"),
    "einsum implicit": (lambda g: g.einsum(f32[n, 8], f32[8, m], equation="ij,jk"), "f32[n, m]"),
    "einsum ellipsis": (lambda g: g.einsum(f32[n, 3, h, w], equation="...ij->...ji"), "f32[n, 3, w, h]"),
    # windows
    "conv same size": (lambda g: g.conv(f32[n, 3, h, w], f32[8, 3, 3, 3], pads=(1, 1, 1, 1)), "f32[n, 8, h, w]"),
    "conv stride 2": (
        lambda g: g.conv(f32[n, 3, h, 32], f32[8, 3, 3, 3], pads=(1, 1, 1, 1), strides=(2, 2)),
        "f32[n, 8, floordiv(h + 1, 2), 16]"),
    "conv patches": (lambda g: g.conv(f32[n, 3, 16 * h, 224], f32[8, 3, 16, 16], strides=(16, 16)), "f32[n, 8, h, 14]"),
    "conv dilated": (lambda g: g.conv(f32[n, 4, h], f32[8, 1, 3], group=4, dilations=(2,)), "f32[n, 8, h - 4]"),
    "conv auto pad": (
        lambda g: g.conv(f32[1, 3, h, 7], f32[8, 3, 5, 5], strides=(2, 2), auto_pad="SAME_UPPER"),
        "f32[1, 8, floordiv(h + 1, 2), 4]"),
    "conv of unranked": (lambda g: g.conv(f32[...], f32[8, 3, 3, 3]), "f32[?0, 8, ?1, ?2]"),
    "conv with unknown weight": (lambda g: g.conv(f32[n, 3, 8], f32[...], kernel_shape=(3,)), "f32[n, ?0, 6]"),
    "conv transpose": (
        lambda g: g.conv_transpose(f32[n, 8, h], f32[8, 4, 3], strides=(2,), pads=(1, 1), output_padding=(1,)),
        "f32[n, 4, 2*h]"),
    "qlinear conv": (
        lambda g: g.qlinear_conv(
            u8[n, 3, h], f32[()], u8[()], i8[8, 3, 1], f32[()], i8[()], f32[()], i8[()]), "i8[n, 8, h]"),
    "max pool": (
        lambda g: g.max_pool(f32[n, 3, h, 9], kernel_shape=(2, 2), strides=(2, 2), outputs=2),
        "f32[n, 3, max(floordiv(h, 2), 1), 4] i64[n, 3, max(floordiv(h, 2), 1), 4]"),
    "pool rounding up": (
        lambda g: g.average_pool(f32[n, 3, 10], kernel_shape=(3,), strides=(2,), ceil_mode=1), "f32[n, 3, 5]"),
    "pool never starts in the padding": (
        lambda g: g.average_pool(f32[n, 3, 3], kernel_shape=(2,), strides=(2,), pads=(1, 1), ceil_mode=1),
        "f32[n, 3, 2]"),
    "pool rounding up a symbol": (
        lambda g: g.max_pool(f32[n, 3, h], kernel_shape=(3,), strides=(2,), ceil_mode=1),
        "f32[n, 3, floordiv(h, 2)]"),
    "global pool": (lambda g: g.global_average_pool(f32[n, 8, h, w]), "f32[n, 8, 1, 1]"),
    "resize sizes": (lambda g: g.resize(f32[n, 3, h, w], None, None, g.ints(1, 3, 8, 9)), "f32[1, 3, 8, 9]"),
    # reductions and normalizations
    "reduce": (lambda g: g.reduce_mean(f32[n, 4, m], g.ints(-1)), "f32[n, 4, 1]"),
    "reduce without keepdims": (lambda g: g.reduce_sum(f32[n, 4, m], g.ints(0, 2), keepdims=0), "f32[4]"),
    "reduce all": (lambda g: g.reduce_max(f32[n, 4], keepdims=0), "f32[]"),
    "reduce nothing": (lambda g: g.reduce_sum(f32[n, 4], noop_with_empty_axes=1), "f32[n, 4]"),
    "reduce unknown axes": (lambda g: g.reduce_sum(f32[n, 4, 5], i64[2], keepdims=0), "f32[?0]"),
    "argmax": (lambda g: g.argmax(f32[n, 9], axis=-1, keepdims=0), "i64[n]"),
    "layer norm": (
        lambda g: g.layer_normalization(f16[n, m, 8], f16[8], axis=-1, outputs=3),
        "f16[n, m, 8] f32[n, m, 1] f32[n, m, 1]"),
    "batch norm": (lambda g: g.batch_normalization(f32[n, 8, h], f32[8], f32[8], f32[8], f32[8]), "f32[n, 8, h]"),
    "batch norm in training": (
        lambda g: g.batch_normalization(f32[n, 8], f32[8], f32[8], f32[8], f32[8], training_mode=1, outputs=3),
        "f32[n, 8] f32[8] f32[8]"),
    "dropout": (lambda g: g.dropout(f32[n, 4], outputs=2), "f32[n, 4] bool[n, 4]"),
    "softmax": (lambda g: g.softmax(f32[n, 4]), "f32[n, 4]"),
    # attention and recurrence
    "attention": (
        lambda g: g.attention(f32[n, 12, m, 64], f32[n, 4, w, 64], f32[n, 4, w, 32]), "f32[n, 12, m, 32]"),
    "attention with a cache": (
        lambda g: g.attention(
            f32[n, 1, 96], f32[n, 1, 32], f32[n, 1, 32], None, f32[n, 2, m, 16], f32[n, 2, m, 16],
            q_num_heads=6, kv_num_heads=2, outputs=3),
        "f32[n, 1, 96] f32[n, 2, m + 1, 16] f32[n, 2, m + 1, 16]"),
    "lstm": (
        lambda g: g.lstm(f32[m, n, 10], f32[2, 80, 10], f32[2, 80, 20], direction="bidirectional", hidden_size=20,
                         outputs=3),
        "f32[m, 2, n, 20] f32[2, n, 20] f32[2, n, 20]"),
    "gru batch first": (
        lambda g: g.gru(f32[n, m, 10], f32[1, 60, 10], f32[1, 60, 20], layout=1, hidden_size=20, outputs=2),
        "f32[n, m, 1, 20] f32[n, 1, 20]"),
    # quantization, casts, generators
    "quantize": (lambda g: g.quantize_linear(f32[n, 4], f32[()]), "u8[n, 4]"),
    "quantize to the zero point": (lambda g: g.quantize_linear(f32[n, 4], f32[()], i8[()]), "i8[n, 4]"),
    "dequantize": (lambda g: g.dequantize_linear(i8[n, 4], f16[4], axis=1), "f16[n, 4]"),
    "cast": (lambda g: g.cast(f32[n], to=7), "i64[n]"),
    "cast like": (lambda g: g.cast_like(f32[n], f64[3, 4]), "f64[n]"),
    "range": (lambda g: g.range(g.scalar(1), g.scalar(8), g.scalar(3)), "i64[3]"),
    "range of floats": (lambda g: g.range(g.scalar(0.0), g.scalar(1.0), g.scalar(0.3)), "f32[4]"),
    "range to an unknown limit": (lambda g: g.range(g.scalar(0), i64[()], g.scalar(1)), "i64[max(?0[-inf..], 0)]"),
    "random like": (lambda g: g.random_normal_like(f32[n, 4], dtype=10), "f16[n, 4]"),
    # through onnx
    "dft keeps what onnx leaves open": (lambda g: g.dft(f32[n, 10, 1]), "f32[n, 10, 2]"),
    "mel weight matrix": (
        lambda g: g.mel_weight_matrix(
            g.scalar(8), g.scalar(16), g.scalar(8192), g.scalar(0.0), g.scalar(4096.0)), "f32[9, 8]"),
}  # fmt: skip


class Graph(ShapeGraph):
    @property
    def one(self) -> Any:
        from tilewright.graph.data import as_data

        return as_data([1])


@pytest.mark.parametrize("name", CASES)
def test_types(name: str) -> None:
    build, expected = CASES[name]
    built = build(Graph())
    assert renumbered(text(*built if isinstance(built, tuple) else (built,))) == expected


def renumbered(types: str) -> str:
    """The text with unknown dims numbered from 0 in the order in which they are met."""
    numbers: dict[str, str] = {}
    return re.sub(r"\?\d+", lambda found: numbers.setdefault(found[0], f"?{len(numbers)}"), types)


# What is built, the code of the error, and a part of its message.
ERRORS: dict[str, tuple[Build, str, str]] = {
    "broadcast": (lambda g: g.add(f32[n, 3], f32[n, 4]), "shape/broadcast", "[n, 3] and [n, 4]"),
    "broadcast of provably unequal dims": (lambda g: g.add(f32[wide], f32[wide + 1]), "shape/broadcast", "wide"),
    "dtypes": (lambda g: g.add(f32[n], f16[n]), "dtype/mismatch", "f32 and f16"),
    "fixed dtype": (lambda g: g.reshape(f32[n], i32[1]), "dtype/mismatch", "needs i64 as its input 1, got i32"),
    "not a tensor": (lambda g: g.relu(sequence(f32[n])), "dtype/mismatch", "needs a tensor"),
    "matmul": (lambda g: g.matmul(f32[n, 768], f32[512, 768]), "shape/matmul-k", "[n, 768] and [512, 768]"),
    "matmul of a scalar": (lambda g: g.matmul(f32[()], f32[3]), "shape/matmul-k", "matmul of [] and [3]"),
    "gemm": (lambda g: g.gemm(f32[2, 3], f32[4, 5]), "shape/matmul-k", "[2, 3] and [4, 5]"),
    "gemm bias": (lambda g: g.gemm(f32[2, 3], f32[3, 5], f32[4]), "shape/broadcast", "[4]"),
    "einsum": (lambda g: g.einsum(f32[2, 3], f32[4, 5], equation="ij,jk"), "shape/einsum", "'j' is both 3 and 4"),
    "einsum rank": (lambda g: g.einsum(f32[2, 3], equation="ijk->ij"), "shape/einsum", "[2, 3]"),
    "concat": (lambda g: g.concat(f32[2, 3], f32[2, 4], axis=0), "shape/concat", "[2, 3], [2, 4]"),
    "concat ranks": (lambda g: g.concat(f32[2], f32[2, 4], axis=0), "shape/concat", "[2], [2, 4]"),
    "axis": (lambda g: g.softmax(f32[n, 3], axis=2), "shape/axis", "axis 2, but the rank is 2"),
    "axis twice": (lambda g: g.reduce_sum(f32[n, 3], g.ints(1, -1)), "shape/axis", "names an axis twice"),
    "transpose": (lambda g: g.transpose(f32[n, 3], perm=(0, 0)), "shape/transpose", "perm=[0, 0]"),
    "reshape": (lambda g: g.reshape(f32[4, 3], g.ints(5, 2)), "shape/reshape", "12 elements do not become 10"),
    "reshape -1": (lambda g: g.reshape(f32[4, 3], g.ints(5, -1)), "shape/reshape", "12 elements do not fit"),
    "reshape twice -1": (lambda g: g.reshape(f32[4], g.ints(-1, -1)), "shape/reshape", "only one dim can be -1"),
    "reshape copies nothing": (lambda g: g.reshape(f32[4], g.ints(4, 0)), "shape/reshape", "copies dim 1"),
    "squeeze": (lambda g: g.squeeze(f32[4, 3], g.ints(0)), "shape/squeeze", "dim 0 of [4, 3] to be 1"),
    "split": (lambda g: g.split(f32[6], g.ints(2, 3), outputs=2), "shape/split", "split of 6"),
    "slice": (lambda g: g.slice(f32[6], g.ints(0), g.ints(6), None, g.ints(0)), "shape/slice", "step of 0"),
    "pad": (lambda g: g.pad(f32[6, n], g.ints(1, 1)), "shape/pad", "needs 4 pads, got 2"),
    "pad too much away": (lambda g: g.pad(f32[2], g.ints(-2, -1)), "shape/pad", "-1 elements"),
    "depth to space": (lambda g: g.depth_to_space(f32[1, 6, 2, 2], blocksize=2), "shape/divisible", "divisible by 4"),
    "conv channels": (lambda g: g.conv(f32[n, 4, h], f32[8, 3, 3]), "shape/conv-channels", "4 channels"),
    "conv groups": (lambda g: g.conv(f32[n, 4, h], f32[7, 2, 3], group=2), "shape/conv-channels", "2 groups"),
    "conv rank": (lambda g: g.conv(f32[n, 4, h], f32[8, 4, 3, 3]), "shape/rank", "rank 3"),
    "conv strides": (lambda g: g.conv(f32[n, 4, h], f32[8, 4, 3], strides=(1, 1)), "shape/window", "strides=(1, 1)"),
    "pool": (lambda g: g.max_pool(f32[n, 4, 2], kernel_shape=(5,)), "shape/window", "larger than [2]"),
    "topk": (lambda g: g.topk(f32[n, 2], g.ints(3), outputs=2), "shape/topk", "3 of 2"),
    "gather nd": (lambda g: g.gather_nd(f32[n], i64[n, 2]), "shape/gather-nd", "2 indices"),
    "batch norm": (
        lambda g: g.batch_normalization(f32[n, 8], f32[8], f32[8], f32[8], f32[4]), "shape/channels", "input 4"),
    "attention": (
        lambda g: g.attention(f32[n, 2, 3, 8], f32[n, 2, 3, 4], f32[n, 2, 3, 4]), "shape/attention", "[n, 2, 3, 8]"),
    "attention heads": (lambda g: g.attention(f32[n, 3, 8], f32[n, 3, 8], f32[n, 3, 8]), "shape/attention", "heads"),
    "range": (lambda g: g.range(g.scalar(0), g.scalar(4), g.scalar(0)), "shape/range", "step of 0"),
    "onnx's own words": (lambda g: g.image_decoder(u8[2, 3]), "infer/onnx", "must be 1-dimensional"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_operands_that_do_not_fit(name: str) -> None:
    build, code, message = ERRORS[name]
    graph = Graph()
    with pytest.raises(TypeInferenceError) as caught:
        build(graph)
    assert caught.value.code == code
    assert message in caught.value.diagnostics[0].message
    assert caught.value.diagnostics[0].notes, "the error shows the operands"


def test_the_error_shows_the_operands() -> None:
    graph = Graph()
    x = graph.argument(f32["n", 768])
    x.name = "x"
    with pytest.raises(TypeInferenceError) as caught:
        graph.matmul(x, f32[512, 768])
    assert "matmul(%x: f32[n, 768], %?: f32[512, 768])" in str(caught.value)


def test_one_broadcast_has_one_result() -> None:
    """In one walk, two operators that broadcast the same dims have the same (unknown) dim."""
    from tilewright.graph.infer import InferenceContext, infer_types

    graph = Graph()
    x, y = graph.argument(f32[n]), graph.argument(f32[m])
    first, second = graph.create("add", x, y), graph.create("mul", y, x)
    context = InferenceContext(graph.symbols)
    assert infer_types(first, context) == infer_types(second, context)
