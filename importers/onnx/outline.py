"""Fused operators as model-local functions: a call, and once for each kind of call a body of standard operators.

A file of an old opset then still says `Gelu`, in a domain of its own, where it would otherwise hold the five nodes that
the writer makes of it; any runtime that knows functions can run it, and one that knows the operator may use its own.
"""

from __future__ import annotations

from ...graph.builder import OpBuilder
from ...graph.clone import clone_module, copy_metadata
from ...graph.core import Block, BlockOutput, Operation, Value
from ...graph.module import Function, FunctionKey, Module
from ...graph.onnx_schema import find_schema
from ...graph.opdef import opaque
from .content import function_content
from .forms import Forms

# The domain of the functions that the writer makes.
DOMAIN = "tilewright"
# Operators of the standard that stand for several others.
_FUSED = frozenset({
    "Attention", "Gelu", "GroupNormalization", "HardSwish", "LayerNormalization", "Mish", "RMSNormalization",
    "RotaryEmbedding", "SwiGLU", "Swish",
})  # fmt: skip


def is_own(op: Operation) -> bool:
    """Whether an operator in the standard's domain is none of the standard; ONNX Runtime has some there."""
    return op.domain == "" and find_schema("", op.op_type, None) is None


def outlined(module: Module, forms: Forms, keeps_own: bool) -> Module:
    """A copy of `module` in which each fused operator that would be written as its parts is a call of a function.

    `forms` says of an operation of `module` what will be made of it; `keeps_own`, that operators of ONNX Runtime may
    stay. The copy is for writing; `module` stays as it is. Functions that the model itself has are left alone.
    """
    values: dict[Value, Value] = {}
    clone = clone_module(module, values)
    outliner = _Outliner(clone)
    for op in module.main.walk():
        if not op.results or op.regions or op.definition.is_terminator:
            continue
        wanted = _is_foreign(op, forms, keeps_own) or (
            op.domain == "" and op.op_type in _FUSED and forms.takes_several(op)
        )
        copied = values[op.results[0]].producer
        if wanted and copied is not None:
            outliner.outline(copied)
    return clone


def _is_foreign(op: Operation, forms: Forms, keeps_own: bool) -> bool:
    """Whether the target has no operators of the domain of `op`."""
    if not op.definition.is_known or (op.domain, op.op_type) in forms.calls:
        return False
    return op.domain not in forms.allowed or (not keeps_own and is_own(op))


class _Outliner:
    """Puts calls in the place of operations, and makes the functions."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.made: dict[tuple[object, ...], FunctionKey] = {}

    def outline(self, op: Operation) -> None:
        kind = (
            op.definition,
            tuple(sorted(op.attributes.items(), key=lambda item: item[0])),
            tuple(None if operand is None else operand.type for operand in op.operands),
            tuple((result.type, result.name == "" and not result.use_count) for result in op.results),
        )
        key = self.made.get(kind)
        if key is None:
            function = self._function(op)
            if function is None:
                return
            key = self.made[kind] = function.key
            self.module.functions[key] = function
        call = Operation(
            opaque(key.domain, key.name),
            [operand for operand in op.operands if operand is not None],
            {},
            [result.type for result in op.results],
            result_names=[result.name for result in op.results],
            location=op.location,
            metadata=copy_metadata(op.metadata),
        )
        assert op.parent is not None
        op.parent._insert(call, op)
        for old, new in zip(op.results, call.results, strict=True):
            new.info = old.info
            for use in old.uses:
                use.user._set_operand(use.position, new)
        op._erase()

    def _function(self, op: Operation) -> Function | None:
        """A function of the one operation; None if that has no parts."""
        names = [parameter.name for parameter in op.definition.parameters]
        names += [f"{names[-1]}_{index}" for index in range(len(names), len(op.operands))]
        given = [index for index, operand in enumerate(op.operands) if operand is not None]
        arguments = [operand for operand in op.operands if operand is not None]
        block = Block([value.type for value in arguments], [names[index] for index in given])
        b = OpBuilder(block, self.module.symbols, location=op.location)
        operands = dict(zip(given, block.arguments, strict=True))
        inner = b.create(
            op.definition,
            [operands.get(index) for index in range(len(op.operands))],
            op.attributes,
            result_types=[result.type for result in op.results],
            result_names=[None if result.name != "" or result.use_count else "" for result in op.results],
        )
        if not self._has_parts(inner):
            return None
        b.returns(self._own_parts(inner, b) or list(inner.results))
        outputs = [parameter.name for parameter in op.definition.result_parameters]
        block.outputs = [BlockOutput(name, None) for name, _ in zip(outputs, op.results, strict=False)]
        function = Function(FunctionKey(DOMAIN, self._free_name(op.op_type)), block)
        function.opsets = {"": self.module.opsets.get("", 1)}
        return function

    @staticmethod
    def _own_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
        """The parts of an operator that the writer would take for one of the standard, in its place."""
        values = op.definition.decompose(op, b) if is_own(op) else None
        if values is None:
            return None
        op._erase()
        return list(values)

    def _has_parts(self, op: Operation) -> bool:
        scratch = Block()
        values = op.definition.decompose(op, OpBuilder(scratch, self.module.symbols, location=op.location))
        for made in reversed(list(scratch)):
            made._erase()
        return values is not None

    def _free_name(self, base: str) -> str:
        name, number = base, 1
        while FunctionKey(DOMAIN, name) in self.module.functions:
            number += 1
            name = f"{base}_{number}"
        return name


def share_functions(module: Module) -> None:
    """Let calls of functions made here that have equal bodies be of one function.

    Bodies are made for the types of a call, of which they often do not depend.
    """
    first: dict[tuple[object, ...], FunctionKey] = {}
    same: dict[FunctionKey, FunctionKey] = {}
    for key, function in module.functions.items():
        content = function_content(function) if key.domain == DOMAIN else None
        if content is not None:
            same[key] = first.setdefault(content, key)
    for op in module.walk():
        key = FunctionKey(op.domain, op.op_type)
        if same.get(key, key) != key:
            op.definition = opaque(DOMAIN, same[key].name)
    for key, kept in same.items():
        if kept != key:
            del module.functions[key]


__all__ = ["DOMAIN", "is_own", "outlined", "share_functions"]
