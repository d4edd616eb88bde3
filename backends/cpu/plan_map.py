"""Planning maps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ...graph.core import Block, Operation, Value
from ...graph.kernel.bodies import cost, interpret, signature
from ...graph.kernel.kernel_base import epilogue_of
from ...graph.kernel.scalar_emitter import ScalarEmitter
from ...graph.kernel.strided import Strided
from .kernels.elementwise import GRAIN, Map, MapBody, MapOperand, Space, build_map, collapse, map_arguments
from .kernels.strided import zero_or_one
from .kernels.tile import EpilogueBody
from .planner import Argument, Planner, View, plans, replaceable

if TYPE_CHECKING:
    from ...graph.kernel.strided import Shape


@plans("kernel.map")
def plan_map(planner: Planner, op: Operation) -> None:
    """A map takes the order of axes that its largest operand has; but what only leaves the segment is row-major, if
    most of what it is made of is."""
    shape = planner.shape(op.results[0])
    sources = [planner.view(value).broadcast(shape) for value in op.operand_values]
    order = order_of(planner, op.operand_values, shape)
    if order != tuple(range(len(shape))) and _leaves_in_order(planner, op, sources):
        order = tuple(range(len(shape)))
        sources = [planner.contiguous(view) if _is_full(view) else view for view in sources]
    sources = [turned(planner, source, order) for source in sources]
    targets = [planner.new(result, order) for result in op.results]
    block = op.regions["body"].block
    emit(planner, f"map_{_label(block)}", body_of(block), (signature(block),), sources, targets, cost(block))


# So many operations take about as long as an element takes to be read and written.
MOVED = 4
# From so many elements on, and in squares of this size, an operand is turned rather than gathered.
_TURNED, _SQUARE = 1 << 14, 4


def turned(planner: Planner, view: View, order: Sequence[int]) -> View:
    """The view, or a copy in `order` if its elements are contiguous along another dim than the last of those."""
    inner = next((axis for axis in reversed(order) if view.shape[axis] > 1), None)
    if inner is None or view.strides[inner] == 1:
        return view
    if any(s == 0 and n > 1 for s, n in zip(view.strides, view.shape, strict=True)):
        return view
    # What depends on how large it is comes last: a plan made from a template must decide the same.
    if view.shape[inner] < _SQUARE or view.layout.size < _TURNED:
        return view
    is_contiguous = any(s == 1 and n >= _SQUARE for s, n in zip(view.strides, view.shape, strict=True))
    return planner.copied(view, order) if is_contiguous else view


def emit(
    planner: Planner,
    name: str,
    body: MapBody,
    key: Sequence[Hashable],
    sources: Sequence[View],
    targets: Sequence[View],
    operations: int,
) -> None:
    """Call the map of `body`, which `key` identifies, on views of one shape."""
    layout = targets[0].layout
    order = layout.order()
    rows = [view.layout.transposed(order).strides for view in (*targets, *sources)]
    space = collapse(layout.transposed(order).shape, rows)
    tensors = [
        MapOperand(view.dtype, zero_or_one(strides[-1]))
        for view, strides in zip((*targets, *sources), space.strides, strict=True)
    ]
    results, operands = tensors[: len(targets)], tensors[len(targets) :]
    if space.extents[-1] == 1:  # one element is contiguous whatever its stride
        results = [MapOperand(result.dtype, 1) for result in results]
    results = [MapOperand(result.dtype, result.inner or None) for result in results]
    machine = planner.machine
    kernel = Map(
        len(space.extents), tuple(operands), tuple(results), body, operations,
        len(results) == 1 and results[0].inner == 1 and _streams(planner, targets[0], sources, space),
    )  # fmt: skip
    compiled = planner.library.get(
        (*key, kernel.rank, kernel.operands, kernel.results, kernel.streams),
        lambda name: build_map(name, kernel, machine), name,
    )  # fmt: skip
    given: dict[str, Argument] = {f"extent{axis}": extent for axis, extent in enumerate(space.extents)}
    names = [f"y{index}" for index in range(len(targets))] + [f"x{index}" for index in range(len(sources))]
    for tensor, view, strides in zip(names, (*targets, *sources), space.strides, strict=True):
        given[tensor] = planner.buffer(view)
        given |= {f"{tensor}_stride{axis}": stride for axis, stride in enumerate(strides)}
    elements = layout.size
    work = elements * max(operations, MOVED)
    units = space.units if elements else 0
    planner.call(compiled, map_arguments(kernel), given, units, work, replaceable=replaceable(targets, sources))


def _streams(planner: Planner, target: View, sources: Sequence[View], space: Space) -> bool:
    """Whether the result is so large, and its rows so long, that it goes to memory past the caches: unless these have
    its lines anyway, since an operand lies there."""
    if any(source.storage is target.storage for source in sources):
        return False
    bytes = target.layout.size * target.dtype.numpy.itemsize
    return bool(bytes >= planner.machine.streamed_bytes and space.extents[-1] >= GRAIN)


def body_of(block: Block) -> MapBody:
    """The region as a function on vectors."""
    return lambda b, values: interpret(block, ScalarEmitter(b), values)


def clear(planner: Planner, target: View) -> None:
    """Put zeros into a view."""
    emit(planner, "zero", lambda b, values: [0], ("zero", target.dtype), [], [target], 1)


def finishing(op: Operation) -> EpilogueBody | None:
    """The epilogue of a kernel as a function on vectors: of the sum, and of what else it reads."""
    block = epilogue_of(op)
    if block is None:
        return None
    body = body_of(block)
    return lambda b, total, given: body(b, [total, *given])[0]


def finishing_key(op: Operation) -> str | None:
    """What tells epilogues apart."""
    block = epilogue_of(op)
    return None if block is None else signature(block)


def order_of(planner: Planner, operands: Sequence[Value], shape: Shape) -> tuple[int, ...]:
    """The order of axes of the first operand that is as large as the result; row-major if there is none."""
    best: Strided | None = None
    for value in operands:
        view = planner.view(value)
        if view.shape != tuple(shape) or not _is_full(view):
            continue
        if best is None or (_is_row_major(best) and not _is_row_major(view.layout)):
            best = view.layout
    return tuple(range(len(shape))) if best is None else best.order()


def _leaves_in_order(planner: Planner, op: Operation, sources: Sequence[View]) -> bool:
    """Whether all results are outputs of the segment that nothing in it reads, and most sources are row-major."""
    outputs = planner.segment.outputs
    if not all(result in outputs and all(user.is_terminator for user in result.users) for result in op.results):
        return False
    full = [view for view in sources if _is_full(view)]
    return 2 * sum(_is_row_major(view.layout) for view in full) > len(full)


def _is_full(view: View) -> bool:
    """Whether it is not broadcast."""
    return not any(stride == 0 and size > 1 for stride, size in zip(view.strides, view.shape, strict=True))


def _is_row_major(layout: Strided) -> bool:
    return layout.order() == tuple(range(layout.rank))


def _label(block: Block) -> str:
    names = [op.op_type for op in block if not op.is_terminator and op.op_type not in ("constant", "cast")]
    return "_".join(names[-2:]) or "cast"
