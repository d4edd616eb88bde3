"""infer-shapes: give every value the most precise type that follows from its operands. Level onnx.

Types in a file are claims: what inference derives from the operands replaces a claim, a claim fills in only what
inference leaves open. Types of graph inputs stay as declared, but that a dim which cannot be 0 where the model runs (a
Reshape would fail) is known to be at least 1 from then on, and dims of one name that must be equal where it runs (or a
Concat would fail) are known to be one. A dim that inference had to make up is the size that a product needs it to
have. What a region's arguments are follows from the operation
that runs it; a value that a loop carries has the dims that its initial value and the body's result share.

Invariant: only types change. A declared type that cannot be right is corrected, with a warning.

    %0 = relu %x : f32[*]                      ->      %0 = relu %x : f32[n, 8]
    %1 = shape %0 : i64[?0]                            %1 = shape %0 : i64[2]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..graph import dtypes, types
from ..graph.core import Block, Operation, Value
from ..graph.diagnostics import TypeInferenceError
from ..graph.dims import Dim, DimExpr, bounds, factors_of, is_symbol, prove_equal, symbol, symbols_of
from ..graph.infer import InferenceContext, infer_types
from ..graph.module import FunctionKey
from ..graph.ops.reshape import positive_elements
from ..graph.types import TensorType, Type
from .base import Pass
from .bind_dims import with_symbols
from .inline_functions import instantiate
from .zero_sizes import positive_by_trial

if TYPE_CHECKING:
    from ..graph.module import Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext

# A loop's body is inferred again while a carried type becomes wider: at most once per dim, and once for the rank.
MAX_LOOP_ROUNDS = 16


class InferShapes(Pass):
    """Give every value the most precise type that follows from its operands."""

    name = "infer-shapes"

    def run(self, module: Module, context: PassContext) -> bool:
        block = module.main.block
        before = {value: value.type for value in _values_in(block)}
        inference = _Inference(module, context)
        inference.block(block)
        while facts := (
            _positive_symbols(block, inference.inference)
            or _equal_symbols(block)
            or _contracted_sizes(block)
            or positive_by_trial(module, inference.inference)
        ):
            _replace_symbols(block, facts, inference.rewriter)
            inference = _Inference(module, context)
            inference.block(block)
        refined = sum(value.type is not type for value, type in before.items()) + inference.outputs(block)
        if refined:
            context.count("types refined", refined)
        return refined > 0


class _Inference:
    """One walk over a module."""

    def __init__(self, module: Module, context: PassContext) -> None:
        self.module, self.context = module, context
        self.rewriter = context.rewriter(module)
        self.inference = InferenceContext(module.symbols)
        self.known = _symbols_of(_values_in(module.main.block))
        self.quiet = False
        self.calls: list[FunctionKey] = []

    def block(self, block: Block) -> None:
        for op in block:
            self.operation(op)

    def operation(self, op: Operation) -> None:
        if op.is_terminator:
            return
        if op.regions:
            self.regions(op)
        try:
            inferred = self.call(op) or infer_types(op, self.inference)
        except TypeInferenceError as error:
            # A branch that is never taken may be ill-typed for these inputs, so this is no error of the model. But no
            # pass shall rely on a shape that cannot be.
            if not self.quiet:
                first = error.diagnostics[0]
                self.context.remark("infer/failed", f"no types for {op.name}: {first.message}", op.location)
                for result in op.results:
                    if isinstance(result.type, TensorType):
                        self.rewriter.set_type(result, result.type.with_shape(None))
            return
        for result, type in zip(op.results, inferred, strict=True):
            self.settle(result, type)

    def settle(self, value: Value, inferred: Type) -> None:
        """Give `value` what `inferred` adds to its type; correct the type if it contradicts `inferred`."""
        settled, contradiction = _combined(value.type, inferred, self.known)
        if settled is value.type:
            return
        if contradiction and value.info is not None and not self.quiet:
            self.context.log.warning(
                "infer/declared-type",
                f"%{value.name or '?'} is declared {value.type}, but is {inferred}; corrected",
                value.producer.location if value.producer is not None else None,
            )
        self.put(value, settled)

    def put(self, value: Value, type: Type) -> None:
        _note_symbols(type, self.known)
        self.rewriter.set_type(value, type)

    def call(self, op: Operation) -> list[Type] | None:
        """The result types of a call of a model-local function, from a copy of its body; None if `op` is no call."""
        if not self.module.functions:
            return None
        key = FunctionKey(op.domain, op.op_type, op.metadata.get("overload", ""))
        function = self.module.functions.get(key)
        if function is None or key in self.calls:
            return None
        block, returned = instantiate(function, op, self.module.symbols)
        self.calls.append(key)
        self.block(block)
        self.calls.pop()
        return [value.type for value in returned]

    def outputs(self, block: Block) -> int:
        """Correct declared types of the graph's outputs that contradict what is returned; return how many."""
        corrections = 0
        for output, value in zip(block.outputs, block.returned, strict=True):
            if output.type is None or output.type is types.UNKNOWN or value.type is types.UNKNOWN:
                continue
            corrected = _corrected(output.type, value.type)
            if corrected is not output.type:
                self.context.log.warning(
                    "infer/declared-output",
                    f"output {output.name!r} is declared {output.type}, but is {value.type}; corrected",
                )
                output.type = corrected
                corrections += 1
        return corrections

    # ---- regions -------------------------------------------------------------------------------------------------

    def regions(self, op: Operation) -> None:
        body = op.regions.get("body")
        if op.name == "loop" and body is not None:
            self.loop(op, body.block)
            return
        if op.name == "scan" and body is not None:
            self.scan(op, body.block)
            return
        for region in op.regions.values():
            self.block(region.block)

    def loop(self, op: Operation, body: Block) -> None:
        """`body(iteration, condition, *state)`: i64 and bool scalars, then what the loop carries."""
        initial = [operand.type if operand is not None else types.UNKNOWN for operand in op.operands[2:]]
        for argument, dtype in zip(body.arguments[:2], (dtypes.i64, dtypes.bool_), strict=False):
            if argument.type is types.UNKNOWN:
                self.settle(argument, types.tensor(dtype, ()))
        self.carried(body, body.arguments[2:], initial, 1)

    def scan(self, op: Operation, body: Block) -> None:
        """`body(*state, *slices)`: what the scan carries, then a slice of each scanned operand."""
        count = op.attr("num_scan_inputs")
        if not isinstance(count, int) or not 0 < count <= len(op.operands):
            self.block(body)
            return
        states = len(op.operands) - count
        axes = op.attr("scan_input_axes") or (0,) * count
        for argument, operand, axis in zip(body.arguments[states:], op.operands[states:], axes, strict=True):
            if operand is not None and isinstance(operand.type, TensorType) and operand.type.shape:
                shape = list(operand.type.shape)
                del shape[axis]
                self.settle(argument, operand.type.with_shape(shape))
        initial = [operand.type if operand is not None else types.UNKNOWN for operand in op.operands[:states]]
        self.carried(body, body.arguments[:states], initial, 0)

    def carried(self, body: Block, states: Sequence[Value], initial: Sequence[Type], first: int) -> None:
        """Type the body of a loop that carries `states`, which it returns from position `first` on.

        Assumes that each state keeps its initial type; where the body then returns another one, what differs is
        forgotten and the body is inferred again, until the assumption holds.
        """
        before = {value: value.type for value in _values_in(body)}
        known = set(self.known)
        # Symbols for a size that is another one in each iteration.
        varying = _symbols_of(before) - _symbols_of(v for v in _values_in(self.module.main.block) if v not in before)
        assumed = [_assumption(state.type, type) for state, type in zip(states, initial, strict=False)]
        for _ in range(MAX_LOOP_ROUNDS):
            for state, type in zip(states, assumed, strict=False):
                self.put(state, type)
            nested, self.quiet = self.quiet, True
            self.block(body)
            self.quiet = nested
            returned = [value.type for value in body.returned[first : first + len(assumed)]]
            widened = [
                _join(type, result, before[state], varying, self.inference)
                for state, type, result in zip(states, assumed, returned, strict=False)
            ]
            if widened == assumed:
                break
            self.start_again(before, known)
            assumed = widened
        else:
            self.start_again(before, known)

    def start_again(self, before: dict[Value, Type], known: set[DimExpr]) -> None:
        for value, type in before.items():
            self.rewriter.set_type(value, type)
        self.known = set(known)
        self.inference = InferenceContext(self.inference.symbols)


