"""A convolution as nested loops: `conv-to-gemm{mode=direct}`. Level onnx in, level loop out.

For images there are seven: batch, filter, row, column, and for each result the channels and taps that it sums over.
One spatial dim less or more makes two loops less or more. The module becomes a function of flat buffers (x, w, bias if
there is one, the result y) and of the sizes that are not known; it runs in the loop interpreter.

Invariant: the model is one convolution and nothing else; `cut` makes one of a part of a model.

    func @conv(%x: buffer<f32>, %w: buffer<f32>, %y: buffer<f32>) -> () {
      loop.for 0, 1, 1
        body(%image: scalar<i64>) -> () {
          loop.for 0, 8, 1
            body(%filter: scalar<i64>) -> () {
              ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..graph import types
from ..graph.core import Operation, Value
from ..graph.diagnostics import UsageError
from ..graph.dtypes import DType, f16, f32, f64, i64
from ..graph.kernel.loop_builder import LoopBuilder, Operand
from ..graph.types import TensorType
from .conv_geometry import Geometry, geometry_of

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


def convolution_to_loops(module: Module, context: PassContext) -> bool:
    """Make `module`, which must be one convolution, a function of loops.

    Raises UsageError for another model, or one whose weights or element types have no known sizes.
    """
    op = _only_convolution(module)
    form = geometry_of(op)
    if isinstance(form, str):
        raise UsageError("conv-to-gemm/unknown", form, op.location)
    if not context.may_apply:
        return False
    with context.rewrite(module, "convolution-to-loops", op, "the model is one convolution"):
        module.take_over(loops_of(op, form))
    return True


def _only_convolution(module: Module) -> Operation:
    ops = [op for op in module.walk() if op.name != "const" and not op.is_terminator]
    if len(ops) != 1 or ops[0].name != "conv":
        found = ", ".join(dict.fromkeys(op.name for op in ops)) or "no operation"
        raise UsageError(
            "conv-to-gemm/direct",
            f"mode=direct prints one convolution as loops, and this model has {found}",
            notes=["cut it out first: cut{inputs=[TENSOR] outputs=[TENSOR]},conv-to-gemm{mode=direct}"],
        )
    return ops[0]


def loops_of(op: Operation, form: Geometry) -> Module:
    """The module of level loop that computes `op`."""
    return _Loops(op, form).module()


class _Loops:
    """Builds the function: sizes first, then loops from the outside."""

    def __init__(self, op: Operation, form: Geometry) -> None:
        self.form = form
        x = op.operands[0]
        assert x is not None
        assert isinstance(x.type, TensorType)
        assert x.type.shape is not None
        self.dtype = x.type.dtype
        if self.dtype not in (f16, f32, f64):
            raise UsageError("conv-to-gemm/dtype", f"there are no loops for {self.dtype}", op.location)
        buffer = types.buffer(self.dtype)
        names = ["x", "w", *(["bias"] if op.input(2) is not None else []), "y"]
        shape = {"batch": x.type.shape[0]} | {f"size{axis}": dim for axis, dim in enumerate(x.type.shape[2:])}
        unknown = [name for name, dim in shape.items() if not isinstance(dim, int)]
        self.b = LoopBuilder("conv", **dict.fromkeys(names, buffer), **dict.fromkeys(unknown, types.scalar(i64)))
        self.b.location = op.location
        self.bias = "bias" in names
        known: dict[str, Any] = {name: self.b[name] if name in unknown else dim for name, dim in shape.items()}
        self.batch: Operand = known["batch"]
        self.sizes: list[Operand] = [known[f"size{axis}"] for axis in range(form.rank)]
        self.places: list[Operand] = [self._places(axis) for axis in range(form.rank)]

    def _places(self, axis: int) -> Operand:
        """How many places the window takes along `axis`."""
        b, form = self.b, self.form
        room = b.add(self.sizes[axis], form.before[axis] + form.after[axis] - form.span(axis))
        places: Operand = b.add(b.div(room, form.strides[axis]), 1)
        return places

    def module(self) -> Module:
        b, form = self.b, self.form
        with ExitStack() as nest:
            image = nest.enter_context(self._loop("image", self.batch))
            filter = nest.enter_context(self._loop("filter", form.groups * form.filters))
            place = [nest.enter_context(self._loop(f"place{axis}", size)) for axis, size in enumerate(self.places)]
            start = self._widened(b.load(b["bias"], filter)) if self.bias else b.constant(0.0, self._sum_type())
            total = self._over_channels(image, filter, place, start)
            where = _flat(b, [image, filter, *place], [form.groups * form.filters, *self.places])
            b.store(b.cast(total, self.dtype), b["y"], where)
        return b.module()

    def _over_channels(self, image: Value, filter: Value, place: list[Value], start: Value) -> Value:
        """The sum over the channels of the filter's group."""
        b, form = self.b, self.form
        with b.loop(0, form.channels, carried=[start]) as channel:
            channel.index.name = "channel"
            first = b.mul(b.div(filter, form.filters), form.channels) if form.groups > 1 else 0
            source = [image, b.add(channel.index, first)]
            total = self._over_taps(0, source, [filter, channel.index], place, channel[0])
            channel.yields([total])
        return _single(channel.results)

    def _over_taps(
        self, axis: int, source: list[Operand], weights: list[Operand], place: list[Value], start: Value
    ) -> Value:
        """The sum over the taps of this axis and those after it; `source` and `weights` are the indices so far."""
        b, form = self.b, self.form
        if axis == form.rank:
            channels = form.groups * form.channels
            x = b.load(b["x"], _flat(b, source, [channels, *self.sizes]))
            w = b.load(b["w"], _flat(b, weights, [form.channels, *form.kernel]))
            total: Value = b.add(start, b.mul(self._widened(x), self._widened(w)))
            return total
        with b.loop(0, form.kernel[axis], carried=[start]) as tap:
            tap.index.name = f"tap{axis}"
            begin = b.add(b.mul(place[axis], form.strides[axis]), b.mul(tap.index, form.dilations[axis]))
            at = b.sub(begin, form.before[axis])
            more = ([*source, at], [*weights, tap.index])
            tap.yields([self._if_inside(axis, at, tap[0], lambda: self._over_taps(axis + 1, *more, place, tap[0]))])
        return _single(tap.results)

    def _if_inside(self, axis: int, at: Value, otherwise: Value, inside: Callable[[], Value]) -> Operand:
        """`inside()` where `at` is an index of the image, `otherwise` in the padding."""
        b, form = self.b, self.form
        checks = []
        if form.before[axis] > 0:
            checks.append(b.le(0, at))
        if form.after[axis] > 0:
            checks.append(b.lt(at, self.sizes[axis]))
        if not checks:
            return inside()
        condition = checks[0] if len(checks) == 1 else b.and_(*checks)
        return b.branch(condition, lambda: [inside()], lambda: [otherwise])[0]

    def _loop(self, name: str, size: Operand) -> Any:
        return _named_loop(self.b, name, size)

    def _sum_type(self) -> types.Type:
        return types.scalar(f64 if self.dtype is f64 else f32)

    def _widened(self, x: Value) -> Value:
        """f16 is summed in f32."""
        wide: DType = f64 if self.dtype is f64 else f32
        return self.b.cast(x, wide)


class _named_loop:
    """A loop from 0 whose index has a name."""

    def __init__(self, b: LoopBuilder, name: str, size: Operand) -> None:
        self.name, self.loop = name, b.loop(0, size)

    def __enter__(self) -> Value:
        index: Value = self.loop.__enter__()
        index.name = self.name
        return index

    def __exit__(self, *error: Any) -> None:
        self.loop.__exit__(*error)


def _single(results: Sequence[Value]) -> Value:
    (result,) = results
    return result


def _flat(b: LoopBuilder, indices: Sequence[Operand], inner: Sequence[Operand]) -> Operand:
    """The place of an element of a dense tensor whose dims, but the first, are `inner`."""
    place = indices[0]
    for index, size in zip(indices[1:], inner, strict=True):
        place = b.add(b.mul(place, size), index)
    return place
