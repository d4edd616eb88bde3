"""`Builder`: write a model in Python; shapes are checked line by line and errors name your own file and line.

    b = Builder("mlp")
    x = b.input("x", f32["n", 784])
    h = b.relu(x @ w + bias)
    b.output(h, "y")
    model = b.build()

Two dims with the same name in one Builder model are one symbol: you promise that they are equal, and the executor
checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .builder import OpBuilder
from .core import Block, BlockOutput, Region, Value
from .data import TensorData
from .diagnostics import UsageError
from .dims import Dim, DimExpr, is_symbol
from .dtypes import DType
from .location import Location, caller_location
from .module import Function, FunctionKey, Module
from .types import TensorType, Type

# As frames name it: not resolved, since the package may be reached through a link.
_PACKAGE = str(Path(__file__).parent)

# The opset at which a model that was built, not loaded, is written by default.
BUILDER_OPSET = 21

TensorLike: TypeAlias = "Tensor | TensorData | np.ndarray | np.generic | int | float | bool | Sequence[Any] | None"


class Tensor:
    """A value of a model under construction, with Python's operators; made by a `Builder`."""

    __slots__ = ("_builder", "value")
    # numpy would otherwise broadcast `array @ tensor` over the array's elements instead of asking __rmatmul__.
    __array_ufunc__ = None

    def __init__(self, value: Value, builder: Builder) -> None:
        self.value = value
        self._builder = builder

    @property
    def type(self) -> Type:
        return self.value.type

    @property
    def shape(self) -> tuple[Any, ...] | None:
        """The dims (ints and symbols); None if the rank is unknown or this is not a tensor."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def dtype(self) -> DType | None:
        return self.type.dtype if isinstance(self.type, TensorType) else None

    def __repr__(self) -> str:
        return f"<Tensor %{self.value.name or '?'} : {self.type}>"

    def __add__(self, other: TensorLike) -> Tensor:
        return self._apply("add", self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return self._apply("add", other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return self._apply("sub", self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return self._apply("sub", other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return self._apply("mul", self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return self._apply("mul", other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return self._apply("div", self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return self._apply("div", other, self)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return self._apply("matmul", self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return self._apply("matmul", other, self)

    def __pow__(self, other: TensorLike) -> Tensor:
        return self._apply("pow", self, other)

    def __neg__(self) -> Tensor:
        return self._apply("neg", self)

    def __lt__(self, other: TensorLike) -> Tensor:
        return self._apply("less", self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return self._apply("less_or_equal", self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return self._apply("greater", self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return self._apply("greater_or_equal", self, other)

    def __eq__(self, other: TensorLike) -> Tensor:  # type: ignore[override]
        return NotImplemented if other is None else self._apply("equal", self, other)

    def __ne__(self, other: TensorLike) -> Tensor:  # type: ignore[override]
        return NotImplemented if other is None else self._apply("not", self == other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise UsageError("builder/truth-value", "a tensor under construction has no truth value; use b.where or b.if_")

    def __iter__(self) -> Iterator[Tensor]:
        raise UsageError("builder/iteration", "a tensor under construction cannot be iterated; use b.split or b.gather")

    def __getitem__(self, index: Any) -> Tensor:
        """numpy's basic indexing: ints, slices with constant bounds, `...` and None."""
        result: Tensor = self._builder._index(self, index if isinstance(index, tuple) else (index,))
        return result

    def _apply(self, name: str, *operands: TensorLike) -> Tensor:
        result: Tensor = getattr(self._builder, name)(*operands)
        return result


