"""Planning a segment for the sizes of a run: where each value lies, and which kernels are called.

Every value is a view: a strided layout in some storage. Kernels that only look at a tensor in another way (transpose,
slice, broadcast, most reshapes) give a view of the same storage and no call. A 2-D convolution leaves its channels last
in memory, and what follows keeps that order; no operation of the graph knows of it.

Each kernel of the level "kernel" has a planner, registered with `@plans("kernel.map")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core import Operation, Value
from ...graph.data import TensorData
from ...graph.diagnostics import ExecutionError, TilewrightError
from ...graph.dtypes import DType
from ...graph.evaluation import evaluate_op
from ...graph.kernel.kernel_base import KernelOp, ViewOp
from ...graph.kernel.strided import Shape, Strided, dense_strides
from ...graph.kernel.tracing import Number, UntraceableError, apply, is_traced
from ...graph.lowerings.builder import data_of
from ...graph.opdef import Trait
from ...graph.types import TensorType
from .kernels.strided import WORK
from .known_sizes import TracedArray, as_numbers, computed_sizes, require_room, traced_results
from .output_memory import OutputMemory
from .weights import Weights

if TYPE_CHECKING:
    from .library import Kernel, KernelLibrary
    from .segment import Segment
    from .tuner import Tuner


@dataclass(eq=False)
class Storage:
    """Memory that values lie in: a `constant`, the segment's input `slot`, the record of a `fault` by its number, one
    `value` that follows from sizes, or (none of them) `bytes` of its own."""

    bytes: int
    constant: TensorData | np.ndarray | None = None
    slot: int | None = None
    fault: int | None = None
    value: tuple[Any, np.dtype] | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is room in the arena."""
        return self.constant is None and self.slot is None and self.fault is None and self.value is None

    @property
    def array(self) -> np.ndarray | None:
        """The elements of a constant. Those of a model's own are not kept here, as hardly any are read once packed."""
        return self.constant.numpy() if isinstance(self.constant, TensorData) else self.constant


@dataclass(frozen=True, slots=True)
class View:
    """Elements of `dtype` in a storage."""

    storage: Storage
    dtype: DType
    layout: Strided

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def strides(self) -> Shape:
        return self.layout.strides

    def seen(self, layout: Strided) -> View:
        """The same storage, otherwise laid out."""
        return View(self.storage, self.dtype, layout)

    def broadcast(self, shape: Sequence[int]) -> View:
        return self.seen(self.layout.broadcast(shape))


@dataclass(frozen=True)
class Buffer:
    """A buffer argument: `offset` bytes into a storage, or (None) into the call's scratch memory."""

    storage: Storage | None
    offset: int = 0


Argument = Buffer | int


def replaceable(results: Sequence[View], operands: Sequence[View]) -> list[tuple[Storage, Storage]]:
    """The results of a kernel that may lie where an operand does, with that: both have memory of their own and the same
    layout. For kernels that read each number of the operands just before they write to the same place."""
    return [
        (result.storage, operand.storage)
        for result in results
        for operand in operands
        if result.storage.is_own and operand.storage.is_own and result.dtype is operand.dtype
        and result.layout == operand.layout and result.storage.bytes == operand.storage.bytes
    ]  # fmt: skip


@dataclass
class Call:
    """One kernel call of a plan: a buffer or a number for each argument, and how the work is shared out.

    It is a part of what `op` needs, and takes about so many `operations`. In each pair of `replaceable` a result may
    lie where an operand does, if that is not needed any more.
    """

    kernel: Kernel
    arguments: Sequence[Argument]
    units: int
    parts: int
    scratch: int = 0
    op: Operation | None = None
    operations: Any = 0.0  # a traced number, if sizes vary
    replaceable: Sequence[tuple[Storage, Storage]] = ()


@dataclass
class Halo:
    """Elements around the spatial dims of a channels-last image that are there for windows to read: zeros, or `fill`,
    the one element of a value."""

    before: Shape
    after: Shape
    fill: Value | None = None


PlanFunction = Callable[["Planner", Operation], None]
_PLANS: dict[str, PlanFunction] = {}
_ACCEPTS: dict[str, Callable[[Operation], bool]] = {}

# Beyond any machine's memory, and far enough from 2^63 for sums of addresses.
MOST_BYTES = 1 << 56

# Below so many operations a thread has done its part before another could be told.
OPERATIONS_PER_THREAD = 50_000


