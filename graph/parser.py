"""Reading IR text: recursive descent over the tokens of `lexer`, one method per rule of the grammar in `docs/ir.md`.

`parse(print_module(m))` is structurally equal to `m`. Whatever the text, the outcome is a module or a ParseError that
names line and column, shows the line and says what was expected. The parser checks what it must know to build the
graph (names, types, literals); the rules of the IR are for `verifier`.
"""

from __future__ import annotations

import difflib

from . import dtypes, opdef, types
from .core import AttributeValue, Block, BlockOutput, Metadata, Operation, Region, Value
from .data import SparseData, TensorData, UnresolvedData
from .diagnostics import require
from .lexer import END, HASH, Token
from .literals import unquote
from .location import UNKNOWN, FileLocation, FusedLocation, Location, NodeLocation
from .module import Function, FunctionKey, Module
from .opdef import OpDefinition
from .types import Type
from .value_parser import Constant, ValueParser
from .weights import WeightEntry, Weights, weight_source

# A value's name and ordinal; (None, n) for the unnamed value `%n`.
_ValueKey = tuple[str | None, int]
_SECTIONS = ("metadata", "weights")
_DEPTH = {"{": 1, "(": 1, "[": 1, "<": 1, "}": -1, ")": -1, "]": -1, ">": -1}


def parse(text: str, weights: Weights = None, source: str = "<text>") -> Module:
    """The module that `text` describes.

    Large constants are looked up by their hash in `weights`: a module that has them, or a folder with the model's
    file or with `<sha256>.bin` files of raw elements. One that is not found becomes `UnresolvedData`, which prints
    and compares but cannot be read. `source` is the file name for messages.

    Raises ParseError, or UsageError if `text` is no text.
    """
    require("text", text, str, "IR text, as str(module) gives it")
    return _Parser(text, source, weights).module()


