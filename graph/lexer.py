"""Tokens of IR text, found by one compiled expression. `docs/ir.md` has the grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from .diagnostics import ParseError
from .literals import unquote
from .location import FileLocation

_Item = TypeVar("_Item")

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_WORD = r"[^\W\d](?:\w|[.-](?=\w))*"
# Names of ONNX tensors that need no quotes: `/enc/0/Add_output_0`, `onnx::MatMul_12`, `input:0`, `h.0.attn`. Two
# slashes would begin a comment, a name of digits only is how an unnamed value prints.
_NAME = r"(?:[^\W\d]|[.$]|/(?!/))(?:[\w.$-]|::|:(?=\d)|/(?!/))*"

PLAIN_NAME = re.compile(_NAME)
PLAIN_WORD = re.compile(_WORD)
HASH = re.compile(r"[0-9a-f]{64}")

_TOKENS = re.compile(
    rf"""
      (?P<space>  \s+ | //[^\n]* )
    | (?P<value>  %(?: {_NAME} | \d+ | {_STRING} )(?:'\d+)? )
    | (?P<weight> \#w\d+ )
    | (?P<note>   \#m\d+ )
    | (?P<tensor> [a-z]\w*\[(?: [^][\"\n] | \[[^]\n]*\] | {_STRING} )*\] )
    | (?P<bytes>  b{_STRING} )
    | (?P<word>   {_WORD} )
    | (?P<string> {_STRING} )
    | (?P<float>  -?(?: \d+\.\d* | \.\d+ | \d+(?=[eE]|f64) )(?:[eE][+-]?\d+)?(?:f64)? | -inf\b )
    | (?P<hex>    0x[0-9a-f]+ )
    | (?P<int>    -?\d+ )
    | (?P<mark>   -> | :: | [][{{}}()<>,=:@\#$] )
    | (?P<bad>    . )
    """,
    re.VERBOSE | re.DOTALL,
)

END = "end"


class Token(NamedTuple):
    """`kind` is a group of the expression above, or `END` with an empty text after the last token."""

    kind: str
    text: str
    start: int

    def __str__(self) -> str:
        return f"`{self.text}`" if self.text else "the end of the text"


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`, spaces and comments (`// ...`) left out, an `END` token last. Never fails: what is no token
    becomes one of kind "bad", which fits nowhere in the grammar."""
    tokens = [
        Token(match.lastgroup or "", match.group(), match.start())
        for match in _TOKENS.finditer(text)
        if match.lastgroup != "space"
    ]
    tokens.append(Token(END, "", len(text)))
    return tokens


def syntax_error(text: str, source: str, offset: int, message: str, *notes: str) -> NoReturn:
    """Raise ParseError for the character at `offset`: its line and column, the line itself and a caret below."""
    line_start = text.rfind("\n", 0, offset) + 1
    line_end = text.find("\n", offset)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    number, column = text.count("\n", 0, offset) + 1, offset - line_start
    # A window of the line, so that a caret in a line of weights can be seen.
    first = max(0, column - 80)
    shown = line[first : column + 80]
    excerpt = f"{shown}\n{''.join(c if c == chr(9) else ' ' for c in shown[: column - first])}^"
    place = f"line {number}, column {column + 1}: {message}"
    raise ParseError("parse/syntax", place, FileLocation(source, number), notes=notes, excerpt=excerpt)


class TokenReader:
    """A place in the tokens of a text, and the steps that every rule of the grammar is made of.

    `accept` steps over a token if it is there, `expect` insists on it, `fail` raises ParseError.
    """

    # Deeper text is refused before Python's own recursion limit is met. Protobuf allows nesting of 100 at most.
    MAX_DEPTH = 100

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.tokens = tokenize(text)
        self.position = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    @property
    def ahead(self) -> Token:
        """The token after the next one."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def next(self) -> Token:
        token = self.tokens[self.position]
        if token.kind != END:
            self.position += 1
        return token

    def accept(self, text: str) -> bool:
        if self.tokens[self.position].text != text:
            return False
        self.next()
        return True

    def expect(self, text: str) -> Token:
        if self.token.text != text or self.token.kind == END:
            self.fail(f"expected `{text}`, found {self.token}")
        return self.next()

    def expect_kind(self, kind: str, what: str) -> Token:
        if self.token.kind != kind:
            self.fail(f"expected {what}, found {self.token}")
        return self.next()

    def fail(self, message: str, token: Token | None = None, *notes: str) -> NoReturn:
        syntax_error(self.text, self.source, (token or self.token).start, message, *notes)

    def checked(self, token: Token, read: Callable[[], _Item]) -> _Item:
        """The result of `read`; a ValueError becomes a ParseError at `token`."""
        try:
            return read()
        except ValueError as error:
            self.fail(str(error), token)

    def items(self, closing: str, read: Callable[[], _Item]) -> list[_Item]:
        """Items separated by commas, up to and including `closing`."""
        found: list[_Item] = []
        while not self.accept(closing):
            if found and not self.accept(","):
                self.fail(f"expected `,` or `{closing}`, found {self.token}")
            found.append(read())
        return found

    def nested(self, read: Callable[[], _Item]) -> _Item:
        self.depth += 1
        if self.depth > self.MAX_DEPTH:
            self.fail(f"nested more than {self.MAX_DEPTH} levels deep")
        item = read()
        self.depth -= 1
        return item

    def word(self, what: str) -> str:
        return self.string() if self.token.kind == "string" else self.expect_kind("word", what).text

    def string(self) -> str:
        token = self.expect_kind("string", "a string")
        return self.checked(token, lambda: unquote(token.text))

    def integer(self, what: str = "an integer") -> int:
        token = self.expect_kind("int", what)
        return self.checked(token, lambda: int(token.text))
