"""Reading dimensions from text: `n*m + 2*n - 1`, `floordiv(h + 1, 2)`, `"batch size"'2[1..64]`.

sum     := term (('+' | '-') term)*
term    := factor (('*' | '//' | '%') factor)*
factor  := '-'* (integer | symbol | call | '(' sum ')')
call    := ('floordiv' | 'mod' | 'min' | 'max' | 'ceildiv') '(' sum (',' sum)* ')'
symbol  := (label | JSON string) ("'" ordinal)? ('[' (integer | '-inf') '..' integer? ']')?
"""

from __future__ import annotations

import json
import re

from .dim_calls import call, ceildiv, extremum
from .dim_polynomial import CALLS, PLAIN_LABEL, Dim, symbol


class DimSyntaxError(ValueError):
    """The text is not a dimension.  `position` is the offset in `text` where reading stopped."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message} at offset {position} of dimension text {text!r}")
        self.text, self.position = text, position


def parse_dim(text: str) -> Dim:
    """The dimension written in `text`.  Raises DimSyntaxError."""
    dim, end = parse_dim_prefix(text, 0)
    if end != len(text):
        raise DimSyntaxError(f"unexpected {text[end]!r}", text, end)
    return dim


def parse_dim_prefix(text: str, position: int) -> tuple[Dim, int]:
    """Read one dimension from `position` as far as it goes: (dimension, offset of the next non-space)."""
    parser = _Parser(text, position)
    try:
        dim = parser.sum(0)
    except ZeroDivisionError as error:
        raise DimSyntaxError(str(error), text, parser.position) from error
    return dim, parser.position


class _Parser:
    """Recursive descent over `+ -`, `* // %`, unary `-`, parentheses, calls, symbols and integers."""

    _SPACE = re.compile(r"\s*")
    _INTEGER = re.compile(r"[0-9]+")
    _QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
    _ORDINAL = re.compile(r"'([0-9]+)")
    _RANGE = re.compile(r"\[(-inf|-?[0-9]+)\.\.(-?[0-9]+)?\]")
    _MAX_DEPTH = 100

    def __init__(self, text: str, position: int) -> None:
        self.text, self.position = text, position
        self.take(self._SPACE)

    def error(self, message: str) -> DimSyntaxError:
        return DimSyntaxError(message, self.text, self.position)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def accept(self, *tokens: str) -> str | None:
        for token in tokens:
            if self.text.startswith(token, self.position):
                self.position += len(token)
                self.take(self._SPACE)
                return token
        return None

    def sum(self, depth: int) -> Dim:
        if depth > self._MAX_DEPTH:
            raise self.error("nested too deeply")
        result = self.term(depth)
        while sign := self.accept("+", "-"):
            right = self.term(depth)
            result = result + right if sign == "+" else result - right
        return result

    def term(self, depth: int) -> Dim:
        result = self.factor(depth)
        while sign := self.accept("*", "//", "%"):
            right = self.factor(depth)
            result = result * right if sign == "*" else result // right if sign == "//" else result % right
        return result

    def factor(self, depth: int) -> Dim:
        negative = False
        while self.accept("-"):
            negative = not negative
        result = self.primary(depth)
        return -result if negative else result

    def primary(self, depth: int) -> Dim:
        if self.accept("("):
            result = self.sum(depth + 1)
            self.expect(")")
            return result
        integer = self.integer()
        result = self.name(depth) if integer is None else integer
        self.take(self._SPACE)
        return result

    def integer(self) -> Dim | None:
        match = self.take(self._INTEGER)
        return None if match is None else int(match[0])

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}")

    def name(self, depth: int) -> Dim:
        start = self.position
        plain = self.take(PLAIN_LABEL)
        if plain is not None:
            self.take(self._SPACE)
            if plain[0] in CALLS and self.accept("("):
                return self.call(plain[0], depth)
            self.position = plain.end()
            return self.symbol(plain[0])
        quoted = self.take(self._QUOTED)
        if quoted is None:
            raise self.error("expected a dimension")
        try:
            label = json.loads(quoted[0])
        except ValueError as error:
            raise DimSyntaxError(f"bad quoted label ({error})", self.text, start) from error
        return self.symbol(label)

    def symbol(self, label: str) -> Dim:
        ordinal = self.take(self._ORDINAL)
        limits = self.take(self._RANGE)
        minimum: int | None = 0
        maximum: int | None = None
        if limits is not None:
            minimum = None if limits[1] == "-inf" else int(limits[1])
            maximum = None if limits[2] is None else int(limits[2])
        if minimum is not None and maximum is not None and minimum > maximum:
            raise self.error(f"empty range of dimension {label!r}")
        return symbol(label, int(ordinal[1]) if ordinal is not None else 0, minimum, maximum)

    def call(self, kind: str, depth: int) -> Dim:
        args = [self.sum(depth + 1)]
        while self.accept(","):
            args.append(self.sum(depth + 1))
        self.expect(")")
        if kind in ("min", "max"):
            return extremum(kind, tuple(args))
        if len(args) != 2:
            raise self.error(f"{kind} takes 2 arguments, not {len(args)},")
        return ceildiv(*args) if kind == "ceildiv" else call(kind, tuple(args))
