"""inline-functions: replace calls of model-local functions by their bodies. Level onnx.

A function is inlined if it is called once or its body has at most `max-body` operations, so that models do not grow;
one that nobody calls any more is dropped. Functions of the domain `keep` that were written for the model's opset stay:
those that `optimize` made itself have nothing left to gain. References to attributes of the call are resolved, value
and node names get the call's name in front.

Invariant: what a call computed does not change. A recursive call stays as it is.

    func @my::twice(%x) -> (%y) { %y = add %x, %x  return %y }

    %0 = my.twice %a : f32[n]                  ->      %0 = add %a, %a : f32[n]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..graph import types
from ..graph.builder import OpBuilder
from ..graph.clone import ValueMap, clone_operations
from ..graph.core import AttributeReference, AttributeValue, Block, Operation, Value
from ..graph.data import as_data
from ..graph.diagnostics import TypeInferenceError
from ..graph.infer import InferenceContext, infer_types
from ..graph.location import NodeLocation, fuse
from ..graph.module import Function, FunctionKey
from .base import Pass
from .dce import drop_unused_functions

if TYPE_CHECKING:
    from ..graph.dims import FreshSymbols
    from ..graph.module import Module
    from .context import PassContext


class Instance(NamedTuple):
    """A copy of a function's body for one call: a detached block without terminator, and the values it returns."""

    block: Block
    returned: list[Value]


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace calls of model-local functions by their bodies."""

    name = "inline-functions"

    max_body: int = 8
    keep: str = ""

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        chosen = self._chosen(module, context.may_grow)
        pending = [op for op in module.main.region.operations() if key_of(op) in chosen]
        while pending:
            if not context.may_apply:
                return changed
            call = pending.pop()
            function = module.functions[key_of(call)]
            if not _is_inlinable(function, call):
                continue
            changed = True
            pending.extend(op for op in _inline(module, context, function, call) if key_of(op) in chosen)
        return drop_unused_functions(module, context) or changed

    def _chosen(self, module: Module, may_grow: bool) -> set[FunctionKey]:
        """The functions to inline. Sizes count what calls inside a body would expand to."""
        calls = Counter(key_of(op) for op in module.operations() if key_of(op) in module.functions)
        order = _callees_first(module)
        sizes: dict[FunctionKey, int] = {}
        for key in order:
            body = module.functions[key].region.operations()
            sizes[key] = sum(sizes.get(key_of(op), 1) for op in body if not _is_free(op))
        chosen = {key for key in order if calls[key] == 1 or (may_grow and sizes[key] <= self.max_body)}
        return {key for key in chosen if not self._stays(module, key)}

    def _stays(self, module: Module, key: FunctionKey) -> bool:
        opset = module.opsets.get("")
        return bool(self.keep) and key.domain == self.keep and module.functions[key].opsets.get("") == opset


def key_of(op: Operation) -> FunctionKey:
    """The model-local function that `op` calls, if the module has it."""
    return FunctionKey(op.domain, op.op_type, op.metadata.get("overload", ""))


def instantiate(function: Function, call: Operation, symbols: FreshSymbols) -> Instance:
    """The body of `function` for the operands and attributes of `call`; its arguments have the operands' types."""
    present = call.operand_values
    block = Block([operand.type for operand in present], [operand.name for operand in present])
    arguments = iter(block.arguments)
    stands_for = [None if operand is None else next(arguments) for operand in call.operands]
    ops, returned = copy_body(function, stands_for, call)
    builder = OpBuilder(block, symbols)
    for op in ops:
        builder.insert(op)
    return Instance(block, returned)


def copy_body(
    function: Function, operands: Sequence[Value | None], call: Operation
) -> tuple[list[Operation], list[Value]]:
    """Detached copies of the operations of `function`, on `operands` and with the attributes of `call`, and what
    they return."""
    given = [*operands, *[None] * (len(function.inputs) - len(operands))]
    pairs = list(zip(function.inputs, given, strict=False))
    values: ValueMap = {formal: operand for formal, operand in pairs if operand is not None}
    absent = {formal for formal, operand in pairs if operand is None}
    ops = clone_operations([op for op in function.block if not op.is_terminator], values)
    attributes = {name: value for name, value in function.attributes.items() if value is not Function.REQUIRED}
    attributes.update(call.attributes)
    for op in ops:
        for nested in _with_nested(op):
            _resolve(nested, attributes)
            if any(operand in absent for operand in nested.operand_values):
                nested._set_operands(_without_trailing([None if v in absent else v for v in nested.operands]))
    return ops, [values[value] for value in function.block.returned]


