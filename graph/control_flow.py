"""The numpy meaning of the operations that run regions: If, Loop, Scan (since 9, and the batched one of opset 8),
SequenceMap and FlexAttention. Each is a generator that asks the evaluator for blocks to be run; see `evaluation`.

Semantics: ONNX operator specification, https://onnx.ai/onnx/operators/. What it leaves open is decided here:
a Loop or Scan that never runs its body gives scan outputs with 0 iterations, whose other dims are those of the declared
types, and 0 where these are not numbers (as ONNX Runtime does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dtypes, types
from .core import Block, Operation, Value
from .diagnostics import ExecutionError
from .evaluation import describe
from .evaluator import Activity, Call


def run_regions(op: Operation, operands: Sequence[Any]) -> Activity:
    """The activity of an operation with regions. Raises ExecutionError for an operator that is not known here."""
    activity = _ACTIVITIES.get(op.name)
    if activity is None:
        raise ExecutionError("run/no-meaning", f"{op.name} has regions that nobody here knows how to run", op.location)
    return activity(op, operands)


def _if(op: Operation, operands: Sequence[Any]) -> Activity:
    taken = "then_branch" if _truth(op, operands[0]) else "else_branch"
    results = yield Call(op.regions[taken].block, ())
    return results


def _loop(op: Operation, operands: Sequence[Any]) -> Activity:
    body = op.regions["body"].block
    padded = [*operands, None, None]
    count, condition = padded[:2]
    limit = None if count is None else int(_single(op, "M", count))
    states = list(operands[2:])
    _check_arity(op, body, 2 + len(states), 1 + len(states))
    going = True if condition is None else _truth(op, condition)
    collected: list[list[Any]] = [[] for _ in body.outputs[1 + len(states) :]]
    going_on = _as_declared(body.arguments[1], np.array(True))
    iteration = 0
    while going and (limit is None or iteration < limit):
        counter = _as_declared(body.arguments[0], np.array(iteration, np.int64))
        outputs = yield Call(body, [counter, going_on, *states])
        going = _truth(op, outputs[0])
        states = outputs[1 : 1 + len(states)]
        for items, item in zip(collected, outputs[1 + len(states) :], strict=True):
            items.append(item)
        iteration += 1
    first = len(states)
    return [*states, *[_stack(op, items, first + k, 1 + first + k, 0) for k, items in enumerate(collected)]]


def _scan(op: Operation, operands: Sequence[Any]) -> Activity:
    body = op.regions["body"].block
    inputs = _scan_inputs(op, operands)
    states = list(operands[: len(operands) - len(inputs)])
    _check_arity(op, body, len(operands), len(states))
    axes = _flags(op, "scan_input_axes", len(inputs))
    backwards = _flags(op, "scan_input_directions", len(inputs))
    moved = [np.moveaxis(array, axis, 0) for array, axis in zip(inputs, axes, strict=True)]
    slices = [array[::-1] if back else array for array, back in zip(moved, backwards, strict=True)]
    lengths = {len(array) for array in slices}
    if len(lengths) != 1:
        raise ExecutionError("run/scan-length", f"scan inputs have different lengths: {sorted(lengths)}", op.location)
    collected: list[list[Any]] = [[] for _ in body.outputs[len(states) :]]
    for position in range(lengths.pop()):
        outputs = yield Call(body, [*states, *[np.asarray(array[position]) for array in slices]])
        states = outputs[: len(states)]
        for items, item in zip(collected, outputs[len(states) :], strict=True):
            items.append(item)
    prepend = _flags(op, "scan_output_directions", len(collected))
    stacking = _flags(op, "scan_output_axes", len(collected))
    first = len(states)
    for items, back in zip(collected, prepend, strict=True):
        if back:
            items.reverse()
    return [*states, *[_stack(op, items, first + k, first + k, stacking[k]) for k, items in enumerate(collected)]]


def _batched_scan(op: Operation, operands: Sequence[Any]) -> Activity:
    """Scan of opset 8: axis 0 is the batch, axis 1 the sequence, operand 0 the optional sequence lengths."""
    body = op.regions["body"].block
    inputs = _scan_inputs(op, operands)
    initial = operands[1 : len(operands) - len(inputs)]
    _check_arity(op, body, len(operands) - 1, len(initial))
    backwards = _flags(op, "directions", len(inputs))
    batches, longest = inputs[0].shape[:2]
    lengths = [longest] * batches if operands[0] is None else [int(n) for n in operands[0]]
    final: list[list[Any]] = [[] for _ in body.outputs]
    for batch in range(batches):
        states = [state[batch] for state in initial]
        slices = [
            array[batch, : lengths[batch]][:: -1 if back else 1] for array, back in zip(inputs, backwards, strict=True)
        ]
        collected: list[list[Any]] = [[] for _ in body.outputs[len(initial) :]]
        for position in range(lengths[batch]):
            outputs = yield Call(body, [*states, *[np.asarray(array[position]) for array in slices]])
            states = outputs[: len(initial)]
            for items, item in zip(collected, outputs[len(initial) :], strict=True):
                items.append(item)
        padded = [_padded(op, items, len(initial) + k, longest) for k, items in enumerate(collected)]
        for column, value in zip(final, [*states, *padded], strict=True):
            column.append(value)
    return [np.stack(column) for column in final]


def _padded(op: Operation, items: list[Any], output: int, length: int) -> Any:
    """The items stacked and filled up to `length` with zeros (what lies beyond a sequence's end is undefined)."""
    stacked = _stack(op, items, output, output, 0)
    return np.concatenate([stacked, np.zeros((length - len(items), *stacked.shape[1:]), stacked.dtype)])


def _sequence_map(op: Operation, operands: Sequence[Any]) -> Activity:
    body = op.regions["body"].block
    sequences = [operand for operand in operands if isinstance(operand, list)]
    length = len(operands[0])
    if any(len(sequence) != length for sequence in sequences):
        lengths = ", ".join(str(len(sequence)) for sequence in sequences)
        raise ExecutionError("run/sequence-length", f"the sequences have different lengths: {lengths}", op.location)
    mapped: list[list[Any]] = [[] for _ in body.outputs]
    for position in range(length):
        outputs = yield Call(body, [item[position] if isinstance(item, list) else item for item in operands])
        for items, item in zip(mapped, outputs, strict=True):
            items.append(item)
    return mapped


def _flex_attention(op: Operation, operands: Sequence[Any]) -> Activity:
    """Attention with user-given changes of scores and probabilities (ONNX ai.onnx.preview, FlexAttention-1).

    Query [b, hq, l, e], key [b, hk, s, e], value [b, hk, s, ev]; result [b, hq, l, ev] of the value's dtype.
    """
    query, key, value = operands
    scale = op.attr("scale")
    root = np.sqrt(np.float32(1.0 / np.sqrt(query.shape[-1]) if scale is None else scale)).astype(query.dtype)
    if query.shape[1] % max(key.shape[1], 1) or key.shape[:3] != value.shape[:3]:
        raise ExecutionError(
            "run/attention-heads",
            f"query, key and value do not fit: {describe(query)}, {describe(key)}, {describe(value)}",
            op.location,
        )
    groups = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)
    precision = _softmax_precision(op, query)
    scores = ((query * root) @ np.swapaxes(key * root, -1, -2)).astype(precision)
    if "score_mod" in op.regions:
        (scores,) = yield Call(op.regions["score_mod"].block, [scores])
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(precision)
    if "prob_mod" in op.regions:
        (weights,) = yield Call(op.regions["prob_mod"].block, [weights])
    return [(weights @ value.astype(precision)).astype(value.dtype)]


