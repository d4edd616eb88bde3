"""Operators of classical machine learning on numbers, in terms of arithmetic and reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Value
from ..dtypes import f32, i32, i64
from ..types import TensorType
from .builder import dtype_of, is_native, rank_of
from .expansions import expands

_ML = "ai.onnx.ml"
_F32 = 1
# So many comparisons of n-grams with pieces of a text are made at once; more are left to a hash table on the host.
MOST_COMPARISONS = 1 << 26


def _floats(op: Operation, name: str) -> np.ndarray:
    return np.array(op.attr(name) or (), np.float32)


def _as_f32(b: OpBuilder, x: Value) -> Value:
    return x if dtype_of(x) is f32 else b.cast(x, to=_F32)


@expands("Scaler", domain=_ML)
def scaler(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    x, offset, scale = op.operand_values[0], _floats(op, "offset"), _floats(op, "scale")
    if not is_native(x) or not offset.size or not scale.size:
        return None
    return [b.mul(b.sub(_as_f32(b, x), b.const(offset)), b.const(scale))]


@expands("Normalizer", domain=_ML)
def normalizer(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Rows over their norms; a norm of 0 is taken as 1."""
    x, kind = op.operand_values[0], op.attr("norm")
    if not is_native(x) or not rank_of(x) or kind not in ("MAX", "L1", "L2"):
        return None
    x, last = _as_f32(b, x), np.array([-1])
    reduce = {"MAX": b.reduce_max, "L1": b.reduce_l1, "L2": b.reduce_l2}[kind]
    norm = reduce(x, last, keepdims=1)
    none = b.equal(norm, b.const(np.float32(0)))
    return [b.div(x, b.where(none, b.const(np.float32(1)), norm))]


@expands("FeatureVectorizer", domain=_ML)
def feature_vectorizer(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Matrices cut or filled up to their widths, side by side."""
    widths, parts = op.attr("inputdimensions") or (), []
    if len(widths) != len(op.operand_values):
        return None
    for x, width in zip(op.operand_values, widths, strict=True):
        if not is_native(x) or rank_of(x) != 2:
            return None
        assert isinstance(x.type, TensorType)
        assert x.type.shape is not None
        columns = x.type.shape[1]
        if not isinstance(columns, int):
            return None
        rows = _as_f32(b, x)
        if columns > width:
            rows = b.slice(rows, np.array([0]), np.array([width]), np.array([1]))
        elif columns < width:
            rows = b.pad(rows, np.array([0, 0, 0, width - columns]))
        parts.append(rows)
    return [b.concat(*parts, axis=1)] if len(parts) > 1 else parts


@expands("LinearRegressor", domain=_ML)
def linear_regressor(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    x, targets = op.operand_values[0], op.attr("targets") or 1
    weights, bias = _floats(op, "coefficients"), _floats(op, "intercepts")
    if not is_native(x) or dtype_of(x) is not f32 or rank_of(x) != 2 or (op.attr("post_transform") or "NONE") != "NONE":
        return None
    if not weights.size or weights.size % targets or bias.size not in (0, targets):
        return None
    product = b.matmul(x, b.const(np.ascontiguousarray(weights.reshape(targets, -1).T)))
    return [b.add(product, b.const(bias)) if bias.size else product]


@expands("Imputer", domain=_ML)
def imputer(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """One number, or NaN, is replaced by those of the columns."""
    x = op.operand_values[0]
    if not is_native(x) or dtype_of(x) not in (f32, i64) or rank_of(x) != 2:
        return None
    dtype, kind = dtype_of(x).numpy, "float" if dtype_of(x) is f32 else "int64"
    values, missing = np.array(op.attr(f"imputed_value_{kind}s") or (), dtype), op.attr(f"replaced_value_{kind}")
    if not values.size:
        return None
    hit = (
        b.isnan(x) if missing is not None and np.isnan(missing) else b.equal(x, b.const(np.array(missing or 0, dtype)))
    )
    return [b.where(hit, b.const(values), x)]


@expands("TfIdfVectorizer")
def tf_idf(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """How often each n-gram of the pool is in a row of integers, elements of it next to each other or evenly apart."""
    x, pool = op.operand_values[0], op.attr("pool_int64s")
    shape = x.type.static_shape if isinstance(x.type, TensorType) else None
    if shape is None or not is_native(x) or dtype_of(x) not in (i32, i64) or not pool or len(shape) not in (1, 2):
        return None
    weights = op.attr("weights")
    if 0 in shape or (weights and len(weights) != max(op.attr("ngram_indexes")) + 1):
        return None
    grams = _n_grams(op)
    if grams is None or sum(len(items) for items, _ in grams.values()) * shape[-1] * len(shape) > MOST_COMPARISONS:
        return None
    rows = b.reshape(b.cast(x, to=i64.onnx_code) if dtype_of(x) is i32 else x, np.array([-1, shape[-1]]))
    counts, indices = [], []
    for length, (items, places) in grams.items():
        counts.append(_occurrences(op, b, rows, shape[-1], length, items))
        indices.append(places)
    # Columns of the result, those without an n-gram from one of zeros.
    order = np.full(max(op.attr("ngram_indexes")) + 1, sum(map(len, indices)))
    order[np.concatenate(indices) if indices else []] = np.arange(sum(map(len, indices)))
    zero = b.cast(b.reduce_sum(b.mul(rows, np.array(0)), np.array([1]), keepdims=1), to=_F32)
    found = b.gather(b.concat(*counts, zero, axis=1) if counts else zero, b.const(order), axis=1)
    result = _weighted(op, b, found)
    return [b.squeeze(result, np.array([0])) if len(shape) == 1 else result]


def _n_grams(op: Operation) -> dict[int, tuple[np.ndarray, np.ndarray]] | None:
    """For each length the n-grams [count, length] and their columns in the result; None if one is there twice."""
    pool, starts, columns = np.array(op.attr("pool_int64s")), [*op.attr("ngram_counts")], [*op.attr("ngram_indexes")]
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    first = 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        count = (end - start) // length
        items = pool[start : start + count * length].reshape(count, length)
        if count and op.attr("min_gram_length") <= length <= op.attr("max_gram_length"):
            if len(np.unique(items, axis=0)) < count:
                return None
            found[length] = items, np.array(columns[first : first + count])
        first += count
    return found if len(set(columns)) == len(columns) else None


def _occurrences(op: Operation, b: OpBuilder, rows: Value, width: int, length: int, items: np.ndarray) -> Value:
    """How often each of `items` is in each row, f32. Single elements are never apart."""
    apart = range(1, 2 if length == 1 else op.attr("max_skip_count") + 2)
    places = [
        np.arange(width - step * (length - 1))[:, None] + step * np.arange(length)
        for step in apart if width > step * (length - 1)
    ]  # fmt: skip
    starts = np.concatenate(places) if places else np.zeros((0, length), np.int64)
    total: Value | None = None
    for part in range(length):
        seen = b.unsqueeze(b.gather(rows, b.const(starts[:, part]), axis=1), np.array([1]))
        equal = b.equal(seen, b.const(items[:, part, None]))
        total = equal if total is None else b.and_(total, equal)
    counts: Value = b.reduce_sum(b.cast(total, to=_F32), np.array([2]), keepdims=0)
    return counts


def _weighted(op: Operation, b: OpBuilder, counts: Value) -> Value:
    mode, weights = op.attr("mode"), _floats(op, "weights")
    if mode == "IDF":
        counts = b.cast(b.greater(counts, b.const(np.float32(0))), to=_F32)
    found: Value = b.mul(counts, b.const(weights)) if mode != "TF" and weights.size else counts
    return found
