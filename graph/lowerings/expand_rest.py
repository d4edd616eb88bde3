"""Operators that pick and place by computed indices, a normalization, masks of attention, and recurrent attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Value
from ..dims import prove_equal
from ..dtypes import f32, f64
from ..types import TensorType
from .builder import data_of, dtype_of, is_native, rank_of, shape_of, tensor_type
from .expansions import expands

# Steps of a recurrence that are written out; longer ones need a kernel of their own.
MOST_STEPS = 64


def _static(value: Value | None) -> tuple[int, ...] | None:
    return value.type.static_shape if value is not None and isinstance(value.type, TensorType) else None


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@expands("Hardmax")
def hardmax(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """1 at the first greatest element, else 0."""
    x = op.operand_values[0]
    if not is_native(x) or not dtype_of(x).is_float or not rank_of(x):
        return None
    axis = op.attr("axis") % rank_of(x)
    along = shape_of(x)[axis]
    if along == 0:
        return [b.identity(x)]
    if not isinstance(along, int):  # nothing has no greatest element: see what a run brings
        return None
    zero, one = (b.const(np.array(number, dtype_of(x).numpy)) for number in (0, 1))
    best = b.argmax(x, axis=axis, keepdims=1)
    return [b.scatter_elements(b.expand(zero, b.shape(x)), best, b.expand(one, b.shape(best)), axis=axis)]


@expands("MeanVarianceNormalization")
def mean_variance_normalization(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """With the mean of squared differences, which is never less than 0 as that of squares less the squared mean is."""
    x = op.operand_values[0]
    if not is_native(x) or not dtype_of(x).is_float:
        return None
    wide = dtype_of(x) if dtype_of(x) is f64 else f32  # where 1e-9 is not 0
    axes, given = b.const(np.array(op.attr("axes"), np.int64)), b.cast(x, to=wide)
    centred = b.sub(given, b.reduce_mean(given, axes, keepdims=1))
    variance = b.reduce_mean(b.mul(centred, centred), axes, keepdims=1)
    normal = b.div(centred, b.add(b.sqrt(variance), b.const(np.array(1e-9, wide.numpy))))
    return [b.cast(normal, to=dtype_of(x))]


@expands("ReverseSequence")
def reverse_sequence(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Element i of the first n along time is element n - 1 - i."""
    x, lengths = op.operand_values
    shape = _static(x)
    if shape is None or not is_native(x) or not is_native(lengths):
        return None
    time, batch = op.attr("time_axis") % len(shape), op.attr("batch_axis") % len(shape)
    steps = np.arange(shape[time]).reshape([-1 if axis == time else 1 for axis in range(len(shape))])
    counts = b.reshape(lengths, _ints(*[-1 if axis == batch else 1 for axis in range(len(shape))]))
    place = b.const(steps)
    mirrored = b.sub(b.sub(counts, b.const(np.array(1))), place)
    index = b.where(b.less(place, counts), mirrored, place)
    # A length below zero is an error, as one beyond the last element is: no such place is there.
    index = b.where(b.less(counts, b.const(np.array(0))), b.const(np.array(shape[time])), index)
    if len(shape) == 2 or {time, batch} != {0, 1}:
        return [b.gather_elements(x, b.expand(index, _ints(*shape)), axis=time)]
    # What stands at a place of both moves together.
    pairs = _ints(*shape[:2], 1)
    rows = b.reshape(b.expand(index, _ints(*shape[:2], *(1 for _ in shape[2:]))), pairs)
    columns = b.const(
        np.broadcast_to(np.arange(shape[batch]).reshape((1, -1, 1) if batch else (-1, 1, 1)), pairs).copy()
    )
    both = (rows, columns) if time == 0 else (columns, rows)
    return [b.gather_nd(x, b.concat(*both, axis=2))]