def plans(*names: str, accepts: Callable[[Operation], bool] | None = None) -> Callable[[PlanFunction], PlanFunction]:
    """Function decorator: how kernels of these names are planned, and (if not all) which ones are."""

    def register(function: PlanFunction) -> PlanFunction:
        for name in names:
            _PLANS[name] = function
            if accepts is not None:
                _ACCEPTS[name] = accepts
        return function

    return register


def _parts(threads: int, units: int, operations: float) -> int:
    return max(1, min(threads, units, int(operations / OPERATIONS_PER_THREAD)))


def has_plan(op: Operation) -> bool:
    """Whether a kernel can be planned here; views need no planner of their own."""
    from .planners import register

    if isinstance(op.definition, ViewOp):
        return True
    register(op.name)
    accepts = _ACCEPTS.get(op.name)
    return op.name in _PLANS and (accepts is None or accepts(op))


@dataclass
class Shared:
    """What all plans of an executable share: compiled kernels, weights packed for them, who chooses among kernels
    (None: each kernel's own default), memory for large outputs, and arenas that no run uses now, each with the address
    where it begins."""

    library: KernelLibrary
    threads: int
    weights: Weights = field(default_factory=Weights)
    tuner: Tuner | None = None
    outputs: OutputMemory = field(default_factory=OutputMemory)
    arenas: list[tuple[np.ndarray, int]] = field(default_factory=list)


