"""Regions of kernels: functions of elements. Built by tracing a function over a scalar handler, read by any handler.

    body = trace(lambda s, x, y: s.maximum(s.add(x, y), 0), [f32, f32])
    interpret(body, NumpyScalars(), [a, b])              # computes on arrays
    interpret(body, ScalarEmitter(builder), [v, w])      # builds vector operations of the level "loop"

So two bodies are fused by tracing a function that interprets one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import opdef, types
from ..core import AttributeValue, Block, BlockOutput, Operation, Value
from ..dtypes import DType, f64
from ..ops.scalar import BINARY, UNARY, NumpyScalars, Scalar
from .element_ops import DOMAIN

# 1.5 * 2**23: a float of at most 2**22 that is added to it loses its fraction, rounded half to even, and its lowest
# bits are those of the integer.
ROUNDING = 12582912.0
ROUNDING_BITS = 0x4B400000

# f(handler, *elements) -> one element, or a sequence of them.
ElementFunction = Callable[..., Any]


class ElementTracer:
    """The handler that builds operations of the domain `element` into a block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._numbers = NumpyScalars()

    def constant(self, value: float) -> Scalar:
        return value

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        if not isinstance(x, Value):
            return x
        return x if _dtype(x) is dtype else self._create("cast", [x], to=types.scalar(dtype))

    def bitcast(self, x: Scalar, dtype: DType) -> Scalar:
        return x if _dtype(x) is dtype else self._create("bitcast", [x], to=types.scalar(dtype))

    def number(self, value: float, dtype: DType, company: Scalar) -> Scalar:
        """A number of `dtype`, in as many lanes as its company."""
        op = Operation(_definition("constant"), [], {"value": value}, [types.scalar(dtype)])
        self.block._insert(op, None)
        return op.result

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        if not isinstance(condition, Value):
            return x if condition else y
        company = x if isinstance(x, Value) else y
        return self._create("select", [condition, self._value(x, company), self._value(y, company)])

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        if name not in UNARY and name not in BINARY:
            raise AttributeError(f"there is no scalar operation {name!r}")

        def call(*operands: Scalar) -> Scalar:
            values = [operand for operand in operands if isinstance(operand, Value)]
            if not values:
                return getattr(self._numbers, name)(*operands)
            return self._create(name, [self._value(operand, values[0]) for operand in operands])

        return call

    def _value(self, operand: Scalar, company: Scalar) -> Value:
        """A number as a constant of its company's dtype; a fraction among integers stays one."""
        if isinstance(operand, Value):
            return operand
        dtype = _dtype(company)
        whole = dtype.is_float or not isinstance(operand, float)
        value: Value = self.number(operand, dtype if whole else f64, company)
        return value

    def _create(self, name: str, operands: Sequence[Value], **attributes: AttributeValue) -> Value:
        op = Operation(_definition(name), operands, attributes, [types.UNKNOWN])
        [op.result.type] = op.definition.infer(op, None)  # type: ignore[arg-type]
        self.block._insert(op, None)
        return op.result


def trace(function: ElementFunction, dtypes: Sequence[DType]) -> Block:
    """The region of `function`, for elements of `dtypes`."""
    block = Block([types.scalar(dtype) for dtype in dtypes])
    tracer = ElementTracer(block)
    returned = function(tracer, *block.arguments)
    results = list(returned) if isinstance(returned, list | tuple) else [returned]
    values = [tracer._value(result, block.arguments[0]) for result in results]
    block.outputs = [BlockOutput(None, value.type) for value in values]
    block._insert(Operation(opdef.lookup("", "return"), values), None)
    return block


def interpret(block: Block, handler: Any, elements: Sequence[Scalar]) -> list[Scalar]:
    """What the region returns for `elements`, computed by `handler`. Constants are Python numbers to it."""
    known: dict[Value, Scalar] = dict(zip(block.arguments, elements, strict=True))
    for op in block:
        operands = [known[operand] for operand in op.operand_values]
        if op.is_terminator:
            return operands
        known[op.result] = _apply(op, handler, operands)
    raise ValueError("a region does not end with `return`")


def parted(block: Block, is_fixed: Sequence[bool]) -> tuple[Block | None, Block]:
    """The region as two: what follows from the fixed arguments alone (None: nothing does), and all that is left, a
    function of the arguments and of what the first one returns."""
    fixed = {argument for argument, is_one in zip(block.arguments, is_fixed, strict=True) if is_one}
    constants: set[Value] = set()
    early: list[Operation] = []
    for op in block:
        if op.op_type == "constant":
            constants.add(op.result)
        elif not op.is_terminator and all(operand in fixed | constants for operand in op.operand_values):
            fixed.add(op.result)
            early.append(op)
    shared = [op.result for op in early if any(user not in early for user in op.result.users)]
    arguments = [argument for argument in block.arguments if argument in fixed]

    def first(s: Any, *elements: Any) -> Any:
        return _compute(block, s, dict(zip(arguments, elements, strict=True)), early, shared)

    def rest(s: Any, *elements: Any) -> Any:
        known = dict(zip([*block.arguments, *shared], elements, strict=True))
        late = [op for op in block if op not in early and not op.is_terminator]
        return _compute(block, s, known, late, block.returned)

    dtypes = [_dtype(argument) for argument in block.arguments]
    made = trace(first, [_dtype(argument) for argument in arguments]) if shared else None
    return made, trace(rest, [*dtypes, *(_dtype(value) for value in shared)])


