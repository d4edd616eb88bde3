"""Attention as exporters and model code write it: each form builds one, and says what the pass should make of it.

A form is a function of a Builder that adds inputs and outputs. Lengths, sizes and numbers of heads differ, so that no
two axes can be mistaken for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilewright import Builder, bool_, f32, i64

B, H, S, T, D, E = 2, 4, 5, 7, 8, 32
LOWEST = float(np.finfo(np.float32).min)

_random = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    """Numbers for which products stay small; the same ones each time a model is built."""
    return (_random.uniform(-1, 1, shape) / np.sqrt(shape[0])).astype(np.float32)


class Form(NamedTuple):
    build: Callable[[Any], None]
    packed: bool = False  # whether operands have the form [batch, length, heads * size]
    kv_heads: int | None = None
    masking: str | None = None
    removed: tuple[str, ...] = ("softmax",)  # operators that must be gone
    past: bool = False


FORMS: dict[str, Form] = {}


def form(**facts: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def register(build: Callable[[Any], None]) -> Callable[[Any], None]:
        FORMS[build.__name__] = Form(build, **facts)
        return build

    return register


def heads_of(b: Any, x: Any, weight: np.ndarray | None = None, heads: int = H, length: int = S) -> Any:
    """[batch, length, heads * size] as [batch, heads, length, size], projected first."""
    x = x if weight is None else x @ weight + weights(weight.shape[1])
    return b.transpose(b.reshape(x, [B, length, heads, D]), perm=[0, 2, 1, 3])


def joined(b: Any, y: Any, length: int = S) -> Any:
    return b.reshape(b.transpose(y, perm=[0, 2, 1, 3]), [B, length, E])


def transposed(b: Any, k: Any) -> Any:
    return b.transpose(k, perm=[0, 1, 3, 2])


def four(b: Any, dynamic: bool = False) -> tuple[Any, Any, Any]:
    n, s, t = ("n", "s", "t") if dynamic else (B, S, T)
    return b.input("q", f32[n, H, s, D]), b.input("k", f32[n, H, t, D]), b.input("v", f32[n, H, t, D])


@form()
def plain(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


@form()
def dynamic_dims(b: Any) -> None:
    q, k, v = four(b, dynamic=True)
    b.output(b.softmax(b.div(q @ transposed(b, k), 4.0)) @ v, "y")


@form()
def scale_on_query(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q, 0.25) @ transposed(b, k)) @ v, "y")


@form()
def scale_on_key(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(q @ transposed(b, b.mul(k, 0.25))) @ v, "y")


@form()
def scale_on_transposed_key(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(q @ b.div(transposed(b, k), 4.0)) @ v, "y")


@form()
def scale_on_both(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q, 0.5) @ b.mul(transposed(b, k), 0.5)) @ v, "y")


@form()
def no_scale(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(q @ transposed(b, k)) @ v, "y")


@form()
def negative_scale(b: Any) -> None:
    """Attention takes the root of its scale: this one stays outside."""
    q, k, v = four(b)
    b.output(b.softmax(b.mul(q @ transposed(b, k), -0.25)) @ v, "y")


@form()
def key_stored_transposed(b: Any) -> None:
    q, v = b.input("q", f32[B, H, S, D]), b.input("v", f32[B, H, T, D])
    k = b.input("k", f32[B, H, D, T])
    b.output(b.softmax(b.mul(q @ k, 0.25)) @ v, "y")


@form(packed=True)
def separate_projections(b: Any) -> None:
    x = b.input("x", f32[B, S, E])
    q, k, v = (heads_of(b, x, weights(E, E)) for _ in range(3))
    b.output(joined(b, b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v) @ weights(E, E), "y")


@form(packed=True)
def key_transposed_at_once(b: Any) -> None:
    x = b.input("x", f32[B, S, E])
    q, v = heads_of(b, x, weights(E, E)), heads_of(b, x, weights(E, E))
    k = b.transpose(b.reshape(x @ weights(E, E), [B, S, H, D]), perm=[0, 2, 3, 1])
    b.output(joined(b, b.softmax(b.div(q @ k, 4.0)) @ v), "y")


@form(packed=True)
def dynamic_projections(b: Any) -> None:
    x = b.input("x", f32["n", "s", E])
    q, k, v = (b.transpose(b.reshape(x @ weights(E, E), [0, 0, H, D]), perm=[0, 2, 1, 3]) for _ in range(3))
    y = b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v
    b.output(b.reshape(b.transpose(y, perm=[0, 2, 1, 3]), [0, 0, E]), "y")


@form(packed=True)
def cross_attention(b: Any) -> None:
    x, z = b.input("x", f32[B, S, E]), b.input("z", f32[B, T, E])
    q, k, v = heads_of(b, x, weights(E, E)), *(heads_of(b, z, weights(E, E), length=T) for _ in range(2))
    b.output(joined(b, b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v), "y")


@form(packed=True)
def packed_projection_split(b: Any) -> None:
    """GPT-2: one product, split in three."""
    x = b.input("x", f32[B, S, E])
    q, k, v = (heads_of(b, part) for part in b.split(x @ weights(E, 3 * E), axis=-1, num_outputs=3, outputs=3))
    b.output(joined(b, b.softmax(b.div(q @ transposed(b, k), 4.0)) @ v), "y")


@form()
def packed_projection_gathered(b: Any) -> None:
    """timm's ViT: [3, batch, heads, length, size], of which each is gathered."""
    x = b.input("x", f32[B, S, E])
    whole = b.transpose(b.reshape(x @ weights(E, 3 * E), [B, S, 3, H, D]), perm=[2, 0, 3, 1, 4])
    q, k, v = (b.gather(whole, index, axis=0) for index in range(3))
    b.output(joined(b, b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v), "y")


