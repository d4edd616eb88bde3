"""What looks like attention and is not, or would give something else: never fused, and said why."""

from __future__ import annotations

import numpy as np
import pytest
from attention_forms import B, D, H, S, T, four, model_of, transposed

from tilewright import PassManager, bool_, f16, f32, f64, i64
from tilewright.graph.parser import parse
from tilewright.graph.types import UNKNOWN
from tilewright.passes.context import PassContext
from tilewright.passes.explain import explain
from tilewright.passes.fuse_attention import FusedAttention

REFUSALS = {}


def refusal(reason):
    """Register a model that must stay as it is; `reason` is part of the remark ("" where there is none)."""

    def register(build):
        REFUSALS[build.__name__] = build, reason
        return build

    return register


def scores_of(b, q, k):
    return b.mul(q @ transposed(b, k), 0.25)


@refusal("beyond the range")
def scale_that_takes_scores_to_infinity(b):
    """The lowest number as a scale: queries times it are infinite where scores times it may be none."""
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q @ transposed(b, k), float(np.finfo(np.float32).min))) @ v, "y")


@refusal("an f32, which this one is not")
def soft_cap_in_f64_that_is_no_f32(b):
    q, k, v = (b.input(name, f64[B, H, length, D]) for name, length in (("q", S), ("k", T), ("v", T)))
    cap = np.float64(0.7)
    b.output(b.softmax(b.tanh((q @ transposed(b, k)) / cap) * cap) @ v, "y")


@refusal("are returned")
def weights_are_an_output(b):
    q, k, v = four(b)
    p = b.softmax(scores_of(b, q, k))
    b.output(p, "p")
    b.output(p @ v, "y")


@refusal("beyond the range")
def scales_whose_product_overflows(b):
    q, k, v = four(b)
    b.output(b.softmax(b.mul(b.mul(q @ transposed(b, k), 1e25), 1e25)) @ v, "y")


@refusal("beyond the range")
def scales_whose_product_underflows(b):
    q, k, v = four(b)
    b.output(b.softmax(b.mul(b.mul(q @ transposed(b, k), 1e-30), 1e-30)) @ v, "y")


@refusal("have other users")
def weights_are_read_twice(b):
    q, k, v = four(b)
    p = b.softmax(scores_of(b, q, k))
    b.output(p @ v, "y")
    b.output(b.reduce_max(p, [-1]), "z")


@refusal("is returned")
def scores_are_an_output(b):
    q, k, v = four(b)
    scores = scores_of(b, q, k)
    b.output(scores, "s")
    b.output(b.softmax(scores) @ v, "y")


@refusal("is read by relu, too")
def product_is_read_twice(b):
    q, k, v = four(b)
    product = q @ transposed(b, k)
    b.output(b.relu(product), "z")
    b.output(b.softmax(b.mul(product, 0.25)) @ v, "y")


@refusal("is read by relu, too")
def masked_scores_are_read_twice(b):
    q, k, v = four(b)
    scores = b.add(q @ transposed(b, k), b.input("mask", f32[B, 1, S, T]))
    b.output(b.relu(scores), "z")
    b.output(b.softmax(scores) @ v, "y")


@refusal("runs over axis 2")
def softmax_over_queries(b):
    q, k, v = four(b)
    b.output(b.softmax(scores_of(b, q, k), axis=2) @ v, "y")


@refusal("runs over axis 1")
def softmax_over_heads(b):
    q, k, v = four(b)
    b.output(b.softmax(scores_of(b, q, k), axis=1) @ v, "y")


@refusal("may widen")
def mask_with_more_batches(b):
    q, k, v = (b.input(name, f32[1, H, length, D]) for name, length in (("q", S), ("k", T), ("v", T)))
    b.output(b.softmax(b.add(q @ transposed(b, k), b.input("mask", f32[3, 1, S, T]))) @ v, "y")


@refusal("may widen")
def mask_with_more_queries(b):
    q, k, v = b.input("q", f32[B, H, 1, D]), b.input("k", f32[B, H, T, D]), b.input("v", f32[B, H, T, D])
    b.output(b.softmax(b.add(q @ transposed(b, k), b.input("mask", f32[B, 1, S, T]))) @ v, "y")


@refusal("may widen")
def mask_with_an_unknown_batch(b):
    """The name is another one: the mask may have a batch of 4 where the queries have one of 1."""
    q, k, v = four(b, dynamic=True)
    b.output(b.softmax(b.add(q @ transposed(b, k), b.input("mask", f32["m", 1, "s", "t"]))) @ v, "y")


