"""fuse-kernels: put maps into the kernels before and after them, so that no tensor lies between. Level kernel.

A map whose result is read by one other kernel only, element for element, becomes part of that kernel: of another map's
body, or of the prologue of a reduction or of rows. What is left after a product, a convolution, a pool, a reduction or
rows becomes its epilogue, if nothing else reads the kernel's own result. Of the maps that are left, one that reads what
another makes becomes one with it even if others read that too, and has the results of both: so an optimizer's update of
a parameter and its averages reads and writes each of them once.

    %0 = kernel.gemm %x, %w : f32[n, 64]                    %0 = kernel.gemm %x, %w, %bias : f32[n, 64] epilogue {
    %1 = kernel.map %0, %bias body {add, maximum 0}   ->      (%sum, %b): add, maximum 0 }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.core import Block, Operation, Region, Value
from ..graph.dtypes import DType, f32, i8, i32, u8
from ..graph.kernel.bodies import ROUNDING, ROUNDING_BITS, cost, interpret, trace
from ..graph.kernel.integer_ops import INTEGER_PRODUCTS
from ..graph.kernel.kernel_base import KernelOp
from ..graph.location import fuse
from ..graph.lowerings.builder import KernelBuilder, dtype_of
from ..graph.types import TensorType, Type
from .base import Pass
from .join_maps import is_short, join_with_source

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

# More operands than this make a kernel's addresses take all registers.
MAX_OPERANDS = 12
# A map of at most so many operations may be computed by each of its readers.
CHEAP = 3


class FuseKernels(Pass):
    """Put maps into the kernels before and after them."""

    name = "fuse-kernels"
    level_in = "kernel"
    level_out = "kernel"

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for block in kernel_blocks(module):
            self._sweep(block, module, context, _into_consumer)
            # What follows a product of integers may end in bytes that the next map goes on with.
            while self._sweep(block, module, context, _into_producer) and context.may_apply:
                pass
            self._sweep(block, module, context, join_with_source)
        return context.applications > before

    def _sweep(
        self, block: Block, module: Module, context: PassContext, fused: Callable[[Operation, Fuser], bool]
    ) -> bool:
        """Try every kernel, users first, until nothing more can be fused into it; whether anything was."""
        before = context.applications
        for op in reversed(list(block)):
            current: Operation | None = op
            while current is not None and current.parent is not None and context.may_apply:
                fuser = Fuser(current, module, context)
                current = fuser.made if fused(current, fuser) else None
        return context.applications > before


class Fuser:
    """Makes one kernel of `op` and a neighbour."""

    def __init__(self, op: Operation, module: Module, context: PassContext) -> None:
        self.op, self.module, self.context = op, module, context
        self.made: Operation | None = None

    def replace(
        self,
        other: Operation,
        root: Operation,
        operands: Sequence[Value],
        regions: dict[str, Region],
        attributes: dict[str, Any],
        at: Operation,
    ) -> None:
        """A kernel like `root` in front of `at` for both; `at` is the later of the two. The other one stays if it has
        further readers."""
        with self.context.rewrite(self.module, "fuse-kernels", self.op) as rewriter:
            assert at.parent is not None
            location = fuse("fuse-kernels", [other.location, self.op.location])
            builder = KernelBuilder(at.parent, self.module.symbols, at, location, rewriter.on_create)
            types = [result.type for result in at.results]
            self.made = builder.create(root.definition, operands, attributes, result_types=types, regions=regions)
            rewriter.replace(at, self.made.results)
            earlier = other if at is self.op else self.op
            if not any(result.uses for result in earlier.results):
                rewriter.erase(earlier)


def kernel_blocks(module: Module) -> Iterator[Block]:
    """All blocks of operations that may be kernels; not the bodies of those that are."""
    for function in module.all_functions():
        yield from _with_inner_blocks(function.block)


def _with_inner_blocks(block: Block) -> list[Block]:
    found = [block]
    for op in block:
        for region in op.regions.values():
            if op.definition.domain != "kernel":
                found += _with_inner_blocks(region.block)
    return found


def _into_consumer(op: Operation, fuser: Fuser) -> bool:
    """Take a map that only `op` reads into the body of `op`, or into its prologue."""
    region = {"kernel.map": "body", "kernel.reduce": "prologue", "kernel.rows": "prologue"}.get(op.name)
    if region is None:
        return False
    count = len(op.operands) if region == "body" else int(op.attr("sources"))
    sources = list(op.operand_values[:count])
    extras = op.operand_values[count:]
    for value in sources:
        inner = value.producer
        if inner is None or inner.name != "kernel.map" or len(inner.results) != 1 or inner.parent is not op.parent:
            continue
        is_shared = set(value.users) != {op}
        is_repeated = _widens_bytes(inner) or _is_cheap(inner)
        if (is_shared and not is_repeated) or value in extras or not _covers(value, op, sources):
            continue
        if dtype_of(value).bits == 8 and _follows_integers(inner):
            continue
        merged = list(dict.fromkeys([v for v in sources if v is not value] + list(inner.operand_values)))
        if len(merged) + len(extras) > MAX_OPERANDS or not is_short(inner.regions["body"], op.regions.get(region)):
            continue
        regions = {name: Region(copied(old.block)) for name, old in op.regions.items() if name != region}
        regions[region] = Region(_composed(op.regions.get(region), sources, inner, value, merged))
        attributes = dict(op.attributes)
        if region != "body":
            attributes["sources"] = len(merged)
        fuser.replace(inner, op, [*merged, *extras], regions, attributes, op)
        return True
    return False


def _follows_integers(op: Operation, reach: int = 8) -> bool:
    """Whether a map can become the epilogue of a product of integers, perhaps after some other maps have."""
    whole = op.results[0].type
    for value in op.operand_values:
        producer = value.producer
        if producer is None or set(value.users) != {op}:
            continue
        if not isinstance(value.type, TensorType) or not isinstance(whole, TensorType):
            continue
        if value.type.shape != whole.shape:
            continue
        if producer.name in INTEGER_PRODUCTS:
            return True
        if producer.name == "kernel.map" and reach and _follows_integers(producer, reach - 1):
            return True
    return False


def _widens_bytes(op: Operation) -> bool:
    """Whether a map makes wider numbers of one tensor of bytes, with little arithmetic."""
    types = [value.type for value in (op.result, *op.operand_values)]
    tensors = [type for type in types if isinstance(type, TensorType)]
    whole = [each for each in tensors[1:] if each.shape == tensors[0].shape]
    return (
        len(tensors) == len(types) and len(whole) == 1 and whole[0].dtype.bits == 8 and tensors[0].dtype.bits > 8
        and cost(op.regions["body"].block) <= 4
    )  # fmt: skip


def _is_cheap(op: Operation) -> bool:
    """Whether each reader of a map may as well compute it: of one tensor of its size, which others read, too, and of
    smaller ones, such as the mean of each row; and whether all that read it are kernels that can do so."""
    whole = op.result.type
    tensors = [value for value in op.operand_values if value.type == whole]
    smaller = [value.type for value in op.operand_values if value.type != whole]
    if len(tensors) != 1 or not isinstance(whole, TensorType) or cost(op.regions["body"].block) > CHEAP:
        return False
    if not all(_fits(type, whole) and _is_smaller(type, whole) for type in smaller):
        return False
    readers = {user.name for user in op.result.users}
    return len(set(tensors[0].users)) > 1 and readers <= {"kernel.map", "kernel.reduce", "kernel.rows"}


def _is_smaller(type: Type, whole: TensorType) -> bool:
    """Whether a tensor that is broadcast to `whole` surely has fewer elements, unless that has one."""
    assert isinstance(type, TensorType)
    assert type.shape is not None
    assert whole.shape is not None
    missing = len(whole.shape) - len(type.shape)
    return missing > 0 or any(size == 1 != full for size, full in zip(type.shape, whole.shape, strict=True))


def _fits(type: Type, whole: TensorType) -> bool:
    """Whether a tensor is broadcast to the shape of `whole`."""
    if not isinstance(type, TensorType) or type.shape is None or whole.shape is None:
        return False
    missing = len(whole.shape) - len(type.shape)
    pairs = zip(type.shape, whole.shape[max(missing, 0) :], strict=False)
    return missing >= 0 and all(size in (1, full) for size, full in pairs)


def _composed(
    outer: Region | None, sources: Sequence[Value], inner: Operation, value: Value, merged: Sequence[Value]
) -> Block:
    """The region `outer` (None: the one source itself) of what `inner` makes, as a function of `merged`."""

    def body(s: Any, *elements: Any) -> Any:
        known = dict(zip(merged, elements, strict=True))
        [known[value]] = interpret(inner.regions["body"].block, s, [known[v] for v in inner.operand_values])
        if outer is None:
            return known[value]
        return interpret(outer.block, s, [known[v] for v in sources])

    return trace(body, [dtype_of(v) for v in merged])


def copied(block: Block) -> Block:
    """A region of its own that is the same function."""
    dtypes = [argument.type.dtype for argument in block.arguments]  # type: ignore[attr-defined]
    return trace(lambda s, *elements: interpret(block, s, elements), dtypes)


def _covers(value: Value, op: Operation, sources: Sequence[Value]) -> bool:
    """Whether `value` is of the whole shape that `op` works on, so that fusing computes nothing twice."""
    assert isinstance(value.type, TensorType)
    whole = op.results[0].type if op.name in ("kernel.map", "kernel.rows") else None
    if whole is None:  # a reduction: of the shape that all sources are broadcast to
        return all(_fits(source.type, value.type) for source in sources)
    return isinstance(whole, TensorType) and value.type.shape == whole.shape


# What can have an epilogue, the costliest to leave without one first.
_ROOTS = (
    "kernel.integer_conv",
    "kernel.integer_gemm",
    "kernel.conv",
    "kernel.conv_transpose",
    "kernel.gemm",
    "kernel.attention",
    "kernel.rows",
    "kernel.pool",
    "kernel.reduce",
)


def _into_producer(op: Operation, fuser: Fuser) -> bool:
    """Make the map `op` the epilogue of a kernel that only it reads."""
    if op.name != "kernel.map" or len(op.results) != 1:
        return False
    candidates = [value for value in op.operand_values if _can_finish(value, op)]
    if not candidates:
        return False
    value = candidates[0]
    for other in candidates[1:]:
        if _is_better(_producer(other), _producer(value)):
            value = other
    root = _producer(value)
    if root.name in INTEGER_PRODUCTS and _is_better_in_a_table(value, op):
        return False
    definition = root.definition
    assert isinstance(definition, KernelOp)
    fixed = root.operand_values[: definition.fixed_count(root)]
    is_integer = root.name in INTEGER_PRODUCTS
    old = root.regions.get("epilogue")
    extras = list(root.operand_values[len(fixed) :])
    others = [other for other in op.operand_values if other is not value]
    merged = list(dict.fromkeys([*extras, *others]))
    if len(merged) + len(fixed) > MAX_OPERANDS or not is_short(op.regions["body"], root.regions.get("epilogue")):
        return False

    def body(s: Any, element: Any, *elements: Any) -> Any:
        known = dict(zip(merged, elements, strict=True))
        s = _Floats(s) if is_integer else s
        if old is not None:
            [element] = interpret(old.block, s, [element, *(known[v] for v in extras)])
        known[value] = element
        return interpret(op.regions["body"].block, s, [known[v] for v in op.operand_values])

    summed = i32 if is_integer else dtype_of(value)
    if old is not None:
        summed = old.block.arguments[0].type.dtype  # type: ignore[attr-defined]
    epilogue = trace(body, [summed, *(dtype_of(other) for other in merged)])
    regions = {name: Region(copied(r.block)) for name, r in root.regions.items() if name != "epilogue"}
    regions["epilogue"] = Region(epilogue)
    fuser.replace(root, root, [*fixed, *merged], regions, dict(root.attributes), op)
    return True


def _is_better_in_a_table(value: Value, op: Operation) -> bool:
    """Whether a map is a costly function of the one byte `value`: see byte-tables."""
    assert isinstance(value.type, TensorType)
    whole = [other for other in op.operand_values if getattr(other.type, "shape", None) == value.type.shape]
    dtypes = value.type.dtype.bits, dtype_of(op.result).bits
    return dtypes == (8, 8) and len(whole) == 1 and cost(op.regions["body"].block) >= 24


class _Floats:
    """A handler that multiplies with the inverse of a number rather than divide by it, and keeps what is quantized and
    dequantized again in floats: a byte that was rounded is a whole float already."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._moved: dict[Value, tuple[Value, int]] = {}  # a float -> another one, and how much more than that it is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def div(self, x: Any, y: Any) -> Any:
        if isinstance(y, float) and isinstance(x, Value) and getattr(x.type, "dtype", None) is f32:
            inverse = float(np.float32(1) / np.float32(y)) if y else 0.0
            if np.isfinite(inverse) and abs(inverse) >= np.finfo(np.float32).tiny:
                return self._handler.mul(x, inverse)
        return self._handler.div(x, y)

    def cast(self, x: Any, dtype: DType) -> Any:
        found = _rounded_float(x) if dtype is f32 and isinstance(x, Value) else None
        if found is None:
            return self._handler.cast(x, dtype)
        total, zero = found
        whole = self._handler.sub(total, ROUNDING)
        if not zero:
            return whole
        moved = self._handler.add(whole, float(zero))
        self._moved[moved] = whole, zero
        return moved

    def sub(self, x: Any, y: Any) -> Any:
        whole, zero = self._moved.get(x, (None, 0)) if isinstance(x, Value) else (None, 0)
        return whole if whole is not None and not isinstance(y, Value) and y == zero else self._handler.sub(x, y)