@form()
def key_transposed_in_three_dims(b: Any) -> None:
    """torch's decomposed scaled_dot_product_attention: [batch * heads, length, size] for the transpose only."""
    q, k, v = four(b)
    flat = b.transpose(b.reshape(k, [-1, T, D]), perm=[0, 2, 1])
    b.output(b.softmax(b.mul(q, 0.5) @ b.mul(b.reshape(flat, [B, H, D, T]), 0.5)) @ v, "y")


@form(packed=True)
def merged_batch_and_heads(b: Any) -> None:
    """BART, OPT, Whisper of older transformers: products over [batch * heads, length, size]."""
    x = b.input("x", f32[B, S, E])
    q, k, v = (b.reshape(heads_of(b, x, weights(E, E)), [B * H, S, D]) for _ in range(3))
    y = b.softmax(b.mul(q, 0.25) @ b.transpose(k, perm=[0, 2, 1])) @ v
    b.output(joined(b, b.reshape(y, [B, H, S, D])), "y")


@form(packed=True, masking="plain")
def merged_batch_and_heads_with_mask(b: Any) -> None:
    x, mask = b.input("x", f32[B, S, E]), b.input("mask", f32[B, 1, S, S])
    q, k, v = (b.reshape(heads_of(b, x, weights(E, E)), [B * H, S, D]) for _ in range(3))
    scores = b.add(b.reshape(q @ b.transpose(k, perm=[0, 2, 1]), [B, H, S, S]), mask)
    y = b.softmax(b.reshape(scores, [B * H, S, S])) @ v
    b.output(joined(b, b.reshape(y, [B, H, S, D])), "y")


@form(packed=True)
def three_dims(b: Any) -> None:
    q, k, v = b.input("q", f32["n", S, D]), b.input("k", f32["n", T, D]), b.input("v", f32["n", T, 3])
    b.output(b.softmax(b.mul(q @ b.transpose(k, perm=[0, 2, 1]), 0.25)) @ v, "y")


@form(packed=True, masking="plain")
def three_dims_with_mask(b: Any) -> None:
    q, k, v = b.input("q", f32[6, S, D]), b.input("k", f32[6, T, D]), b.input("v", f32[6, T, D])
    b.output(b.softmax(b.add(q @ b.transpose(k, perm=[0, 2, 1]), b.input("mask", f32[6, S, T]))) @ v, "y")