@expands("CenterCropPad")
def center_crop_pad(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """A slice and padding, half on either side; what is odd is at the end."""
    x, target = op.operand_values
    if not is_native(x) or not rank_of(x):
        return None
    chosen = op.attr("axes")
    axes = _ints(*(axis % rank_of(x) for axis in (range(rank_of(x)) if chosen is None else chosen)))
    sizes = b.gather(b.shape(x), axes, axis=0)
    # The shape of something expanded to it: sizes below zero are an error.
    wanted = b.shape(b.expand(b.const(np.array(0, np.int8)), b.cast(target, to=7)))
    two, none = b.const(_ints(2)), b.const(_ints(0))
    start = b.div(b.max(b.sub(sizes, wanted), none), two)
    cut = b.slice(x, start, b.add(start, b.min(sizes, wanted)), axes)
    more = b.max(b.sub(wanted, sizes), none)
    before = b.div(more, two)
    return [b.pad(cut, b.concat(before, b.sub(more, before), axis=0), None, axes)]


@expands("Attention")
def attention_with_mask(op: Operation, b: OpBuilder) -> Sequence[Value | None] | None:
    """The standard fills up a mask for fewer keys than there are. One for more keys is an error."""
    mask, key, past = op.input(3), op.input(1), op.input(4)
    if mask is None or key is None or op.attr("masking") != "standard" or not is_native(mask) or not rank_of(mask):
        return None
    length, last = rank_of(key) - 2, rank_of(mask) - 1
    total = shape_of(key)[length] + (shape_of(past)[2] if past is not None else 0)
    if prove_equal(shape_of(mask)[last], total) is True:
        return None
    keys = b.shape(key, start=length, end=length + 1)
    if past is not None:
        keys = b.add(keys, b.shape(past, start=2, end=3))
    missing = b.sub(keys, b.shape(mask, start=last, end=last + 1))
    fill = np.array(False if dtype_of(mask).name == "bool" else -np.inf).astype(dtype_of(mask).numpy)
    others = [b.shape(mask, start=0, end=last)] if last else []
    rest = b.expand(b.const(fill, dtype_of(mask)), b.concat(*others, missing, axis=0))
    filled = tensor_type(mask).with_shape([*shape_of(mask)[:last], total])
    whole = b.create("concat", [mask, rest], {"axis": last}, result_types=[filled]).result
    operands = [*op.operands[:3], whole, *op.operands[4:]]
    # Only what is needed: whether others are, cannot be seen of an operation that nobody uses yet.
    count = max((index + 1 for index, result in enumerate(op.results) if result.uses or result.is_output), default=1)
    made = b.create(op.definition, operands, op.attributes, outputs=count, location=op.location)
    return [*made.results, *[None] * (len(op.results) - count)]


@expands("TensorScatter")
def tensor_scatter(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Updates from a place of each batch on, going round in the mode "circular"."""
    cache, update, places = op.operand_values[0], op.operand_values[1], op.input(2)
    whole, part = _static(cache), _static(update)
    if whole is None or part is None or not is_native(cache) or (places is not None and not is_native(places)):
        return None
    axis = op.attr("axis", -2) % len(whole)
    is_part = len(part) == len(whole) and all(a == axis or n == whole[a] for a, n in enumerate(part))
    if axis == 0 or not is_part or (places is not None and _static(places) != whole[:1]):
        return None
    index = b.const(np.arange(part[axis]).reshape([-1 if a == axis else 1 for a in range(len(whole))]))
    if places is not None:
        start = b.cast(b.reshape(places, _ints(-1, *[1] * (len(whole) - 1))), to=7)
        index = b.add(index, start)
        if op.attr("mode") == "circular":
            index = b.mod(index, b.const(np.array(whole[axis])))
    return [b.scatter_elements(cache, b.expand(index, _ints(*part)), update, axis=axis)]


@expands("Compress")
def compress(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """A gather of what the condition keeps."""
    x, condition = op.operand_values
    data = data_of(condition)
    if not is_native(x) or not is_native(condition):
        return None
    kept = b.squeeze(b.nonzero(condition), _ints(0)) if data is None else b.const(np.flatnonzero(data.numpy()))
    axis = op.attr("axis")
    flat = b.reshape(x, _ints(-1)) if axis is None else x
    return [b.gather(flat, kept, axis=0 if axis is None else axis)]


@expands("Binarizer", domain="ai.onnx.ml")
def binarizer(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    x = op.operand_values[0]
    if not is_native(x):
        return None
    threshold = b.const(np.array(op.attr("threshold") or 0.0, dtype_of(x).numpy))
    return [b.cast(b.greater(x, threshold), to=dtype_of(x).onnx_code)]


@expands("ArrayFeatureExtractor", domain="ai.onnx.ml")
def feature_extractor(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    x, indices = op.operand_values
    if not is_native(x) or not is_native(indices) or rank_of(x) < 2:
        return None
    return [b.gather(x, b.reshape(indices, _ints(-1)), axis=rank_of(x) - 1)]


# ---- recurrent attention ---------------------------------------------------------------------------------------------


@expands("LinearAttention")
def linear_attention(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Step after step: the state fades, learns what the key did not give already, and is read by the queries."""
    query, key, value = op.operand_values[:3]
    past, decay, beta = op.input(3), op.input(4), op.input(5)
    shape, sizes = _static(query), _static(value)
    rule = op.attr("update_rule") or "gated_delta"
    if shape is None or sizes is None or shape[1] > MOST_STEPS or not shape[1]:
        return None
    if not all(is_native(given) and (given is None or _static(given)) for given in op.operands):
        return None
    heads, readers = int(op.attr("kv_num_heads")), int(op.attr("q_num_heads"))
    batch, steps = shape[:2]
    width, depth = sizes[2] // heads, shape[2] // readers

    def wide(x: Value) -> Value:
        return x if dtype_of(x) is f32 else b.cast(x, to=1)

    def at(x: Value, step: int, *dims: int) -> Value:
        """One step of [batch, steps, anything] as [batch, *dims]."""
        found: Value = b.reshape(b.slice(x, _ints(step), _ints(step + 1), _ints(1)), _ints(batch, *dims))
        return found

    query, key, value = wide(query), wide(key), wide(value)
    fading = wide(decay) if decay is not None and rule.startswith("gated") else None
    rate = wide(beta) if beta is not None and rule.endswith("delta") else None
    start = b.const(np.zeros((batch, heads, depth, width), np.float32)) if past is None else wide(past)
    scale = op.attr("scale") or 1 / np.sqrt(depth)
    state, read = start, []
    for step in range(steps):
        k, v = at(key, step, heads, depth, 1), at(value, step, heads, 1, width)
        if fading is not None:
            state = b.mul(state, b.exp(at(fading, step, heads, -1, 1)))
        if rate is not None:
            known = b.matmul(at(key, step, heads, 1, depth), state)
            v = b.mul(at(rate, step, -1, 1, 1), b.sub(v, known))
        state = b.add(state, b.mul(k, v))
        found = b.matmul(at(query, step, heads, readers // heads, depth), state)
        read.append(b.reshape(found, _ints(batch, 1, readers * width)))
    joined = b.concat(*read, axis=1) if steps > 1 else read[0]
    result = b.mul(joined, b.const(np.array(scale, np.float32)))
    kinds = [tensor.type.dtype for tensor in op.results if isinstance(tensor.type, TensorType)]
    results = [result, state][: len(op.results)]
    return [x if kind is f32 else b.cast(x, to=kind.onnx_code) for x, kind in zip(results, kinds, strict=True)]