def _rounded_float(byte: Value) -> tuple[Value, int] | None:
    """What `rounded` of lowerings/quantization.py made a byte of: a float plus `ROUNDING`, and the zero point."""
    ops, value = [], byte
    for name in ("cast", "sub", "bitcast", "add", "minimum", "maximum"):
        if value.producer is None or value.producer.op_type != name:
            return None
        ops.append(value.producer)
        value = value.producer.operand_values[0]
    _, moved, _, total, high, low = ops
    numbers = [_number(op.operand_values[1]) for op in (moved, total, high, low)]
    to = getattr(byte.type, "dtype", None)
    if any(number is None for number in numbers) or numbers[1] != ROUNDING or to not in (u8, i8):
        return None
    zero, limits = ROUNDING_BITS - int(numbers[0]), np.iinfo(to.numpy)
    fits = numbers[3] + zero >= limits.min and numbers[2] + zero <= limits.max
    return (total.result, zero) if fits else None


def _number(value: Value) -> Any:
    """The number that an element is, if it is constant."""
    op = value.producer
    return op.attributes["value"] if op is not None and op.op_type == "constant" else None


def _producer(value: Value) -> Operation:
    assert value.producer is not None
    return value.producer


def _is_better(op: Operation, best: Operation) -> bool:
    """Whether `op` should have the epilogue rather than `best`: the costlier kind, of one kind the later one."""
    kinds = _ROOTS.index(op.name), _ROOTS.index(best.name)
    return kinds[0] < kinds[1] or (kinds[0] == kinds[1] and best.is_before(op))


def _can_finish(value: Value, op: Operation) -> bool:
    """Whether the kernel behind `value` can do what the map `op` does, to each of its elements."""
    root = value.producer
    if root is None or root.name not in _ROOTS or root.parent is not op.parent or value.index != 0:
        return False
    if "epilogue" not in root.definition.attributes or set(value.users) != {op}:
        return False
    assert isinstance(value.type, TensorType)
    whole = op.result.type
    if not isinstance(whole, TensorType) or value.type.shape != whole.shape:
        return False
    if root.name == "kernel.rows" and whole.dtype in (u8, i8):
        return True
    return value.type.dtype is whole.dtype or root.name in INTEGER_PRODUCTS
