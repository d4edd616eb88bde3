"""Attention for ONNX Runtime: its operators are run against the attention that they stand for, masked rows included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, bool_, f16, f32
from tilewright.graph.clone import clone_module
from tilewright.importers.onnx import to_bytes
from tilewright.passes.context import PassContext
from tilewright.passes.manager import PassManager

onnxruntime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(3)
BATCH, HEADS, LENGTH, SIZE = 2, 2, 4, 8
WIDTH = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def operators(module: Module) -> list[str]:
    return [op.op_type for op in module.walk() if op.name not in ("const", "return")]


def fused(module: Module) -> Module:
    result = clone_module(module)
    PassManager.parse("fuse-for-onnxruntime,fold,cse,dce").run(result, PassContext(debug=True))
    return result


def check(module: Module, expected: list[str], feeds: dict[str, np.ndarray]) -> Module:
    """The module becomes `expected`, which gives in ONNX Runtime what the module means, NaN where that is NaN."""
    result = fused(module)
    assert sorted(operators(result)) == sorted(expected)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = to_bytes(result, target="onnxruntime")
    (got,) = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    (wanted,) = tilewright.compile(module, "reference").run(feeds).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    return result


def packed(mask: Any = None, keys: Any = LENGTH, batch: Any = BATCH, opset: int = 18, **attributes: Any) -> Module:
    """Attention of three inputs that have heads side by side; `mask` is an array, or the shape and type of an input."""
    b = Builder(opset=opset)
    q = b.input("q", f32[batch, LENGTH, WIDTH])
    k, v = (b.input(name, f32[batch, keys, WIDTH]) for name in "kv")
    if isinstance(mask, tuple):
        mask = b.input("mask", mask[1][mask[0]])
    attributes = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "scale": 0.25, **attributes}
    b.output(b.attention(q, k, v, mask, **attributes), "y")
    return b.build()


def inputs(keys: int = LENGTH, **further: np.ndarray) -> dict[str, np.ndarray]:
    q, k, v = random(BATCH, LENGTH, WIDTH), random(BATCH, keys, WIDTH), random(BATCH, keys, WIDTH)
    return {"q": q, "k": k, "v": v, **further}


# ---- MultiHeadAttention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attributes", [{}, {"scale": None}, {"is_causal": 1}, {"softmax_precision": 1}])
def test_three_inputs(attributes: dict[str, Any]) -> None:
    result = check(packed(**attributes), ["MultiHeadAttention"], inputs())
    (op,) = [op for op in result.walk() if op.op_type == "MultiHeadAttention"]
    assert op.attr("unidirectional") == attributes.get("is_causal", 0)


def test_other_number_of_keys_and_dynamic_batch() -> None:
    check(packed(keys=6, batch="n"), ["MultiHeadAttention"], inputs(6))


@pytest.mark.parametrize(
    ("shape", "extra"),
    [
        ((BATCH, HEADS, LENGTH, LENGTH), []),
        ((1, HEADS, LENGTH, LENGTH), []),
        ((BATCH, 1, LENGTH, LENGTH), []),
        ((LENGTH, LENGTH), ["Unsqueeze"]),
        ((HEADS, LENGTH, LENGTH), ["Unsqueeze"]),
        ((BATCH, 1, 1, LENGTH), ["Expand"]),
        ((1, LENGTH), ["Unsqueeze", "Expand"]),
    ],
)
def test_forms_of_masks(shape: tuple[int, ...], extra: list[str]) -> None:
    feeds = inputs(mask=random(*shape))
    check(packed((shape, f32), masking="plain"), ["MultiHeadAttention", *extra], feeds)


def test_a_mask_whose_keys_are_not_known_to_be_all() -> None:
    module = packed(((BATCH, 1, 1, "t"), f32), masking="plain")
    for keys in (LENGTH, 1):
        check(module, ["Expand", "MultiHeadAttention"], inputs(mask=random(BATCH, 1, 1, keys)))


def test_a_mask_of_an_unknown_batch_is_one_or_all() -> None:
    module = packed((("m", 1, LENGTH, LENGTH), f32), masking="plain")
    for batch in (1, BATCH):
        check(module, ["MultiHeadAttention"], inputs(mask=random(batch, 1, LENGTH, LENGTH)))


def hidden(fill: float) -> np.ndarray:
    """A mask that leaves some queries no key, some a few, the others all."""
    mask = np.zeros((BATCH, 1, LENGTH, LENGTH), np.float32)
    mask[0, 0, 1] = fill
    mask[1, 0, 2:, 1:] = fill
    mask[1, 0, 0] = fill
    return mask


@pytest.mark.parametrize("fill", [-np.inf, LOWEST, LOWEST / 2, -1e9, -1e4])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_masked_rows_are_what_the_softmax_gives(fill: float) -> None:
    shape = (BATCH, 1, LENGTH, LENGTH)
    check(packed((shape, f32), masking="plain"), ["MultiHeadAttention"], inputs(mask=hidden(fill)))


@pytest.mark.parametrize("fill", [-np.inf, LOWEST])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_masked_rows_of_a_condition(fill: float) -> None:
    shape = (BATCH, 1, LENGTH, LENGTH)
    module = packed((shape, bool_), masking="plain", masked_score=fill)
    check(module, ["Where", "MultiHeadAttention"], inputs(mask=hidden(-1.0) == 0))


@pytest.mark.parametrize("dtype", [f32, bool_])
def test_masked_rows_that_give_zeros(dtype: Any) -> None:
    shape = (BATCH, 1, LENGTH, LENGTH)
    mask = hidden(-np.inf) if dtype is f32 else hidden(-1.0) == 0
    guard = ["Squeeze", "ReduceMax", "Greater", "Where"]
    expected = ["MultiHeadAttention", *guard, *(["Where"] if dtype is bool_ else [])]
    module = packed((shape, dtype), masking="nan-to-zero")
    context = PassContext()
    check(module, expected, inputs(mask=mask))
    PassManager.parse("fuse-for-onnxruntime").run(module, context)
    assert [d.code for d in context.log.diagnostics] == ["fuse-for-onnxruntime/nan"]


def test_the_standard_gives_zeros_to_queries_without_keys() -> None:
    guard = ["Squeeze", "ReduceMax", "Greater", "Where"]
    module = packed(((BATCH, 1, LENGTH, LENGTH), bool_), opset=23)
    check(module, ["Where", "MultiHeadAttention", *guard], inputs(mask=hidden(-1.0) == 0))


@pytest.mark.parametrize("guarded", ["plain", "nan-to-zero"])
def test_a_causal_mask_is_no_operand(guarded: str) -> None:
    mask = np.where(np.tri(LENGTH) > 0, 0, LOWEST).astype(np.float32)
    check(packed(mask, masking=guarded), ["MultiHeadAttention"], inputs())


def test_a_mask_that_leaves_each_query_a_key() -> None:
    mask = np.ones((LENGTH, LENGTH), bool)
    mask[1:, 2] = False
    check(packed(mask), ["MultiHeadAttention"], inputs())


@pytest.mark.parametrize(
    ("mask", "attributes"),
    [
        # The standard gives zeros to queries without keys, and fills up masks that are too short.
        (((BATCH, 1, LENGTH, LENGTH), f32), {}),
        (((BATCH, 1, LENGTH, "t"), bool_), {}),
        (((BATCH, HEADS, LENGTH, LENGTH), bool_), {}),
        (np.ones((LENGTH, 3), bool), {}),
        # Heads with masks of their own, and zeros.
        (((BATCH, HEADS, LENGTH, LENGTH), f32), {"masking": "nan-to-zero"}),
        # A score is replaced by a number that others may be near to.
        (((BATCH, 1, LENGTH, LENGTH), bool_), {"masking": "plain", "masked_score": -1e4}),
        # Together with the causal mask a query may have no key.
        (((BATCH, 1, LENGTH, LENGTH), f32), {"masking": "plain", "is_causal": 1}),
        (None, {"scale": 0.0}),
        (None, {"softmax_precision": 10}),
    ],
)
@pytest.mark.refusal
def test_what_the_operators_do_not_say(mask: Any, attributes: dict[str, Any]) -> None:
    assert "Attention" in operators(fused(packed(mask, **attributes)))
    assert "MultiHeadAttention" not in operators(fused(packed(mask, **attributes)))


@pytest.mark.refusal
def test_causal_with_more_keys_than_queries_stays() -> None:
    assert operators(fused(packed(keys=6, is_causal=1))) == ["Attention"]
    assert operators(fused(packed(keys="t", is_causal=1))) == ["Attention"]


@pytest.mark.refusal
def test_half_precision_and_results_beside_the_output_stay() -> None:
    b = Builder(opset=23)
    q, k, v = (b.input(name, f16[BATCH, LENGTH, WIDTH]) for name in "qkv")
    b.output(b.attention(q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS), "y")
    assert operators(fused(b.build())) == ["Attention"]
    b = Builder(opset=23)
    q, k, v = (b.input(name, f32[BATCH, LENGTH, WIDTH]) for name in "qkv")
    results = b.attention(q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS, outputs=4)
    b.output(results[0], "y")
    b.output(results[3], "scores")
    assert "MultiHeadAttention" not in operators(fused(b.build()))


def heads_first(values: int) -> Module:
    """Keys and values of [batch, heads, length, size]."""
    b = Builder(opset=18)
    q = b.input("q", f32[BATCH, LENGTH, WIDTH])
    k, v = (b.input(name, f32[BATCH, HEADS, 6, size]) for name, size in (("k", SIZE), ("v", values)))
    mask = b.input("mask", f32[BATCH, 1, 1, 6])
    heads = b.transpose(b.reshape(q, [BATCH, LENGTH, HEADS, SIZE]), perm=[0, 2, 1, 3])
    result = b.transpose(b.attention(heads, k, v, mask, masking="plain"), perm=[0, 2, 1, 3])
    b.output(b.reshape(result, [BATCH, LENGTH, HEADS * values]), "y")
    return b.build()


def test_keys_and_values_with_heads_first() -> None:
    feeds = {"q": random(BATCH, LENGTH, WIDTH), "mask": random(BATCH, 1, 1, 6)}
    feeds.update({name: random(BATCH, HEADS, 6, SIZE) for name in "kv"})
    check(heads_first(SIZE), ["Expand", "MultiHeadAttention"], feeds)


@pytest.mark.refusal
def test_values_with_heads_first_of_another_size_stay() -> None:
    assert "MultiHeadAttention" not in operators(fused(heads_first(SIZE + 2)))


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("batch", [1, BATCH])
def test_tensors_with_the_length_first(flat: bool, batch: int) -> None:
    """As torch's multi-head attention has them: [length, batch, width], heads joined with the batch."""
    b = Builder(opset=18)
    operands = []
    for name in "qkv":
        x = b.reshape(b.input(name, f32[LENGTH, batch, WIDTH]), [LENGTH, batch * HEADS, SIZE])
        if name == "k":
            turned = b.reshape(b.transpose(x, perm=[1, 2, 0]), [batch, HEADS, SIZE, LENGTH])
            operands.append(b.transpose(turned, perm=[0, 1, 3, 2]))
        else:
            operands.append(b.reshape(b.transpose(x, perm=[1, 0, 2]), [batch, HEADS, LENGTH, SIZE]))
    result = b.transpose(b.attention(*operands), perm=[2, 0, 1, 3])
    b.output(b.reshape(result, [LENGTH * batch, WIDTH] if flat else [LENGTH, batch, WIDTH]), "y")
    feeds = {name: random(LENGTH, batch, WIDTH) for name in "qkv"}
    check(b.build(), ["MultiHeadAttention", *["Transpose"] * 4, *(["Reshape"] if flat else [])], feeds)


