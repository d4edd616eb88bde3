"""Text of the IR: one generic syntax made from the structure alone, the inverse of `parser`.

    module onnx opsets={"": 17} <ir_version=8>

    func @main(%x: f32[n, 768]) -> (%y: f32[n, 768]) {
      %w = const #w0 : f32[768, 768]
      %0 = matmul %x, %w : f32[n, 768]                                     @"/enc/0/q/MatMul"#7
      %y = softmax %0 {axis=-1} : f32[n, 768]                              @"/enc/0/Softmax"#8
      return %y
    }

    weights {
      #w0 : f32[768, 768] sha256="..." file="model.onnx" offset=123
    }

The same module always prints the same way, and `print(parse(print(m)))` is `print(m)`. `docs/ir.md` has the grammar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from .core import AttributeReference, AttributeValue, Block, BlockOutput, Metadata, Operation, Region, Value
from .data import MappedData, SparseData, TensorData, UnresolvedData
from .dtypes import string
from .lexer import HASH
from .literals import quote, tensor_text
from .location import UNKNOWN
from .module import Function, Module
from .names import function_names, function_text, name_text, operator_text, value_names, word
from .opdef import OpDefinition
from .types import Type
from .value_text import value_text

# "full": large tensors by hash and source. "none": by type only, so that nothing has to be read.
Weights: TypeAlias = Literal["full", "none"]

LOCATION_COLUMN = 76
LINE_WIDTH = 112
INLINE_ELEMENTS = 16  # a tensor of so few elements prints where it is used
INLINE_CHARACTERS = 200
HEADER_WIDTH = 80
NOTE_WIDTH = 60  # metadata of more characters prints apart from the operation it belongs to
LISTED_BYTES = 1024  # a tensor of so many bytes prints its elements in the weights section


def print_module(module: Module, *, weights: Weights = "full", locations: bool = True, metadata: bool = True) -> str:
    """The text of `module`.

    `weights="none"` never reads or hashes a large tensor; parsed back, its numbers are missing.
    Without `locations` or `metadata` the text is easier to read and compare; parsed back, they are missing too.
    """
    printer = _Printer(weights, locations, metadata)
    printer.module(module)
    return "\n".join(printer.lines) + "\n"


def print_function(function: Function, *, weights: Weights = "none", locations: bool = True) -> str:
    """The text of one function alone, to read it."""
    printer = _Printer(weights, locations, metadata=False)
    printer.function(function)
    return "\n".join(printer.lines) + "\n"


def print_operation(op: Operation, names: dict[Value, str] | None = None, column: int = 0) -> str:
    """One line for `op`, its regions left out; its location begins at `column` or later.

    `names` are those of its function, found again if not given.
    """
    printer = _Printer("none", locations=True, metadata=False)
    printer.names = function_names(op) if names is None else names
    return printer.head(op, column)


def excerpt(op: Operation, around: int = 5, names: dict[Value, str] | None = None) -> str:
    """The operations around `op` in its block, one line each, `op` marked with `>`: context for an error message."""
    before, after = op.previous, op.next
    nearby = [op]
    for _ in range(around):
        if before is not None:
            nearby.insert(0, before)
            before = before.previous
        if after is not None:
            nearby.append(after)
            after = after.next
    names = function_names(op) if names is None else names
    return "\n".join(f"{'>' if each is op else ' '} {print_operation(each, names, LOCATION_COLUMN)}" for each in nearby)


class _Printer:
    """Collects `lines`; `names` and `weights` give each value and each large tensor its text.

    `notes` are long texts of metadata, which print in a section of their own, each once.
    """

    def __init__(self, weights: Weights, locations: bool, metadata: bool) -> None:
        self.full = weights == "full"
        self.locations = locations
        self.with_notes = metadata
        self.notes: dict[str, str] = {}
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.weights: dict[TensorData, str] = {}
        self.op_names: dict[OpDefinition, str] = {}

    # ---- modules and functions -----------------------------------------------------------------------------------

    def module(self, module: Module) -> None:
        head = f"module {word(module.level)} opsets={self.value(module.opsets)}"
        self.lines.append(head + self.header_metadata(module.metadata))
        for function in module.all_functions():
            self.lines.append("")
            self.function(function)
        self.section("metadata", [f"{name} = {text}" for text, name in self.notes.items()])
        listed = [data for data in self.weights if self.is_listed(data)]
        self.section("weights", [f"{self.weights[data]} : {self.weight_source(data)}" for data in listed])

    def section(self, title: str, entries: list[str]) -> None:
        if entries:
            self.lines += ["", f"{title} {{", *(f"  {entry}" for entry in entries), "}"]

    def function(self, function: Function) -> None:
        self.names.update(value_names(function.block))
        head = f"func @{function_text(function.key)}"
        if function.opsets:
            head += f" opsets={self.value(function.opsets)}"
        if function.attributes:
            head += f" attributes={self.entries('{', self.formals(function), '}')}"
        head += self.header_metadata(function.metadata)
        defaults = {argument: f" = {self.tensor(data)}" for argument, data in function.defaults.items()}
        self.block(head, function.block, "", defaults)

    def formals(self, function: Function) -> Iterable[str]:
        """The attributes a call may set, with their defaults; a required one stands alone."""
        for name, default in function.attributes.items():
            yield word(name) if default is Function.REQUIRED else f"{word(name)}={self.value(default)}"

    def block(self, head: str, block: Block, indent: str, defaults: Mapping[Value, str] | None = None) -> None:
        arguments = [
            f"{self.defined(argument)}: {argument.type}{(defaults or {}).get(argument, '')}"
            for argument in block.arguments
        ]
        outputs = [self.output(output) for output in block.outputs]
        text = f"{head}({', '.join(arguments)}) -> ({', '.join(outputs)})"
        if len(indent) + len(text) > LINE_WIDTH:
            text = f"{head}{_one_per_line(arguments, indent)} -> {_one_per_line(outputs, indent)}"
        self.lines.append(indent + text + self.header_metadata(block.metadata, indent) + " {")
        inner = indent + "  "
        for op in block:
            self.lines.append(inner + self.head(op, LOCATION_COLUMN - len(inner)))
            for name, region in op.regions.items():
                self.region(name, region, inner + "  ")
        self.value_info(block, inner)
        self.lines.append(indent + "}")

    def region(self, name: str, region: Region, indent: str) -> None:
        self.block(word(name), region.block, indent)

    def output(self, output: BlockOutput) -> str:
        type = "none" if output.type is None and output.name is None else str(output.type or "")
        name = f"%{name_text(output.name)}" if output.name is not None else ""
        text = ": ".join(part for part in (name, type) if part)
        return text + self.info(output.info)

    def value_info(self, block: Block, indent: str) -> None:
        """Which values the model file listed in `value_info`: a section of its own, after the terminator."""
        values = [*block.arguments, *(result for op in block for result in op.results)]
        items = [
            self.names[value] + self.metadata(value.info)
            for value in values
            if value.info is not None and self.with_notes
        ]
        line = indent + "value_info"
        for position, item in enumerate(items):
            if len(line) + len(item) > LINE_WIDTH and position:
                self.lines.append(line)
                line = indent + "          "
            line += f" {item}," if position < len(items) - 1 else f" {item}"
        if items:
            self.lines.append(line)

    # ---- operations ----------------------------------------------------------------------------------------------

    def head(self, op: Operation, column: int) -> str:
        """The line of `op`: all of it but its regions."""
        attributes = op.attributes
        operands = [self.used(operand) for operand in op.operands]
        if _is_plain_constant(op):
            operands = [self.constant(attributes["value"], op.results[0].type)]
            attributes = {name: value for name, value in attributes.items() if name != "value"}
        parts = [self.op_name(op.definition)]
        if op.results:
            parts.insert(0, f"{', '.join(map(self.defined, op.results))} =")
        if operands:
            parts.append(", ".join(operands))
        if attributes:
            parts.append(self.attributes(op.definition, attributes))
        if op.results:
            parts.append(f": {', '.join(str(result.type) for result in op.results)}")
        line = " ".join(parts)
        if self.locations and op.location is not UNKNOWN:
            line = f"{line.ljust(column)} @{op.location}"
        return line + self.metadata(op.metadata)

    def constant(self, value: TensorData | AttributeReference, type: Type) -> str:
        """The operand-like value of a constant, without its own type where that is the result's."""
        if isinstance(value, AttributeReference):
            return self.value(value)
        if value.type is not type:
            return self.tensor(value)
        return tensor_text(value) if _is_inline(value) else self.weight(value)

    def defined(self, value: Value) -> str:
        """A result or argument where it is defined; `_` for one that the model leaves out."""
        is_absent = value.name == "" and value.info is None and not value.use_count
        return "_" if is_absent else self.used(value)

    def used(self, value: Value | None) -> str:
        if value is None:
            return "none"
        # A value of another function has no name here; such text is for reading only.
        return self.names.get(value) or f"%{name_text(value.name or '?')}'undefined"

    def op_name(self, definition: OpDefinition) -> str:
        text = self.op_names.get(definition)
        if text is None:
            text = self.op_names[definition] = operator_text(definition)
        return text

    def attributes(self, definition: OpDefinition, attributes: Mapping[str, AttributeValue]) -> str:
        """`{axis=-1, ...}`: in the order of the schema, then others as they were set."""
        names = [name for name in definition.attribute_specs if name in attributes]
        names += [name for name in attributes if name not in definition.attribute_specs]
        return self.entries("{", self.named({name: attributes[name] for name in names}), "}")

    # ---- attribute values and metadata ---------------------------------------------------------------------------

    def value(self, value: Any) -> str:
        return value_text(value, self.tensor)

    @staticmethod
    def entries(opening: str, items: Iterable[str], closing: str) -> str:
        return f"{opening}{', '.join(items)}{closing}"

    def metadata(self, metadata: Metadata) -> str:
        """` <name=value, ...>`, or ` <#m0>` for a long one that is listed at the end; nothing if there is none."""
        if not metadata or not self.with_notes:
            return ""
        text = self.entries("<", self.named(metadata), ">")
        if len(text) > NOTE_WIDTH:
            text = f"<{self.notes.setdefault(text, f'#m{len(self.notes)}')}>"
        return f" {text}"

    def info(self, info: Metadata | None) -> str:
        """The same for facts that may be present yet empty."""
        return "" if info is None or not self.with_notes else self.metadata(info) or " <>"

    def header_metadata(self, metadata: Metadata, indent: str = "") -> str:
        """The same for a module, function or block: one entry per line if it is long."""
        if not metadata or not self.with_notes:
            return ""
        entries = list(self.named(metadata))
        text = self.entries(" <", entries, ">")
        return text if len(text) <= HEADER_WIDTH else f" {_one_per_line(entries, indent, '<>')}"

    def named(self, values: Mapping[str, Any]) -> Iterable[str]:
        return (f"{word(name)}={self.value(value)}" for name, value in values.items())

    # ---- tensors -------------------------------------------------------------------------------------------------

    def tensor(self, data: TensorData) -> str:
        """A tensor anywhere but in `const`: its elements with their type, or its place in the weights section."""
        if _is_inline(data):
            return f"{tensor_text(data)} : {data.type}"
        return self.weight(data) if self.is_listed(data) else f"{self.weight(data)} : {data.type}"

    def weight(self, data: TensorData) -> str:
        if isinstance(data, SparseData) and data not in self.weights:
            # Its parts are listed first, so that they are known where they are needed.
            self.tensor(data.values)
            self.tensor(data.indices)
        return self.weights.setdefault(data, f"#w{len(self.weights)}")

    def is_listed(self, data: TensorData) -> bool:
        if isinstance(data, UnresolvedData):
            return HASH.fullmatch(data.sha256) is not None
        return self.full or isinstance(data, SparseData) or _is_short(data)

    def weight_source(self, data: TensorData) -> str:
        if isinstance(data, SparseData):
            return f"sparse<{data.type}> values={self.tensor(data.values)} indices={self.tensor(data.indices)}"
        if _is_short(data):
            return f"{data.type} = {tensor_text(data)}"
        text = f"{data.type} sha256={quote(data.sha256)}"
        if isinstance(data, MappedData):
            text += f" file={quote(data.file.path.name)} offset={data.offset}"
        return text


def _is_short(data: TensorData) -> bool:
    """Whether the elements themselves are listed. Short strings take a few bytes, yet each needs quotes and a comma."""
    if isinstance(data, UnresolvedData | SparseData):
        return False
    return data.elements <= LISTED_BYTES and data.nbytes <= LISTED_BYTES


def _is_inline(data: TensorData) -> bool:
    if data.elements > INLINE_ELEMENTS or isinstance(data, UnresolvedData | SparseData):
        return False
    return data.dtype is not string or data.nbytes <= INLINE_CHARACTERS


def _one_per_line(items: list[str], indent: str, brackets: str = "()") -> str:
    if len(items) < 2:
        return f"{brackets[0]}{', '.join(items)}{brackets[1]}"
    lines = "".join(f"\n{indent}  {item}," for item in items)
    return f"{brackets[0]}{lines[:-1]}\n{indent}{brackets[1]}"


def _is_plain_constant(op: Operation) -> bool:
    value = op.attributes.get("value")
    return (
        op.name == "const"
        and isinstance(value, TensorData | AttributeReference)
        and not op.operands
        and len(op.results) == 1
    )
