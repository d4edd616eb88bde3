"""Reading the leaves of IR text: attribute values, metadata, types, and tensors as literals or references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import dtypes, types
from .clone import copy_metadata
from .core import AttributeReference, AttributeValue, Metadata
from .data import TensorData, UnresolvedData
from .dims import Dim, DimSyntaxError, parse_dim_prefix
from .lexer import Token, TokenReader
from .literals import bytes_of, float_of, nest, tensor_of, unquote
from .types import TensorType, Type

# The value of a constant, once the type of its result is known.
Constant = Callable[[Type | None], AttributeValue]

_WORDS = {"none": None, "true": True, "false": False, "nan": float("nan"), "inf": float("inf")}
_ELEMENT_WORDS = frozenset({"true", "false", "nan", "inf"})
_ELEMENT_KINDS = frozenset({"int", "float", "hex", "string", "bytes"})
_TYPE_WORDS = frozenset({"sequence", "optional", "map", "sparse", "opaque", "scalar", "vector", "buffer"})
_BRACKETS = {"[": 1, "(": 1, "]": -1, ")": -1}
_ATOMS: dict[str, Callable[[str], Any]] = {"int": int, "float": float_of, "string": unquote, "bytes": bytes_of}


class WrittenTensor(NamedTuple):
    """A reference such as `#w0`, or a literal: its elements, and its brackets and commas with `x` for each element."""

    token: Token
    texts: list[str]
    marks: str


class ValueParser(TokenReader):
    """`weights` and `notes` hold the sections at the end of the text, `types` every tensor type met, by its text."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text, source)
        self.weights: dict[str, TensorData] = {}
        self.notes: dict[str, Metadata] = {}
        self.unlisted_count = 0
        self.types: dict[str, TensorType] = {}

    # ---- attribute values and metadata ---------------------------------------------------------------------------

    def entries(self, closing: str, what: str, equals: str, value: Callable[[], Any] | None = None) -> dict[str, Any]:
        """`name=value, ...` up to and including `closing`; no name twice."""
        found: dict[str, Any] = {}

        def entry() -> None:
            token = self.token
            name = self.word(what)
            if name in found:
                self.fail(f"{name} is given twice", token)
            self.expect(equals)
            found[name] = (value or self.value)()

        self.items(closing, entry)
        return found

    def metadata(self) -> Metadata:
        """`<name=value, ...>`, or `<#m0>` for an entry of the metadata section; nothing is no metadata."""
        if not self.accept("<"):
            return {}
        token = self.token
        if token.kind != "note":
            return self.entries(">", "a name", "=")
        self.next()
        self.expect(">")
        if token.text not in self.notes:
            self.fail(f"{token.text} is not listed in the metadata section", token)
        return copy_metadata(self.notes[token.text])

    def value(self) -> Any:
        """A value of an attribute or of metadata; a literal followed by `: type` is a tensor."""
        return self.tensor() if self.at_tensor() else self.nested(self.plain_value)

    def at_tensor(self) -> bool:
        """Whether a literal is followed by the type of a tensor."""
        position, depth = self.position, 0
        while True:
            token = self.tokens[position]
            if token.text in _BRACKETS:
                depth += _BRACKETS[token.text]
            elif token.kind not in _ELEMENT_KINDS and token.text not in _ELEMENT_WORDS and token.text != ",":
                return False
            position += 1
            if depth <= 0:
                return self.tokens[position].text == ":" and self.tokens[position + 1].kind == "tensor"

    def plain_value(self) -> Any:
        token = self.token
        if token.kind == "weight":
            return self.tensor()
        if token.text in _WORDS:
            return _WORDS[self.next().text]
        if token.kind in ("word", "tensor"):
            return self.type()
        if token.kind in _ATOMS:
            self.next()
            return self.checked(token, lambda: _ATOMS[token.kind](token.text))
        if self.accept("["):
            return tuple(self.items("]", self.value))
        if self.accept("{"):
            return self.entries("}", "a key", ":")
        if token.text == "$":
            return self.reference()
        self.fail(f"expected a value, found {token}")

    def reference(self) -> AttributeReference:
        self.expect("$")
        name = self.word("an attribute's name")
        self.expect(":")
        return AttributeReference(name, self.expect_kind("word", "an attribute's kind").text)

    # ---- types ---------------------------------------------------------------------------------------------------

    def type(self) -> Type:
        return self.nested(self.plain_type)

    def plain_type(self) -> Type:
        token = self.token
        if token.kind == "tensor":
            return self.tensor_type()
        self.next()
        if token.text == "unknown":
            return types.UNKNOWN
        if token.text not in _TYPE_WORDS:
            self.fail(f"expected a type, found {token}", token)
        self.expect("<")
        built = self.type_arguments(token.text)
        self.expect(">")
        return built

    def type_arguments(self, kind: str) -> Type:
        if kind == "sequence":
            return types.sequence(self.type())
        if kind == "optional":
            return types.optional(self.type())
        if kind == "sparse":
            dense = self.tensor_type()
            return types.sparse(dense.dtype, dense.shape)
        if kind == "map":
            key = self.element_type()
            self.expect(",")
            return types.map_of(key, self.type())
        if kind == "scalar":
            return types.scalar(self.element_type())
        if kind == "vector":
            token = self.token
            lanes = self.integer("a number of lanes")
            self.expect("x")
            dtype = self.element_type()
            return self.checked(token, lambda: types.vector(dtype, lanes))
        if kind == "buffer":
            dtype = self.element_type()
            return types.buffer(dtype, self.word("a memory space") if self.accept(",") else "")
        domain = self.string()
        self.expect(",")
        return types.opaque(domain, self.string())

    def element_type(self) -> dtypes.DType:
        token = self.token
        return self.dtype(self.expect_kind("word", "an element type").text, token)

    def dtype(self, name: str, token: Token) -> dtypes.DType:
        found = dtypes.BY_NAME.get(name)
        if found is None:
            self.fail(f"there is no element type {name}", token, f"they are {', '.join(dtypes.BY_NAME)}")
        return found

    def tensor_type(self) -> TensorType:
        token = self.expect_kind("tensor", "a tensor type such as f32[n, 3]")
        found = self.types.get(token.text)
        if found is not None:
            return found
        text = token.text
        position = text.index("[") + 1
        dtype = self.dtype(text[: position - 1], token)
        shape: list[Dim] | None = []
        inner = text[position:-1].strip()
        if inner == "*":
            shape = None
        elif inner:
            shape = self.dims(token, position)
        self.types[text] = found = types.tensor(dtype, shape)
        return found

    def dims(self, token: Token, position: int) -> list[Dim]:
        """The dims of a tensor type, from `position` of its text on."""
        shape: list[Dim] = []
        while not shape or token.text[position] == ",":
            try:
                dim, position = parse_dim_prefix(token.text, position + bool(shape))
            except DimSyntaxError as error:
                place = Token("", "", token.start + error.position)
                self.fail(str(error).split(" at offset ")[0], place)
            except (ValueError, ArithmeticError) as error:  # a number or an expression that is far too long
                self.fail(str(error), token)
            if isinstance(dim, int) and dim < 0:
                self.fail(f"a dimension is never negative, got {dim}", token)
            if isinstance(dim, int) and dim >= 1 << 63:
                self.fail(f"a dimension is less than 2**63, got {dim}", token)
            shape.append(dim)
        if position != len(token.text) - 1:
            self.fail("expected `,` or `]`", Token("", "", token.start + position))
        return shape

    # ---- tensors -------------------------------------------------------------------------------------------------

    def constant_operand(self) -> Constant:
        """What stands in the operand's place of `const`. Its type is the result's unless another one follows."""
        if self.token.text == "$":
            reference = self.reference()
            return lambda _: reference
        written = self.written_tensor()
        if self.token.text == ":" and self.tokens[min(self.position + 2, len(self.tokens) - 1)].text in (":", "{"):
            self.next()
            data = self.tensor_of(written, self.tensor_type())
            return lambda _: data
        return lambda type: self.tensor_of(written, type if isinstance(type, TensorType) else None)

    def tensor(self) -> TensorData:
        """`#w3`, `#w3 : f32[n]` if the weights section does not list it, or `[1, 2] : i64[2]`."""
        written = self.written_tensor()
        return self.tensor_of(written, self.tensor_type() if self.accept(":") else None)

    def written_tensor(self) -> WrittenTensor:
        """A reference, or a literal with any nesting of brackets."""
        first = self.token
        if first.kind == "weight":
            self.next()
            return WrittenTensor(first, [], "")
        texts: list[str] = []
        marks: list[str] = []
        depth = 0
        while not marks or depth > 0:
            if self.token.text in ("[", "]"):
                depth += 1 if self.token.text == "[" else -1
                marks.append(self.next().text)
            elif self.token.text == ",":
                marks.append(f"{self.next().text} ")
            else:
                texts.append(self.element())
                marks.append("x")
        return WrittenTensor(first, texts, "".join(marks))

    def element(self) -> str:
        token = self.next()
        if token.text == "(":
            parts = [self.next().text, self.expect(",").text, self.next().text, self.expect(")").text]
            return f"({parts[0]}, {parts[2]})"
        if token.kind not in _ELEMENT_KINDS and token.text not in _ELEMENT_WORDS:
            self.fail(f"expected an element of a tensor, found {token}", token)
        return token.text

    def tensor_of(self, written: WrittenTensor, type: TensorType | None) -> TensorData:
        """The constant that was written, once its type is known (None for one that the text does not give)."""
        token, texts, marks = written
        shape = type.static_shape if type is not None else None
        if token.text in self.weights:
            return self.weights[token.text]
        if type is None or shape is None:
            if token.kind == "weight":
                self.fail(f"{token.text} is not listed in the weights section", token)
            self.fail("a tensor literal needs a type with known dims, as in `[1, 2] : i64[2]`", token)
        if token.kind == "weight":
            # Numbered, so that two constants of unknown content are not taken to be equal.
            self.unlisted_count += 1
            unlisted = UnresolvedData(type.dtype, shape, f"unlisted {self.unlisted_count}")
            return self.weights.setdefault(token.text, unlisted)
        if len(texts) != types.tensor(type.dtype, shape).elements or marks != nest(["x"] * len(texts), shape):
            self.fail(f"the literal is not of shape {list(shape)}", token)
        return self.checked(token, lambda: tensor_of(texts, type.dtype, shape))