@pytest.mark.refusal
def test_queries_with_heads_first_stay() -> None:
    b = Builder(opset=18)
    q, k, v = (b.input(name, f32[BATCH, HEADS, LENGTH, SIZE]) for name in "qkv")
    b.output(b.attention(q, k, v), "y")
    assert operators(fused(b.build())) == ["Attention"]


def test_a_dim_that_follows_from_the_number_of_elements() -> None:
    """The reshapes name another batch, which is the same one where the length is not 0."""
    joined = ["Shape"] * 2 + ["Concat"] * 2 + ["Reshape"] * 4 + ["MultiHeadAttention"]
    for length, expected in ((LENGTH, ["MultiHeadAttention"]), ("t", joined)):
        b = Builder(opset=18)
        x = b.input("x", f32["n", length, WIDTH])
        other = b.shape(b.input("other", f32["m", 1]), start=0, end=1)
        size = b.shape(x, start=1, end=2)
        split = b.reshape(x, b.concat(other, size, [HEADS, SIZE], axis=0))
        heads = b.transpose(split, perm=[0, 2, 1, 3])
        result = b.transpose(b.attention(heads, heads, heads), perm=[0, 2, 1, 3])
        b.output(b.reshape(result, b.concat(other, size, [WIDTH], axis=0)), "y")
        module = b.build()
        check(module, expected, {"x": random(BATCH, LENGTH, WIDTH), "other": random(BATCH, 1)})