class Planner:
    """Makes the calls of one segment for inputs of `shapes`; `values` are the elements of those that must be known."""

    def __init__(
        self, shared: Shared, segment: Segment, shapes: Sequence[Shape], values: Mapping[Value, np.ndarray]
    ) -> None:
        self.shared, self.segment = shared, segment
        self.library, self.machine, self.threads = shared.library, shared.library.machine, shared.threads
        # Whether there is only one plan, so that kernels may be made for its sizes.
        self.static = not segment.known and all(
            isinstance(value.type, TensorType) and value.type.static_shape == tuple(shape)
            for value, shape in zip(segment.inputs, shapes, strict=True)
        )
        # Whether the sizes of inputs are numbers of a trace, and what stays a plain number follows from none of them.
        self.traced = any(map(is_traced, shapes))
        self.calls: list[Call] = []
        self._planned: Operation | None = None
        # Outputs whose kernels need memory apart from that of the inputs until they are done.
        self.apart: set[Value] = set()
        self.faults: list[Operation] = []
        self.shapes: dict[Value, Shape] = dict(zip(segment.inputs, shapes, strict=True))
        self.halos: dict[Storage, tuple[Strided, Halo]] = {}
        self._known: dict[Value, np.ndarray | TracedArray] = dict(values)
        self._from_constants: dict[Value, bool] = {}
        self._views: dict[Value, View] = {}
        self._constants: dict[int, tuple[np.ndarray | TensorData, Storage]] = {}
        self._wanted: dict[Value, Halo] = {}
        self._homes: dict[Value, tuple[Operation, int]] = {}
        for slot, value in enumerate(segment.inputs):
            self._views[value] = View(Storage(0, slot=slot), dtype_of(value), Strided.contiguous(self.shapes[value]))

    def plan(self) -> None:
        """Find all sizes, then all layouts and calls."""
        for op in self.segment.ops:
            self._located(op, self._measure)
        for op in self.segment.ops:
            if op.name in _READ_AROUND:
                from .plan_windows import wanted_halo

                wanted_halo(self, op)
        self._find_homes()
        for op in self.segment.ops:
            if isinstance(op.definition, ViewOp):
                self._located(op, self._view)
            elif isinstance(op.definition, KernelOp):
                self._located(op, self._kernel)

    # ---- what is known of values ---------------------------------------------------------------------------------

    def shape(self, value: Value) -> Shape:
        found = self.shapes.get(value)
        if found is None:
            data = data_of(value)
            found = self.shapes[value] = self.known(value).shape if data is None else data.shape
        return found

    def known(self, value: Value) -> np.ndarray:
        """The elements of a value that follows from shapes and constants. Raises KeyError for another one."""
        found = self._known.get(value)
        if found is None:
            data = data_of(value)
            if data is None:
                raise KeyError(f"%{value.name} is not known when a run is planned")
            return data.numpy()
        return found.elements() if isinstance(found, TracedArray) else found

    def is_known(self, value: Value) -> bool:
        return value in self._known or data_of(value) is not None

    def constant_behind(self, value: Value) -> Value | None:
        """The constant of the model that `value` is a view of, whose memory it lies in; None if it is computed."""
        view = self.view(value)
        root = value
        while root.producer is not None and isinstance(root.producer.definition, ViewOp):
            root = root.producer.operand_values[0]
        # What follows from sizes is one where there is only one plan.
        is_constant = self._follows_from_constants(root) or (self.static and self.is_known(root))
        is_same = is_constant and self.view(root).storage is view.storage
        return root if is_same else None

    def _follows_from_constants(self, value: Value) -> bool:
        """Whether the elements are the same in every run: those of weights that are stored as bytes, say."""
        producer = value.producer
        if producer is None or data_of(value) is not None:
            return producer is not None
        if value not in self._from_constants:
            self._from_constants[value] = value in self._known and all(
                self._follows_from_constants(operand) for operand in producer.operand_values
            )
        return self._from_constants[value]

    def is_static(self, value: Value) -> bool:
        """Whether all sizes of the value are the same in every run, so that code can be made for them."""
        return isinstance(value.type, TensorType) and value.type.is_static

    def is_fixed(self, values: Sequence[Value], views: Sequence[View], last: int) -> bool:
        """Whether the `last` dims of all values have the same sizes in every run, and those of the views the same
        strides, so that code can be made for them: of an image, say, in a batch of any size."""
        if all(self.is_static(value) for value in values):
            return True
        if not self.traced or self.segment.known:
            return False  # strides that look like numbers may be others in the next run
        shapes = [value.type.shape for value in values if isinstance(value.type, TensorType)]
        are_declared = all(shape is not None and all(isinstance(n, int) for n in shape[-last:]) for shape in shapes)
        return are_declared and all(isinstance(stride, int) for view in views for stride in view.strides[-last:])

    def view(self, value: Value) -> View:
        """Where the value lies."""
        found = self._views.get(value)
        if found is None:
            known, data = self._known.get(value), data_of(value)
            if isinstance(known, TracedArray):
                found = self.number(known.number, dtype_of(value), known.shape)
            elif known is None and data is not None:
                found = self._stored(data)
            else:
                found = self.constant(as_numbers(self.known(value), value), dtype_of(value))
            self._views[value] = found
        return found

    def constant(self, array: np.ndarray, dtype: DType) -> View:
        """A view of an array that does not change."""
        if array.dtype == object:
            raise UntraceableError("a constant is made of numbers that may differ")
        if id(array) not in self._constants:
            flat = np.ascontiguousarray(array)
            self._constants[id(array)] = array, Storage(flat.nbytes, flat)
        storage = self._constants[id(array)][1]
        return View(storage, dtype, Strided.contiguous(array.shape))

    def _stored(self, data: TensorData) -> View:
        """A view of a constant of the model."""
        if id(data) not in self._constants:
            self._constants[id(data)] = data, Storage(data.elements * data.dtype.numpy.itemsize, data)
        return View(self._constants[id(data)][1], data.dtype, Strided.contiguous(data.shape))

    def number(self, value: Any, dtype: DType, shape: Shape = ()) -> View:
        """A view of a number, or of an array, that follows from sizes."""
        storage = Storage(math.prod(shape) * dtype.numpy.itemsize, value=(value, dtype.numpy))
        return View(storage, dtype, Strided.contiguous(shape))

    # ---- making values -------------------------------------------------------------------------------------------

    def define(self, value: Value, view: View) -> None:
        """Say that `value` is this view of storage that is there already."""
        self._views[value] = view

    def new(self, value: Value, order: Sequence[int] | None = None) -> View:
        """Memory for a result, its axes in `order` (slowest first; default: row-major).

        A part of a concatenation lies inside that, if `order` is its order too; an image that windows will be moved
        over gets the halo they need.
        """
        shape, dtype = self.shape(value), dtype_of(value)
        view = self._inside_concat(value, order)
        if view is None:
            is_image = order is not None and tuple(order) == channels_last(len(shape))
            halo = self._wanted.get(value) if is_image else None
            if halo is not None and halo.fill is not None and not self._is_there(halo.fill):
                halo = None
            view = self.allocate(shape, dtype, order, halo)
        self._views[value] = view
        return view

    def _is_there(self, value: Value) -> bool:
        """Whether the value is made before what is planned now."""
        return value in self._views or self.is_known(value)

    def allocate(
        self, shape: Shape, dtype: DType, order: Sequence[int] | None = None, halo: Halo | None = None
    ) -> View:
        """Memory of its own."""
        size = dtype.numpy.itemsize
        if halo is None or 0 in shape:
            storage = Storage(math.prod(shape) * size)
            return View(storage, dtype, Strided(shape, dense_strides(shape, order)))
        spatial = [b + n + a for b, n, a in zip(halo.before, shape[2:], halo.after, strict=True)]
        strides = dense_strides((*shape[:2], *spatial), order)
        offset = sum(before * stride for before, stride in zip(halo.before, strides[2:], strict=True))
        storage = Storage(shape[0] * shape[1] * math.prod(spatial) * size)
        layout = Strided(shape, strides, offset)
        self.halos[storage] = layout, halo
        view = View(storage, dtype, layout)
        from .plan_windows import clear_halo

        clear_halo(self, view, halo)
        return view

    def want_halo(self, value: Value, before: Sequence[int], after: Sequence[int], fill: Value | None = None) -> None:
        """Ask for so much room around an image when it is made. Who asks for another filling must copy it."""
        old = self._wanted.get(value)
        if old is not None and old.fill is not fill:
            return
        if old is not None:
            before = [max(pair) for pair in zip(old.before, before, strict=True)]
            after = [max(pair) for pair in zip(old.after, after, strict=True)]
        self._wanted[value] = Halo(tuple(before), tuple(after), fill)

    def fault(self, op: Operation) -> Buffer:
        """Where a kernel of `op` reports an index that is out of range: a flag and the index, both i64."""
        self.faults.append(op)
        return Buffer(Storage(16, fault=len(self.faults) - 1))

    def keep_apart(self, value: Value) -> None:
        """Say that the kernel of `value` writes there before it has read all it needs."""
        if value in self.segment.in_place:
            self.apart.add(value)

    def copied(self, view: View, order: Sequence[int] | None = None, halo: Halo | None = None) -> View:
        """A copy without gaps, its axes in `order`."""
        from .plan_moves import copy

        target = self.allocate(view.shape, view.dtype, order, halo)
        copy(self, view, target)
        return target

    def contiguous(self, view: View) -> View:
        """The view itself if it is row-major without gaps, else a copy that is."""
        return view if view.layout.is_contiguous else self.copied(view)

    # ---- calls ---------------------------------------------------------------------------------------------------

    def buffer(self, view: View, offset: int = 0) -> Buffer:
        """The argument for a view, `offset` elements further on."""
        return Buffer(view.storage, (view.layout.offset + offset) * view.dtype.numpy.itemsize)

    def call(
        self,
        kernel: Kernel,
        names: Sequence[str],
        given: Mapping[str, Argument],
        units: int,
        operations: float,
        scratch: int = 0,
        replaceable: Sequence[tuple[Storage, Storage]] = (),
    ) -> None:
        """Call `kernel`, whose arguments are `names`, for `units` of work that take about so many `operations` in all.

        `given` has a buffer or a number for each name, but for the work to do, and may have more.
        """
        if units:
            arguments = [given[name] for name in names if name not in WORK]
            parts = apply(_parts, self.threads, units, operations)
            self.calls.append(Call(kernel, arguments, units, parts, scratch, self._planned, operations, replaceable))

    # ---- sizes ---------------------------------------------------------------------------------------------------

    def _measure(self, op: Operation) -> None:
        definition = op.definition
        if isinstance(definition, KernelOp):
            shapes = [() if value is None else self.shape(value) for value in op.operands]
            operands = op.operands
            found = definition.result_shapes(op, shapes, lambda index: self._operand(operands[index]))
            for result, shape in zip(op.results, found, strict=True):
                self.shapes[result] = _possible(_declared(result, shape), dtype_of(result))
            return
        sizes = computed_sizes(op, self.shape, self._found)
        if sizes is not None:
            self._known[op.result] = sizes
            self.shapes[op.result] = sizes.shape
            return
        traced = traced_results(op, [None if value is None else self._found(value) for value in op.operands])
        if traced is not None:
            self._known.update(zip(op.results, traced, strict=True))
            self.shapes.update((result, array.shape) for result, array in zip(op.results, traced, strict=True))
            return
        if Trait.SHAPE_ONLY in definition.traits:
            given = [None if v is None else self._stand_in(v) for v in op.operands]
        else:
            given = [None if v is None else as_numbers(self.known(v), v) for v in op.operands]
            require_room(op, given)
        for result, array in zip(op.results, evaluate_op(op, given), strict=True):
            self._known[result] = array
            self.shapes[result] = np.shape(array)

    def _operand(self, value: Value | None) -> np.ndarray:
        assert value is not None
        return self.known(value)

    def _found(self, value: Value) -> Any:
        """What is known of an operand's elements so far."""
        return self._known.get(value) if value in self._known or data_of(value) is None else self.known(value)

    def _stand_in(self, value: Value) -> np.ndarray:
        """An array of the value's shape, of which only the shape is looked at."""
        if self.is_known(value):
            return as_numbers(self.known(value), value)
        return np.broadcast_to(np.zeros((), dtype_of(value).numpy), self.shape(value))

    def _view(self, op: Operation) -> None:
        definition, operands = op.definition, op.operands
        assert isinstance(definition, ViewOp)
        assert operands[0] is not None
        source = self.view(operands[0])
        layout = definition.view(op, source.layout, lambda index: self._operand(operands[index]))
        if layout is None:
            source = self.contiguous(source)
            layout = definition.view(op, source.layout, lambda index: self._operand(operands[index]))
            assert layout is not None
        self.define(op.result, View(source.storage, dtype_of(op.result), layout))

    def _kernel(self, op: Operation) -> None:
        # Scatters into nothing have indices that are out of range.
        if any(math.prod(self.shape(result)) for result in op.results) or op.name.startswith("kernel.scatter"):
            self._planned = op
            _PLANS[op.name](self, op)
            return
        for result in op.results:  # nothing to compute
            self.new(result)

    def _located(self, op: Operation, plan: Callable[[Operation], None]) -> None:
        try:
            plan(op)
        except ExecutionError:
            raise
        except (TilewrightError, ValueError, IndexError, ArithmeticError, MemoryError) as error:
            shapes = ", ".join(str(list(self.shape(v))) for v in op.operand_values if v in self.shapes)
            name = op.name.removeprefix("kernel.")
            if isinstance(error, TilewrightError):  # a rule of the operation that these sizes break
                first = error.diagnostics[0]
                notes = [*first.notes, f"in {name} of {shapes}"]
                raise ExecutionError(first.code, first.message, op.location, notes=notes) from error
            code = "run/memory" if isinstance(error, MemoryError) else "run/shape"
            raise ExecutionError(code, f"{name} of {shapes}: {error}", op.location) from error

    # ---- parts of concatenations ---------------------------------------------------------------------------------

    def _find_homes(self) -> None:
        """Values that are made by one kernel and read only by a concatenation can be written where that wants them."""
        for op in self.segment.ops:
            if op.name != "kernel.concat":
                continue
            for index, value in enumerate(op.operand_values):
                producer = value.producer
                is_made = producer is not None and producer.name in _WRITE_STRIDED and value in self.shapes
                if is_made and value.use_count == 1 and value not in self.segment.outputs:
                    self._homes[value] = op, index

    def _inside_concat(self, value: Value, order: Sequence[int] | None) -> View | None:
        home = self._homes.get(value)
        if home is None or value in self._wanted:
            return None
        concat, index = home
        whole = self._views.get(concat.result)
        if whole is None:
            whole = self.new(concat.result, order)
        if whole.layout.order() != Strided(whole.shape, dense_strides(whole.shape, order)).order():
            return None
        return whole.seen(self.part_of(concat, index, whole.layout))

    def part_of(self, concat: Operation, index: int, whole: Strided) -> Strided:
        """Where operand `index` of a concatenation lies."""
        axis = concat.attr("axis") % whole.rank
        sizes = [self.shape(value)[axis] for value in concat.operand_values]
        return whole.sliced(axis, sum(sizes[:index]), sizes[index])

    def layout_of(self, value: Value) -> View | None:
        """Where a value lies, if that is decided."""
        return self._views.get(value)