def _masked(shape: tuple[Any, ...]) -> Callable[[Any], None]:
    def build(b: Any) -> None:
        q, k, v = four(b)
        scores = b.mul(q @ transposed(b, k), 0.25)
        b.output(b.softmax(b.add(scores, b.input("mask", f32[shape]))) @ v, "y")

    return build


for _shape in (
    (B, 1, 1, T),
    (B, 1, S, T),
    (1, 1, S, T),
    (1, H, S, T),
    (B, H, S, T),
    (S, T),
    (H, 1, T),
    (T,),
    (B, 1, S, 1),
):
    FORMS["mask_" + "x".join(map(str, _shape))] = Form(_masked(_shape), masking="plain")


@form(masking="plain")
def mask_first_operand(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(b.add(b.input("mask", f32[B, 1, 1, T]), q @ transposed(b, k))) @ v, "y")


@form(masking="plain")
def mask_of_padding(b: Any) -> None:
    """BERT: (1 - padding) * lowest."""
    q, k, v = four(b)
    padding = b.cast(b.unsqueeze(b.input("keep", i64[B, T]), [1, 2]), to=f32)
    bias = b.mul(b.sub(1.0, padding), LOWEST)
    b.output(b.softmax(b.add(b.div(q @ transposed(b, k), 2.0), bias)) @ v, "y")


@form(masking="plain")
def boolean_mask(b: Any) -> None:
    q, k, v = four(b)
    scores = b.where(b.input("keep", bool_[B, 1, S, T]), q @ transposed(b, k), float("-inf"))
    b.output(b.softmax(scores) @ v, "y")


@form(masking="plain")
def masked_fill(b: Any) -> None:
    q, k, v = four(b)
    scores = b.where(b.not_(b.input("keep", bool_[B, 1, S, T])), LOWEST, q @ transposed(b, k))
    b.output(b.softmax(scores) @ v, "y")


@form(masking="plain")
def masked_fill_inverted(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(b.where(b.input("hide", bool_[B, 1, S, T]), -1e4, q @ transposed(b, k))) @ v, "y")


@form(masking="plain")
def boolean_and_added_mask(b: Any) -> None:
    """GPT-2: a causal choice, then a padding mask."""
    q, k, v = four(b)
    scores = b.where(np.tri(S, T, 2, dtype=bool)[None, None], b.div(q @ transposed(b, k), 4.0), LOWEST)
    b.output(b.softmax(b.add(scores, b.input("mask", f32[B, 1, 1, T]))) @ v, "y")


@form(masking="plain")
def replaced_scores_and_added_mask(b: Any) -> None:
    """-1 in place of a score is not -1 added to it."""
    q, k, v = four(b)
    scores = b.where(b.input("keep", bool_[B, 1, S, T]), q @ transposed(b, k), -1.0)
    b.output(b.softmax(b.add(scores, b.input("mask", f32[B, 1, 1, T]))) @ v, "y")


@form(masking="plain")
def two_added_masks(b: Any) -> None:
    """T5: a bias by relative position, and a padding mask."""
    q, k, v = four(b)
    scores = b.add(q @ transposed(b, k), b.input("bias", f32[1, H, S, T]))
    b.output(b.softmax(b.add(scores, b.input("mask", f32[B, 1, 1, T]))) @ v, "y")


@form()
def causal_constant(b: Any) -> None:
    """Every row keeps a key, so that the operator of the standard says the same."""
    q, k, v = four(b)
    bias = np.where(np.tri(S, T, dtype=bool), 0, LOWEST).astype(np.float32)
    b.output(b.softmax(b.add(q @ transposed(b, k), bias)) @ v, "y")


@form()
def causal_constant_condition(b: Any) -> None:
    q, k, v = four(b)
    b.output(b.softmax(b.where(np.tri(S, T, dtype=bool), q @ transposed(b, k), float("-inf"))) @ v, "y")


