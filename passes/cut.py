"""cut: keep the part of the model between some tensors. Level onnx.

Invariant: the kept operations compute what they did. Only this pass changes a model's interface.

    cut{inputs=[a] outputs=[b]}
    func @main(%x: f32[8]) -> (%y: f32[8]) {          func @main(%a: f32[8]) -> (%b: f32[8]) {
      %a = exp %x : f32[8]
      %b = neg %a : f32[8]                     ->       %b = neg %a : f32[8]
      %y = tanh %b : f32[8]                             return %b
      return %y                                       }
    }
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph import types
from ..graph.core import Block, BlockOutput, Operation, Value
from ..graph.diagnostics import UsageError, listed
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Function, Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext


@dataclass(frozen=True)
class Cut(Pass):
    """Keep the part of the model between some tensors.

    `inputs` become the model's inputs (none given: those of its inputs that are needed), `outputs` its outputs (none
    given: its own). Raises UsageError for a tensor that does not exist, whose type is unknown, or that does not cut
    off everything before it.
    """

    name = "cut"

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def run(self, module: Module, context: PassContext) -> bool:
        main = module.main
        before = (list(main.inputs), list(main.output_names))
        rewriter = context.rewriter(module)
        tensors = _tensors(main.block)
        chosen = [_find(tensors, name) for name in self.inputs]
        outputs = [_output(main, tensors, name) for name in self.outputs]
        _check_inputs(chosen)
        if outputs:
            main.block.outputs = [declared for _, declared in outputs]
            rewriter.set_operands(main.block.terminator, [value for value, _ in outputs])
        arguments = [_as_argument(rewriter, main, value) for value in chosen]
        erased = _erase_unneeded(rewriter, main.block)
        _drop_arguments(rewriter, main, arguments)
        context.count("operations cut off", erased)
        return bool(erased) or (list(main.inputs), list(main.output_names)) != before


def _names(values: Iterable[Value]) -> list[str]:
    return [value.name or "" for value in values]


def _tensors(block: Block) -> dict[str, Value]:
    """The values of a block by name."""
    found = {argument.name: argument for argument in block.arguments if argument.name}
    for op in block:
        found |= {result.name: result for result in op.results if result.name}
    return found


def _find(tensors: dict[str, Value], name: str) -> Value:
    value = tensors.get(name)
    if value is None:
        near = difflib.get_close_matches(name, tensors, 3)
        names = f"its tensors are {listed(tensors)}"
        hints = (
            [f"did you mean {' or '.join(near)}?"] if near else [names, "those inside of subgraphs cannot be chosen"]
        )
        raise UsageError("cut/unknown-tensor", f"there is no tensor {name!r} in the main graph", notes=hints)
    return value


def _output(main: Function, tensors: dict[str, Value], name: str) -> tuple[Value, BlockOutput]:
    for value, declared in zip(main.outputs, main.block.outputs, strict=True):
        if declared.name == name:
            return value, declared
    # The declared outputs first: they are what a misspelt name is most often meant to be.
    value = _find({str(o.name): v for v, o in zip(main.outputs, main.block.outputs, strict=True)} | tensors, name)
    if value.type is types.UNKNOWN:
        raise UsageError("cut/unknown-type", f"the type of {name!r} is not known, so it cannot be an output")
    return value, BlockOutput(name, value.type)


def _check_inputs(chosen: list[Value]) -> None:
    if len(set(chosen)) != len(chosen):
        raise UsageError("cut/duplicate", "a tensor is named twice among the inputs")
    for value in chosen:
        if value.type is types.UNKNOWN:
            raise UsageError("cut/unknown-type", f"the type of {value.name!r} is not known, so it cannot be an input")


def _as_argument(rewriter: Rewriter, main: Function, value: Value) -> Value:
    """A new argument that takes the place, name and default of `value`."""
    argument = rewriter.add_argument(main.block, value.type, value.name)
    argument.info = value.info
    rewriter.replace_uses(value, argument)
    if value in main.defaults:
        main.defaults[argument] = main.defaults.pop(value)
    value.name = None
    return argument


def _erase_unneeded(rewriter: Rewriter, block: Block) -> int:
    """Erase the operations that the outputs do not need; operations with an effect before the cut go too."""
    needed: set[Operation] = {block.terminator}
    pending = [block.terminator]
    while pending:
        op = pending.pop()
        inside = [nested for region in op.regions.values() for nested in region.walk()]
        for operand in (operand for each in (op, *inside) for operand in each.operand_values):
            producer = operand.producer
            if producer is not None and producer.parent is block and producer not in needed:
                needed.add(producer)
                pending.append(producer)
    erased = [op for op in block if op not in needed]
    for op in reversed(erased):
        rewriter.erase(op)
    return sum(op.name != "const" for op in erased)


def _drop_arguments(rewriter: Rewriter, main: Function, chosen: list[Value]) -> None:
    """Drop all arguments but the chosen ones; if none was chosen, those that are not used any more."""
    block = main.block
    for argument in list(block.arguments):
        if argument in chosen or (argument.use_count and not chosen):
            continue
        if argument.use_count:
            reader = argument.users[0]
            raise UsageError(
                "cut/open",
                f"what is left still needs the input {argument.name!r}, for {reader.name} at {reader.location}",
                notes=["name it among the inputs, or a tensor further down"],
            )
        main.defaults.pop(argument, None)
        rewriter.remove_argument(block, argument.index)
    order = block.metadata.get("input_order")
    if order is not None:
        constants = {result.name for op in block if op.name == "const" for result in op.results}
        block.metadata["input_order"] = [*_names(block.arguments), *(name for name in order if name in constants)]
