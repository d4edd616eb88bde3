"""Running blocks on numpy values, one operation after the other, with control flow and model-local functions.

Nothing here recurses over the graph: an operation with regions is a generator that asks for blocks to be run (`Call`),
and the evaluator keeps the blocks under way on a stack of its own, so nesting may be deep.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .core import AttributeReference, AttributeValue, Block, Operation, Value
from .data import TensorData, as_data
from .diagnostics import ExecutionError
from .evaluation import as_results, evaluate_op, located
from .module import Function, FunctionKey
from .opdef import Trait

# Called after each operation but constants: the operation, its operands (None where left out), its results.
Trace: TypeAlias = Callable[[Operation, Sequence[Any], Sequence[Any]], None]


class Call(NamedTuple):
    """What an operation with regions asks for: run `block` on `arguments`; the answer is the list of its outputs.

    A region sees the values around it. A function (`attributes` is not None) sees only its arguments, and its
    attribute references stand for `attributes`.
    """

    block: Block
    arguments: Sequence[Any]
    attributes: Mapping[str, AttributeValue] | None = None


# A running operation that may ask for blocks; it returns its results.
Activity: TypeAlias = Generator[Call, list[Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The operations of one block that some outputs need, each with the values that nobody needs after it."""

    steps: tuple[tuple[Operation, tuple[Value, ...]], ...]
    outputs: tuple[Value, ...]
    unused: tuple[Value, ...]  # arguments that no step reads
    last: tuple[Value, ...]  # values of this block that live to its end


Plans: TypeAlias = dict[tuple[Block, tuple[Value, ...] | None], Plan]


def plan(
    block: Block, outputs: Sequence[Value] | None = None, known: dict[Operation, list[Value]] | None = None
) -> Plan:
    """What to run for `outputs` (default: all that `block` returns). Constants are read in place, not steps.

    `known` is what `captures` remembers.
    """
    wanted = block.returned if outputs is None else tuple(outputs)
    needed = set(wanted)
    steps: list[tuple[Operation, tuple[Value, ...]]] = []
    seen = set(needed)
    for op in reversed(block):
        if op.is_terminator or _is_constant(op):
            continue
        if not any(result in needed for result in op.results) and Trait.EFFECT not in op.definition.traits:
            continue
        read = dict.fromkeys(op.operand_values)
        if op.regions:
            read.update(dict.fromkeys(captures(op, known)))
        needed.update(read)
        dead = [value for value in (*read, *op.results) if value not in seen and value.block is block]
        seen.update(read, op.results)
        steps.append((op, tuple(value for value in dead if not _is_constant(value.producer))))
    steps.reverse()
    unused = tuple(argument for argument in block.arguments if argument not in seen)
    last = tuple(dict.fromkeys(value for value in wanted if value.block is block and not _is_constant(value.producer)))
    return Plan(tuple(steps), wanted, unused, last)


def captures(op: Operation, known: dict[Operation, list[Value]] | None = None) -> list[Value]:
    """The values from outside that the regions of `op` use, each once, in order of first use.

    `known` remembers the answers for operations that lie inside, for callers that ask for those too.
    """
    known = {} if known is None else known
    pending = [] if op in known else [op]
    while pending:
        current = pending[-1]
        blocks = [region.block for region in current.regions.values()]
        waiting = [nested for block in blocks for nested in block if nested.regions and nested not in known]
        if waiting:
            pending.extend(waiting)
            continue
        pending.pop()
        inside: set[Value] = set()
        used: dict[Value, None] = {}
        for block in blocks:
            inside.update(block.arguments)
            for nested in block:
                used.update(dict.fromkeys([*nested.operand_values, *known.get(nested, ())]))
                inside.update(nested.results)
        known[current] = [value for value in used if value not in inside]
    return known[op]


def _is_constant(op: Operation | None) -> bool:
    return op is not None and op.definition.name == "const"


