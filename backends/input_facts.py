"""What a model does with its inputs, so that generated ones make sense to it.

Random numbers are no token ids: an index must lie inside the table it reads, a mask holds zeros and ones, and a
sample rate that the model compares with 16000 should be 16000. All of it is read off the graph: each input is followed
through operators that only move or convert it, into regions and model-local functions, to the ones that use it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.core import Operation, Use, Value
from ..graph.data import TensorData, UnresolvedData
from ..graph.module import FunctionKey, Module
from ..graph.types import TensorType, Type

if TYPE_CHECKING:
    from ..graph.core import Block

# Operators whose result holds the numbers of the first operand: perhaps fewer, elsewhere, or of another type.
_MOVING = frozenset(
    (
        "cast", "concat", "expand", "flatten", "gather", "identity", "reshape", "slice", "split", "squeeze", "tile",
        "transpose", "unsqueeze",
    )
)  # fmt: skip
# What scores go through between their product and the softmax, and how many such operators are looked through.
_BETWEEN = frozenset(("add", "cast", "div", "max", "mul", "reshape", "sub", "tanh", "where"))
_PRODUCTS = frozenset(("einsum", "gemm", "matmul"))
_MOST_STEPS = 8
_MOST_NAMED_SIZES, _LARGEST_NAMED_SIZE = 6, 16_384
# Which operand of an operator for attention is added to the scores.
_MASKS_OF = {
    ("", "Attention"): 3, ("com.microsoft", "Attention"): 5, ("com.microsoft", "MultiHeadAttention"): 5,
    ("com.microsoft", "GroupQueryAttention"): 10,
}  # fmt: skip
_LOGIC = frozenset(("and", "not", "or", "xor"))
_MASK_NAME = re.compile(r"mask|(^|_)pad(ding)?(_|$)", re.IGNORECASE)
_POSITION_NAME = re.compile(r"(^|_)pos(ition)?(s|_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class InputFacts:
    """One input that a caller must give.

    `bound` is the size of the smallest table that it indexes (None: it indexes none), `choices` the constants that it
    is compared with for equality, `is_mask` whether it selects what counts, `is_position` whether it numbers places,
    `is_divisor` whether something is divided by it; of numbers with a fraction, `hides_keys` whether it is added to the
    scores of an attention.
    """

    name: str
    type: Type
    bound: int | None = None
    choices: tuple[int, ...] = ()
    is_mask: bool = False
    is_position: bool = False
    is_divisor: bool = False
    hides_keys: bool = False


def facts_of_inputs(module: Module) -> tuple[InputFacts, ...]:
    """The facts of each input of `main` that has no default, in order."""
    main = module.main
    return tuple(_facts(module, argument) for argument in main.inputs if argument not in main.defaults)


def named_sizes(module: Module) -> list[int]:
    """Numbers that tensors of open sizes are reshaped or expanded to, the most frequent first.

    An exporter may write down a length of its example, though the file says that any will do: then only that one runs.
    """
    found: Counter[int] = Counter()
    for op in module.main.walk():
        if op.name not in ("reshape", "expand") or _is_static(op.input(0)):
            continue
        target = op.input(1)
        parts = [target]
        if target is not None and target.producer is not None and target.producer.name == "concat":
            parts = list(target.producer.operands)
        found.update({each for part in parts for each in _small_constant(part) if 1 < each <= _LARGEST_NAMED_SIZE})
    return [number for number, _ in found.most_common(_MOST_NAMED_SIZES)]


def _is_static(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TensorType) and value.type.is_static


def _facts(module: Module, argument: Value) -> InputFacts:
    name, type = argument.name or "", argument.type
    if isinstance(type, TensorType) and type.dtype.is_float and type.rank != 0:
        return InputFacts(name, type, hides_keys=_is_added_to_scores(module, argument))
    if not isinstance(type, TensorType) or type.dtype.kind not in ("int", "uint", "bool"):
        return InputFacts(name, type)
    bounds: list[int] = []
    choices: list[int] = []
    is_truth = type.dtype.kind == "bool" and type.rank != 0
    is_divisor = False
    for value, use, offset in _final_uses(module, argument):
        op = use.user
        if (rows := _indexed_size(op, use.position)) is not None:
            bounds.append(max(rows - offset, 1))
        elif op.name == "equal":
            choices.extend(_small_constant(op.input(1 - use.position)))
        elif op.name in ("div", "mod") and use.position == 1:
            is_divisor = True
        is_truth |= op.name in _LOGIC or (op.name == "where" and use.position == 0 and value is not argument)
    distinct = tuple(dict.fromkeys(choices))
    if len(distinct) == 1:
        # So that the other branch is taken too; half of 16000 is 8000, the other usual sample rate.
        distinct = (*distinct, distinct[0] // 2 if distinct[0] > 0 else distinct[0] + 1)
    is_mask = not bounds and type.rank != 0 and (is_truth or bool(_MASK_NAME.search(name)) or set(distinct) == {0, 1})
    return InputFacts(
        name,
        type,
        bound=min(bounds, default=None),
        choices=() if is_mask or bounds else distinct,
        is_mask=is_mask,
        is_position=not is_mask and bool(_POSITION_NAME.search(name)),
        is_divisor=is_divisor,
    )


def _is_added_to_scores(module: Module, argument: Value) -> bool:
    """Whether it is added to a product before a softmax, or is the mask of an attention."""
    for value, use, _ in _final_uses(module, argument):
        op = use.user
        if use.position == _MASKS_OF.get((op.domain, op.op_type)):
            return True
        others = [other for other in op.operand_values if other is not value]
        if op.name == "add" and any(map(_is_product, others)) and _comes_to_softmax(op):
            return True
    return False


def _is_product(value: Value) -> bool:
    """Whether a product is not far above: scores that may be scaled and masked already."""
    for _ in range(_MOST_STEPS):
        op = value.producer
        if op is None or op.name in _PRODUCTS:
            return op is not None
        scores = [each for each in op.operand_values if each.producer is not None and each.producer.name != "const"]
        if op.name not in _BETWEEN or not scores:
            return False
        value = next((each for each in scores if each.type == value.type), scores[0])
    return False


def _comes_to_softmax(op: Operation) -> bool:
    """Whether sums are masked further at most before they are weights."""
    for _ in range(_MOST_STEPS):
        users = [user for user in op.results[0].users if user.name == "softmax" or user.name in _BETWEEN]
        if not users or users[0].name == "softmax":
            return bool(users)
        op = users[0]
    return False


def _final_uses(module: Module, argument: Value) -> Iterator[tuple[Value, Use, int]]:
    """Every use of `argument`, and of what it becomes by being moved, converted, shifted or passed to a function.

    Gives the value used, the use, and the offset that was added on the way.
    """
    seen = {argument}
    pending = [(argument, 0)]
    while pending:
        value, offset = pending.pop()
        for use in value.uses:
            yield value, use, offset
            for following, added in _carried_on(module, use):
                if following not in seen:
                    seen.add(following)
                    pending.append((following, offset + added))


def _carried_on(module: Module, use: Use) -> Iterator[tuple[Value, int]]:
    """The values that hold the same numbers after this use, and what was added to them."""
    op = use.user
    moved = op.name in _MOVING and (use.position == 0 or op.name == "concat")
    if moved or op.name in ("clip", "max", "min", "where"):
        yield from ((result, 0) for result in op.results)
    elif op.name == "add":
        yield op.result, max(_small_constant(op.input(1 - use.position)), default=0)
    body = _called(module, op)
    if body is not None and use.position < len(body.arguments):
        yield body.arguments[use.position], 0


def _called(module: Module, op: Operation) -> Block | None:
    """The body of the model-local function that `op` calls; None if it calls none."""
    if not module.functions:
        return None
    overload = op.metadata.get("overload", "")
    function = module.functions.get(FunctionKey(op.domain, op.op_type, overload))
    return None if function is None else function.block


def _indexed_size(op: Operation, position: int) -> int | None:
    """The number of rows of the table that operand `position` of `op` indexes."""
    if op.op_type == "EmbedLayerNormalization" and position < 2:
        return _dim(op, position + 2, 0)
    if op.name == "gather" and position == 1:
        return _dim(op, 0, op.attr("axis", 0))
    if op.name in ("gather_elements", "scatter_elements") and position == 1:
        return _dim(op, 0, op.attr("axis", 0))
    if op.name in ("softmax_cross_entropy_loss", "negative_log_likelihood_loss") and position == 1:
        return _dim(op, 0, 1)
    if op.name == "gather_nd" and position == 1:
        type = _tensor_type(op, 0)
        static = type.static_shape if type is not None else None
        return min(static) if static else None
    return None


def _tensor_type(op: Operation, position: int) -> TensorType | None:
    value = op.input(position)
    return value.type if value is not None and isinstance(value.type, TensorType) else None


def _dim(op: Operation, position: int, axis: int) -> int | None:
    type = _tensor_type(op, position)
    if type is None or type.shape is None or not -len(type.shape) <= axis < len(type.shape):
        return None
    size = type.shape[axis]
    return size if isinstance(size, int) else None


def _small_constant(value: Value | None) -> list[int]:
    """The elements of a constant of a few integers, also one that is moved first; empty for anything else."""
    producer = value.producer if value is not None else None
    while producer is not None and producer.name in _MOVING and producer.operand_values:
        producer = producer.operand_values[0].producer
    data = producer.attributes.get("value") if producer is not None and producer.name == "const" else None
    if not isinstance(data, TensorData) or isinstance(data, UnresolvedData):
        return []
    return [int(item) for item in data.numpy().ravel()] if data.dtype.is_integer and data.elements <= 8 else []