def _values_in(block: Block) -> list[Value]:
    """All values defined in `block` and in the regions below it."""
    values = list(block.arguments)
    assert block.parent is not None
    for op in block.parent.walk():
        values.extend(op.results)
        for region in op.regions.values():
            values.extend(region.block.arguments)
    return values


# ---- dims that cannot be 0, or must be equal -------------------------------------------------------------------------


def _positive_symbols(block: Block, inference: InferenceContext) -> dict[DimExpr, DimExpr]:
    """The symbols that are at least 1 wherever the model runs, although they are not known to be, and what they become.

    Only what is always computed counts: the operations of the graph itself whose results are used.
    """
    found: dict[DimExpr, DimExpr] = {}
    for op in block:
        if op.name == "reshape" and op.results[0].use_count:
            # A product is at least 1 only if each factor is.
            for each in {factor for dim in positive_elements(op, inference) for factor in factors_of(dim)}:
                if isinstance(each, DimExpr) and is_symbol(each) and bounds(each)[0] == 0:
                    found[each] = symbol(each.label, each.ordinal, 1, bounds(each)[1])
    return found


def _equal_symbols(block: Block) -> dict[DimExpr, DimExpr]:
    """Symbols of one name that are equal wherever the model runs, and the one that they become.

    The operands of a Concat agree in all axes but one. Again, only what is always computed counts. Symbols of different
    names stay apart: the names of the model's interface are the user's.
    """
    found: dict[DimExpr, DimExpr] = {}
    for op in block:
        if op.name != "concat" or not op.results[0].use_count:
            continue
        for left, right in _agreeing_dims(op):
            if not (isinstance(left, DimExpr) and isinstance(right, DimExpr) and is_symbol(left) and is_symbol(right)):
                continue
            first, second = found.get(left, left), found.get(right, right)
            if first is second or first.label != second.label:
                continue
            one = _both(first, second)
            members = [each for each, representative in found.items() if representative in (first, second)]
            found.update(dict.fromkeys([*members, left, right, first, second], one))
    return {each: one for each, one in found.items() if each is not one}