class _Parser(ValueParser):
    def __init__(self, text: str, source: str, weights: Weights) -> None:
        super().__init__(text, source)
        self.lookup = weight_source(weights)
        self.values: dict[_ValueKey, Value] = {}
        self.definitions: dict[str, OpDefinition] = {}
        self.constant = opdef.lookup("", "Constant")

    # ---- modules and functions -----------------------------------------------------------------------------------

    def module(self) -> Module:
        end = self.sections()
        level, opsets, metadata = "onnx", None, Metadata()
        if self.accept("module"):
            level = self.word("the module's level")
            opsets = self.opsets()
            metadata = self.metadata()
        module = Module(self.function(), opsets, level)
        module.metadata = metadata
        while self.position != end and self.token.text == "func":
            token = self.ahead
            function = self.function()
            if function.key in module.functions:
                self.fail(f"there are two functions @{function.key}", token)
            module.functions[function.key] = function
        if self.position != end:
            self.fail(f"expected `func`, a section or the end, found {self.token}")
        for type in self.types.values():
            for dim in type.shape or ():
                module.symbols.note(dim)
        return module

    def function(self) -> Function:
        self.expect("func")
        self.expect("@")
        key = self.function_key()
        opsets = self.opsets() or {}
        formals = self.formals()
        metadata = self.metadata()
        self.values = {}
        defaults: dict[Value, TensorData] = {}
        function = Function(key, self.block(defaults))
        function.opsets, function.attributes, function.metadata = opsets, formals, metadata
        function.defaults = defaults
        return function

    def function_key(self) -> FunctionKey:
        domain, name, overload = "", self.word("a function's name"), ""
        if self.accept("::"):
            domain, name = name, self.word("a function's name")
        if self.accept(":"):
            overload = self.word("a function's overload")
        return FunctionKey(domain, name, overload)

    def opsets(self) -> dict[str, int] | None:
        if not self.accept("opsets"):
            return None
        self.expect("=")
        self.expect("{")
        return self.entries("}", "a domain", ":", lambda: self.integer("an opset version"))

    def formals(self) -> dict[str, AttributeValue]:
        if not self.accept("attributes"):
            return {}
        self.expect("=")
        self.expect("{")
        return dict(self.items("}", self.formal))

    def formal(self) -> tuple[str, AttributeValue]:
        name = self.word("an attribute's name")
        return name, self.value() if self.accept("=") else Function.REQUIRED

    # ---- blocks --------------------------------------------------------------------------------------------------

    def block(self, defaults: dict[Value, TensorData] | None = None) -> Block:
        """Arguments, outputs, metadata and body. Names defined in here are forgotten at its end."""
        block = Block()
        defined: list[_ValueKey] = []
        self.expect("(")
        self.items(")", lambda: self.argument(block, defined, defaults))
        self.expect("->")
        self.expect("(")
        block.outputs = self.items(")", self.output)
        block.metadata = self.metadata()
        self.expect("{")
        while not self.accept("}"):
            if self.token.text == "value_info" and self.ahead.kind == "value":
                self.value_info()
                self.expect("}")
                break
            block._insert(self.operation(defined), None)
        for key in defined:
            del self.values[key]
        return block

    def argument(self, block: Block, defined: list[_ValueKey], defaults: dict[Value, TensorData] | None) -> None:
        token = self.token
        key = self.definition_key()
        self.expect(":")
        value = block._add_argument(self.type(), key[0])
        self.define(key, value, token, defined)
        if defaults is None or self.token.text != "=":
            return
        self.next()
        defaults[value] = self.tensor()

    def output(self) -> BlockOutput:
        name: str | None = None
        type: Type | None = None
        if self.token.kind == "value":
            token = self.next()
            name, ordinal = self.checked(token, lambda: _value_key(token.text))
            if name is None or ordinal:
                self.fail("expected the name of an output (in quotes if it is a number)", token)
            type = self.type() if self.accept(":") else None
        elif not self.accept("none"):
            type = self.type()
        return BlockOutput(name, type, self.metadata() if self.token.text == "<" else None)

    def value_info(self) -> None:
        self.next()
        while True:
            value = self.operand()
            if value is None:
                self.fail("expected a value", self.tokens[self.position - 1])
            value.info = self.metadata()
            if not self.accept(","):
                return

    # ---- values --------------------------------------------------------------------------------------------------

    def definition_key(self) -> _ValueKey:
        """A value where it is defined: its key, or ("", -1) for `_`, a result that is left out."""
        if self.accept("_"):
            return "", -1
        token = self.expect_kind("value", "a value such as %x, or `_`")
        return self.checked(token, lambda: _value_key(token.text))

    def define(self, key: _ValueKey, value: Value, token: Token, defined: list[_ValueKey]) -> None:
        if key[1] < 0:
            return
        if key in self.values:
            self.fail(f"{token.text} is defined already", token)
        self.values[key] = value
        defined.append(key)

    def operand(self) -> Value | None:
        if self.accept("none"):
            return None
        token = self.expect_kind("value", "a value such as %x, or `none`")
        value = self.values.get(self.checked(token, lambda: _value_key(token.text)))
        if value is None:
            self.fail(f"{token.text} is not defined here", token, *self.similar_values(token.text))
        return value

    def similar_values(self, text: str) -> list[str]:
        close = difflib.get_close_matches(text[1:], [name for name, _ in self.values if name], 3)
        return [f"did you mean {', '.join(f'%{name}' for name in close)}?"] if close else []

    # ---- operations ----------------------------------------------------------------------------------------------

    def operation(self, defined: list[_ValueKey]) -> Operation:
        keys, tokens = self.result_keys()
        definition = self.definition()
        operands: list[Value | None] = []
        attributes: dict[str, AttributeValue] = {}
        constant: Constant | None = None
        if (self.token.kind == "value" or self.token.text == "none") and not self.at_results():
            operands = self.operands()
        elif definition is self.constant and len(keys) == 1 and self.token.text not in ("{", ":"):
            constant = self.constant_operand()
        if self.accept("{"):
            attributes = self.entries("}", "an attribute's name", "=")
        result_types = self.result_types(keys)
        if constant is not None:
            attributes = {"value": constant(result_types[0] if result_types else None), **attributes}
        location = self.location() if self.accept("@") else UNKNOWN
        metadata = self.metadata()
        regions: dict[str, Region] = {}
        while self.token.kind in ("word", "string") and self.ahead.text == "(":
            token = self.token
            name = self.word("a region's name")
            if name in regions:
                self.fail(f"there are two regions {name!r}", token)
            regions[name] = Region(self.nested(self.block))
        op = Operation(
            definition,
            operands,
            attributes,
            result_types,
            result_names=[name for name, _ in keys],
            regions=regions,
            location=location,
            metadata=metadata,
        )
        for key, value, token in zip(keys, op.results, tokens, strict=True):
            self.define(key, value, token, defined)
        return op

    def result_keys(self) -> tuple[list[_ValueKey], list[Token]]:
        keys: list[_ValueKey] = []
        tokens: list[Token] = []
        if self.token.kind != "value" and self.token.text != "_":
            return keys, tokens
        while True:
            tokens.append(self.token)
            keys.append(self.definition_key())
            if not self.accept(","):
                break
        self.expect("=")
        return keys, tokens

    def at_results(self) -> bool:
        """Whether the values here are results of the next operation: `%a, %b =`."""
        position = self.position
        while self.tokens[position].kind == "value" or self.tokens[position].text == "_":
            position += 1
            if self.tokens[position].text != ",":
                return self.tokens[position].text == "="
            position += 1
        return False

    def definition(self) -> OpDefinition:
        token = self.token
        is_call = token.text == "call"
        if is_call or token.kind == "string":
            self.position += is_call
            domain = self.string()
            self.expect("::")
            op_type = self.string()
            return opdef.opaque(domain, op_type) if is_call else opdef.lookup(domain, op_type)
        name = self.expect_kind("word", "an operator").text
        definition = self.definitions.get(name)
        if definition is None:
            definition = opdef.find_by_name(name)
            if definition is None:
                domain, _, op_type = name.rpartition(".")
                if not domain:
                    self.fail(f"there is no operator {name}", token, *_similar_operators(name))
                definition = opdef.lookup(domain, op_type)
            self.definitions[name] = definition
        return definition

    def operands(self) -> list[Value | None]:
        operands = [self.operand()]
        while self.accept(","):
            operands.append(self.operand())
        return operands

    def result_types(self, keys: list[_ValueKey]) -> list[Type]:
        found: list[Type] = []
        if keys:
            self.expect(":")
            found.append(self.type())
        while len(found) < len(keys):
            self.expect(",")
            found.append(self.type())
        return found

    def location(self) -> Location:
        token = self.token
        name = self.word("a location")
        if self.accept("("):
            return FusedLocation(name, tuple(self.items(")", lambda: self.nested(self.location))))
        unnamed = token.kind == "word" and name == "node"
        if (token.kind == "string" or unnamed) and self.accept("#"):
            return NodeLocation("" if unnamed else name, self.integer("the node's index"))
        if token.kind == "word":
            return UNKNOWN if name == "unknown" else self.fail("expected a location", token)
        self.expect(":")
        return FileLocation(name, self.integer("a line number"))

    # ---- the sections at the end ---------------------------------------------------------------------------------

    def sections(self) -> int:
        """Read the sections `metadata` and `weights` before everything else; return the position where they begin."""
        depth = 0
        for position, token in enumerate(self.tokens):
            if token.text in _DEPTH:
                depth += _DEPTH[token.text]
            elif depth == 0 and token.text in _SECTIONS and self.tokens[position + 1].text == "{":
                self.position = position
                while self.token.text in _SECTIONS:
                    entry = self.note if self.next().text == "metadata" else self.weight_entry
                    self.expect("{")
                    while not self.accept("}"):
                        entry()
                if self.token.kind != END:
                    self.fail(f"expected a section or the end, found {self.token}")
                self.position = 0
                return position
        return len(self.tokens) - 1

    def note(self) -> None:
        token = self.expect_kind("note", "an entry such as #m0")
        if token.text in self.notes:
            self.fail(f"{token.text} is listed already", token)
        self.expect("=")
        self.notes[token.text] = self.metadata()

    def weight_entry(self) -> None:
        token = self.expect_kind("weight", "a weight such as #w0")
        if token.text in self.weights:
            self.fail(f"{token.text} is listed already", token)
        self.expect(":")
        if self.token.text == "sparse":
            self.weights[token.text] = self.sparse(token)
            return
        type = self.tensor_type()
        shape = type.static_shape
        if shape is None:
            self.fail("the dims of a weight are numbers", token)
        if self.accept("="):
            self.weights[token.text] = self.tensor_of(self.written_tensor(), type)
        else:
            self.weights[token.text] = self.stored(type.dtype, shape)

    def sparse(self, token: Token) -> SparseData:
        type = self.type()
        shape = types.tensor(type.dtype, type.shape).static_shape if isinstance(type, types.SparseTensorType) else None
        if shape is None:
            self.fail("the dims of a weight are numbers", token)
        self.expect("values")
        self.expect("=")
        values = self.tensor()
        self.expect("indices")
        self.expect("=")
        return SparseData(values, self.tensor(), shape)

    def stored(self, dtype: dtypes.DType, shape: tuple[int, ...]) -> TensorData:
        """A constant known by its hash, and perhaps by its place in a file."""
        self.expect("sha256")
        self.expect("=")
        token = self.token
        sha256 = self.string()
        if not HASH.fullmatch(sha256):
            self.fail("a SHA-256 hash has 64 digits 0-9a-f", token)
        file, offset = "", 0
        if self.accept("file"):
            self.expect("=")
            file = self.string()
            self.expect("offset")
            self.expect("=")
            offset = self.integer()
        entry = WeightEntry(dtype, shape, sha256, file, offset)
        return self.lookup.find(entry) or UnresolvedData(dtype, shape, sha256)


def _value_key(text: str) -> _ValueKey:
    """`%x`, `%x'2`, `%"a b"`, `%0` as name and ordinal. Raises ValueError for a bad string."""
    if text.startswith('%"'):
        end = text.rindex('"') + 1
        return unquote(text[1:end]), int(text[end + 1 :] or 0)
    name, _, ordinal = text[1:].partition("'")
    if not name[0].isdecimal():
        return name, int(ordinal or 0)
    if ordinal:
        raise ValueError(f"{text}: only a name can be followed by an ordinal")
    return None, int(name)


def _similar_operators(name: str) -> list[str]:
    from .onnx_schema import standard_names

    close = difflib.get_close_matches(name, standard_names(), 3)
    return [f"did you mean {', '.join(close)}?"] if close else []