@form()
def causal_trilu(b: Any) -> None:
    """torch's is_causal, with dynamic lengths."""
    q, k, v = four(b, dynamic=True)
    sizes = b.concat(b.shape(q, start=2, end=3), b.shape(k, start=2, end=3), axis=0)
    lower = b.trilu(b.expand(1.0, sizes), upper=0)
    bias = b.where(b.equal(lower, 0.0), float("-inf"), 0.0)
    b.output(b.softmax(b.add(q @ transposed(b, k), bias)) @ v, "y")


@form(masking="nan-to-zero")
def nan_guard(b: Any) -> None:
    """torch's scaled_dot_product_attention gives zeros for rows without a key."""
    q, k, v = four(b)
    weights_ = b.softmax(b.add(q @ transposed(b, k), b.input("mask", f32[B, 1, S, T])))
    b.output(b.where(b.isnan(weights_), 0.0, weights_) @ v, "y")


@form()
def soft_cap(b: Any) -> None:
    """Gemma 2."""
    q, k, v = four(b)
    capped = b.mul(b.tanh(b.div(b.mul(q @ transposed(b, k), 0.25), 3.0)), 3.0)
    b.output(b.softmax(capped) @ v, "y")


def _grouped(b: Any, kv: int, expand: Callable[[Any, Any, int], Any], dynamic: bool = False) -> None:
    n, s, t = ("n", "s", "t") if dynamic else (B, S, T)
    q = b.input("q", f32[n, H, s, D])
    k, v = b.input("k", f32[n, kv, t, D]), b.input("v", f32[n, kv, t, D])
    k, v = expand(b, k, H // kv), expand(b, v, H // kv)
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


@form(kv_heads=2)
def grouped_by_expand(b: Any) -> None:
    def expand(b: Any, x: Any, repeats: int) -> Any:
        return b.reshape(b.expand(b.unsqueeze(x, [2]), [B, 2, repeats, T, D]), [B, H, T, D])

    _grouped(b, 2, expand)


@form(kv_heads=2)
def grouped_with_dynamic_dims(b: Any) -> None:
    def expand(b: Any, x: Any, repeats: int) -> Any:
        return b.reshape(b.expand(b.unsqueeze(x, [2]), [1, 1, repeats, 1, 1]), [0, H, -1, D])

    _grouped(b, 2, expand, dynamic=True)


@form(kv_heads=2)
def grouped_by_tile(b: Any) -> None:
    def expand(b: Any, x: Any, repeats: int) -> Any:
        return b.reshape(b.tile(b.unsqueeze(x, [2]), [1, 1, repeats, 1, 1]), [B, H, T, D])

    _grouped(b, 2, expand)


@form(kv_heads=1)
def multi_query_by_broadcast(b: Any) -> None:
    """The product itself repeats the one head."""
    _grouped(b, 1, lambda b, x, repeats: x)


@form(kv_heads=4)
def keys_for_all_of_the_batch(b: Any) -> None:
    """The product itself repeats the keys and values of the one batch."""
    q, k, v = b.input("q", f32[B, H, S, D]), b.input("k", f32[1, H, T, D]), b.input("v", f32[1, H, T, D])
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


@form(kv_heads=1)
def multi_query_by_expand(b: Any) -> None:
    _grouped(b, 1, lambda b, x, repeats: b.expand(x, [B, repeats, T, D]))


@form(kv_heads=4)
def tiled_heads_are_not_groups(b: Any) -> None:
    """h0 h1 h0 h1: heads of queries next to each other do not share one, so the repeated heads stay."""
    _grouped(b, 2, lambda b, x, repeats: b.tile(x, [1, repeats, 1, 1]))


@form(past=True, removed=("softmax", "concat"))
def past_and_present(b: Any) -> None:
    q, k, v = b.input("q", f32[B, H, 1, D]), b.input("k", f32[B, H, 1, D]), b.input("v", f32[B, H, 1, D])
    k = b.concat(b.input("past_k", f32[B, H, "p", D]), k, axis=2)
    v = b.concat(b.input("past_v", f32[B, H, "p", D]), v, axis=2)
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")
    b.output(k, "present_k")
    b.output(v, "present_v")


def cached(b: Any, new: Any, name: str, heads: int = H, batch: Any = B) -> Any:
    """Keys or values with those of a past, which are given back."""
    whole = b.concat(b.input(f"past_{name}", f32[batch, heads, "p", D]), new, axis=2)
    b.output(whole, f"present_{name}")
    return whole


@form(past=True, kv_heads=2, removed=("softmax", "concat"))
def grouped_past(b: Any) -> None:
    """Llama: a few heads are kept, and repeated after the past was put before."""
    q, new = b.input("q", f32["n", H, "s", D]), [b.input(name, f32["n", 2, "s", D]) for name in "kv"]
    k, v = (cached(b, each, name, 2, "n") for each, name in zip(new, "kv", strict=True))
    k, v = (b.reshape(b.expand(b.unsqueeze(each, [2]), [1, 1, 2, 1, 1]), [0, H, -1, D]) for each in (k, v))
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


def for_all_keys(b: Any, dtype: Any, queries: Any) -> Any:
    """A mask of the keys of the past, and of the new ones."""
    name = "keep" if dtype is bool_ else "mask"
    old, new = (b.input(f"{name}{suffix}", dtype[B, 1, queries, length]) for suffix, length in (("", "p"), ("2", "s")))
    return b.concat(old, new, axis=3)


@form(past=True, masking="plain", removed=("softmax",))
def masked_past(b: Any) -> None:
    """The mask is for all keys, those of the past included."""
    q, new = b.input("q", f32[B, H, "s", D]), [b.input(name, f32[B, H, "s", D]) for name in "kv"]
    k, v = (cached(b, each, name) for each, name in zip(new, "kv", strict=True))
    b.output(b.softmax(b.add(q @ transposed(b, k), for_all_keys(b, f32, 1))) @ v, "y")


@form(past=True, masking="plain", removed=("softmax",))
def masked_past_of_queries(b: Any) -> None:
    q, new = b.input("q", f32[B, H, "s", D]), [b.input(name, f32[B, H, "s", D]) for name in "kv"]
    k, v = (cached(b, each, name) for each, name in zip(new, "kv", strict=True))
    keep = for_all_keys(b, bool_, "s")
    b.output(b.softmax(b.where(keep, q @ transposed(b, k), LOWEST)) @ v, "y")


@form(past=True, packed=True, removed=("softmax", "concat"))
def projected_past(b: Any) -> None:
    """The new keys and values are taken as the projections give them."""
    x = b.input("x", f32[B, S, E])
    q, k, v = (heads_of(b, x, weights(E, E)) for _ in range(3))
    k, v = cached(b, k, "k"), cached(b, v, "v")
    b.output(joined(b, b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v), "y")


@form(past=True, removed=("softmax", "concat"))
def scaled_past(b: Any) -> None:
    """Keys are scaled before they are kept: the scale is not one of the scores, as those of the past have it."""
    q, k, v = b.input("q", f32[B, H, 1, D]), b.input("k", f32[B, 1, E]), b.input("v", f32[B, H, 1, D])
    k, v = cached(b, b.mul(heads_of(b, k, length=1), 0.5), "k"), cached(b, v, "v")
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


@form()
def past_that_is_not_given_back(b: Any) -> None:
    q, k, v = b.input("q", f32[B, H, 1, D]), b.input("k", f32[B, H, 1, D]), b.input("v", f32[B, H, 1, D])
    k = b.concat(b.input("past_k", f32[B, H, "p", D]), k, axis=-2)
    v = b.concat(b.input("past_v", f32[B, H, "p", D]), v, axis=-2)
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


def _windows(mask: tuple[Any, ...], images: int = 2, bias: bool = False, batch: Any = 6) -> Callable[[Any], None]:
    """Swin: scores of all windows of all images are taken apart to add a mask for each window of an image."""

    def build(b: Any) -> None:
        q, k, v = (b.input(name, f32[batch, H, T, D]) for name in ("q", "k", "v"))
        scores = b.mul(q @ transposed(b, k), 0.25)
        scores = b.add(scores, b.input("bias", f32[1, H, T, T])) if bias else scores
        scores = b.add(b.reshape(scores, [images, 3, H, T, T]), b.input("mask", f32[mask]))
        b.output(b.softmax(b.reshape(scores, [-1, H, T, T])) @ v, "y")

    return build


FORMS["windows"] = Form(_windows((1, 3, 1, T, T)), masking="plain", removed=("softmax",))
FORMS["windows_of_one_image"] = Form(_windows((1, 3, 1, T, T), images=1, batch=3), masking="plain")
FORMS["windows_with_bias"] = Form(_windows((3, 1, T, T), bias=True), masking="plain", removed=("softmax",))
FORMS["windows_and_images"] = Form(_windows((2, 3, 1, T, T)), masking="plain", removed=("softmax",))
FORMS["windows_all_alike"] = Form(_windows((1, 1, 1, T, T)), masking="plain")


def _einsum(scores: str, context: str, axis: int = -1, kv_heads: int = H) -> Callable[[Any], None]:
    """Attention by two Einsums: of operands whose axes are called b, q or k, h, d."""

    def operand(b: Any, letters: str, name: str, heads: int) -> Any:
        return b.input(name, f32[tuple({"b": B, "q": S, "k": T, "h": heads, "d": D, "e": 6}[x] for x in letters)])

    def build(b: Any) -> None:
        first, second = scores[: scores.index("-")].split(",")
        q, k = operand(b, first, "q", H), operand(b, second, "k", kv_heads)
        v = operand(b, context[: context.index("-")].split(",")[1], "v", kv_heads)
        weights_ = b.softmax(b.mul(b.einsum(q, k, equation=scores), 0.25), axis=axis)
        b.output(b.einsum(weights_, v, equation=context), "y")

    return build


EINSUMS = {
    "heads_first": Form(_einsum("bhqd,bhkd->bhqk", "bhqk,bhke->bhqe")),
    "length_first": Form(_einsum("bqhd,bkhd->bhqk", "bhqk,bkhe->bqhe")),
    "length_first_all_along": Form(_einsum("bqhd,bkhd->bqhk", "bqhk,bkhe->bqhe")),
    "softmax_over_another_axis": Form(_einsum("bqhd,bkhd->bqkh", "bqkh,bkhe->bqhe", axis=2)),
    "keys_before_queries": Form(_einsum("bhqd,bhkd->bhkq", "bhkq,bhke->bhqe", axis=-2)),
    "channels_first": Form(_einsum("bhdq,bhdk->bhqk", "bhqk,bhek->bheq")),
    "three_dims": Form(_einsum("bqd,bkd->bqk", "bqk,bke->bqe"), packed=True),
    "channels_first_in_three_dims": Form(_einsum("bdq,bdk->bqk", "bqk,bek->beq"), packed=True),
    "one_head_of_keys": Form(_einsum("bhqd,bkd->bhqk", "bhqk,bke->bhqe"), kv_heads=1),
}


def model_of(build: Callable[[Any], None], opset: int = 21) -> Any:
    global _random
    _random = np.random.default_rng(3)
    b = Builder(opset=opset)
    build(b)
    return b.build()


def feeds_for(model: Any, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Values for all inputs; masks that are added hide some keys, and leave every row one."""
    random = np.random.default_rng(seed)
    sizes = {"n": 2, "s": 5, "t": 7, "p": 3, **sizes}
    feeds = {}
    for argument in model.main.inputs:
        shape = [dim if isinstance(dim, int) else sizes[dim.label] for dim in argument.type.shape]
        value = random.uniform(-1, 1, shape)
        if argument.name.startswith(("keep", "hide", "mask")):
            value = random.uniform(0, 1, shape) < 0.6
            value[..., :1] = argument.name != "hide"
        if argument.name.startswith("mask"):
            value = np.where(value, 0, -np.inf)
        feeds[argument.name] = value.astype(argument.type.dtype.numpy)
    return feeds