# ---- Attention, with projections -------------------------------------------------------------------------------------


def projected(bias: bool = True, form: str = "matmul", value_width: int = WIDTH, mask: Any = None) -> Module:
    """Query, key and value are projections of one x: by products of their own, or columns of one."""
    b = Builder(opset=18)
    flat = form.startswith("gemm")
    x = b.input("x", f32[BATCH * LENGTH, 6] if flat else f32[BATCH, LENGTH, 6])
    widths = [WIDTH, WIDTH, value_width]
    weights, rows = [random(6, width) for width in widths], [random(width) for width in widths]
    if form == "columns":
        whole = b.matmul(x, np.concatenate(weights, 1))
        whole = b.add(whole, np.concatenate(rows)) if bias else whole
        operands = b.split(whole, widths, axis=-1, outputs=3)
    elif form == "slices":
        whole = b.matmul(x, np.concatenate(weights, 1))
        whole = b.add(whole, np.concatenate(rows)) if bias else whole
        ends = np.cumsum(widths)
        operands = [
            b.slice(whole, [int(end) - width], [int(end) if width < ends[-1] else 2**31], [-1])
            for end, width in zip(ends, widths, strict=True)
        ]
    elif flat:
        operands = []
        for weight, row in zip(weights, rows, strict=True):
            turned = form == "gemm-transposed"
            operands.append(b.gemm(x, weight.T.copy() if turned else weight, row if bias else None, transB=int(turned)))
    else:
        operands = [b.matmul(x, weight) for weight in weights]
        operands = [b.add(v, row) if bias else v for v, row in zip(operands, rows, strict=True)]
    if flat:
        heads = [b.transpose(b.reshape(v, [BATCH, LENGTH, HEADS, -1]), perm=[0, 2, 1, 3]) for v in operands]
        result = b.attention(*heads, mask, scale=0.25)
        b.output(b.reshape(b.transpose(result, perm=[0, 2, 1, 3]), [BATCH * LENGTH, value_width]), "y")
    else:
        b.output(b.attention(*operands, mask, q_num_heads=HEADS, kv_num_heads=HEADS, scale=0.25), "y")
    return b.build()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", ["matmul", "columns", "slices", "gemm", "gemm-transposed"])