class _Frame:
    """A block under way: the position in its plan, and the operation of that position if it waits for a region."""

    __slots__ = ("activity", "attributes", "dims", "environment", "operands", "plan", "position")

    def __init__(
        self,
        plan: Plan,
        environment: dict[Value, Any],
        attributes: Mapping[str, AttributeValue] | None,
        dims: dict[Any, int],
    ) -> None:
        self.plan = plan
        self.environment = environment
        self.attributes = attributes
        self.dims = dims
        self.position = 0
        self.activity: Activity | None = None
        self.operands: list[Any] = []


class Evaluator:
    """Runs blocks of the `onnx` level on numpy values.

    `functions` are the module's local functions. `trace` is called after each operation. `on_result`, if given, is
    called with each value computed, and with the sizes of symbolic dims that were learned so far in its scope.
    Plans are remembered, in `plans` if it is given, so a graph that changes needs a new evaluator.
    """

    def __init__(
        self,
        functions: Mapping[FunctionKey, Function] | None = None,
        trace: Trace | None = None,
        on_result: Callable[[Value, Any, dict[Any, int]], None] | None = None,
        plans: Plans | None = None,
    ) -> None:
        self.functions = functions or {}
        self.trace = trace
        self.on_result = on_result
        self._plans: Plans = {} if plans is None else plans
        self._captures: dict[Operation, list[Value]] = {}

    def run(
        self,
        block: Block,
        arguments: Sequence[Any],
        outputs: Sequence[Value] | None = None,
        captured: Mapping[Value, Any] | None = None,
        dims: Mapping[Any, int] | None = None,
    ) -> list[Any]:
        """The values of `outputs` (default: all that `block` returns) for `arguments`, one per block argument.

        `captured` gives values from outside that the block uses, `dims` known sizes of symbolic dims.
        Raises ExecutionError.
        """
        chosen = self._plan(block, None if outputs is None else tuple(outputs))
        frame = _Frame(chosen, dict(captured or {}), None, dict(dims or {}))
        self._bind(frame, block, arguments)
        with np.errstate(all="ignore"):
            return self._drive(frame)

    def evaluate(
        self, op: Operation, operands: Sequence[Any], captured: Mapping[Value, Any] | None = None
    ) -> list[Any]:
        """The results of one operation, which may have regions or call a function. Raises ExecutionError."""
        activity = self._activity(op, operands)
        if activity is None:
            return evaluate_op(op, operands)
        step = Plan(((op, ()),), op.results, (), ())
        frame = _Frame(step, dict(captured or {}), None, {})
        frame.activity, frame.operands = activity, list(operands)
        with np.errstate(all="ignore"):
            return self._drive(frame)

    def _drive(self, frame: _Frame) -> list[Any]:
        frames = [frame]
        answer: list[Any] | None = None
        try:
            while frames:
                call = self._advance(frames[-1], answer)
                if call is not None:
                    answer = None
                    frames.append(self._enter(call, frames[-1]))
                else:
                    answer = self._leave(frames.pop())
        except ExecutionError as error:
            for outer in reversed(frames[:-1]):
                op = outer.plan.steps[outer.position][0]
                error.with_note(f"inside {op.name} at {op.location}")
            raise
        return answer or []

    def _plan(self, block: Block, outputs: tuple[Value, ...] | None = None) -> Plan:
        key = (block, outputs)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = plan(block, outputs, self._captures)
        return found

    def _enter(self, call: Call, caller: _Frame) -> _Frame:
        if call.attributes is None:
            environment, attributes, dims = caller.environment, caller.attributes, dict(caller.dims)
        else:
            environment, attributes, dims = {}, call.attributes, {}
        frame = _Frame(self._plan(call.block), environment, attributes, dims)
        self._bind(frame, call.block, call.arguments)
        return frame

    def _bind(self, frame: _Frame, block: Block, arguments: Sequence[Any]) -> None:
        for argument, value in zip(block.arguments, arguments, strict=True):
            frame.environment[argument] = value
            if self.on_result is not None:
                self.on_result(argument, value, frame.dims)
        for argument in frame.plan.unused:
            del frame.environment[argument]

    def _leave(self, frame: _Frame) -> list[Any]:
        outputs = [self._fetch(frame, value) for value in frame.plan.outputs]
        for value in frame.plan.last:
            frame.environment.pop(value, None)
        return outputs

    def _advance(self, frame: _Frame, answer: list[Any] | None) -> Call | None:
        """Run steps until one asks for a block (that call is returned) or the block is done (None)."""
        steps = frame.plan.steps
        while frame.position < len(steps):
            op, dead = steps[frame.position]
            if frame.attributes is not None:
                op = resolved(op, frame.attributes)
            if frame.activity is None:
                frame.operands = [None if value is None else self._fetch(frame, value) for value in op._operands]
                frame.activity = self._activity(op, frame.operands)
            if frame.activity is None:
                results = evaluate_op(op, frame.operands)
            else:
                try:
                    return frame.activity.send(answer)  # type: ignore[arg-type]
                except StopIteration as finished:
                    results = as_results(op, tuple(finished.value))
                except Exception as error:
                    raise located(error, op, frame.operands) from error
                frame.activity, answer = None, None
            self._finish(frame, op, results, dead)
        return None

    def _finish(self, frame: _Frame, op: Operation, results: list[Any], dead: tuple[Value, ...]) -> None:
        for result, value in zip(op.results, results, strict=True):
            frame.environment[result] = value
            if self.on_result is not None:
                self.on_result(result, value, frame.dims)
        if self.trace is not None:
            self.trace(op, frame.operands, results)
        for value in dead:
            frame.environment.pop(value, None)
        frame.operands = []
        frame.position += 1

    def _fetch(self, frame: _Frame, value: Value) -> Any:
        if value in frame.environment:
            return frame.environment[value]
        producer = value.producer
        if producer is None or not _is_constant(producer):
            raise ExecutionError("run/no-value", f"%{value.name or '?'}: {value.type} is used before it has a value")
        data = producer.attributes["value"]
        if isinstance(data, AttributeReference):
            data = as_data((frame.attributes or {})[data.name])
        assert isinstance(data, TensorData)
        return data.numpy()

    def _activity(self, op: Operation, operands: Sequence[Any]) -> Activity | None:
        """The generator that runs `op` if it has regions or calls a function; None for an ordinary operation."""
        if self.functions:
            key = FunctionKey(op.domain, op.op_type, op.metadata.get("overload", ""))
            if key in self.functions:
                return _call_function(self.functions[key], op, operands)
        if not op.regions or Trait.CONTROL_FLOW not in op.definition.traits:
            return None
        from .control_flow import run_regions

        return run_regions(op, operands)


def _call_function(function: Function, op: Operation, operands: Sequence[Any]) -> Activity:
    if len(operands) > len(function.inputs):
        raise ExecutionError(
            "run/function-arguments",
            f"function {function.key} takes {len(function.inputs)} inputs, the call gives {len(operands)}",
            op.location,
        )
    arguments = [*operands, *[None] * (len(function.inputs) - len(operands))]
    defaults = {name: value for name, value in function.attributes.items() if value is not Function.REQUIRED}
    # `op` is resolved already, so a reference that is left stands for an attribute the outer caller did not give.
    results = yield Call(function.block, arguments, {**defaults, **op.attributes})
    return results


def resolved(op: Operation, attributes: Mapping[str, AttributeValue]) -> Operation:
    """`op` with its attribute references replaced from `attributes`; one that has no value there is left out.

    The result only serves evaluation: it shares everything else with `op` and is in no graph.
    """
    if not any(isinstance(value, AttributeReference) for value in op.attributes.values()):
        return op
    twin = copy.copy(op)
    twin.attributes = {}
    for name, value in op.attributes.items():
        if not isinstance(value, AttributeReference):
            twin.attributes[name] = value
        elif value.name in attributes:
            twin.attributes[name] = attributes[value.name]
    return twin
