"""Functions of the level "loop" as LLVM IR text: one small function for each operator, nothing else is known here.

bool is i1 in registers and a byte in memory; bf16 is carried as its bits (i16) and only loaded, stored, selected and
cast, since LLVM would round it by ways that differ between machines. Of f16 the same holds by convention: arithmetic is
done in f32 (`vector_math`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...graph import types
from ...graph.core import Block, Operation, Value
from ...graph.diagnostics import UsageError
from ...graph.dtypes import DType
from ...graph.module import Function, Module
from ...graph.types import Type
from .bounds import check_functions

if TYPE_CHECKING:
    from .machine import Machine

_FLOATS = {"f16": "half", "bf16": "i16", "f32": "float", "f64": "double"}
SUFFIXES = {"half": "f16", "float": "f32", "double": "f64"}


def emit_module(module: Module, machine: Machine, entry: str = "", checked: bool = False) -> str:
    """The LLVM IR of `module` for `machine`: what may be called from outside is the main function and its entry point.

    With a name for the entry point, only that may be, so modules with equal names can be loaded together. With
    `checked`, each access of memory is checked (see `bounds`), and the table of arguments has bounds.
    """
    # These register what they emit; they build on this module, so they come in when it is complete.
    from . import emit_loops, emit_scalars, emit_unit  # noqa: F401

    emitter = _Emitter(module, machine, is_hidden=bool(entry), checked=checked)
    bodies = [FunctionEmitter(emitter, function).text() for function in module.all_functions()]
    bodies.append(_entry(module.main, entry or f"{module.main.key.name}_entry", checked))
    if checked:
        bodies.append(check_functions())
    return "\n".join([*bodies, *sorted(emitter.declarations), *_ATTRIBUTES, ""])


_ATTRIBUTES = (
    "attributes #0 = { nounwind \"no-builtins\" }",
    "attributes #1 = { nounwind noinline \"no-builtins\" }",
)  # fmt: skip


# The last arguments of a kernel that takes part in a program: which work units to do, and in which thread.
WORK = ("begin", "end", "thread")


def _entry(function: Function, entry: str, checked: bool) -> str:
    """What a program calls: `ENTRY(arguments, bases, begin, end, thread)`.

    `arguments` is a table of i64: for a buffer the number of its base in `bases` and an offset in bytes, for a scalar
    the number itself. If bounds are checked, those follow a buffer's offset: where its memory begins and ends.
    """
    lines, given, place = [], [], 0

    def word(index: int) -> str:
        lines.append(f"  %p{index} = getelementptr i64, ptr %arguments, i64 {index}")
        lines.append(f"  %w{index} = load i64, ptr %p{index}")
        return f"%w{index}"

    for argument in function.inputs:
        if argument.name in WORK:
            given.append(f"i64 %{argument.name}")
        elif isinstance(argument.type, types.BufferType):
            base, offset = word(place), word(place + 1)
            lines.append(f"  %s{place} = getelementptr ptr, ptr %bases, i64 {base}")
            lines.append(f"  %b{place} = load ptr, ptr %s{place}")
            lines.append(f"  %a{place} = getelementptr i8, ptr %b{place}, i64 {offset}")
            given.append(f"ptr %a{place}")
            if checked:
                lines.append(f"  %i{place} = ptrtoint ptr %b{place} to i64")
                for name, bound in (("l", word(place + 2)), ("h", word(place + 3))):
                    lines.append(f"  %{name}{place} = add i64 %i{place}, {bound}")
                given += [f"i64 %l{place}", f"i64 %h{place}"]
            place += 4 if checked else 2
        else:
            given.append(f"i64 {word(place)}")
            place += 1
    head = f"define void @{entry}(ptr %arguments, ptr %bases, i64 %begin, i64 %end, i64 %thread) #0"
    call = f"  call void @{function.key.name}({', '.join(given)})"
    return "\n".join([f"{head} {{", *lines, call, "  ret void", "}", ""])


def element_type(dtype: DType) -> str:
    """The type of one number in a register."""
    if dtype.kind == "bool":
        return "i1"
    if dtype.kind == "float" and dtype.name in _FLOATS:
        return _FLOATS[dtype.name]
    if dtype.is_integer and dtype.bits >= 8:
        return f"i{dtype.bits}"
    raise UsageError("cpu/dtype", f"loops do not compute with {dtype}")


def memory_type(dtype: DType) -> str:
    return "i8" if dtype.kind == "bool" else element_type(dtype)


def llvm_type(type: Type) -> str:
    if isinstance(type, types.ScalarType):
        return element_type(type.dtype)
    if isinstance(type, types.VectorType):
        return f"<{type.lanes} x {element_type(type.dtype)}>"
    if isinstance(type, types.BufferType):
        return "ptr"
    raise UsageError("cpu/type", f"a loop has no values of type {type}")


def literal(value: Any, dtype: DType) -> str:
    """One number as LLVM writes it; floats by their bits."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.name in ("f32", "f64"):
        # LLVM writes a float as the bits of the double of the same value.
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if dtype.kind == "float":
        bits = int(np.asarray(value, dtype.numpy).view(np.uint16))
        return f"0xH{bits:04X}" if dtype.name == "f16" else str(bits)
    return str(int(value))