@refusal("may widen")
def mask_with_unknown_queries(b):
    q, k, v = four(b, dynamic=True)
    b.output(b.softmax(b.add(q @ transposed(b, k), b.input("mask", f32[1, 1, "r", "t"]))) @ v, "y")


@refusal("may widen")
def mask_of_rank_five(b):
    q, k, v = (b.input(name, f32[B, H, length, D]) for name, length in (("q", S), ("k", T), ("v", T)))
    b.output(b.softmax(b.add(q @ transposed(b, k), b.input("mask", f32[3, 1, 1, S, T]))) @ v, "y")


@refusal("not shown to be equal")
def queries_are_broadcast(b):
    """The result has more batches than the queries."""
    q, k, v = b.input("q", f32[1, H, S, D]), b.input("k", f32[3, H, T, D]), b.input("v", f32[3, H, T, D])
    b.output(b.softmax(scores_of(b, q, k)) @ v, "y")


@refusal("not shown to be equal")
def batches_of_other_names(b):
    q, k, v = b.input("q", f32["n", H, S, D]), b.input("k", f32["m", H, T, D]), b.input("v", f32["m", H, T, D])
    b.output(b.softmax(scores_of(b, q, k)) @ v, "y")


@refusal("not shown to be equal")
def one_head_of_queries(b):
    """The product repeats the query for every head of the keys; Attention does not."""
    q, k, v = b.input("q", f32[B, 1, S, D]), b.input("k", f32[B, H, T, D]), b.input("v", f32[B, H, T, D])
    b.output(b.softmax(scores_of(b, q, k)) @ v, "y")


@refusal("different numbers of heads")
def heads_of_values_are_not_repeated(b):
    q, k, v = b.input("q", f32[B, H, S, D]), b.input("k", f32[B, 1, T, D]), b.input("v", f32[B, H, T, D])
    b.output(b.softmax(scores_of(b, q, k)) @ v, "y")


@refusal("do not have one rank")
def values_of_another_rank(b):
    q, k, v = b.input("q", f32[B, H, S, D]), b.input("k", f32[B, H, T, D]), b.input("v", f32[T, D])
    b.output(b.softmax(scores_of(b, q, k)) @ v, "y")


@refusal("do not have one rank")
def five_dims(b):
    q, k, v = (b.input(name, f32[2, B, H, length, D]) for name, length in (("q", S), ("k", T), ("v", T)))
    b.output(b.softmax(q @ b.transpose(k, perm=[0, 1, 2, 4, 3])) @ v, "y")


@refusal("do not have one rank")
def two_dims(b):
    q, k, v = b.input("q", f32[S, D]), b.input("k", f32[T, D]), b.input("v", f32[T, D])
    b.output(b.softmax(q @ b.transpose(k, perm=[1, 0])) @ v, "y")


@refusal("not part of Attention")
def scale_widens_the_scores(b):
    """[1, 1, 1, 1, 1] is one number, but makes five dims of four: what follows is no product of four dims."""
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q @ transposed(b, k), np.full((1, 1, 1, 1, 1), 0.25, np.float32))) @ v, "y")


@refusal("not part of Attention")
def scale_per_head(b):
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q @ transposed(b, k), b.input("scale", f32[H, 1, 1]))) @ v, "y")


@refusal("not part of Attention")
def scale_that_is_computed(b):
    q, k, v = four(b)
    b.output(b.softmax(b.div(q @ transposed(b, k), b.input("scale", f32[()]))) @ v, "y")


@refusal("not part of Attention")
def scale_divided_by_the_scores(b):
    q, k, v = four(b)
    b.output(b.softmax(b.div(4.0, q @ transposed(b, k))) @ v, "y")


@refusal("mask is scaled")
def mask_inside_the_scale(b):
    q, k, v = four(b)
    b.output(b.softmax(b.mul(b.add(q @ transposed(b, k), b.input("mask", f32[B, 1, S, T])), 0.25)) @ v, "y")


@refusal("masked scores are scaled")
def condition_inside_the_scale(b):
    q, k, v = four(b)
    scores = b.where(b.input("keep", bool_[B, 1, S, T]), q @ transposed(b, k), -100.0)
    b.output(b.softmax(b.mul(scores, 0.25)) @ v, "y")


@refusal("comes after the mask")
def soft_cap_after_the_mask(b):
    """A masked key is one at -cap, then, and keeps a weight."""
    q, k, v = four(b)
    scores = b.add(q @ transposed(b, k), b.input("mask", f32[B, 1, S, T]))
    b.output(b.softmax(b.mul(b.tanh(b.div(scores, 3.0)), 3.0)) @ v, "y")