def test_projections_of_one_tensor(bias: bool, form: str) -> None:
    flat = form.startswith("gemm")
    x = random(BATCH * LENGTH, 6) if flat else random(BATCH, LENGTH, 6)
    check(projected(bias, form), ["Attention", *(["Reshape"] * 2 if flat else [])], {"x": x})


def test_projections_with_the_length_first() -> None:
    b = Builder(opset=18)
    x = b.transpose(b.input("x", f32[BATCH, LENGTH, 6]), perm=[1, 0, 2])
    whole = b.add(b.matmul(x, random(6, 3 * WIDTH)), random(3 * WIDTH))
    heads = [
        b.reshape(
            b.transpose(b.reshape(v, [LENGTH, BATCH * HEADS, SIZE]), perm=[1, 0, 2]), [BATCH, HEADS, LENGTH, SIZE]
        )
        for v in b.split(whole, [WIDTH] * 3, axis=-1, outputs=3)
    ]
    result = b.transpose(b.attention(*heads), perm=[2, 0, 1, 3])
    b.output(b.reshape(result, [LENGTH, BATCH, WIDTH]), "y")
    check(b.build(), ["Attention", "Transpose"], {"x": random(BATCH, LENGTH, 6)})


def test_values_of_another_width() -> None:
    result = check(projected(value_width=6), ["Attention"], {"x": random(BATCH, LENGTH, 6)})
    (op,) = [op for op in result.walk() if op.op_type == "Attention"]
    assert op.attr("qkv_hidden_sizes") == (WIDTH, WIDTH, 6)


def test_projections_with_a_mask() -> None:
    mask = np.where(np.tri(LENGTH) > 0, 0, LOWEST).astype(np.float32)
    check(projected(mask=mask), ["Attention"], {"x": random(BATCH, LENGTH, 6)})


@pytest.mark.refusal
def test_projections_with_another_user_stay() -> None:
    b = Builder(opset=18)
    x = b.input("x", f32[BATCH, LENGTH, 6])
    q, k, v = (b.matmul(x, random(6, WIDTH)) for _ in range(3))
    b.output(b.attention(q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS), "y")
    b.output(b.neg(k), "k")
    assert sorted(operators(fused(b.build()))) == ["MatMul"] * 3 + ["MultiHeadAttention", "Neg"]


@pytest.mark.refusal
def test_projections_of_two_tensors_stay() -> None:
    b = Builder(opset=18)
    x, y = (b.input(name, f32[BATCH, LENGTH, 6]) for name in "xy")
    q, k, v = b.matmul(x, random(6, WIDTH)), b.matmul(y, random(6, WIDTH)), b.matmul(y, random(6, WIDTH))
    b.output(b.attention(q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS), "y_")
    feeds = {name: random(BATCH, LENGTH, 6) for name in "xy"}
    check(b.build(), ["MatMul"] * 3 + ["MultiHeadAttention"], feeds)


# ---- GroupQueryAttention and rotary embeddings -----------------------------------------------------------------------


def grouped(heads: int, keys: int, size: int = SIZE, batch: Any = BATCH, mask: Any = None, **attributes: Any) -> Module:
    b = Builder(opset=18)
    q = b.input("q", f32[batch, LENGTH, heads * size])
    k, v = (b.input(name, f32[batch, LENGTH, keys * size]) for name in "kv")
    if isinstance(mask, tuple):
        mask = b.input("mask", f32[mask])
    b.output(b.attention(q, k, v, mask, q_num_heads=heads, kv_num_heads=keys, scale=0.3, **attributes), "y")
    return b.build()


@pytest.mark.parametrize(
    ("heads", "keys", "attributes"),
    [(4, 2, {}), (4, 1, {"is_causal": 1}), (2, 2, {"softcap": 1.5}), (4, 2, {"is_causal": 1, "softcap": 2.0})],
)
def test_fewer_heads_for_keys(heads: int, keys: int, attributes: dict[str, Any]) -> None:
    feeds = {"q": random(BATCH, LENGTH, heads * SIZE)}
    feeds.update({name: random(BATCH, LENGTH, keys * SIZE) for name in "kv"})
    check(grouped(heads, keys, **attributes), ["GroupQueryAttention"], feeds)


@pytest.mark.parametrize("fill", [-np.inf, LOWEST])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_fewer_heads_for_keys_and_masked_rows(fill: float) -> None:
    feeds = {"q": random(BATCH, LENGTH, 4 * SIZE), **{name: random(BATCH, LENGTH, 2 * SIZE) for name in "kv"}}
    module = grouped(4, 2, mask=(BATCH, 1, LENGTH, LENGTH), masking="plain")
    check(module, ["GroupQueryAttention"], {**feeds, "mask": hidden(fill)})


def test_a_batch_that_is_not_known() -> None:
    feeds = {"q": random(BATCH, LENGTH, 4 * SIZE), **{name: random(BATCH, LENGTH, 2 * SIZE) for name in "kv"}}
    module = grouped(4, 2, batch="n", is_causal=1)
    check(module, ["Shape", "Expand", "GroupQueryAttention"], feeds)
    # From opset 23 on the standard has one operator for it.
    module.opsets[""] = 23
    assert operators(fused(module)) == ["Attention"]


@pytest.mark.refusal
def test_no_grouped_attention() -> None:
    assert operators(fused(grouped(4, 2, size=6))) == ["Attention"]


# ---- past keys -------------------------------------------------------------------------------------------------------


def cached(
    heads: int, keys: int, batch: int, length: Any, past: Any, use: bool = True, values: int = SIZE, **attributes: Any
) -> Module:
    """Attention with keys and values that come before, which it gives back together with the new ones."""
    b = Builder(opset=18)
    q = b.input("q", f32[batch, length, heads * SIZE])
    k, v = (b.input(name, f32[batch, length, keys * size]) for name, size in (("k", SIZE), ("v", values)))
    old = [b.input(name, f32[batch, keys, past, size]) for name, size in (("pk", SIZE), ("pv", values))]
    mask = b.input("mask", f32[batch, 1, length, past + length if isinstance(past, int) else "t"])
    heads_of = {"q_num_heads": heads, "kv_num_heads": keys}
    results = b.attention(q, k, v, mask, *old, **heads_of, masking="plain", **attributes, outputs=3)
    b.output(results[0], "y")
    if use:
        b.output(results[1], "keys")
        b.output(results[2], "values")
    return b.build()


def check_cached(module: Module, expected: list[str], heads: int, keys: int, batch: int, length: int) -> None:
    result = fused(module)
    assert sorted(operators(result)) == sorted(expected)
    session = onnxruntime.InferenceSession(to_bytes(result, target="onnxruntime"), providers=["CPUExecutionProvider"])
    feeds = {"q": random(batch, length, heads * SIZE), "mask": random(batch, 1, length, 3 + length)}
    feeds.update({name: random(batch, length, keys * SIZE) for name in "kv"})
    feeds.update({name: random(batch, keys, 3, SIZE) for name in ("pk", "pv")})
    wanted = tilewright.compile(module, "reference").run(feeds)
    for name, got in zip(wanted, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("heads", "keys", "batch", "length"), [(2, 2, 2, 4), (4, 2, 1, 4), (4, 2, 2, 1)])
def test_past_keys(heads: int, keys: int, batch: int, length: int) -> None:
    expected = "MultiHeadAttention" if heads == keys else "GroupQueryAttention"
    check_cached(cached(heads, keys, batch, length, 3), [expected], heads, keys, batch, length)


@pytest.mark.refusal
def test_a_past_whose_length_is_not_known() -> None:
    lengths = ["Shape", "Add", "Cast", "Sub", "Expand"]
    module = cached(4, 2, 2, 1, "p")
    check_cached(module, ["GroupQueryAttention", "Concat", "Expand", *lengths], 4, 2, 2, 1)


@pytest.mark.refusal
def test_a_past_that_the_kernel_does_not_take() -> None:
    # Several queries at a time in a batch, and a causal mask, which would depend on the length of the past.
    assert "GroupQueryAttention" not in operators(fused(cached(4, 2, 2, 4, 3)))
    assert "MultiHeadAttention" not in operators(fused(cached(2, 2, 2, 4, 3, is_causal=1)))
    # Values of another size than keys.
    assert "MultiHeadAttention" not in operators(fused(cached(2, 2, 2, 4, 3, values=SIZE + 2)))
    # The kernels give something else where nobody asks for the present.
    assert "MultiHeadAttention" not in operators(fused(cached(2, 2, 2, 4, 3, use=False)))