class _Emitter:
    def __init__(self, module: Module, machine: Machine, is_hidden: bool, checked: bool) -> None:
        self.module = module
        self.checked = checked
        self.is_hidden = is_hidden
        self.machine = machine
        self.declarations: set[str] = set()

    def intrinsic(self, name: str, result: str, arguments: Sequence[str]) -> str:
        self.declarations.add(f"declare {result} @{name}({', '.join(arguments)})")
        return f"@{name}"


class Divisor(NamedTuple):
    """What `scalar.quotient` needs of a divisor: the number and its inverse, both scaled, and the scale."""

    number: str
    inverse: str
    scale: str


class FunctionEmitter:
    """Emits one function; `lines` collects its body, `names` what each value is called there."""

    def __init__(self, emitter: _Emitter, function: Function) -> None:
        self.emitter = emitter
        self.function = function
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.allocations: list[str] = []
        self.label = "entry"
        self.count = 0
        self.checked = emitter.checked
        # If bounds are checked: the addresses where the memory of each buffer begins and ends.
        self.bounds: dict[Value, tuple[str, str]] = {}
        self.divisors: dict[Value, Divisor] = {}
        self.access = 0

    def text(self) -> str:
        function = self.function
        for index, argument in enumerate(function.inputs):
            self.names[argument] = f"%a{index}"
            if self.checked and isinstance(argument.type, types.BufferType):
                self.bounds[argument] = f"%l{index}", f"%h{index}"
        parameters = self.arguments(function.inputs)
        returned = self.block(function.block)
        is_main = function is self.emitter.module.main
        if len(returned) > 1 - is_main:
            raise UsageError("cpu/function", f"@{function.key} returns {len(returned)} values: main none, others one")
        result = llvm_type(function.block.returned[0].type) if returned else "void"
        linkage = "" if is_main and not self.emitter.is_hidden else "internal "
        head = f"define {linkage}{result} @{function.key.name}({parameters})"
        body = "\n".join([*self.allocations, *self.lines, f"  ret {' '.join([result, *returned])}"])
        return f"{head} #{0 if is_main else 1} {{\nentry:\n{body}\n}}\n"

    # ---- helpers -------------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, instruction: str) -> str:
        """An instruction with a result; its name."""
        name = self.fresh()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def labels(self, *stems: str) -> list[str]:
        self.count += 1
        return [f"{stem}{self.count}" for stem in stems]

    def intrinsic(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """A call of an intrinsic that gives `result`; arguments are pairs of type and name."""
        callee = self.emitter.intrinsic(name, result, [type for type, _ in arguments])
        call = f"call {result} {callee}({', '.join(f'{type} {value}' for type, value in arguments)})"
        if result == "void":
            self.do(call)
            return ""
        return self.emit(call)

    def address(self, buffer: Value, index: str) -> str:
        assert isinstance(buffer.type, types.BufferType)
        element = memory_type(buffer.type.dtype)
        return self.emit(f"{self.element_pointer} {element}, ptr {self.names[buffer]}, i64 {index}")

    @property
    def element_pointer(self) -> str:
        """The instruction for an address in a buffer; what is still to be checked must not be promised."""
        return "getelementptr" if self.checked else "getelementptr inbounds"

    def arguments(self, values: Sequence[Value]) -> str:
        """Values as a function takes them."""
        given = []
        for value in values:
            given.append(f"{llvm_type(value.type)} {self.names[value]}")
            if value in self.bounds:
                given += [f"i64 {bound}" for bound in self.bounds[value]]
        return ", ".join(given)

    # ---- structure -----------------------------------------------------------------------------------------------

    def block(self, block: Block) -> list[str]:
        """Emit the operations of a block; the names of the values it returns."""
        for op in block:
            operands = [self.names[operand] for operand in op.operand_values]
            if op.is_terminator:
                return operands
            self.operation(op, operands)
        raise UsageError("cpu/terminator", "a block does not end with `return`")

    def operation(self, op: Operation, operands: list[str]) -> None:
        emit = EMITTERS.get(op.name)
        if emit is None:
            raise UsageError("cpu/operator", f"{op.name} is not an operator that can be compiled", op.location)
        results = emit(self, op, operands)
        if isinstance(results, str):
            self.names[op.results[0]] = results
        elif results is not None:
            self.names.update(zip(op.results, results, strict=True))


Emit = Callable[[FunctionEmitter, Operation, list[str]], "str | list[str] | None"]
EMITTERS: dict[str, Emit] = {}


def emits(*names: str) -> Callable[[Emit], Emit]:
    def register(function: Emit) -> Emit:
        for name in names:
            EMITTERS[name] = function
        return function

    return register


def operand_facts(op: Operation, index: int = 0) -> tuple[str, DType, str]:
    """The LLVM type of operand `index`, its dtype, and the suffix of intrinsics for it: `<4 x float>`, f32, `v4f32`."""
    value = op.operands[index]
    assert value is not None
    return type_facts(value.type)


def type_facts(type: Type) -> tuple[str, DType, str]:
    assert isinstance(type, types.ScalarType | types.VectorType)
    element = element_type(type.dtype)
    suffix = SUFFIXES.get(element, element)
    lanes = f"v{type.lanes}" if isinstance(type, types.VectorType) else ""
    return llvm_type(type), type.dtype, lanes + suffix


def splat(type: Type, number: str) -> str:
    """A constant in every lane."""
    if not isinstance(type, types.VectorType):
        return number
    element = element_type(type.dtype)
    return f"<{', '.join([f'{element} {number}'] * type.lanes)}>"
