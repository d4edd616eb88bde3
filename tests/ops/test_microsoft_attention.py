"""ONNX Runtime's attention operators: masks in all forms, past keys, rotary embedding, shared heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from microsoft_cases import check, node_model, run_onnxruntime

import tilewright
from tilewright.graph.diagnostics import ExecutionError

RANDOM = np.random.default_rng(5)
F32 = np.float32
B, S, N, H = 2, 5, 2, 4
D = N * H


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(F32)


def ints(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def square_mask(batch: int, queries: int, keys: int) -> np.ndarray:
    mask = RANDOM.integers(0, 2, (batch, queries, keys)).astype(np.int32)
    mask[..., 0] = 1
    return mask


# ---- Attention -------------------------------------------------------------------------------------------------------

MASKS = {
    "none": None,
    "lengths": ints([3, 5]),
    "ends and starts": ints([4, 5, 1, 0]),
    "keys": ints([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]),
    "all pairs": square_mask(B, S, S),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_masks(mask: str, unidirectional: int) -> None:
    inputs = [random(B, S, 6), random(6, 3 * D), random(3 * D), MASKS[mask]]
    attributes = {"num_heads": N, "unidirectional": unidirectional}
    check("Attention", inputs, attributes, expands=False)


@pytest.mark.parametrize("mask", [None, ints([[1] * 8, [0] + [1] * 7]), square_mask(B, S, 8)])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_past(mask: np.ndarray | None, unidirectional: int) -> None:
    inputs = [random(B, S, 6), random(6, 3 * D), random(3 * D), mask, random(2, B, N, 3, H)]
    attributes = {"num_heads": N, "unidirectional": unidirectional, "scale": 0.3, "mask_filter_value": -5.0}
    check("Attention", inputs, attributes, [F32, F32], expands=False)


def test_attention_with_the_mask_of_the_longest_sequence() -> None:
    """Only GPUs take it; the rows and columns in use are a mask of all pairs."""
    mask = square_mask(B, 9, 9)
    inputs = [random(B, S, 6), random(6, 3 * D), random(3 * D), mask[:, 3:8, :8], random(2, B, N, 3, H)]
    model = node_model("Attention", inputs, {"num_heads": N}, [F32, F32]).SerializeToString()
    expected = run_onnxruntime(model, {f"i{index}": item for index, item in enumerate(inputs)})
    inputs[3] = mask[:, None]
    check("Attention", inputs, {"num_heads": N}, [F32, F32], expected=expected, expands=False)


@pytest.mark.parametrize("bias", [(1, 1, S, S), (1, N, S, S), (B, N, S, S), (B, 1, S, S)])
def test_attention_bias(bias: tuple[int, ...]) -> None:
    inputs = [random(B, S, 6), random(6, 3 * D), None, None, None, random(*bias)]
    check("Attention", inputs, {"num_heads": N}, expands=False)


def test_attention_widths() -> None:
    inputs = [random(B, S, 6), random(6, 2 * D + 6), random(2 * D + 6), ints([2, 5])]
    check("Attention", inputs, {"num_heads": N, "qkv_hidden_sizes": [D, D, 6]}, expands=False)


def test_attention_in_standard_operators() -> None:
    """Given the weights, it can be written for any runtime whatever the batch and length."""
    inputs = [random(B, S, 6), random(6, 3 * D), random(3 * D), None]
    check("Attention", inputs, {"num_heads": N, "unidirectional": 1}, [F32, F32], constants=[1, 2])
    inputs[3] = MASKS["keys"]
    check("Attention", inputs, {"num_heads": N}, constants=[1, 2])


# ---- MultiHeadAttention ----------------------------------------------------------------------------------------------

PADDING = {
    "none": None,
    "lengths": ints([3, 6]),
    "keys": ints([[1, 1, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]]),
    "all pairs": square_mask(B, S, 6),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.7, "mask_filter_value": -3.0}])
def test_multi_head_attention(padding: str, attributes: dict[str, Any]) -> None:
    if attributes.get("unidirectional"):
        keys: Any = [random(B, S, D), random(B, S, 3 * N)]
        mask = PADDING[padding]
        mask = mask if mask is None or mask.ndim == 1 else mask[..., :S]
    else:
        keys, mask = [random(B, 6, D), random(B, 6, 3 * N)], PADDING[padding]
    bias = random(2 * D + 3 * N)
    inputs = [random(B, S, D), *keys, bias, mask, random(1, N, S, keys[0].shape[1])]
    check("MultiHeadAttention", inputs, {"num_heads": N, **attributes}, expands=False)


def test_multi_head_attention_packed() -> None:
    """Only GPUs take these forms."""
    q, k, v = random(B, S, D), random(B, S, D), random(B, S, D)
    model = node_model("MultiHeadAttention", [q, k, v], {"num_heads": N}, [F32]).SerializeToString()
    expected = run_onnxruntime(model, {"i0": q, "i1": k, "i2": v})
    whole = np.stack([item.reshape(B, S, N, H) for item in (q, k, v)], axis=3)
    check("MultiHeadAttention", [whole], {"num_heads": N}, expected=expected)
    pair = np.stack([item.reshape(B, S, N, H) for item in (k, v)], axis=3)
    check("MultiHeadAttention", [q, pair], {"num_heads": N}, expected=expected)


def test_multi_head_attention_of_heads() -> None:
    inputs = [random(B, S, D), random(B, N, 6, H), random(B, N, 6, H)]
    check("MultiHeadAttention", inputs, {"num_heads": N})
    check("MultiHeadAttention", [*inputs, random(3 * D)], {"num_heads": N, "scale": 0.2}, expands=False)


def test_multi_head_attention_with_past() -> None:
    inputs = [random(B, 2, D), random(B, 2, D), random(B, 2, D), random(3 * D), None, None]
    inputs += [random(B, N, 3, H), random(B, N, 3, H)]
    check("MultiHeadAttention", inputs, {"num_heads": N}, [F32, F32, F32], expands=False)
    check("MultiHeadAttention", inputs, {"num_heads": N, "unidirectional": 1}, [F32, F32, F32], expands=False)
    inputs[3] = None
    check("MultiHeadAttention", inputs, {"num_heads": N}, [F32, F32, F32])


# ---- RotaryEmbedding -------------------------------------------------------------------------------------------------


def caches(pairs: int) -> list[np.ndarray]:
    angles = np.arange(12)[:, None] / 10 ** (np.arange(pairs) / pairs)
    return [np.cos(angles).astype(F32), np.sin(angles).astype(F32)]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([3]), np.array([[0, 1, 2, 3, 4], [4, 3, 9, 1, 0]])])
def test_rotary_embedding(interleaved: int, positions: np.ndarray) -> None:
    attributes = {"interleaved": interleaved}
    check("RotaryEmbedding", [random(B, S, D), positions, *caches(H // 2)], attributes, expands=False)
    check("RotaryEmbedding", [random(B, N, S, H), positions, *caches(H // 2)], attributes)
    attributes |= {"rotary_embedding_dim": 4, "num_heads": 2}
    check("RotaryEmbedding", [random(B, S, 12), positions, *caches(2)], attributes)


# ---- GroupQueryAttention ---------------------------------------------------------------------------------------------

HEADS = {"num_heads": 4, "kv_num_heads": 2}


def grouped(
    lengths: list[int], new: int, past: int | None, packed: bool = False, rotary: bool = False
) -> list[np.ndarray | None]:
    """Inputs for sequences that have `lengths` keys with the `new` ones, after a buffer of `past` places."""
    batch, size = len(lengths), 16
    inputs: list[np.ndarray | None] = [
        random(batch, new, 4 * size),
        random(batch, new, 2 * size),
        random(batch, new, 2 * size),
    ]
    if packed:
        inputs = [random(batch, new, 8 * size), None, None]
    inputs += [None, None] if past is None else [random(batch, 2, past, size), random(batch, 2, past, size)]
    inputs += [ints([length - 1 for length in lengths]), ints([max(lengths)])]
    return inputs + (caches(size // 2) if rotary else [])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rotary", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}])
@pytest.mark.parametrize(
    ("lengths", "new", "past"),
    [([5, 5], 5, None), ([5, 5], 5, 0), ([5, 5], 5, 8), ([6, 6], 1, 5), ([6, 4], 1, 5), ([6, 4], 1, 9), ([7], 3, 4)],
)
def test_group_query_attention(
    lengths: list[int], new: int, past: int | None, packed: bool, rotary: dict[str, int]
) -> None:
    inputs = grouped(lengths, new, past, packed, bool(rotary))
    check("GroupQueryAttention", inputs, {**HEADS, **rotary}, [F32, F32, F32], constants=[6], expands=not packed)


def test_group_query_attention_in_half_precision() -> None:
    inputs = [
        item.astype(np.float16) if item is not None and item.dtype == F32 else item for item in grouped([6, 4], 1, 5)
    ]
    check("GroupQueryAttention", inputs, HEADS, [np.float16] * 3, constants=[6], tolerance=1e-2)


def test_group_query_attention_of_a_padded_prompt() -> None:
    """What stands at places after the end of a prompt is not defined."""
    inputs = grouped([3, 5], 5, None)
    check("GroupQueryAttention", inputs, HEADS, [F32, F32, F32], constants=[6], valid=np.index_exp[:, :3])


@pytest.mark.parametrize(
    "attributes",
    [{"scale": 0.2}, {"softcap": 1.5}, {"local_window_size": 3}, {"local_window_size": 2}, {"smooth_softmax": 1}],
)
@pytest.mark.parametrize(("lengths", "new", "past"), [([6, 6], 6, None), ([6, 4], 1, 5)])
def test_variants_of_group_query_attention(
    attributes: dict[str, Any], lengths: list[int], new: int, past: int | None
) -> None:
    check("GroupQueryAttention", grouped(lengths, new, past), {**HEADS, **attributes}, [F32] * 3, constants=[6])


def test_biases_of_group_query_attention() -> None:
    for lengths, new, past in (([6, 6], 6, None), ([6, 4], 1, 5)):
        inputs = [*grouped(lengths, new, past), None, None, None, random(1, 4, new, 6)]
        check("GroupQueryAttention", inputs, HEADS, [F32] * 3, constants=[6])
        check("GroupQueryAttention", inputs, {**HEADS, "softcap": 2.0}, [F32] * 3, constants=[6])
        inputs = [*grouped(lengths, new, past), None, None, None, None, random(4)]
        check("GroupQueryAttention", inputs, HEADS, [F32] * 3, constants=[6])


@pytest.mark.parametrize(
    ("name", "attributes", "reason"),
    [
        ("GroupQueryAttention", {**HEADS, "sliding_window_cache": 1}, "sliding cache"),
        ("GroupQueryAttention", {**HEADS, "new_in_2030": 1}, "'new_in_2030' that is not known here"),
    ],
)
def test_a_form_that_is_not_known_says_so(name: str, attributes: dict[str, Any], reason: str) -> None:
    inputs = grouped([5, 5], 5, None)
    module = tilewright.load(node_model(name, inputs, attributes, [F32]).SerializeToString())
    feeds = {f"i{index}": item for index, item in enumerate(inputs) if item is not None}
    with pytest.raises(ExecutionError, match=reason):
        tilewright.compile(module, target="reference").run(feeds)
