"""Rotary position embeddings in the forms that exporters write, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import agree, becomes, feeds_of, model_of, names, recomposed, run, run_in_onnxruntime, stays, values

import tilewright
from tilewright import Builder, f16, f32, f64, i64
from tilewright.importers.onnx import to_proto

PASS = "cse,recompose-rotary,cse"
BATCH, HEADS, LENGTH, SIZE = 2, 3, 5, 8
SHAPE = (BATCH, HEADS, LENGTH, SIZE)
ANGLES = (BATCH, LENGTH, SIZE // 2)
BIG = np.iinfo(np.int64).max


def part(b, x, start, stop, step=1, axis=-1):
    return b.slice(x, [start], [stop], [axis], [step])


def turned(b, x, size=SIZE, sign=None):
    """concat(-second half, first half)"""
    second = part(b, x, size // 2, BIG)
    return b.concat(-second if sign is None else second * sign, part(b, x, 0, size // 2), axis=-1)


def caches(b, angles, head_axis=1):
    """cos and sin of the angles, for both halves, with a dim for the heads."""
    both = b.concat(angles, angles, axis=-1)
    return b.unsqueeze(b.cos(both), [head_axis]), b.unsqueeze(b.sin(both), [head_axis])


def halves(b, x, angles):
    cos, sin = caches(b, angles)
    return x * cos + turned(b, x) * sin


def by_split(b, x, angles):
    cos, sin = caches(b, angles)
    first, second = b.split(x, [SIZE // 2, SIZE // 2], axis=-1, outputs=2)
    return x * cos + b.concat(-second, first, axis=3) * sin


def written_out(b, x, angles):
    cos, sin = (b.unsqueeze(function(angles), [1]) for function in (b.cos, b.sin))
    first, second = part(b, x, 0, SIZE // 2), part(b, x, SIZE // 2, SIZE)
    return b.concat(first * cos - second * sin, second * cos + first * sin, axis=-1)


def scaled_caches(b, x, angles):
    both = b.concat(angles, angles, axis=-1)
    cos, sin = (b.unsqueeze(function(both) * 1.25, [1]) for function in (b.cos, b.sin))
    return x * cos + turned(b, x) * sin


def tiled_caches(b, x, angles):
    both = b.tile(b.unsqueeze(angles, [1]), [1, 1, 1, 2])
    return x * b.cos(both) + turned(b, x) * b.sin(both)


def transposed_angles(b, x, angles):
    """As transformers does: frequencies times positions, transposed."""
    back = b.transpose(b.transpose(angles, perm=(0, 2, 1)) * 1.0, perm=(0, 2, 1))
    return halves(b, x, back)


HALVES = {
    "slices": halves,
    "split": by_split,
    "sine first": lambda b, x, a: (lambda c, s: turned(b, x) * s + c * x)(*caches(b, a)),
    "times -1": lambda b, x, a: (lambda c, s: x * c + turned(b, x, sign=-1.0) * s)(*caches(b, a)),
    "both halves written out": written_out,
    "scaled caches": scaled_caches,
    "tiled caches": tiled_caches,
    "transposed angles": transposed_angles,
}


def op_of(model):
    (op,) = [op for op in model.walk() if op.name == "rotary_embedding"]
    return op


@pytest.mark.parametrize("form", HALVES)
def test_halves(form):
    model = model_of(HALVES[form], SHAPE, ANGLES)
    after = recomposed(model, PASS)
    assert names(after).count("rotary_embedding") == 1
    assert not {"add", "sub", "neg"} & set(names(after))
    op = op_of(after)
    assert (op.attr("interleaved"), op.attr("broadcast")) == (0, 0)
    assert str(op.operands[1].type) == "f32[2, 5, 4]"
    becomes(model, PASS, names(after), opsets=(13, 17, 23))


def neighbours(b, x, angles):
    """As GPT-J does: cos and sin of each angle twice, in a row."""

    def twice(values):
        wide = b.concat(b.unsqueeze(values, [-1]), b.unsqueeze(values, [-1]), axis=-1)
        return b.unsqueeze(b.reshape(wide, [BATCH, LENGTH, SIZE]), [1])

    even, odd = part(b, x, 0, BIG, 2), part(b, x, 1, BIG, 2)
    pairs = b.concat(b.unsqueeze(-odd, [-1]), b.unsqueeze(even, [-1]), axis=-1)
    return x * twice(b.cos(angles)) + b.reshape(pairs, list(SHAPE)) * twice(b.sin(angles))


def neighbours_expanded(b, x, angles):
    def twice(values):
        wide = b.expand(b.unsqueeze(values, [3]), [BATCH, LENGTH, SIZE // 2, 2])
        return b.unsqueeze(b.reshape(wide, [BATCH, LENGTH, SIZE]), [1])

    even, odd = part(b, x, 0, SIZE, 2), part(b, x, 1, SIZE, 2)
    pairs = b.concat(b.unsqueeze(-odd, [4]), b.unsqueeze(even, [4]), axis=4)
    return x * twice(b.cos(angles)) + b.reshape(pairs, list(SHAPE)) * twice(b.sin(angles))


def neighbours_written_out(b, x, angles):
    cos, sin = (b.unsqueeze(function(angles), [1]) for function in (b.cos, b.sin))
    even, odd = part(b, x, 0, BIG, 2), part(b, x, 1, BIG, 2)
    real, imaginary = even * cos - odd * sin, odd * cos + even * sin
    pairs = b.concat(b.unsqueeze(real, [-1]), b.unsqueeze(imaginary, [-1]), axis=-1)
    return b.reshape(pairs, list(SHAPE))


@pytest.mark.parametrize("form", [neighbours, neighbours_expanded, neighbours_written_out])
def test_neighbours(form):
    model = model_of(form, SHAPE, ANGLES)
    after = recomposed(model, PASS)
    assert op_of(after).attr("interleaved") == 1
    becomes(model, PASS, names(after), opsets=(13, 17, 23))


def test_two_embeddings_share_the_work_on_their_caches():
    def build(b, q, k, angles):
        cos, sin = caches(b, angles)
        return q * cos + turned(b, q) * sin, k * cos + turned(b, k) * sin

    model = model_of(build, SHAPE, (BATCH, 1, LENGTH, SIZE), ANGLES)
    becomes(model, PASS, ["cos", "sin", "rotary_embedding", "rotary_embedding"], opsets=(13, 17, 23))


def constants(pairs=False):
    angles = values(LENGTH, SIZE // 2, low=-3, high=3)
    both = np.repeat(angles, 2, axis=-1) if pairs else np.concatenate([angles, angles], axis=-1)
    return np.cos(both)[None, None], np.sin(both)[None, None]


@pytest.mark.parametrize("shape", [SHAPE, (1, HEADS, LENGTH, SIZE), ("n", HEADS, LENGTH, SIZE)])
def test_constant_caches(shape):
    """For a batch of more than 1 the operator of the standard has no broadcasting: the operation says so."""
    cos, sin = constants()
    model = model_of(lambda b, x: x * cos + turned(b, x) * sin, shape)
    after = becomes(model, PASS, ["rotary_embedding"], opsets=(13, 17, 23))
    assert op_of(after).attr("broadcast") == (shape[0] != 1)
    assert [str(operand.type) for operand in op_of(after).operands[1:]] == ["f32[1, 5, 4]", "f32[1, 5, 4]"]


@pytest.mark.parametrize("dims", [(LENGTH, SIZE), (1, LENGTH, SIZE)])
def test_constant_caches_with_fewer_dims(dims):
    cos, sin = (array.reshape(dims) for array in constants())
    model = model_of(lambda b, x: x * cos + turned(b, x) * sin, SHAPE)
    becomes(model, PASS, ["rotary_embedding"], opsets=(13, 17, 23))


def test_rows_gathered_from_a_table():
    angles = values(16, SIZE // 2)
    table = np.concatenate([angles, angles], axis=-1)

    def build(b, x, positions):
        cos, sin = (b.unsqueeze(b.gather(t, positions, axis=0), [1]) for t in (np.cos(table), np.sin(table)))
        return x * cos + turned(b, x) * sin

    b = Builder(opset=17)
    b.output(build(b, b.input("x0", f32[SHAPE]), b.input("x1", i64[BATCH, LENGTH])), "y0")
    model = b.build()
    after = recomposed(model, PASS)
    assert names(after) == ["gather", "gather", "rotary_embedding"]
    assert [str(op.operands[0].type) for op in after.walk() if op.name == "gather"] == ["f32[16, 4]", "f32[16, 4]"]
    feeds = {**feeds_of(model), "x1": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 15]])}
    agree(run(model, feeds), run(after, feeds))
    for opset in (17, 23):
        agree(run(model, feeds), run_in_onnxruntime(to_proto(after, opset=opset), feeds))


def test_half_precision():
    def build(b, x, angles):
        both = b.concat(angles, angles, axis=-1)
        cos, sin = (b.unsqueeze(b.cast(f(both), to=f16.onnx_code), [1]) for f in (b.cos, b.sin))
        return x * cos + turned(b, x) * sin

    b = Builder(opset=17)
    b.output(build(b, b.input("x0", f16[SHAPE]), b.input("x1", f32[ANGLES])), "y0")
    after = becomes(b.build(), PASS, ["cos", "cast", "sin", "cast", "rotary_embedding"], opsets=(13, 23))
    assert str(op_of(after).operands[1].type) == "f16[2, 5, 4]"


def test_a_part_of_each_head():
    """As GPT-NeoX and Phi do: the first elements of a head turn, the rest stays."""

    def build(b, x, angles):
        return b.concat(halves(b, part(b, x, 0, SIZE), angles), part(b, x, SIZE, BIG), axis=-1)

    after = becomes(
        model_of(build, (BATCH, HEADS, LENGTH, SIZE + 4), ANGLES), PASS, ["cos", "sin", "rotary_embedding"],
        opsets=(13, 17, 23),
    )  # fmt: skip
    assert op_of(after).attr("rotary_embedding_dim") == SIZE


def last(b, x, angles, rest=0):
    """Heads as dim 2, transposed afterwards."""
    cos, sin = caches(b, angles, 2)
    whole = x
    if rest:
        x = part(b, x, 0, SIZE)
    y = x * cos + turned(b, x) * sin
    if rest:
        y = b.concat(y, part(b, whole, SIZE, BIG), axis=-1)
    return b.transpose(y, perm=(0, 2, 1, 3))


@pytest.mark.parametrize("rest", [0, 4])
def test_heads_that_are_transposed_afterwards(rest):
    model = model_of(lambda b, x, a: last(b, x, a, rest), (BATCH, LENGTH, HEADS, SIZE + rest), ANGLES)
    becomes(model, PASS, ["transpose", "cos", "sin", "rotary_embedding"], opsets=(13, 17, 23))


def test_heads_in_the_batch():
    def build(b, x, angles):
        both = b.concat(angles, angles, axis=-1)
        return x * b.cos(both) + turned(b, x) * b.sin(both)

    model = model_of(build, (4, LENGTH, SIZE), (4, LENGTH, SIZE // 2))
    after = becomes(model, PASS, ["cos", "sin", "rotary_embedding"])
    assert op_of(after).attr("num_heads") == 1


# ---- dims that are not known to be equal -----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{}, {"m": 1}, {"s": 1}, {"k": 1, "s": 1}, {"k": 1}])
def test_open_dims_mean_what_numpy_does(sizes):
    """x has a batch n and length k, the angles a batch m and length s."""
    model = model_of(halves, ("n", HEADS, "k", SIZE), ("m", "s", SIZE // 2))
    after = recomposed(model, PASS)
    assert names(after) == ["cos", "sin", "rotary_embedding"]
    assert op_of(after).attr("broadcast") == 1
    feeds = feeds_of(model, **{"n": 2, "m": 2, "k": 4, "s": 4, **sizes})
    expected = run(model, feeds)
    agree(expected, run(after, feeds))
    for opset, keep_fused in ((17, False), (17, True), (23, False), (23, True)):
        written = to_proto(after, opset=opset, keep_fused=keep_fused)
        assert ("RotaryEmbedding" in [node.op_type for node in written.graph.node]) == (opset == 23)
        agree(expected, run_in_onnxruntime(written, feeds))


def test_the_same_dim_is_known_to_be_equal():
    def build(b, x):
        angles = b.reduce_mean(x, [1], keepdims=0) @ values(SIZE, SIZE // 2)
        return halves(b, x, angles)

    after = recomposed(model_of(build, ("n", HEADS, "k", SIZE)), PASS)
    assert op_of(after).attr("broadcast") == 0


# ---- what is none ----------------------------------------------------------------------------------------------------


def two_angles(b, x, angles):
    """Each half has angles of its own."""
    both = b.concat(angles, angles * 2.0, axis=-1)
    return x * b.unsqueeze(b.cos(both), [1]) + turned(b, x) * b.unsqueeze(b.sin(both), [1])


def uneven(b, x, angles):
    cos, sin = caches(b, angles)
    return x * cos + b.concat(-part(b, x, 3, BIG), part(b, x, 0, 3), axis=-1) * sin


def kept_half(b, x, angles):
    cos, sin = caches(b, angles)
    half = part(b, x, SIZE // 2, BIG)
    return x * cos + b.concat(-half, part(b, x, 0, SIZE // 2), axis=-1) * sin, half


WRONG = {
    "two angles": two_angles,
    "parts that are no halves": uneven,
    "a half that is an output": kept_half,
    "the first half negated": lambda b, x, a: (
        lambda c, s: x * c + b.concat(part(b, x, 4, BIG), -part(b, x, 0, 4), axis=-1) * s
    )(*caches(b, a)),
    "no sign": lambda b, x, a: (lambda c, s: x * c + b.concat(part(b, x, 4, BIG), part(b, x, 0, 4), axis=-1) * s)(
        *caches(b, a)
    ),
    "a difference": lambda b, x, a: (lambda c, s: x * c - turned(b, x) * s)(*caches(b, a)),
    "halves along another axis": lambda b, x, a: (
        lambda c, s: x * c + b.concat(-part(b, x, 2, 4, axis=2), part(b, x, 0, 3, axis=2), axis=2) * s
    )(*caches(b, a)),
    "halves of another tensor": lambda b, x, a: (lambda c, s: x * c + turned(b, b.relu(x)) * s)(*caches(b, a)),
    "angles of each head": lambda b, x, a: (lambda both: x * b.cos(both) + turned(b, x) * b.sin(both))(
        b.concat(*[b.expand(b.unsqueeze(a, [1]), [BATCH, HEADS, LENGTH, 4])] * 2, axis=-1)
    ),
    "neighbours in the place of halves": lambda b, x, a: (
        lambda c, s: x * c + b.concat(-part(b, x, 1, BIG, 2), part(b, x, 0, BIG, 2), axis=-1) * s
    )(*caches(b, a)),
    "cosine by element": lambda b, x, a: x * values(1, 1, LENGTH, SIZE) + turned(b, x) * caches(b, a)[1],
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_is_no_rotary_embedding(form):
    model = model_of(WRONG[form], SHAPE, ANGLES)
    assert names(recomposed(model, PASS)) == names(recomposed(model, "cse"))


def test_constants_with_unequal_halves():
    cos, sin = values(1, 1, LENGTH, SIZE), values(1, 1, LENGTH, SIZE)
    stays(model_of(lambda b, x: x * cos + turned(b, x) * sin, SHAPE), PASS)


def test_constants_of_pairs_are_none_of_halves():
    cos, sin = constants(pairs=True)
    stays(model_of(lambda b, x: x * cos + turned(b, x) * sin, SHAPE), PASS)


def test_double_precision():
    cos, sin = (array.astype(np.float64) for array in constants())
    stays(model_of(lambda b, x: x * cos + turned(b, x) * sin, SHAPE, dtype=f64), PASS)


def test_heads_as_dim_2_without_a_transpose():
    def build(b, x, angles):
        cos, sin = caches(b, angles, 2)
        return x * cos + turned(b, x) * sin

    model = model_of(build, (BATCH, LENGTH, HEADS, SIZE), ANGLES)
    assert names(recomposed(model, PASS)) == names(recomposed(model, "cse"))


def test_the_reason_is_given():
    cos, sin = values(1, 1, LENGTH, SIZE), values(1, 1, LENGTH, SIZE)
    from tilewright.passes.explain import explain
    from tilewright.passes.recompose_rotary import RotateHalves

    model = model_of(lambda b, x: x * cos + turned(b, x) * sin, SHAPE)
    assert "one angle" in explain(model, RotateHalves)[0].reason
    assert tilewright.parse(str(model)) is not None