def _possible(shape: Shape, dtype: DType) -> Shape:
    """`shape`, if a tensor can have it. Raises ValueError."""
    if min(shape, default=0) < 0:
        raise ValueError(f"the result would have the shape {list(shape)}")
    # Dims of 0 come with others of any size, which kernels still calculate with.
    if math.prod(max(size, 1) for size in shape) * dtype.numpy.itemsize > MOST_BYTES:
        raise ValueError(f"the result would have the shape {list(shape)}, too large for any memory")
    return shape


# Kernels that may ask for room around an image.
_READ_AROUND = frozenset({"kernel.conv", "kernel.integer_conv"})
# Kernels that can write a result with gaps between its rows.
_WRITE_STRIDED = frozenset({
    "kernel.map", "kernel.conv", "kernel.gemm", "kernel.pool", "kernel.integer_gemm", "kernel.integer_conv"
})  # fmt: skip


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of axes in which channels are the fastest."""
    return (0, *range(2, rank), 1)


def _declared(value: Value, shape: Shape) -> Shape:
    """The shape, with numbers for those dims that have the same size in every run."""
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return shape
    sizes: Sequence[Any] = shape
    return tuple([
        declared if isinstance(size, Number) and isinstance(declared, int) and size == declared else size
        for size, declared in zip(sizes, value.type.shape, strict=True)
    ])  # fmt: skip


def dtype_of(value: Value) -> DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype
