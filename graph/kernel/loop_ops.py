"""Structure, memory and lanes of the level "loop" (domain `loop`).

Buffers are flat; an index counts elements. Reading or writing outside a buffer is a fault of whoever built the loop:
the interpreter raises, compiled code is undefined. A mask has a bool for each lane: what is masked off is neither read
nor written, and reads as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import types
from ..dtypes import bool_, i64
from ..opdef import Trait, op, register
from ..types import ScalarType, VectorType
from .base import LoopOp, buffer_of, fault, index_of, number, scalar_of, vector_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from ..infer import InferenceContext
    from ..types import Type

EFFECT = frozenset({Trait.EFFECT})
CONTROL = frozenset({Trait.EFFECT, Trait.CONTROL_FLOW})


def _types(values: Sequence[Value | None]) -> list[Type]:
    return [value.type for value in values if value is not None]


# ---- structure -------------------------------------------------------------------------------------------------------


@op("for", domain="loop")
class For(LoopOp):
    """Runs `body` with an index from `begin` up to below `end`, in steps of `step` (more than 0).

    The body takes the index and the carried values, and returns the carried values for its next run; the last ones
    are the results.
    """

    inputs = ("begin", "end", "step", "carried*")
    outputs = ("results*",)
    attributes: ClassVar[dict[str, Any]] = {"body": None}
    traits = CONTROL

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        for index in range(3):
            index_of(op, index)
        carried = _types(op.operands[3:])
        block = op.regions["body"].block
        if _types(block.arguments) != [types.scalar(i64), *carried] or _types(block.returned) != carried:
            raise fault(op, "needs a body that takes the index and the carried values, and returns the latter")
        return carried


@op("if", domain="loop")
class If(LoopOp):
    """Runs one of two bodies without arguments; its results are what that body returns."""

    inputs = ("condition",)
    outputs = ("results*",)
    attributes: ClassVar[dict[str, Any]] = {"then": None, "else": None}
    traits = CONTROL

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        scalar_of(op, 0, bool_)
        yes, no = (_types(op.regions[name].block.returned) for name in ("then", "else"))
        if yes != no or any(region.block.arguments for region in op.regions.values()):
            raise fault(op, "needs two bodies without arguments that return the same types")
        return yes


@op("call", domain="loop")
class Call(LoopOp):
    """Runs the function `callee` of the module on the operands."""

    inputs = ("arguments*",)
    outputs = ("results*",)
    attributes: ClassVar[dict[str, Any]] = {"callee": None}
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        return _types(op.results)


# ---- memory ----------------------------------------------------------------------------------------------------------


@op("load", domain="loop")
class Load(LoopOp):
    """The element at `index`, or with `lanes` a vector of so many from there on."""

    inputs = ("buffer", "index", "mask?")
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"lanes": 0}
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        dtype, lanes = buffer_of(op, 0).dtype, op.attr("lanes")
        index_of(op, 1)
        _check_mask(op, 2, lanes)
        return [types.vector(dtype, lanes) if lanes else types.scalar(dtype)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        buffer, index = operands[:2]
        lanes = op.attr("lanes")
        if not lanes:
            return buffer[_inside(op, buffer, int(index))]
        if len(operands) < 3:
            return buffer[_inside(op, buffer, int(index), lanes)].copy()
        return _masked_read(op, buffer, index + np.arange(lanes), operands[2])


@op("store", domain="loop")
class Store(LoopOp):
    """Writes a scalar at `index`, or a vector from there on.

    What `streams` goes to memory past the caches. It lies at a multiple of its own size (see `until_aligned`), and
    others may see it only behind a `fence`.
    """

    inputs = ("value", "buffer", "index", "mask?")
    outputs = ()
    attributes: ClassVar[dict[str, Any]] = {"streams": False}
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        value = _stored(op)
        index_of(op, 2)
        _check_mask(op, 3, value.lanes if isinstance(value, VectorType) else 0)
        if op.attr("streams") and len(op.operands) > 3:
            raise fault(op, "goes to memory past the caches without a mask only")
        return []

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        value, buffer, index = operands[:3]
        if len(operands) > 3:
            places = (index + np.arange(value.size))[operands[3]]
            buffer[_all_inside(op, buffer, places)] = value[operands[3]]
        else:
            buffer[_inside(op, buffer, int(index), np.size(value) if np.ndim(value) else None)] = value
        return ()


@op("gather", domain="loop")
class Gather(LoopOp):
    """A vector of the elements at the indices in the lanes of `indices`."""

    inputs = ("buffer", "indices", "mask?")
    outputs = ("result",)
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        lanes = _indices(op, 1)
        _check_mask(op, 2, lanes)
        return [types.vector(buffer_of(op, 0).dtype, lanes)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        buffer, indices = operands[:2]
        return _masked_read(op, buffer, indices, operands[2] if len(operands) > 2 else np.ones(indices.size, bool))


@op("scatter", domain="loop")
class Scatter(LoopOp):
    """Writes each lane of `value` at the index in the same lane; where indices repeat, the last lane is kept."""

    inputs = ("value", "buffer", "indices", "mask?")
    outputs = ()
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        value, lanes = _stored(op), _indices(op, 2)
        if not isinstance(value, VectorType) or value.lanes != lanes:
            raise fault(op, f"needs as many indices as {value} has lanes, got {lanes}")
        _check_mask(op, 3, lanes)
        return []

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        value, buffer, indices = operands[:3]
        mask = operands[3] if len(operands) > 3 else np.ones(indices.size, bool)
        buffer[_all_inside(op, buffer, indices[mask])] = value[mask]
        return ()


@op("alloc", domain="loop")
class Alloc(LoopOp):
    """Memory of the function's own for `size` elements, of any content; a function gets it once, however often the
    operation runs."""

    inputs = ()
    outputs = ("buffer",)
    attributes: ClassVar[dict[str, Any]] = {"element": None, "size": None}
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        return [types.buffer(op.attributes["element"].dtype, "stack")]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.zeros(op.attributes["size"], op.attributes["element"].dtype.numpy)


@op("view", domain="loop")
class View(LoopOp):
    """The rest of a buffer, from `offset` on."""

    inputs = ("buffer", "offset")
    outputs = ("result",)

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        index_of(op, 1)
        return [buffer_of(op, 0)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        buffer, offset = operands
        if not 0 <= offset <= buffer.size:
            raise IndexError(f"{op.name} at {offset} of a buffer of {buffer.size} elements")
        return buffer[int(offset) :]


@op("prefetch", domain="loop")
class Prefetch(LoopOp):
    """A hint that the memory at `index` will soon be read, or with `writes` written; the index may lie outside the
    buffer."""

    inputs = ("buffer", "index")
    outputs = ()
    attributes: ClassVar[dict[str, Any]] = {"level": 1, "writes": False}
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        buffer_of(op, 0)
        index_of(op, 1)
        return []

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return ()


@op("until_aligned", domain="loop")
class UntilAligned(LoopOp):
    """How many elements lie between `index` and the next address that is a multiple of `bytes`, a power of two."""

    inputs = ("buffer", "index")
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"bytes": 64}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        buffer_of(op, 0)
        index_of(op, 1)
        return [types.scalar(i64)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        buffer, index = operands
        return np.int64(-(buffer.ctypes.data + int(index) * buffer.itemsize) % op.attr("bytes") // buffer.itemsize)


@op("fence", domain="loop")
class Fence(LoopOp):
    """What was stored before is seen by other threads before anything that is stored later."""

    inputs = ()
    outputs = ()
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        return []

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return ()


def _stored(op: Operation) -> ScalarType | VectorType:
    value, buffer = number(op, 0), buffer_of(op, 1)
    if value.dtype is not buffer.dtype:
        raise fault(op, f"cannot put {value} into {buffer}")
    return value


def _indices(op: Operation, index: int) -> int:
    type = vector_of(op, index)
    if type.dtype is not i64:
        raise fault(op, f"needs indices of type i64, got {type}")
    return type.lanes


def _check_mask(op: Operation, index: int, lanes: int) -> None:
    if len(op.operands) <= index:
        return
    if not lanes or vector_of(op, index) is not types.vector(bool_, lanes):
        raise fault(op, f"needs a mask of {lanes} lanes, got {vector_of(op, index)}")


def _inside(op: Operation, buffer: Any, index: int, lanes: int | None = None) -> Any:
    """The place of one element, or of `lanes` in a row."""
    if not 0 <= index <= buffer.size - (1 if lanes is None else lanes):
        raise IndexError(f"{op.name} of {lanes or 1} at {index} of a buffer of {buffer.size} elements")
    return index if lanes is None else slice(index, index + lanes)


def _all_inside(op: Operation, buffer: Any, places: Any) -> Any:
    if places.size and (places.min() < 0 or places.max() >= buffer.size):
        raise IndexError(f"{op.name} at {places} of a buffer of {buffer.size} elements")
    return places


def _masked_read(op: Operation, buffer: Any, places: Any, mask: Any) -> Any:
    result = np.zeros(places.size, buffer.dtype)
    result[mask] = buffer[_all_inside(op, buffer, places[mask])]
    return result


# ---- lanes -----------------------------------------------------------------------------------------------------------


@op("broadcast", domain="loop")
class Broadcast(LoopOp):
    """A scalar in each of `lanes` lanes."""

    inputs = ("x",)
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"lanes": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        type = number(op, 0)
        if not isinstance(type, ScalarType):
            raise fault(op, f"needs a scalar, got {type}")
        return [types.vector(type.dtype, op.attributes["lanes"])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.full(op.attributes["lanes"], operands[0])


@op("iota", domain="loop")
class Iota(LoopOp):
    """0, 1, 2, ... in the lanes of a vector of i64."""

    inputs = ()
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"lanes": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        return [types.vector(i64, op.attributes["lanes"])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.arange(op.attributes["lanes"], dtype=np.int64)


@op("extract", domain="loop")
class Extract(LoopOp):
    """The number in one lane."""

    inputs = ("x",)
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"lane": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        type = vector_of(op, 0)
        _check_lanes(op, [op.attributes["lane"]], type.lanes)
        return [types.scalar(type.dtype)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return operands[0][op.attributes["lane"]]


@op("insert", domain="loop")
class Insert(LoopOp):
    """A vector with the number in one lane replaced."""

    inputs = ("x", "value")
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"lane": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        type = vector_of(op, 0)
        scalar_of(op, 1, type.dtype)
        _check_lanes(op, [op.attributes["lane"]], type.lanes)
        return [type]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        result = operands[0].copy()
        result[op.attributes["lane"]] = operands[1]
        return result


@op("shuffle", domain="loop")
class Shuffle(LoopOp):
    """The lanes of two vectors in any order: `lanes` are their positions in the first followed by the second."""

    inputs = ("x", "y")
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"lanes": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        x, y = vector_of(op, 0), vector_of(op, 1)
        if x is not y:
            raise fault(op, f"needs two vectors of one type, got {x} and {y}")
        _check_lanes(op, op.attributes["lanes"], 2 * x.lanes)
        return [types.vector(x.dtype, len(op.attributes["lanes"]))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.concatenate(operands)[list(op.attributes["lanes"])]


def _check_lanes(op: Operation, lanes: Sequence[int], count: int) -> None:
    if not all(0 <= lane < count for lane in lanes):
        raise fault(op, f"has lanes 0 to {count - 1}, not {list(lanes)}")


@op("any", domain="loop")
class AnyLane(LoopOp):
    """Whether a lane of a vector of bools is true."""

    inputs = ("x",)
    outputs = ("result",)

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        if vector_of(op, 0).dtype is not bool_:
            raise fault(op, f"needs a vector of bools, got {vector_of(op, 0)}")
        return [types.scalar(bool_)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.any(operands[0])


class Reduction(LoopOp):
    """One number from all lanes. Neighbours at half the width are combined first, then those at a quarter, ..."""

    inputs = ("x",)
    outputs = ("result",)
    combine: ClassVar[Any]

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        type = vector_of(op, 0)
        if type.lanes & (type.lanes - 1):
            raise fault(op, f"needs a power of two of lanes, got {type}")
        return [types.scalar(type.dtype)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x = operands[0]
        while x.size > 1:
            x = type(self).combine(x[: x.size // 2], x[x.size // 2 :])
        return x[0]


for _name, _combine in [("add", np.add), ("mul", np.multiply), ("min", np.minimum), ("max", np.maximum)]:
    register(
        type(f"Reduce{_name.capitalize()}", (Reduction,), {"combine": staticmethod(_combine), "__doc__": None})(
            "loop", f"reduce_{_name}"
        )
    )