@refusal("not part of Attention")
def tanh_without_a_cap(b):
    q, k, v = four(b)
    b.output(b.softmax(b.tanh(q @ transposed(b, k))) @ v, "y")


@refusal("condition does not choose")
def condition_between_two_tensors(b):
    q, k, v = four(b)
    other = b.input("other", f32[B, H, S, T])
    b.output(b.softmax(b.where(b.input("keep", bool_[B, 1, S, T]), q @ transposed(b, k), other)) @ v, "y")


@refusal("replaced by NaN")
def hidden_scores_are_nan(b):
    """A row with one hidden key is NaN altogether."""
    q, k, v = four(b)
    b.output(b.softmax(b.where(b.input("keep", bool_[B, 1, S, T]), q @ transposed(b, k), np.float32(np.nan))) @ v, "y")


@refusal("not part of Attention")
def relu_of_the_scores(b):
    q, k, v = four(b)
    b.output(b.softmax(b.relu(q @ transposed(b, k))) @ v, "y")


@refusal("not part of Attention")
def mask_is_subtracted_from(b):
    q, k, v = four(b)
    b.output(b.softmax(b.sub(b.input("mask", f32[B, 1, S, T]), q @ transposed(b, k))) @ v, "y")


@refusal("is followed by mul")
def weights_are_scaled(b):
    q, k, v = four(b)
    b.output(b.mul(b.softmax(scores_of(b, q, k)), 2.0) @ v, "y")


@refusal("followed by matmul, not by a product with values")
def weights_are_the_second_operand(b):
    q, k, v = b.input("q", f32[B, H, T, D]), b.input("k", f32[B, H, T, D]), b.input("v", f32[B, H, D, T])
    b.output(v @ b.softmax(scores_of(b, q, k)), "y")


@refusal("not of one floating-point type")
def integer_values(b):
    q, k, v = b.input("q", f32[B, H, S, D]), b.input("k", f32[B, H, T, D]), b.input("v", i64[B, H, T, D])
    b.output(b.cast(b.softmax(scores_of(b, q, k)), to=i64) @ v, "y")


@refusal("a cast between")
def cast_between_scale_and_mask(b):
    q, k, v = (b.input(name, f16[B, H, length, D]) for name, length in (("q", S), ("k", T), ("v", T)))
    scores = b.add(b.cast(q @ transposed(b, k), to=f32), b.input("mask", f32[B, 1, S, T]))
    b.output(b.cast(b.softmax(scores), to=f16) @ v, "y")


@refusal("the scores are reshaped")
def heads_apart_from_the_batch(b):
    """The middle axis is one of heads, not of windows: they are in the wrong order when put together again."""
    q, k, v = (b.input(name, f32[6, H, T, D]) for name in ("q", "k", "v"))
    scores = b.reshape(q @ transposed(b, k), [6, 2, 2, T, T])
    masked = b.add(scores, b.input("mask", f32[1, 2, 1, T, T]))
    b.output(b.softmax(b.reshape(masked, [6, H, T, T])) @ v, "y")


def _windows(mask_shape, batch=6, images=2, windows=3):
    def build(b):
        q, k, v = (b.input(name, f32[batch, H, T, D]) for name in ("q", "k", "v"))
        scores = b.reshape(q @ transposed(b, k), [images, windows, H, T, T])
        masked = b.add(scores, b.input("mask", f32[mask_shape]))
        b.output(b.softmax(b.reshape(masked, [-1, H, T, T])) @ v, "y")

    return build


# A mask for each image, the same for its windows; one of unknown size.
REFUSALS["mask_of_images"] = _windows((2, 1, 1, T, T)), "not one part for each window"
REFUSALS["mask_of_windows_of_unknown_size"] = _windows((1, 3, 1, T, "k")), "of unknown size"
# The number of images is not known: below opset 23 to find it out takes more operations than there were.
REFUSALS["windows_of_unknown_number"] = _windows((1, 3, 1, T, T), "n", -1), "takes more operations"


@refusal("do not have one rank of 3 or 4")
def one_query_without_a_batch(b):
    q, k, v = b.input("q", f32[D]), b.input("k", f32[T, D]), b.input("v", f32[T, D])
    b.output(b.softmax(b.mul(q @ b.transpose(k, perm=[1, 0]), 0.25)) @ v, "y")


@refusal("mask may widen the scores")
def mask_of_batches_and_keys(b):
    """[batch, keys] is broadcast as [queries, keys], which one query does not have."""
    q, k, v = b.input("q", f32[B, H, 1, D]), b.input("k", f32[B, H, T, D]), b.input("v", f32[B, H, T, D])
    b.output(b.softmax(b.add(scores_of(b, q, k), b.input("mask", f32[B, T]))) @ v, "y")


