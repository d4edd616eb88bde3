"""Building functions of the level "loop" in Python: loops are `with` blocks, unrolling is Python's own `for`.

    b = LoopBuilder("scale", x=buffer(f32), n=scalar(i64))
    with b.loop(0, b["n"], 16) as i:
        b.store(b.mul(b.load(b["x"], i, lanes=16), 2.0), b["x"], i)
    module = b.module()

Operands may be Python numbers, which take the type of the others. Beside a vector, a scalar is broadcast. Arithmetic
on numbers alone, adding 0 and multiplying by 1 give no operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from .. import opdef, types
from ..core import AttributeValue, Block, BlockOutput, Operation, Region, Value
from ..dtypes import DType, bool_, i64
from ..location import UNKNOWN, Location
from ..module import Function, FunctionKey, Module
from ..types import ScalarType, Type, VectorType

# An operand: a value, or a number that takes its type from its company.
Operand: TypeAlias = "Value | int | float | bool"
Number: TypeAlias = "int | float | bool"

# On plain numbers; those that are divided are indices, which are not negative.
_FOLDED: dict[str, Any] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x // y,
    "rem": lambda x, y: x % y, "max": max, "min": min, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y,
}  # fmt: skip
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "or": 0, "xor": 0, "shl": 0, "shr": 0}


class Carried:
    """The values that a loop carries: `loop[0]` inside the body, `loop.results` after it."""

    def __init__(self, index: Value, values: list[Value]) -> None:
        self.index = index
        self.values = values
        self.next: Sequence[Operand] = ()
        self.results: tuple[Value, ...] = ()

    def __getitem__(self, position: int) -> Value:
        return self.values[position]

    def yields(self, values: Sequence[Operand]) -> None:
        """Say what the next run of the body gets."""
        self.next = values


class LoopBuilder:
    """Builds one function; `b["x"]` is its argument x. Every scalar operator is a method: `b.add(x, y)`."""

    def __init__(self, name: str, /, **arguments: Type) -> None:
        self.function = Function(FunctionKey("", name), Block(list(arguments.values()), list(arguments)))
        self.block = self.function.block
        self.location: Location = UNKNOWN
        self.functions: list[Function] = []
        self._arguments = {value.name: value for value in self.block.arguments}
        self._constants: dict[tuple[Type, type, Any], Value] = {}
        self._last_constant: Operation | None = None

    def __getitem__(self, name: str) -> Value:
        return self._arguments[name]

    # ---- ending --------------------------------------------------------------------------------------------------

    def finish(self, *results: Operand) -> Function:
        """End the function; it returns `results`."""
        values = [self.value(result, types.scalar(i64)) for result in results]
        self.block.outputs = [BlockOutput(None, value.type) for value in values]
        self._insert(Operation(_definition("return"), values))
        return self.function

    def module(self, *results: Operand) -> Module:
        """End the function and give a module of it and the functions added by `include`."""
        module = Module(self.finish(*results), level="loop")
        module.functions = {function.key: function for function in self.functions}
        return module

    def include(self, function: Function) -> str:
        """Add a function that this one calls; its name."""
        self.functions.append(function)
        return function.key.name

    # ---- operands ------------------------------------------------------------------------------------------------

    def value(self, operand: Operand, type: Type) -> Value:
        """`operand` as a value of `type`: a number becomes a constant, a scalar is broadcast to a vector."""
        if not isinstance(operand, Value):
            return self.constant(operand, type)
        if isinstance(type, VectorType) and isinstance(operand.type, ScalarType):
            return self.broadcast(operand, type.lanes)
        return operand

    def constant(self, number: Number, type: Type) -> Value:
        """A constant at the head of the function, each once. -0.0 and 0.0 are two."""
        assert isinstance(type, ScalarType | VectorType)
        plain: Any = number.item() if isinstance(number, np.generic | np.ndarray) else number
        kind = type.dtype.kind
        # Rounded to the dtype here, so that equal constants are one and print shortly.
        rounded = float(np.asarray(plain, type.dtype.numpy)) if kind == "float" else plain
        plain = rounded if kind == "float" else bool(plain) if kind == "bool" else int(plain)
        key = (type, plain.__class__, np.float64(plain).tobytes() if kind == "float" else plain)
        found = self._constants.get(key)
        if found is None:
            op = Operation(_definition("scalar.constant"), (), {"value": plain}, [type])
            first = self.function.block.first
            self.function.block._insert(op, first if self._last_constant is None else self._last_constant.next)
            self._last_constant = op
            found = self._constants[key] = op.result
        return found

    def index(self, number: Operand) -> Value:
        return self.value(number, types.scalar(i64))

    # ---- arithmetic ----------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        definition = opdef.find("scalar", name.rstrip("_"))
        if definition is None:
            raise AttributeError(f"there is no scalar operator {name!r}")

        def call(*operands: Operand) -> Any:
            return self.scalar(definition.op_type, *operands)

        self.__dict__[name] = call
        return call

    def scalar(self, name: str, *operands: Operand) -> Any:
        """The scalar operator `name`; a Python number if all operands are numbers and it is simple."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        if not values:
            if name in _FOLDED:
                return _FOLDED[name](*operands)
            raise TypeError(f"scalar.{name} of numbers alone has no type: make one a constant")
        if name in _NEUTRAL and len(operands) == 2 and _is_neutral(name, operands):
            return operands[0]
        if name in ("add", "mul") and len(operands) == 2 and _is_neutral(name, operands[::-1]):
            return operands[1]
        type = _widest(values)
        return self._create(f"scalar.{name}", [self.value(operand, type) for operand in operands]).result

    def select(self, condition: Value, x: Operand, y: Operand) -> Value:
        values = [operand for operand in (x, y) if isinstance(operand, Value)]
        if not values:
            raise TypeError("a select between two numbers has no type: make one a constant")
        type = _widest([condition, *values], _dtype(values[0]))
        mask = types.vector(bool_, type.lanes) if isinstance(type, VectorType) else types.scalar(bool_)
        operands = [self.value(condition, mask), self.value(x, type), self.value(y, type)]
        return self._create("scalar.select", operands).result

    def cast(self, x: Value, to: DType) -> Value:
        return x if _dtype(x) is to else self._create("scalar.cast", [x], to=types.scalar(to)).result

    def bitcast(self, x: Value, to: DType) -> Value:
        return x if _dtype(x) is to else self._create("scalar.bitcast", [x], to=types.scalar(to)).result

    # ---- memory and lanes ----------------------------------------------------------------------------------------

    def load(self, buffer: Value, index: Operand, lanes: int = 0, mask: Value | None = None) -> Value:
        """The element at `index`, or a vector of `lanes`."""
        operands = [buffer, self.index(index)] + ([] if mask is None else [mask])
        if lanes:
            return self._create("loop.load", operands, lanes=lanes).result
        return self._create("loop.load", operands).result

    def store(
        self, value: Operand, buffer: Value, index: Operand, mask: Value | None = None, streams: bool = False
    ) -> None:
        assert isinstance(buffer.type, types.BufferType)
        stored = self.value(value, types.scalar(buffer.type.dtype))
        operands = [stored, buffer, self.index(index)] + ([] if mask is None else [mask])
        how: dict[str, AttributeValue] = {"streams": True} if streams else {}
        self._create("loop.store", operands, **how)

    def gather(self, buffer: Value, indices: Value, mask: Value | None = None) -> Value:
        return self._create("loop.gather", [buffer, indices] + ([] if mask is None else [mask])).result

    def scatter(self, value: Value, buffer: Value, indices: Value, mask: Value | None = None) -> None:
        self._create("loop.scatter", [value, buffer, indices] + ([] if mask is None else [mask]))

    def alloc(self, dtype: DType, size: int) -> Value:
        return self._create("loop.alloc", [], element=types.scalar(dtype), size=size).result

    def view(self, buffer: Value, offset: Operand) -> Value:
        if not isinstance(offset, Value) and offset == 0:
            return buffer
        return self._create("loop.view", [buffer, self.index(offset)]).result

    def reinterpret(self, buffer: Value, to: DType) -> Value:
        """The rest of a buffer as numbers of another dtype."""
        return self._create("loop.reinterpret", [buffer], to=types.scalar(to)).result

    def prefetch(self, buffer: Value, index: Operand, level: int = 1, writes: bool = False) -> None:
        how: dict[str, AttributeValue] = {"level": level, "writes": True} if writes else {"level": level}
        self._create("loop.prefetch", [buffer, self.index(index)], **how)

    def until_aligned(self, buffer: Value, index: Operand, bytes: int) -> Value:
        """How many elements there are from `index` to the next address that is a multiple of `bytes`."""
        return self._create("loop.until_aligned", [buffer, self.index(index)], bytes=bytes).result

    def fence(self) -> None:
        self._create("loop.fence", [])

    def broadcast(self, x: Value, lanes: int) -> Value:
        return self._create("loop.broadcast", [x], lanes=lanes).result

    def iota(self, lanes: int) -> Value:
        return self._create("loop.iota", [], lanes=lanes).result

    def extract(self, x: Value, lane: int) -> Value:
        return self._create("loop.extract", [x], lane=lane).result

    def insert(self, x: Value, value: Value, lane: int) -> Value:
        return self._create("loop.insert", [x, value], lane=lane).result

    def shuffle(self, x: Value, y: Value, lanes: Sequence[int]) -> Value:
        return self._create("loop.shuffle", [x, y], lanes=tuple(lanes)).result

    def reduce(self, how: str, x: Value) -> Value:
        """`how` is add, mul, min or max."""
        return self._create(f"loop.reduce_{how}", [x]).result

    def any(self, x: Value) -> Value:
        """Whether a lane of a vector of bools is true."""
        return self._create("loop.any", [x]).result

    def tail_mask(self, count: Value, lanes: int) -> Value:
        """True in the first `count` lanes."""
        mask: Value = self.lt(self.iota(lanes), count)
        return mask

    def lookup(self, table: Value, x: Value) -> Value:
        """The bytes of a table of 256 at the places in the lanes of x."""
        return self._create("loop.lookup", [table, x]).result

    # ---- the matrix unit -----------------------------------------------------------------------------------------

    def unit_begin(self) -> None:
        self._create("loop.unit_begin", [])

    def unit_end(self) -> None:
        self._create("loop.unit_end", [])

    def unit_products(
        self,
        sums: Value,
        left: Value,
        left_row: Operand,
        right: Value,
        steps: Operand,
        sizes: tuple[int, int, int],
        ahead: tuple[Value, Operand, int] | None = None,
    ) -> None:
        """Products of blocks of words; `sizes` are rows, columns and the width of a row of `right`. `ahead` is what to
        ask for meanwhile: a buffer, a place, and how many cache lines for each 16 steps."""
        rows, columns, width = sizes
        buffer, place, lines = ahead or (right, 0, 0)
        operands = [sums, left, self.index(left_row), right, self.index(steps), buffer, self.index(place)]
        self._create("loop.unit_products", operands, rows=rows, columns=columns, width=width, lines=lines)

    # ---- structure -----------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, begin: Operand, end: Operand, step: Operand = 1, carried: Sequence[Value] = ()) -> Iterator[Any]:
        """A loop. Gives the index; with `carried` values a `Carried`, whose `yields` must be called."""
        operands = [self.index(begin), self.index(end), self.index(step), *carried]
        body = Block([types.scalar(i64), *[value.type for value in carried]])
        state = Carried(body.arguments[0], body.arguments[1:])
        outer, self.block = self.block, body
        yield state if carried else state.index
        following = [self.value(new, old.type) for new, old in zip(state.next, carried, strict=True)]
        self._return(following)
        self.block = outer
        state.results = self._create("loop.for", operands, regions={"body": Region(body)}).results

    @contextmanager
    def when(self, condition: Operand) -> Iterator[None]:
        """What is built inside runs only if `condition` is true. One that is known to be false builds code for
        nothing, so ask for it before."""
        if not isinstance(condition, Value):
            if not condition:
                raise ValueError("the condition is known to be false: build nothing")
            yield
            return
        then, otherwise = Block(), Block()
        outer, self.block = self.block, then
        yield
        self._return([])
        self.block = otherwise
        self._return([])
        self.block = outer
        self._create("loop.if", [condition], regions={"then": Region(then), "else": Region(otherwise)})

    def branch(self, condition: Operand, then: Any, otherwise: Any) -> tuple[Operand, ...]:
        """The results of `then()` or of `otherwise()`, functions that build a body and give its values (or None).

        If the condition is a number, only one of them is built.
        """
        if not isinstance(condition, Value):
            return tuple((then if condition else otherwise)() or ())
        outer = self.block
        regions = {}
        for name, build in (("then", then), ("else", otherwise)):
            self.block = Block()
            values = build()
            self._return([] if values is None else list(values))
            regions[name] = Region(self.block)
        self.block = outer
        return self._create("loop.if", [condition], regions=regions).results

    def call(self, callee: str, *arguments: Operand, results: Sequence[Type] = ()) -> tuple[Value, ...]:
        """Call an included function, which returns values of the types `results`."""
        values = [self.index(argument) for argument in arguments]
        op = Operation(_definition("loop.call"), values, {"callee": callee}, results, location=self.location)
        return self._insert(op).results

    # ---- creating ------------------------------------------------------------------------------------------------

    def _return(self, values: Sequence[Value]) -> None:
        self.block.outputs = [BlockOutput(None, value.type) for value in values]
        self._insert(Operation(_definition("return"), values))

    def _create(
        self,
        name: str,
        operands: Sequence[Value],
        regions: dict[str, Region] | None = None,
        **attributes: AttributeValue,
    ) -> Operation:
        definition = _definition(name)
        op = Operation(definition, operands, attributes, regions=regions, location=self.location)
        inferred = definition.infer(op, None)  # type: ignore[arg-type]
        op.results = tuple(Value(type, op, index) for index, type in enumerate(inferred))
        return self._insert(op)

    def _insert(self, op: Operation) -> Operation:
        self.block._insert(op, None)
        return op


_definitions: dict[str, opdef.OpDefinition] = {}


def _definition(name: str) -> opdef.OpDefinition:
    found = _definitions.get(name)
    if found is None:
        definition = opdef.find_by_name(name)
        assert definition is not None, name
        found = _definitions[name] = definition
    return found


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, ScalarType | VectorType)
    return value.type.dtype


def _widest(values: Sequence[Value], dtype: DType | None = None) -> Type:
    """The type that a vector among `values` has, or else a scalar; of `dtype`, or that of the first value."""
    dtype = dtype or _dtype(values[0])
    lanes = next((value.type.lanes for value in values if isinstance(value.type, VectorType)), 0)
    return types.vector(dtype, lanes) if lanes else types.scalar(dtype)


def _is_neutral(name: str, operands: Sequence[Operand]) -> bool:
    """Whether the second operand changes nothing. Adding 0.0 changes -0.0, subtracting it changes nothing."""
    x, y = operands
    if isinstance(y, Value) or not isinstance(x, Value) or y != _NEUTRAL[name]:
        return False
    return name != "add" or not _dtype(x).is_float