def _without_trailing(operands: list[Value | None]) -> list[Value | None]:
    """`operands` without those at the end that are left out."""
    while operands and operands[-1] is None:
        operands.pop()
    return operands


def _resolve(op: Operation, attributes: Mapping[str, AttributeValue]) -> None:
    """Put attribute values in place of references; a reference to one that the call leaves out is left out too."""
    for name, value in list(op.attributes.items()):
        if not isinstance(value, AttributeReference):
            continue
        if value.name not in attributes:
            del op.attributes[name]
        elif op.name == "const":
            op.attributes[name] = as_data(attributes[value.name])
        else:
            op.attributes[name] = attributes[value.name]


def _is_inlinable(function: Function, call: Operation) -> bool:
    """Whether the body can stand where the call is: nothing returned is left out, no reference lacks its constant."""
    if call.regions or len(call.operands) > len(function.inputs) or len(call.results) > len(function.outputs):
        return False
    given = {formal for formal, operand in zip(function.inputs, call.operands, strict=False) if operand is not None}
    if any(value in function.inputs and value not in given for value in function.outputs):
        return False
    attributes = {name for name, value in function.attributes.items() if value is not Function.REQUIRED}
    attributes.update(call.attributes)
    for op in function.walk():
        for value in op.attributes.values():
            if not isinstance(value, AttributeReference):
                continue
            if value.kind in ("graph", "graphs") or (op.name == "const" and value.name not in attributes):
                return False
    return True


def _inline(module: Module, context: PassContext, function: Function, call: Operation) -> list[Operation]:
    """Put the body of `function` in place of `call`; return the operations that it consists of there."""
    ops, returned = copy_body(function, call.operands, call)
    own = {id(value) for op in ops for value in op.results}
    with context.rewrite(module, "inline-call", call, f"body of {function.key}") as rewriter:
        builder = rewriter.before(call)
        for op in ops:
            builder.insert(op)
            _rename(op, call)
        inference = InferenceContext(module.symbols)
        for op in ops:
            _infer(op, inference)
        for value, old in zip(returned, call.results, strict=False):
            if id(value) in own:
                value.name, value.info = old.name, old.info
                if value.type is types.UNKNOWN:
                    rewriter.set_type(value, old.type)
        rewriter.replace(call, returned[: len(call.results)])
    return [nested for op in ops for nested in _with_nested(op)]


def _rename(op: Operation, call: Operation) -> None:
    """Names that say which call an operation stems from: two calls of one function must not give equal names."""
    prefix = call.location.name
    for nested in _with_nested(op):
        location = nested.location
        if prefix and isinstance(location, NodeLocation):
            name = f"{prefix}/{location.name}" if location.name else prefix
            location = NodeLocation(name, location.index)
        nested.location = fuse("inline-call", [location, call.location])
    for result in op.results:
        if prefix and result.name:
            result.name = f"{prefix}/{result.name}"


def _infer(op: Operation, inference: InferenceContext) -> None:
    for region in op.regions.values():
        for nested in region.block:
            _infer(nested, inference)
    if op.is_terminator:
        return
    try:
        inferred = infer_types(op, inference)
    except TypeInferenceError:
        return  # infer-shapes reports it, with all types known
    for result, type in zip(op.results, inferred, strict=True):
        if result.type is types.UNKNOWN:
            result.type = type


def _callees_first(module: Module) -> list[FunctionKey]:
    """The functions in an order where each comes after all that it calls; without those that call themselves."""
    waiting = {
        key: {key_of(op) for op in function.walk()} & module.functions.keys()
        for key, function in module.functions.items()
    }
    order: list[FunctionKey] = []
    while True:
        ready = [key for key, callees in waiting.items() if not callees]
        if not ready:
            return order
        order.extend(ready)
        for key in ready:
            del waiting[key]
        for callees in waiting.values():
            callees.difference_update(ready)


def _is_free(op: Operation) -> bool:
    return op.name == "const" or op.is_terminator


def _with_nested(op: Operation) -> Sequence[Operation]:
    return [op, *(nested for region in op.regions.values() for nested in region.walk())]