def test_the_rotary_embedding_of_the_standard_where_it_can_be_written() -> None:
    for caches, domain in ((BATCH, ""), (1, "com.microsoft")):
        b = Builder(opset=23)
        x = b.input("x", f32[BATCH, HEADS, LENGTH, SIZE])
        cos, sin = (b.input(name, f32[caches, LENGTH, SIZE // 2]) for name in ("cos", "sin"))
        broadcast = {"broadcast": 1} if caches != BATCH else {}
        b.output(b.rotary_embedding(x, cos, sin, **broadcast), "y")
        (op,) = [op for op in fused(b.build()).walk() if op.op_type == "RotaryEmbedding"]
        assert op.domain == domain


@pytest.mark.parametrize("caches", [1, BATCH])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_rotary_embedding(caches: int, interleaved: int, side_by_side: bool) -> None:
    b = Builder(opset=18)
    x = b.input("x", f32[BATCH, LENGTH, WIDTH] if side_by_side else f32[BATCH, HEADS, LENGTH, SIZE])
    cos, sin = (b.input(name, f32[caches, LENGTH, SIZE // 2]) for name in ("cos", "sin"))
    heads = {"num_heads": HEADS} if side_by_side else {}
    broadcast = {"broadcast": 1} if caches != BATCH else {}
    b.output(b.rotary_embedding(x, cos, sin, interleaved=interleaved, **heads, **broadcast), "y")
    shape = (BATCH, LENGTH, WIDTH) if side_by_side else (BATCH, HEADS, LENGTH, SIZE)
    angles = random(caches, LENGTH, SIZE // 2)
    feeds = {"x": random(*shape), "cos": np.cos(angles), "sin": np.sin(angles)}
    result = check(b.build(), ["Reshape", "Reshape", "RotaryEmbedding"], feeds)
    assert [op.domain for op in result.walk() if op.op_type == "RotaryEmbedding"] == ["com.microsoft"]


@pytest.mark.refusal
def test_rotary_embedding_whose_caches_may_be_shorter_stays() -> None:
    b = Builder(opset=18)
    x = b.input("x", f32[BATCH, HEADS, LENGTH, SIZE])
    cos, sin = (b.input(name, f32[1, "t", SIZE // 2]) for name in ("cos", "sin"))
    b.output(b.rotary_embedding(x, cos, sin, broadcast=1), "y")
    (op,) = [op for op in fused(b.build()).walk() if op.op_type == "RotaryEmbedding"]
    assert op.domain == ""


def test_heads_that_turn_are_left_side_by_side() -> None:
    """Reshapes and transposes before and after a rotary embedding are gone with those of the attention."""
    b = Builder(opset=18)
    x = b.input("x", f32[BATCH, LENGTH, 6])
    cos, sin = (b.input(name, f32[BATCH, LENGTH, SIZE // 2]) for name in ("cos", "sin"))
    q, k, v = (
        b.transpose(b.reshape(b.matmul(x, random(6, WIDTH)), [BATCH, LENGTH, HEADS, SIZE]), perm=[0, 2, 1, 3])
        for _ in range(3)
    )
    turned = [b.rotary_embedding(value, cos, sin) for value in (q, k)]
    result = b.transpose(b.attention(*turned, v, is_causal=1), perm=[0, 2, 1, 3])
    b.output(b.reshape(result, [BATCH, LENGTH, WIDTH]), "y")
    angles = random(BATCH, LENGTH, SIZE // 2)
    feeds = {"x": random(BATCH, LENGTH, 6), "cos": np.cos(angles), "sin": np.sin(angles)}
    expected = ["MatMul"] * 3 + ["RotaryEmbedding"] * 2 + ["Reshape"] * 2 + ["MultiHeadAttention"]
    check(b.build(), expected, feeds)