@refusal("")
def softmax_of_a_linear_layer(b):
    """A router or a classifier: one product in front, none with values behind."""
    x = b.input("x", f32[B, S, D])
    b.output(b.softmax(x @ np.ones((D, 3), np.float32)), "y")


@refusal("")
def softmax_without_a_product(b):
    x, v = b.input("x", f32[B, H, S, T]), b.input("v", f32[B, H, T, D])
    b.output(b.softmax(x) @ v, "y")


@refusal("not of one floating-point type")
def unknown_ranks(b):
    q, k, v = four(b)
    b.output(b.softmax(q @ transposed(b, k)) @ v, "y")


def prepared(name):
    build, reason = REFUSALS[name]
    model = model_of(build)
    if name == "unknown_ranks":
        for op in model.walk():
            if op.name == "transpose":
                op.results[0].type = UNKNOWN
    return model, reason


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.refusal
def test_refused_with_the_reason(name):
    model, reason = prepared(name)
    before = [op.name for op in model.walk()]
    context = PassContext(debug=True)
    PassManager.parse("fuse-attention").run(model, context)
    assert [op.name for op in model.walk()] == before
    remarks = [d for d in context.log.diagnostics if d.code == "fuse-attention/near-miss"]
    assert len(remarks) == (1 if reason else 0)
    assert all(reason in remark.message and remark.location is not None for remark in remarks)


def test_why_names_the_first_failing_check():
    model = model_of(mask_inside_the_scale)
    misses = explain(model, FusedAttention)
    assert [miss.applies for miss in misses] == [False]
    assert "mask is scaled" in misses[0].reason


BLOCKS = """
module onnx opsets={"": 21}
func @main(%q: f32[2, 4, 5, 8], %k: f32[2, 4, 8, 7], %v: f32[2, 4, 7, 8], %c: bool[]) -> (%y: f32[2, 4, 5, 8]) {
  %0 = matmul %q, %k : f32[2, 4, 5, 7]
  %1 = softmax %0 {axis=-1} : f32[2, 4, 5, 7]
  %y = if %c : f32[2, 4, 5, 8]
    then_branch() -> (%a: f32[2, 4, 5, 8]) {
      %a = matmul %1, %v : f32[2, 4, 5, 8]
      return %a
    }
    else_branch() -> (%b: f32[2, 4, 5, 8]) {
      return %q
    }
  return %y
}
"""


@pytest.mark.refusal
def test_products_in_two_blocks_are_left():
    model = parse(BLOCKS)
    context = PassContext(debug=True)
    PassManager.parse("fuse-attention").run(model, context)
    assert [op.name for op in model.walk() if op.name in ("softmax", "attention")] == ["softmax"]
    assert "lies in another block" in context.log.diagnostics[0].message


@pytest.mark.parametrize(("scale", "is_exact"), [(1 / np.sqrt(D), False), (0.5, False), (0.25, True), (4.0, True)])
def test_a_scale_that_is_not_exact_in_f32_stays_outside_for_f64(scale, is_exact):
    """Nor is one whose root is not exact, by which the kernels multiply both operands."""

    def build(b):
        q, k, v = (b.input(name, f64[B, H, length, D]) for name, length in (("q", S), ("k", T), ("v", T)))
        b.output(b.softmax(b.mul(q @ transposed(b, k), np.float64(scale))) @ v, "y")

    model = model_of(build)
    PassManager.parse("fuse-attention,dce").run(model, PassContext())
    names = [op.name for op in model.walk() if op.name not in ("const", "return")]
    assert names == (["attention"] if is_exact else ["mul", "attention"])
    attention = next(op for op in model.walk() if op.name == "attention")
    assert attention.attributes["scale"] == (scale if is_exact else 1.0)


@pytest.mark.refusal
@pytest.mark.parametrize(("shape", "dynamic"), [((S, T - 1), False), ((S, 1), False), ((1, 1), True)])
def test_zeros_for_fewer_keys_stay(shape, dynamic):
    """The standard fills up such a mask with -inf: it hides the other keys."""

    def build(b):
        q, k, v = four(b, dynamic)
        b.output(b.attention(q, k, v, np.zeros(shape, np.float32)), "y")

    module = model_of(build)
    PassManager.parse("fuse-attention").run(module)
    (attention,) = (op for op in module.walk() if op.name == "attention")
    assert attention.input(3) is not None