def _softmax_precision(op: Operation, query: np.ndarray) -> np.dtype:
    """The dtype of the softmax: as the attribute says, else that of the query, but at least f32."""
    chosen = op.attr("softmax_precision")
    if chosen is not None:
        return dtypes.BY_ONNX_CODE[chosen].numpy
    return query.dtype if query.dtype.itemsize >= 4 else np.dtype(np.float32)


_ACTIVITIES: dict[str, Callable[[Operation, Sequence[Any]], Activity]] = {
    "if": _if,
    "loop": _loop,
    "scan": _scan,
    "scan.v8": _batched_scan,
    "sequence_map": _sequence_map,
    "ai.onnx.preview.FlexAttention": _flex_attention,
}


# ---- shared ----------------------------------------------------------------------------------------------------------


def _single(op: Operation, what: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ExecutionError("run/not-a-scalar", f"{what} of {op.name} must be one element, got {describe(value)}")
    return value.item()


def _truth(op: Operation, value: Any) -> bool:
    return bool(_single(op, "the condition", value))


def _as_declared(argument: Value, value: np.ndarray) -> np.ndarray:
    """A body may declare its counter and condition with shape [1] instead of []."""
    one = isinstance(argument.type, types.TensorType) and argument.type.rank == 1
    return value.reshape(1) if one else value


def _check_arity(op: Operation, body: Block, arguments: int, states: int) -> None:
    if len(body.arguments) != arguments or len(body.outputs) < states:
        raise ExecutionError(
            "run/body-arity",
            f"the body of {op.name} takes {len(body.arguments)} inputs and gives {len(body.outputs)} outputs, "
            f"it is given {arguments} and must give at least {states}",
            op.location,
        )


def _scan_inputs(op: Operation, operands: Sequence[Any]) -> list[np.ndarray]:
    count = op.attr("num_scan_inputs")
    if not 0 < count <= len(operands):
        raise ExecutionError("run/scan-inputs", f"{op.name} has {len(operands)} inputs, {count} of them to be scanned")
    return list(operands[len(operands) - count :])


def _flags(op: Operation, name: str, count: int) -> list[int]:
    given = op.attr(name) or ()
    return [*given, *[0] * (count - len(given))][:count]


def _stack(op: Operation, items: list[Any], result: int, output: int, axis: int) -> np.ndarray:
    """The elements that all iterations gave for one scan output, along a new axis."""
    if not items:
        return _empty(op, result, output, axis)
    shapes = {np.shape(item) for item in items}
    if len(shapes) > 1:
        raise ExecutionError(
            "run/scan-output", f"scan output {result} changes its shape between iterations: {sorted(shapes)}"
        )
    return np.stack(items, axis)


def _empty(op: Operation, result: int, output: int, axis: int) -> np.ndarray:
    block = op.regions["body"].block
    candidates = [block.outputs[output].type, block.returned[output].type]
    element = next((type for type in candidates if isinstance(type, types.TensorType)), None)
    whole = op.results[result].type if result < len(op.results) else types.UNKNOWN
    if element is not None and element.shape is not None:
        dims = [dim if isinstance(dim, int) else 0 for dim in element.shape]
        dims.insert(axis if axis >= 0 else axis + len(dims) + 1, 0)
        return np.empty(dims, element.dtype.numpy)
    if isinstance(whole, types.TensorType) and whole.shape is not None:
        dims = [dim if isinstance(dim, int) else 0 for dim in whole.shape]
        dims[axis] = 0
        return np.empty(dims, whole.dtype.numpy)
    raise ExecutionError(
        "run/empty-scan",
        f"{op.name} ran its body 0 times, and no type tells the rank of its scan output {result}",
        op.location,
    )