def picked(block: Block, results: Sequence[int], arguments: Sequence[int]) -> Block:
    """Some results of the region as a function of some of its arguments. Raises KeyError if they take others."""
    wanted = [block.returned[index] for index in results]
    given = [block.arguments[index] for index in arguments]
    needed = set(wanted)
    ops = []
    for op in reversed(list(block)):
        if not op.is_terminator and op.result in needed:
            ops.append(op)
            needed.update(op.operand_values)

    def body(s: Any, *elements: Any) -> Any:
        return _compute(block, s, dict(zip(given, elements, strict=True)), ops, wanted)

    return trace(body, [_dtype(argument) for argument in given])


def _compute(
    block: Block, handler: Any, known: dict[Value, Scalar], ops: Sequence[Operation], wanted: Sequence[Value]
) -> list[Scalar]:
    """Some values of a region, by some of its operations and its constants, as far as they are not known."""
    for op in block:
        if (op.op_type == "constant" or op in ops) and op.result not in known:
            known[op.result] = _apply(op, handler, [known[operand] for operand in op.operand_values])
    return [known[value] for value in wanted]


def with_numbers(block: Block, places: Mapping[Operation, int]) -> Block:
    """The region with constants of it as further arguments: `places` says which one each is, counted from the first."""
    dtypes = [_dtype(argument) for argument in block.arguments]
    further = dict(sorted((place, _dtype(op.result)) for op, place in places.items()))

    def body(s: Any, *elements: Any) -> Any:
        known = dict(zip(block.arguments, elements, strict=False))
        known |= {op.result: elements[len(dtypes) + place] for op, place in places.items()}
        ops = [op for op in block if op not in places and not op.is_terminator]
        return _compute(block, s, known, ops, block.returned)

    return trace(body, [*dtypes, *further.values()])


def result_dtypes(block: Block) -> list[DType]:
    """The dtypes of the elements that a region returns."""
    return [_dtype(value) for value in block.returned]


def signature(block: Block) -> str:
    """A text that is equal for equal regions, whatever their values are called."""
    names: dict[Value, str] = {argument: f"%{index}:{argument.type}" for index, argument in enumerate(block.arguments)}
    lines = []
    for op in block:
        operands = ",".join(names[operand] for operand in op.operand_values)
        lines.append(f"{op.op_type}({operands}){sorted(op.attributes.items()) if op.attributes else ''}")
        for result in op.results:
            names[result] = f"{len(lines)}:{result.type}"
    return ";".join(lines)


def is_identity(block: Block) -> bool:
    """Whether a region returns its only element as it is."""
    return len(block.arguments) == 1 and tuple(block.returned) == tuple(block.arguments)


def cost(block: Block) -> int:
    """About how many vector operations the region takes; a transcendental one counts 12, a division or root 4, both
    together a sigmoid."""
    return sum(_COSTS.get(op.op_type, 1) for op in block if not op.is_terminator and op.op_type != "constant")


_COSTS = dict.fromkeys(
    ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
     "acosh", "atanh", "erf", "pow"), 12,
) | {"sigmoid": 16, "div": 4, "quotient": 4, "sqrt": 4, "mod": 4, "fmod": 4}  # fmt: skip


def _apply(op: Operation, handler: Any, operands: list[Scalar]) -> Scalar:
    match op.op_type:
        case "constant":
            return handler.constant(op.attributes["value"])
        case "cast":
            to = op.attributes["to"]
            assert isinstance(to, types.ScalarType)
            return handler.cast(operands[0], to.dtype)
        case "bitcast":
            to = op.attributes["to"]
            assert isinstance(to, types.ScalarType)
            return handler.bitcast(operands[0], to.dtype)
        case "select" if all(isinstance(operand, int | float) for operand in operands[1:]):
            # Two numbers do not say what dtype they are of.
            condition, x, y = operands
            return handler.select(condition, handler.number(x, _dtype(op.result), condition), y)
    return getattr(handler, op.op_type)(*operands)


def _definition(name: str) -> opdef.OpDefinition:
    definition = opdef.find(DOMAIN, name)
    assert definition is not None, name
    return definition


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, types.ScalarType)
    return value.type.dtype