def _contracted_sizes(block: Block) -> dict[DimExpr, int]:
    """Dims that inference made up, and that are the size of what a product multiplies them with."""
    found: dict[DimExpr, int] = {}
    for op in block:
        if op.name not in ("matmul", "gemm") or not op.results[0].use_count:
            continue
        shapes = [value.type.shape for value in op.operand_values[:2] if isinstance(value.type, TensorType)]
        left, right = shapes if len(shapes) == 2 else (None, None)
        if not left or not right:
            continue
        first = left[-2 if op.attr("transA", 0) else -1]
        second = right[-1 if op.attr("transB", 0) or len(right) == 1 else -2]
        for dim, size in ((first, second), (second, first)):
            if isinstance(size, int) and isinstance(dim, DimExpr) and is_symbol(dim) and dim.label.startswith("?"):
                found[dim] = size
    if not found:
        return {}
    interface = _symbols_of(block.arguments)
    return {dim: size for dim, size in found.items() if dim not in interface}


def _agreeing_dims(concat: Operation) -> Iterator[tuple[Dim, Dim]]:
    """Dims of the operands that are equal where `concat` runs."""
    shapes = [value.type.shape for value in concat.operand_values if isinstance(value.type, TensorType)]
    known = [shape for shape in shapes if shape]
    if len({len(shape) for shape in known}) != 1:
        return
    axis = concat.attr("axis") % len(known[0])
    for other in known[1:]:
        for position, dims in enumerate(zip(known[0], other, strict=True)):
            if position != axis:
                yield dims


def _both(left: DimExpr, right: DimExpr) -> DimExpr:
    """A symbol that is in the range of both."""
    (low, high), (low2, high2) = bounds(left), bounds(right)
    highest = [bound for bound in (high, high2) if bound is not None]
    lowest = [bound for bound in (low, low2) if bound is not None]
    return symbol(
        left.label,
        min(left.ordinal, right.ordinal),
        max(lowest, default=None),
        min(highest, default=None),
    )


def _replace_symbols(block: Block, replacements: Mapping[DimExpr, Dim], rewriter: Rewriter) -> None:
    for value in _values_in(block):
        rewriter.set_type(value, with_symbols(value.type, replacements))
    for output in block.outputs:
        if output.type is not None:
            output.type = with_symbols(output.type, replacements)


# ---- types -----------------------------------------------------------------------------------------------------------


def _symbols_of(values: Iterable[Value]) -> set[DimExpr]:
    """The symbols in the types of `values`."""
    known: set[DimExpr] = set()
    for type in {value.type for value in values}:
        _note_symbols(type, known)
    return known