class Builder:
    """Builds a model. Every operator is a method under its IR name, inputs first and attributes by keyword:
    `b.conv(x, w, bias, strides=[2, 2])`; see `docs/ir.md` for the names.

    Several results come back as a tuple. Numbers and arrays become constants of the fitting dtype. `if_` and `loop`
    take Python functions for their bodies. Raises TypeInferenceError where shapes or dtypes do not fit.
    """

    def __init__(self, name: str = "main", opset: int = BUILDER_OPSET) -> None:
        block = Block()
        block.metadata["name"] = name
        self._module = Module(Function(FunctionKey("", "main"), block), {"": opset})
        self._places = [OpBuilder(block, self._module.symbols)]
        self._returned: list[Value] = []
        self._finished = False

    def __repr__(self) -> str:
        main = self._module.main.block
        made = f"{len(main.arguments)} inputs, {len(main)} operations, {len(self._returned)} outputs"
        return f"<Builder {main.metadata['name']!r}: {made}>"

    # ---- interface -----------------------------------------------------------------------------------------------

    def input(self, name: str, type: Type) -> Tensor:
        """A model input, `b.input("x", f32["n", 784])`. Raises UsageError if the name is taken."""
        if not isinstance(type, Type):
            raise UsageError("builder/type", f"the type of an input is given as f32['n', 784], not as {type!r}")
        main = self._module.main.block
        if any(argument.name == name for argument in main.arguments):
            raise UsageError("builder/duplicate-name", f"there is an input called {name!r} already")
        if isinstance(type, TensorType):
            for dim in type.shape or ():
                self._module.symbols.note(dim)
        return Tensor(main._add_argument(type, name), self)

    def output(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """Make `tensor` a model output (default names: "output", "output_1", ...)."""
        if not isinstance(tensor, Tensor):
            raise UsageError("builder/output", f"an output is a tensor that this builder made, not {tensor!r}")
        outputs = self._module.main.block.outputs
        if name is None:
            name = "output" if not outputs else f"output_{len(outputs)}"
        if any(output.name == name for output in outputs):
            raise UsageError("builder/duplicate-name", f"there is an output called {name!r} already")
        self._returned.append(tensor.value)
        outputs.append(BlockOutput(name, tensor.type))
        return tensor

    def const(self, value: Any, dtype: DType | None = None, name: str | None = None) -> Tensor:
        """A constant or parameter; Python floats become f32, ints i64, arrays keep their dtype."""
        return Tensor(self._here.const(value, dtype, name), self)

    def build(self) -> Module:
        """The finished model. Raises UsageError if it has no output."""
        if not self._returned:
            raise UsageError("builder/no-output", "the model has no output; call b.output(tensor)")
        if not self._finished:
            self._places[0].returns(self._returned)
            self._finished = True
        return self._module

    # ---- control flow --------------------------------------------------------------------------------------------

    def if_(self, condition: TensorLike, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """ONNX `If`: `then` and `otherwise` take nothing and return a tensor or a tuple of tensors."""
        regions = {"then_branch": self._body((), then), "else_branch": self._body((), otherwise)}
        count = len(regions["then_branch"].block.outputs)
        return self._create("if", [condition], {}, outputs=count, regions=regions)

    def loop(
        self, count: TensorLike, initial: Sequence[TensorLike], body: Callable[..., Any], condition: TensorLike = None
    ) -> Any:
        """ONNX `Loop`: `body(iteration, condition, *state)` returns `(condition, *state, *per_iteration_results)`.

        The results are the final state and, stacked along a new first axis, the per-iteration results.
        """
        from .dtypes import bool_, i64

        state = [self._tensor(item) for item in initial]
        types: list[Type] = [tensor.type for tensor in state]
        while True:
            arguments: list[tuple[str, Type]] = [("iteration", i64[()]), ("condition", bool_[()])]
            arguments += [(f"state_{index}", type) for index, type in enumerate(types)]
            region = self._body(arguments, body)
            returned = [output.type for output in region.block.outputs[1 : len(state) + 1]]
            widened = [self._either(old, new) for old, new in zip(types, returned, strict=True)]
            if widened == types:
                break
            # A state that changes its shape from one iteration to the next: trace the body again with what it can be.
            for op in region.block:
                op._drop_operands()
            types = widened
        results = len(region.block.outputs) - 1
        return self._create("loop", [count, condition, *state], {}, outputs=results, regions={"body": region})

    def _either(self, old: Type, new: Type | None) -> Type:
        """The type of a loop state that is `old` before an iteration and `new` after it."""
        from .infer import refine

        if new is None or old is new or (isinstance(new, TensorType) and refine(old, new) is old):
            return old
        if not (isinstance(old, TensorType) and isinstance(new, TensorType) and old.dtype is new.dtype):
            raise UsageError("builder/loop-state", f"a loop state is {old} before an iteration and {new} after it")
        if old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
            return old.with_shape(None)
        return old.with_shape([self._either_dim(a, b) for a, b in zip(old.shape, new.shape, strict=True)])

    def _either_dim(self, old: Dim, new: Dim) -> Dim:
        """An unnamed symbol already stands for a different size in every iteration."""
        if old is new or old == new or (isinstance(old, DimExpr) and is_symbol(old) and old.label.startswith("?")):
            return old
        return self._module.symbols.fresh()

    def _body(self, arguments: Sequence[tuple[str, Type]], body: Callable[..., Any]) -> Region:
        block = Block([type for _, type in arguments], [name for name, _ in arguments])
        with self._inside(block):
            returned = body(*(Tensor(argument, self) for argument in block.arguments))
            tensors = [self._tensor(item) for item in (returned if isinstance(returned, tuple | list) else (returned,))]
            self._here.returns([tensor.value for tensor in tensors])
        block.outputs = [BlockOutput(f"result_{index}", tensor.type) for index, tensor in enumerate(tensors)]
        return Region(block)

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        self._places.append(OpBuilder(block, self._module.symbols))
        try:
            yield
        finally:
            self._places.pop()

    # ---- operators -----------------------------------------------------------------------------------------------

    def create(self, name: str, *operands: TensorLike, outputs: int | None = None, **attributes: Any) -> Any:
        """Any operator by its full IR name, also of another domain: `b.create("my.ops.HardTanh", x, low=0.0)`."""
        return self._create(name, operands, attributes, outputs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*operands: TensorLike, outputs: int | None = None, **attributes: Any) -> Any:
            return self._create(name.rstrip("_"), operands, attributes, outputs)

        call.__name__ = name
        return call

    @property
    def _here(self) -> OpBuilder:
        if self._finished:
            raise UsageError("builder/finished", "the model is built already; start another Builder")
        place = self._places[-1]
        place.location = caller_location(_PACKAGE)
        return place

    def _tensor(self, item: TensorLike) -> Tensor:
        return item if isinstance(item, Tensor) else self.const(item)

    def _create(
        self,
        name: str,
        operands: Sequence[TensorLike],
        attributes: dict[str, Any],
        outputs: int | None = None,
        regions: dict[str, Region] | None = None,
    ) -> Any:
        place = self._here
        for operand in operands:
            if isinstance(operand, list | tuple) and any(isinstance(item, Tensor) for item in operand):
                raise _no_list(name, operand, place.location)
            if isinstance(operand, Tensor) and operand._builder is not self:
                raise UsageError("builder/foreign", f"{operand!r} was made by another Builder", place.location)
        values = [operand.value if isinstance(operand, Tensor) else operand for operand in operands]
        try:
            op = place.create(name, values, attributes, outputs=outputs, regions=regions)
        except UsageError as error:
            raise type(error)(
                error.code, error.diagnostics[0].message, place.location, notes=error.diagnostics[0].notes
            ) from None
        results = tuple(Tensor(result, self) for result in op.results)
        return results[0] if len(results) == 1 else results

    def _check_place(self, tensor: Tensor, axis: int, place: Any) -> None:
        if not isinstance(place, int | np.integer) or isinstance(place, bool):
            message = f"a tensor is indexed with numbers and slices, not with {place!r}"
            notes = ["b.gather, b.compress and b.where choose by other tensors"]
            raise UsageError("builder/index", message, self._here.location, notes=notes)
        size = (tensor.shape or ())[axis]
        if isinstance(size, int) and not -size <= place < size:
            message = f"{place} is out of range: dim {axis} of {tensor.type} is {size}"
            raise UsageError("builder/index", message, self._here.location)

    def _index(self, tensor: Tensor, index: tuple[Any, ...]) -> Any:
        rank = len(tensor.shape) if tensor.shape is not None else None
        if rank is None:
            raise UsageError("builder/unranked", f"{tensor!r} has no known rank and cannot be indexed")
        given = sum(item is not None and item is not Ellipsis for item in index)
        dots = [place for place, item in enumerate(index) if item is Ellipsis]
        if given > rank or len(dots) > 1:
            raise UsageError("builder/index", f"{index} does not index a tensor of rank {rank}")
        fill = [slice(None)] * (rank - given)
        where = dots[0] if dots else len(index)
        items = [*index[:where], *fill, *index[where + 1 :]]
        slices: list[tuple[int, int, int, int]] = []
        squeezed: list[int] = []
        inserted: list[int] = []
        axis = 0
        for item in items:
            if item is None:
                inserted.append(axis - len(squeezed) + len(inserted))
                continue
            if isinstance(item, slice):
                step = 1 if item.step is None else item.step
                if item != slice(None):
                    ends = (0, 2**63 - 1) if step > 0 else (2**63 - 1, -(2**63))
                    start = ends[0] if item.start is None else item.start
                    slices.append((start, ends[1] if item.stop is None else item.stop, axis, step))
            else:
                self._check_place(tensor, axis, item)
                slices.append((item, item + 1 if item != -1 else 2**63 - 1, axis, 1))
                squeezed.append(axis)
            axis += 1
        result: Any = tensor
        if slices:
            starts, ends_, axes, steps = (np.array(column, np.int64) for column in zip(*slices, strict=True))
            result = self._create("slice", [result, starts, ends_, axes, steps], {})
        if squeezed:
            result = self._create("squeeze", [result, np.array(squeezed, np.int64)], {})
        if inserted:
            result = self._create("unsqueeze", [result, np.array(inserted, np.int64)], {})
        return result


def _no_list(name: str, items: Sequence[Any], location: Location | None) -> UsageError:
    """The error for a list of tensors as one operand of `name`."""
    if all(isinstance(item, Tensor) for item in items):
        notes = [f"write b.{name}(x, y), not b.{name}([x, y])"]
        return UsageError("builder/list", "tensors are given one by one, not in a list", location, notes=notes)
    notes = ["join tensors of one dim: b.concat(b.shape(x, start=0, end=1), [-1], axis=0)"]
    return UsageError("builder/list", "a list of numbers and tensors is no tensor", location, notes=notes)