def _note_symbols(type: Type, known: set[DimExpr]) -> None:
    if isinstance(type, TensorType | types.SparseTensorType):
        for dim in type.shape or ():
            if not isinstance(dim, int):
                known.update(symbols_of(dim))
    elif isinstance(type, types.SequenceType | types.OptionalType):
        _note_symbols(type.element, known)


def _combined(current: Type, inferred: Type, known: set[DimExpr]) -> tuple[Type, bool]:
    """The type of a value that has type `current` and is inferred to be `inferred`, and whether these contradict."""
    if inferred is types.UNKNOWN or inferred is current:
        return current, False
    if current is types.UNKNOWN:
        return inferred, False
    if isinstance(current, TensorType) and isinstance(inferred, TensorType):
        if current.dtype is not inferred.dtype:
            return inferred, True
        if inferred.shape is None or current.shape is None:
            return (current if inferred.shape is None else inferred), False
        if len(current.shape) != len(inferred.shape):
            return inferred, True
        pairs = list(zip(current.shape, inferred.shape, strict=True))
        wrong = any(_contradict(old, new) for old, new in pairs)
        return inferred.with_shape([_dim(old, new, known) for old, new in pairs]), wrong
    for kind in (types.SequenceType, types.OptionalType):
        if isinstance(current, kind) and isinstance(inferred, kind):
            element, wrong = _combined(current.element, inferred.element, known)
            make = types.sequence if kind is types.SequenceType else types.optional
            return make(element), wrong
    if isinstance(inferred, types.OptionalType):
        # A Loop may start from an absent optional and be declared to end with its element, as in ONNX's own tests.
        return _combined(current, inferred.element, known)
    return inferred, type(current) is not type(inferred)


def _dim(current: Dim, inferred: Dim, known: set[DimExpr]) -> Dim:
    """What is inferred, unless that is a made-up symbol."""
    if isinstance(inferred, int) or current is inferred:
        return inferred
    return current if any(each not in known for each in symbols_of(inferred)) else inferred


def _contradict(declared: Dim, inferred: Dim) -> bool:
    return declared is not inferred and prove_equal(declared, inferred) is False


def _assumption(declared: Type, initial: Type) -> Type:
    """The first guess for a carried value: its initial type, with declared numbers where that has none."""
    if not (isinstance(declared, TensorType) and isinstance(initial, TensorType)):
        return declared if initial is types.UNKNOWN else initial
    if declared.dtype is not initial.dtype or declared.shape is None or initial.shape is None:
        return initial if initial.shape is not None else declared
    if len(declared.shape) != len(initial.shape):
        return initial
    dims = [
        old if isinstance(old, int) and not isinstance(new, int) else new
        for old, new in zip(declared.shape, initial.shape, strict=True)
    ]
    return initial.with_shape(dims)


def _join(left: Type, right: Type, declared: Type, varying: set[DimExpr], inference: InferenceContext) -> Type:
    """The most precise type that holds for values of both types; what differs becomes one of the `varying` symbols."""
    if left is right or right is types.UNKNOWN:
        return left
    if not (isinstance(left, TensorType) and isinstance(right, TensorType)) or left.dtype is not right.dtype:
        return declared
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        return left.with_shape(None)
    own: tuple[Dim | None, ...] | None = declared.shape if isinstance(declared, TensorType) else None
    if own is None or len(own) != len(left.shape):
        own = (None,) * len(left.shape)
    dims: list[Dim] = []
    for a, b, declared_dim in zip(left.shape, right.shape, own, strict=True):
        if a is b or prove_equal(a, b):
            dims.append(a)
            continue
        known = next((dim for dim in (a, declared_dim) if isinstance(dim, DimExpr) and dim in varying), None)
        new = inference.fresh() if known is None else known
        varying.update(symbols_of(new))
        dims.append(new)
    return left.with_shape(dims)


def _corrected(declared: Type, actual: Type) -> Type:
    """`declared`, with the parts that contradict `actual` replaced; dims that inference only names stay as declared."""
    if not (isinstance(declared, TensorType) and isinstance(actual, TensorType)):
        return declared if type(declared) is type(actual) else actual
    if declared.dtype is not actual.dtype:
        return actual
    if declared.shape is None or actual.shape is None:
        return declared
    if len(declared.shape) != len(actual.shape):
        return actual
    dims = [new if _contradict(old, new) else old for old, new in zip(declared.shape, actual.shape, strict=True)]
    return declared.with_shape(dims)
